// Columns of additive_bwd: the gradients of value and src from two sums over the rows of grad_out,
//   sum_i k p grad_out_i   and   <value_j, sum_i slope k p grad_out_i> - sum_i slope p delta_i.
#pragma once

#include "additive_numbers.cuh"
#include "entry_positions.cuh"
#include "gradient_sides.cuh"

namespace dfgnn::cuda {

// Of column j and a head, or of a piece of it. Sum: two sums.
template <class S, class Sum>
__device__ __forceinline__ void additive_column(const Typed<typename S::T>& a, const Gradients& g,
                                                const RowNumbers<typename S::A>* numbers, typename S::A* slots,
                                                unsigned* inexact, int j, const Range& entries, int64_t slot, int h) {
  using A = typename S::A;
  using Batch = ColumnBatch<typename Sum::Batch>;
  static_assert(sizeof(Batch) == sizeof(typename Sum::Batch) + sizeof(EntryPositions));
  auto& batch = warp_storage<Batch>();
  const int lane = threadIdx.x, size = static_cast<int>(entries.size());  // what is longer comes in pieces
  const Dropout dropout(a);
  const ColumnScores scores(a);
  const bool needs_positions = dropout.active() || a.bias || a.a_edge;
  const A own_term = src_term<Score::additive>(a, j, h);
  const Index nodes = a.row.from(entries.begin), positions = a.perm.from(entries.begin);
  const typename Sum::Reader row_of(a, g.grad_out, h, Sum::lane());
  const auto place = [&](int first) { return min(first + lane, size - 1); };  // past the end, the last again
  Sum sums(batch);
  A grad_scalar = A(0);
  int node = 0;
  LoadedNode next;
  RowNumbers<A> row{};
  const auto load = [&](int first) {
    node = next.check(a.num_dst);
    row = numbers[a.scalar(max(node, 0), h)];
    next = {nodes, place(first + kWarp)};
  };
  if (needs_positions) batch.positions.clear();
  if (size > 0) {
    next = {nodes, place(0)};
    load(0);
    if (needs_positions) batch.positions.copy(positions, place(0));
  }
  for (int first = 0; first < size; first += kWarp) {
    const int count = min(kWarp, size - first);
    const bool is_entry = lane < count && node != kNoNode;
    __syncwarp();
    batch.node[lane] = max(node, 0);
    __syncwarp();
    sums.load(batch, count, row_of);
    int64_t position = 0;
    if (needs_positions) {
      batch.positions.wait();
      position = clamp_to(batch.positions[lane], a.num_edges - 1);
      if (first + kWarp < size) batch.positions.copy(positions, place(first + kWarp));
    }
    const auto s = needs_positions ? logit_of<Score::additive>(a, A(0), row.dst, own_term, position, h)
                                   : logit_of<Score::additive, false>(a, A(0), row.dst, own_term, 0, h);
    const auto terms = scores(s, row, dropout.factor(position, h));
    if (is_entry) grad_scalar -= terms.taken;
    const A weight = sums.fit(is_entry ? terms.weight : A(0));
    batch.put(lane, weight);
    batch.put(lane, weight * terms.part, 1);
    load(first + kWarp);
    __syncwarp();
    sums.add(batch, count, row_of);
  }
  if (!sums.is_exact()) *inexact = 1;
  const A dot = size > 0 ? sums.dot(a.features(a.value, j, h), a.head_dim, 1) : A(0);
  grad_scalar = lanes_sum<kWarp>(scores.unit() * dot + grad_scalar);
  store_gradients<Side::columns, Score::additive>(a, g, j, h, SumOf<Sum, 0>{sums}, SumOf<Sum, 0>{sums}, grad_scalar,
                                                  lane == 0, A(1), slot, slots);
}

// By times with 128 features.
template <class S, class Sum>
constexpr int additive_columns_warps() {
  return warps_here<S>(std::is_same_v<Sum, VectorSum<S, 2>> ? 24 : 28);
}

template <class S, class Sum>
__global__ void __launch_bounds__(block_threads(additive_columns_warps<S, Sum>(), true),
                                  blocks_at_once(additive_columns_warps<S, Sum>(), true))
    additive_columns_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                            const RowNumbers<typename S::A>* numbers, RowUnits units, typename S::A* slots) {
  for_units(a.colptr, a.num_src, a.num_edges, units, [&](int j, const Range& entries, int64_t slot) {
    additive_column<S, Sum>(a, g, numbers, slots, units.inexact, j, entries, slot, blockIdx.y);
  });
}

template <class S>
cudaError_t launch_additive_columns(const Attention& a, const Gradients& g, const RowNumbers<typename S::A>* numbers,
                                    const RowUnits& units, const UnitScratch<typename S::A>& scratch,
                                    cudaStream_t stream) {
  auto *by_vectors = additive_columns_kernel<S, VectorSum<S, 2>>, *kernel = by_vectors;
  decltype(kernel) exact = nullptr;
  if constexpr (kTensorRows<S>) {
    if (has_tensor_sums<S>(a)) {
      kernel = additive_columns_kernel<S, TensorSum<S, 2>>;
      exact = by_vectors;
    }
  }
  constexpr size_t storage = sum_storage<S, 2>() + sizeof(EntryPositions);
  const auto launch = [&](dim3 grid, const RowUnits& with, auto* chosen) {
    chosen<<<grid, with.block(), with.warps * storage, stream>>>(Typed<typename S::T>{a}, g, numbers, with,
                                                                 scratch.slots);
  };
  return launch_units(units, a, a.num_src, a.heads, scratch.counters, stream, kernel, exact, launch);
}

}  // namespace dfgnn::cuda
