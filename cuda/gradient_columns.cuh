// Columns of pmf's backward pass: the gradients of src and value from the pairs that the rows left
// (gradient_rows.cuh), two weighted sums of rows, with GATv2's scores of slopes, one after the other, so that the rows
// of one matrix alone compete for the caches. Pairs lie in the order of the rows: the first sum, which fetches them,
// leaves the second its weights in the order of the columns.
#pragma once

#include "gradient_sides.cuh"

namespace dfgnn::cuda {

// What the rows are of that a kernel sums up: grad_out's give the gradient of value, and dst's that of src. Additive
// scores have a number in the place of the latter, which comes with the former.
enum class Summed { grad_out, dst };

// Or what leaky_relu' makes of dst's rows and the column's own.
template <Summed summed, Score score>
constexpr bool kOfSlopes = score == Score::additive_v2 && summed == Summed::dst;

// A number of the next batch that compilers may wait for where they like.
class NextIndex {
 public:
  NextIndex() = default;
  __device__ __forceinline__ NextIndex(const Index& index, int64_t i) : value_(index[i]) {}
  __device__ __forceinline__ int64_t value() const { return value_; }
  __device__ __forceinline__ int check(int64_t num_nodes) const { return checked_node(value_, num_nodes); }

 private:
  int64_t value_ = 0;
};

// Of column j, or of a piece of it.
template <Summed summed, Score score, class S, class Sum>
__device__ __forceinline__ void column_from_pairs(const Typed<typename S::T>& a, const Gradients& g,
                                                  typename S::A* slots, const EdgeStore<typename S::A>& store,
                                                  unsigned* inexact, int j, const Range& entries, int64_t slot, int h) {
  using A = typename S::A;
  constexpr bool kAdditive = score == Score::additive, kOfValue = summed == Summed::grad_out;
  // What is not waited for of the next batch: on tensor cores its numbers, on vectors what is made of these, if
  // registers hold them until then.
  constexpr bool kByVectors = kOfSlopes<summed, score> || std::is_same_v<Sum, VectorSum<S>>;
  constexpr bool kAhead = !kAdditive || !kByVectors;
  using Next = std::conditional_t<kByVectors, NextIndex, LoadedIndex>;
  auto& batch = warp_storage<typename Sum::Batch>();
  const int lane = threadIdx.x;
  const typename Sum::Reader row(a, kOfValue ? g.grad_out : a.dst, h, Sum::lane());
  Sum sum = [&] {
    if constexpr (kOfSlopes<summed, score>) {
      RowSlopes<typename Sum::W> slopes{Slopes(a.slope_below_zero)};
      slopes.own.load(a.features(a.src, j, h), Sum::lane(), a.head_dim);
      return Sum(batch, slopes);
    } else {
      return Sum(batch);
    }
  }();
  A grad_scalar = A(0), number = A(0);
  Next next_node, next_position;
  int node = 0;
  int64_t position = 0;
  const auto read = [&] {
    node = next_node.check(a.num_dst);
    if (kOfValue) position = clamp_to(next_position.value(), a.num_edges - 1);
  };
  const auto load = [&](int64_t entry) {  // past the end, the last again
    entry = min(entry, entries.end - 1);
    next_node = {a.row, entry};
    if constexpr (kOfValue) {
      next_position = {a.perm, entry};
    } else {
      number = store.numbers[a.kept(entry, h)];
    }
    if (!kAhead) read();
  };
  if (entries.size() > 0) load(entries.begin + lane);
  for (int64_t first = entries.begin; first < entries.end; first += kWarp) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kWarp), entries.end - first));
    if (kAhead) read();
    Pair<A> pair{A(0), A(0)};
    if (kOfValue && lane < count && node != kNoNode) pair = store.pairs[a.kept(position, h)];
    __syncwarp();
    batch.node[lane] = max(node, 0);
    __syncwarp();
    sum.load(batch, count, row);
    const A weight = kOfValue ? pair.of_value : lane < count ? number : A(0);
    load(first + kWarp + lane);  // before the pair is waited for
    if constexpr (kAdditive) {
      grad_scalar += pair.of_src;
    } else if constexpr (kOfValue) {
      if (lane < count) store.numbers[a.kept(first + lane, h)] = pair.of_src;
    }
    batch.put(lane, sum.fit(weight));
    __syncwarp();
    sum.add(batch, count, row);
  }
  if (!sum.is_exact()) *inexact = 1;
  if constexpr (kAdditive) grad_scalar = lanes_sum<kWarp>(grad_scalar);
  if (slot == kWhole) {
    sum.store(a.features(kOfValue ? g.value : g.src, j, h), a.head_dim, A(1));
    if (kAdditive && lane == 0) static_cast<A*>(g.src)[a.scalar(j, h)] = grad_scalar;
  } else {
    const int width = slot_width<Side::columns, score>(a.head_dim);
    A* piece = slots + (slot * a.heads + h) * width;
    sum.store_piece(kOfValue ? piece + width - a.head_dim : piece, a.head_dim, A(1));
    if (kAdditive && lane == 0) *piece = grad_scalar;
  }
}

template <Summed summed, Score score, class S, class Sum>
__global__ void __launch_bounds__(block_threads(warps_here<S>(24), kUnitsTogether<S>),
                                  blocks_at_once(warps_here<S>(24), kUnitsTogether<S>))
    columns_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g, RowUnits units,
                   typename S::A* slots, const EdgeStore<typename S::A> store) {
  for_units(a.colptr, a.num_src, a.num_edges, units, [&](int j, const Range& entries, int64_t slot) {
    column_from_pairs<summed, score, S, Sum>(a, g, slots, store, units.inexact, j, entries, slot, blockIdx.y);
  });
}

template <Score score, class S>
cudaError_t launch_columns(const Attention& a, const Gradients& g, void* workspace,
                           const EdgeStore<typename S::A>& store, cudaStream_t stream) {
  using T = typename S::T;
  return launch_side<Side::columns, score, S>(a, g, workspace, stream, [&](const RowUnits& units, const auto& scratch) {
    const auto launch = [&](dim3 grid, const RowUnits& with, auto* chosen) {
      chosen<<<grid, with.block(), with.warps * sum_storage<S>(), stream>>>(Typed<T>{a}, g, with, scratch.slots, store);
    };
    const auto launch_sum = [&]<Summed summed>() {
      using Vectors = std::conditional_t<kOfSlopes<summed, score>, SlopeSum<S>, VectorSum<S>>;
      auto *by_vectors = columns_kernel<summed, score, S, Vectors>, *kernel = by_vectors;
      decltype(kernel) exact = nullptr;
      if constexpr (kTensorRows<S> && !kOfSlopes<summed, score>) {
        if (has_tensor_sums<S>(a)) {
          kernel = columns_kernel<summed, score, S, TensorSum<S>>;
          exact = by_vectors;
        }
      }
      return launch_units(units, a, a.num_src, a.heads, scratch.counters, stream, kernel, exact, launch);
    };
    const cudaError_t error = launch_sum.template operator()<Summed::grad_out>();
    if constexpr (score == Score::additive) {
      return error;
    } else {
      return error == cudaSuccess ? launch_sum.template operator()<Summed::dst>() : error;
    }
  });
}

}  // namespace dfgnn::cuda
