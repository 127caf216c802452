// Rows of pmf's backward pass, which leave a pair of numbers of each edge to the columns (gradient_columns.cuh): the
// gradients of dst and of the logits' edge terms.
//
// With dot products the gradients of the probabilities, dP, which take rows of value, are made by a pass of their own
// (row_dots.cuh), a number of each edge, so that the rows of one matrix alone compete for the caches. What does not go
// by rows there goes by gradient_sides.cuh, like smmf's.
#pragma once

#include "gradient_sides.cuh"
#include "node_batches.cuh"
#include "row_dots.cuh"

namespace dfgnn::cuda {

// What becomes of it there: a number for the rows.
template <class T>
struct StoreDp {
  typename Typed<T>::A* numbers;

  __device__ __forceinline__ void operator()(const Typed<T>& a, typename Typed<T>::A dp, int, int, int64_t e,
                                             int h) const {
    numbers[a.kept(e, h)] = dp;
  }

  __device__ __forceinline__ void begin(const Typed<T>&) const {}
};

// By times with 128 features; of very long heads, as many as registers leave room for.
template <Score score, class S>
constexpr int row_gradients_warps() {
  if (S::kLoop) return warps_here<S>(12);
  if (sizeof(typename S::T) == 2) return warps_here<S>(score == Score::additive ? 28 : 20);
  if (score == Score::additive_v2) return warps_here<S>(S::kFeatures >= 128 ? 20 : 24, 12);
  return warps_here<S>(24);
}

// A row by a warp (RowGroups), of whose edges each has one row that is gathered: of src, dP of dot products being
// there, or of value, which is src with cosine and GATv2's scores.
template <Score score, class S, class Groups>
__global__ void __launch_bounds__(block_threads(row_gradients_warps<score, S>(), kUnitsTogether<S>),
                                  blocks_at_once(row_gradients_warps<score, S>(), kUnitsTogether<S>))
    row_gradients_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                         RowUnits units, typename S::A* slots, const EdgeStore<typename S::A> store) {
  using A = typename S::A;
  using W = typename Groups::W;
  using Batches = NodeBatches<score, typename S::T>;
  constexpr bool kAdditive = score == Score::additive, kHasDp = score == Score::dot;
  constexpr bool kNodesAhead = score != Score::cosine && std::is_same_v<Groups, VectorGroups<S>>;  // where they fit
  auto& batch = warp_storage<typename Batches::Storage>();
  const int lane = threadIdx.x, h = blockIdx.y;
  const Dropout dropout(a);
  const Groups groups;
  const RowReader<W> other_row(a, kAdditive ? a.value : a.src, h, groups.lane);
  const PairScore<score, W, true> pair(a, h, groups.lane);
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t slot) {
    Fragment<W> grad;
    grad.zero();
    A grad_scalar = A(0);
    const int size = static_cast<int>(edges.size());  // what is longer comes in pieces
    if (size > 0) {
      typename Groups::Own own, own_grad;
      own.load(a.features(g.out, i, h), groups.lane, a.head_dim);
      own_grad.load(a.features(g.grad_out, i, h), groups.lane, a.head_dim);
      const A lse = a.at(g.lse, a.scalar(i, h)), own_term = dst_term<score>(a, i, h);
      Batches batches(a, batch, edges, h);  // before out and grad_out are waited for
      const bool is_only_edge = size == 1 && slot == kWhole;
      const A delta = delta_of(a, g, i, h, lanes_sum<W::kLanes>(own_grad.dot(own)), is_only_edge);
      if constexpr (!kAdditive) own.load(a.features(a.dst, i, h), groups.lane, a.head_dim);
      Pair<A>* const own_pairs = store.pairs + a.kept(edges.begin, h);
      const A* const own_dp = kHasDp ? store.numbers + a.kept(edges.begin, h) : nullptr;
      for (int first = 0; first < size; first += kWarp) {
        const int count = min(kWarp, size - first);
        A lane_dp = A(0);
        if constexpr (kHasDp) lane_dp = own_dp[min(first + lane, size - 1)];
        batches.load(first);
        auto nodes = groups.nodes_of(batch.nodes);
#pragma unroll 1
        for (int base = 0; base < count; base += Groups::kStep) {
          Packed<W> rows[Groups::kRows];
          if (!kNodesAhead) nodes = groups.nodes_of(batch.nodes + base);
          groups.load(rows, nodes, other_row);
          if (kNodesAhead) nodes = groups.nodes_of(batch.nodes + base + Groups::kStep);
          const int t = base + groups.own();
          A dot = A(0), dp = A(0);
          if constexpr (!kAdditive) dot = groups.dot(own, rows, pair);
          if constexpr (kHasDp) {
            dp = __shfl_sync(kAllLanes, lane_dp, t);
          } else {
            dp = groups.dot(own_grad, rows);
          }
          const int64_t e = edges.begin + min(first + t, size - 1);
          const auto s = logit_of<score>(a, dot, own_term, batch.terms[t], e, h);
          const auto d = edge_gradient(s, dp, lse, delta, dropout.factor(e, h));
          const bool is_edge = t < count;
          if (is_edge && groups.is_first()) {
            if constexpr (kAdditive) grad_scalar += d.operand;
            own_pairs[first + t] = pair_of<score>(d, own_term);
            if (g.bias) static_cast<A*>(g.bias)[a.scalar(e, h)] = d.ds;
            if (kAdditive && g.a_edge) static_cast<A*>(g.a_edge)[a.scalar(e, h)] = d.operand;
          }
          if constexpr (!kAdditive) {
            A operand = is_edge ? d.operand : A(0);  // past the end, of the last row again
            if constexpr (score == Score::cosine) operand *= batch.terms[t];
#pragma unroll
            for (int u = 0; u < Groups::kRows; ++u) {
              const A row_operand = groups.of_row(operand, u);
              if constexpr (score == Score::additive_v2) {
                pair.add_slopes(grad, row_operand, own, rows[u]);
              } else {
                grad.add(row_operand, rows[u]);
              }
            }
          }
        }
      }
    }
    if constexpr (kAdditive) grad_scalar = lanes_sum<kWarp>(grad_scalar);
    const WarpSum<W> total{grad};  // rows have no sum for value
    store_gradients<Side::rows, score>(a, g, i, h, total, total, grad_scalar, lane == 0,
                                       score == Score::dot ? a.logit_scale : A(1), slot, slots);
  });
}

