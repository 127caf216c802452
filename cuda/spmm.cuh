// SpMM by rows: weighted sums of the features of a row's nodes.
#pragma once

#include "logit.cuh"
#include "row_blocks.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {

// What is summed: the weight alone, the weight times the node's row, or the weight times leaky_relu'(own row + node's
// row), which is additive_v2's derivative.
enum class Term { weight, row, slope };

// result_r = factor * sum over the entries of row r of edge_weights[position, h] * scale[n, h] * x[n, h], n the entry's
// node, or of what else Term says in the place of x; with sum_heads, over the heads too.
template <class T>
struct Spmm {
  using A = typename Accumulate<T>::type;
  Index ptr, node, position;  // position.data null: the entry's own
  int64_t num_rows, num_nodes;
  const A* edge_weights;
  const void *scale, *x;  // scale may be null; x: T [num_nodes, x_heads, head_dim]
  int x_heads;            // as many as the weights have, or 1
  const void* own;        // Term::slope: T [num_rows, heads, head_dim]
  A factor;
  Term term;
  void* result;            // T [num_rows, heads, head_dim]; Term::weight: A [num_rows, heads]
  bool sum_heads = false;  // then T [num_rows, 1, head_dim]
};

template <class S, Term term>
__global__ void __launch_bounds__(RowPlan::kThreads)
    spmm_kernel(Typed<typename S::T> a, Spmm<typename S::T> m, RowPlan plan) {
  using T = typename S::T;
  using A = typename S::A;
  __shared__ SliceSums<S> sums;
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int first_head = blockIdx.y, last_head = m.sum_heads ? a.heads : first_head + 1;
  const int64_t x_stride = static_cast<int64_t>(m.x_heads) * a.head_dim;
  constexpr bool kFeatures = term != Term::weight;
  constexpr int kUnroll = 4;
  for_rows(m.ptr, m.num_rows, a.num_edges, plan, [&](int r, const Range& entries, bool is_slice) {
    for (int f = 0; f < (kFeatures && S::kLoop ? a.head_dim : 1); f += S::kFeatures) {
      Fragment<S> sum;
      sum.zero();
      A weight_sum = A(0);
      Packed<S> own;
      if constexpr (term == Term::slope) own.load(a.features(m.own, r, first_head) + f, lane, a.head_dim - f);
      for (int h = first_head; h < last_head; ++h) {
        const T* x_head = static_cast<const T*>(m.x) + (m.x_heads == 1 ? 0 : h * a.head_dim) + f;
        for (int64_t base = entries.begin + group; base < entries.end; base += kUnroll * S::kGroups) {
          Packed<S> x[kUnroll];
          A weight[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const int64_t c = base + u * S::kGroups;
            weight[u] = A(0);
            x[u] = {};
            if (c >= entries.end) continue;
            const int n = checked_node(m.node[c], m.num_nodes);
            if (n == kNoNode) {
              weight[u] = A(NAN);
              continue;
            }
            const int64_t e = m.position.data ? clamp_to(m.position[c], a.num_edges - 1) : c;
            weight[u] = m.edge_weights[a.scalar(e, h)];
            if (m.scale) weight[u] *= a.at(m.scale, a.scalar(n, h));
            if constexpr (kFeatures) x[u].load(x_head + n * x_stride, lane, a.head_dim - f);
          }
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            if constexpr (term == Term::row) {
              sum.add(weight[u], x[u]);
            } else if constexpr (term == Term::slope) {
#pragma unroll
              for (int i = 0; i < Fragment<S>::kSize; ++i) {
                sum.x[i] += weight[u] * (own[i] + x[u][i] > A(0) ? A(1) : a.slope_below_zero);
              }
            } else {
              weight_sum += weight[u];
            }
          }
        }
      }
      __syncwarp();
      if constexpr (kFeatures) {
        const int64_t row = m.sum_heads ? r : a.scalar(r, first_head);
        T* result = static_cast<T*>(m.result) + row * a.head_dim + f;
        store_row_sum(sum, result, a.head_dim - f, m.factor, is_slice, sums);
      } else {
        store_scalar_sum<S>(weight_sum, static_cast<A*>(m.result) + a.scalar(r, first_head), is_slice);
      }
    }
  });
}

template <class S>
cudaError_t launch_spmm(const Attention& a, const Spmm<typename S::T>& m, cudaStream_t stream) {
  if (m.num_rows == 0) return cudaSuccess;
  const RowPlan plan = plan_rows(m.num_rows, a.num_edges);
  const dim3 grid(plan.blocks, m.sum_heads ? 1 : a.heads);
  const Typed<typename S::T> typed{a};
  using Wide = typename S::Wide;
  switch (m.term) {
    case Term::weight:
      spmm_kernel<Wide, Term::weight><<<grid, RowPlan::kThreads, 0, stream>>>(typed, m, plan);
      break;
    case Term::row:
      spmm_kernel<Wide, Term::row><<<grid, RowPlan::kThreads, 0, stream>>>(typed, m, plan);
      break;
    case Term::slope:
      spmm_kernel<Wide, Term::slope><<<grid, RowPlan::kThreads, 0, stream>>>(typed, m, plan);
  }
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
