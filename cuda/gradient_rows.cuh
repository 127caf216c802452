// Rows of pmf's backward pass, which leave a pair of numbers of each edge to the columns (gradient_columns.cuh): the
// gradients of dst and of the logits' edge terms.
//
// With dot products the gradients of the probabilities, dP, which take rows of value, are made by a pass of their own
// (row_dots.cuh), so that the rows of one matrix alone compete for the caches. What does not go by rows there goes by
// gradient_sides.cuh, like smmf's.
#pragma once

#include "gradient_sides.cuh"
#include "row_dots.cuh"

namespace dfgnn::cuda {

// Leaves dP in the place of the edge's pair.
template <class T>
struct StoreDp {
  Pair<typename Typed<T>::A>* pairs;

  __device__ __forceinline__ void operator()(const Typed<T>& a, typename Typed<T>::A dp, int, int, int64_t e,
                                             int h) const {
    pairs[a.scalar(e, h)].weight = dp;
  }
};

// Warps a multiprocessor, by times with 128 features: of 16-bit dot products many, with fewer rows in flight each.
template <Score score, class S>
constexpr int row_gradients_warps() {
  if (sizeof(typename S::A) == 8) return 1;
  if (score == Score::additive) return 28;
  return sizeof(typename S::T) == 4 ? 24 : score == Score::dot ? 28 : 16;
}

// A row by a warp (RowGroups), of whose edges each has one row that is gathered: of src, dP of dot products being
// there, or of value, which is src with cosine scores.
template <Score score, class S>
__global__ void __launch_bounds__(RowUnits::kThreads, (row_gradients_warps<score, S>()))
    row_gradients_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                         RowUnits units, typename S::A* slots, Pair<typename S::A>* pairs) {
  using A = typename S::A;
  using W = typename S::Wide;
  using Groups = RowGroups<W, sizeof(typename S::T) == 2 && score == Score::dot ? 4 : 8>;
  constexpr bool kAdditive = score == Score::additive, kHasDp = score == Score::dot;
  __shared__ int nodes[kWarp];
  const int lane = threadIdx.x, h = blockIdx.y;
  const Dropout dropout(a);
  const Groups groups;
  const RowReader<W> other_row(a, kAdditive ? a.value : a.src, h, groups.lane);
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t slot) {
    Fragment<W> own, own_grad, grad;
    own.load(a.features(g.out, i, h), groups.lane, a.head_dim);
    own_grad.load(a.features(g.grad_out, i, h), groups.lane, a.head_dim);
    A delta = lanes_sum<W::kLanes>(own_grad.dot(own)), grad_scalar = A(0);
    if (g.grad_lse) delta -= a.at(g.grad_lse, a.scalar(i, h));
    const A lse = a.at(g.lse, a.scalar(i, h));
    if constexpr (!kAdditive) own.load(a.features(a.dst, i, h), groups.lane, a.head_dim);
    grad.zero();
    const auto load_node = [&](int64_t e) {  // past the end, the last again
      return checked_node(a.col[min(e, edges.end - 1)], a.num_src);
    };
    int next_node = edges.size() > 0 ? load_node(edges.begin + lane) : kNoNode;
    for (int64_t first = edges.begin; first < edges.end; first += kWarp) {
      const int count = static_cast<int>(min(static_cast<int64_t>(kWarp), edges.end - first));
      A lane_dp = A(0);
      if constexpr (kHasDp) lane_dp = pairs[a.scalar(min(first + lane, edges.end - 1), h)].weight;
      __syncwarp();
      nodes[lane] = next_node;
      next_node = load_node(first + kWarp + lane);
      __syncwarp();
#pragma unroll 1
      for (int base = 0; base < count; base += Groups::kStep) {
        Packed<W> rows[Groups::kRows];
#pragma unroll
        for (int u = 0; u < Groups::kRows; ++u) rows[u] = other_row(max(nodes[base + groups.first + u], 0));
        const int t = base + groups.own(), node = nodes[t];
        A dot = A(0), dp = A(0);
        if constexpr (!kAdditive) dot = groups.dot(own, rows);
        if constexpr (kHasDp) {
          dp = __shfl_sync(kAllLanes, lane_dp, t);
        } else {
          dp = groups.dot(own_grad, rows);
        }
        const int64_t e = min(first + t, edges.end - 1);
        const auto d = edge_gradient<score>(a, dot, dp, lse, delta, dropout.factor(e, h), i, node, e, h);
        if (t < count && groups.is_first()) {
          grad_scalar += d.operand;
          pairs[a.scalar(e, h)] = {d.weight, d.operand};
          if (g.bias) static_cast<A*>(g.bias)[a.scalar(e, h)] = d.ds;
          if (kAdditive && g.a_edge) static_cast<A*>(g.a_edge)[a.scalar(e, h)] = d.operand;
        }
        if constexpr (!kAdditive) {
          A operand = d.operand;
          if constexpr (score == Score::cosine) operand *= a.at(a.src_scale, a.scalar(max(node, 0), h));
#pragma unroll
          for (int u = 0; u < Groups::kRows; ++u) {
            const A row_operand = groups.of_row(operand, u);
            if (base + groups.first + u < count) grad.add(row_operand, rows[u]);
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
cudaError_t launch_rows(const Attention& a, const Gradients& g, void* workspace, Pair<typename S::A>* pairs,
                        cudaStream_t stream) {
  using T = typename S::T;
  return launch_side<Side::rows, score, S>(a, g, workspace, stream, [&](const RowUnits& units, const auto& scratch) {
    auto* kernel = gradients_kernel<Side::rows, score, S>;
    unsigned blocks = head_blocks<S>(a.heads);
    if (goes_by_rows<S>(a)) {
      kernel = row_gradients_kernel<score, S>;
      blocks = a.heads;
      if constexpr (score == Score::dot) {
        const StoreDp<T> store{pairs};
        const cudaError_t error = launch_row_dots<S>(a, g.grad_out, a.value, store, units, scratch.counters, stream);
        if (error != cudaSuccess) return error;
      }
    }
    const auto launch = [&](dim3 grid, const RowUnits& with, auto* chosen) {
      chosen<<<grid, RowUnits::kThreads, 0, stream>>>(Typed<T>{a}, g, with, scratch.slots, pairs);
    };
    return launch_units(units, a, a.num_dst, blocks, scratch.counters, stream, kernel, nullptr, launch);
  });
}

}  // namespace dfgnn::cuda