template <Score score, class S>
cudaError_t launch_rows(const Attention& a, const Gradients& g, void* workspace, const EdgeStore<typename S::A>& store,
                        cudaStream_t stream) {
  using T = typename S::T;
  return launch_side<Side::rows, score, S>(a, g, workspace, stream, [&](const RowUnits& units, const auto& scratch) {
    const auto launch_kernel = [&](auto* kernel, unsigned blocks, size_t storage) {
      const auto launch = [&](dim3 grid, const RowUnits& with, auto* chosen) {
        chosen<<<grid, with.block(), with.warps * storage, stream>>>(Typed<T>{a}, g, with, scratch.slots, store);
      };
      return launch_units(units, a, a.num_dst, blocks, scratch.counters, stream, kernel, nullptr, launch);
    };
    if (!goes_by_rows<score, S>(a))
      return launch_kernel(gradients_kernel<Side::rows, score, S>, head_blocks<S>(a.heads), 0);
    if constexpr (score == Score::dot) {
      const cudaError_t error =
          launch_row_dots<S>(a, g.grad_out, a.value, StoreDp<T>{store.numbers}, units, scratch.counters, stream);
      if (error != cudaSuccess) return error;
    }
    return for_row_groups<score, S>(a.head_dim, [&]<class Groups>() {
      constexpr size_t kStorage = sizeof(typename NodeBatches<score, T>::Storage);
      return launch_kernel(row_gradients_kernel<score, S, Groups>, a.heads, kStorage);
    });
  });
}

}  // namespace dfgnn::cuda
