// PMF backward: an edge-parallel kernel writes weight and ds of every edge and head, then the gradients are SpMMs: of
// the ds with src by rows, of the ds with dst and the weights with grad_out by columns. Any head size.
#include "edges.cuh"
#include "gradient.cuh"
#include "row_blocks.cuh"
#include "sddmm.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

// weights, operands: A [num_edges, heads], see EdgeGradient.
template <Score score, class S>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    edges_kernel(Typed<typename S::T> a, Gradients g, typename S::A* weights, typename S::A* operands, EdgePlan plan) {
  using A = typename S::A;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  __shared__ A dots[EdgePlan::kWarps][kWarp], dps[EdgePlan::kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  EdgeBatch& batch = batches[warp];
  const Dropout dropout(a);
  const auto destination = [&](int t) { return batch.row[t]; };
  const auto source = [&](int t) { return batch.source[t]; };

  for_edge_batches(a, plan, batch, [&](int64_t first, int count) {
    for (int h = 0; h < a.heads; ++h) {
      if constexpr (score != Score::additive) {
        warp_dots<S>(a, a.dst, a.src, h, 0, count, destination, source, [&](int t, A x) { dots[warp][t] = x; });
      }
      warp_dots<S>(a, g.grad_out, a.value, h, 0, count, destination, source, [&](int t, A x) { dps[warp][t] = x; });
      __syncwarp();
      if (lane < count) {
        const int64_t e = first + lane, t = a.scalar(e, h);
        const int i = batch.row[lane];
        const A dot = score == Score::additive ? A(0) : dots[warp][lane];
        const auto d =
            edge_gradient<score>(a, dot, dps[warp][lane], a.at(g.lse, a.scalar(i, h)), a.at(g.delta, a.scalar(i, h)),
                                 dropout.template factor<A>(e, h), i, batch.source[lane], e, h);
        weights[t] = d.weight;
        operands[t] = d.operand;
        if (g.bias) static_cast<A*>(g.bias)[t] = d.ds;
        if (g.a_edge) static_cast<A*>(g.a_edge)[t] = d.operand;
      }
      __syncwarp();
    }
  });
}

// result_r = factor * sum over the entries of row r of edge_weights[position, h] * scale[n, h] * x[n, h], n the entry's
// node. Where not has_features, the sum of the weights alone.
template <class T>
struct Spmm {
  using A = typename Accumulate<T>::type;
  Index ptr, node, position;  // position.data null: the entry's own
  int64_t num_rows, num_nodes;
  const A* edge_weights;
  const void *scale, *x;  // scale may be null
  A factor;
  bool has_features;
  void* result;  // T [num_rows, heads, head_dim]; without features, A [num_rows, heads]
};

template <class S, bool kFeatures>
__global__ void __launch_bounds__(RowPlan::kThreads)
    spmm_kernel(Typed<typename S::T> a, Spmm<typename S::T> m, RowPlan plan) {
  using A = typename S::A;
  __shared__ SliceSums<S> sums;
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int h = blockIdx.y;
  constexpr int kUnroll = 4;
  for_rows(m.ptr, m.num_rows, a.num_edges, plan, [&](int r, const Range& entries, bool is_slice) {
    for (int f = 0; f < (kFeatures && S::kLoop ? a.head_dim : 1); f += S::kFeatures) {
      Fragment<S> sum;
      sum.zero();
      A weight_sum = A(0);
      for (int64_t base = entries.begin + group; base < entries.end; base += kUnroll * S::kGroups) {
        Packed<S> x[kUnroll];
        A weight[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const int64_t c = base + u * S::kGroups;
          const int n = c < entries.end ? checked_node(m.node[c], m.num_nodes) : kNoNode;
          weight[u] = A(0);
          x[u] = {};
          if (n == kNoNode) continue;
          const int64_t e = m.position.data ? clamp_to(m.position[c], a.num_edges - 1) : c;
          weight[u] = m.edge_weights[a.scalar(e, h)];
          if (m.scale) weight[u] *= a.at(m.scale, a.scalar(n, h));
          if constexpr (kFeatures) x[u].load(a.features(m.x, n, h) + f, lane, a.head_dim - f);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if constexpr (kFeatures) {
            sum.add(weight[u], x[u]);
          } else {
            weight_sum += weight[u];
          }
        }
      }
      __syncwarp();
      if constexpr (kFeatures) {
        store_row_sum(sum, a.features(m.result, r, h) + f, a.head_dim - f, m.factor, is_slice, sums);
      } else {
        store_scalar_sum<S>(weight_sum, static_cast<A*>(m.result) + a.scalar(r, h), is_slice);
      }
    }
  });
}

template <class S>
cudaError_t launch_spmm(const Attention& a, const Spmm<typename S::T>& m, cudaStream_t stream) {
  if (m.num_rows == 0) return cudaSuccess;
  const RowPlan plan = plan_rows(m.num_rows, a.num_edges);
  const dim3 grid(plan.blocks, a.heads);
  const Typed<typename S::T> typed{a};
  if (m.has_features) {
    spmm_kernel<typename S::Wide, true><<<grid, RowPlan::kThreads, 0, stream>>>(typed, m, plan);
  } else {
    spmm_kernel<typename S::Wide, false><<<grid, RowPlan::kThreads, 0, stream>>>(typed, m, plan);
  }
  return cudaGetLastError();
}

}  // namespace

cudaError_t pmf_bwd(const Attention& attention, const Gradients& g, void* workspace, cudaStream_t stream) {
  const auto& a = attention;
  cudaError_t error = for_score_and_shape(a, [&]<Score score, class S>() {
    using A = typename S::A;
    const cudaError_t delta_error = launch_delta<S>(a, g, stream);
    if (delta_error != cudaSuccess || a.num_edges == 0 || a.num_dst == 0) return delta_error;
    const EdgePlan plan = plan_edges(a.num_edges);
    A* weights = static_cast<A*>(workspace);
    edges_kernel<score, S><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(Typed<typename S::T>{a}, g, weights,
                                                                           weights + a.num_edges * a.heads, plan);
    return cudaGetLastError();
  });
  if (error != cudaSuccess) return error;

  return for_type_and_shape(a.type, a.head_dim, [&]<class S>() {
    using T = typename S::T;
    using A = typename S::A;
    const A* weights = static_cast<const A*>(workspace);
    const A* operands = weights + a.num_edges * a.heads;
    const A factor = a.score == Score::dot ? static_cast<A>(a.scale) : A(1);
    const bool additive = a.score == Score::additive;
    const Spmm<T> passes[] = {
        {a.rowptr, a.col, Index{}, a.num_dst, a.num_src, operands, a.src_scale, a.src, factor, !additive, g.dst},
        {a.colptr, a.row, a.perm, a.num_src, a.num_dst, operands, a.dst_scale, a.dst, factor, !additive, g.src},
        {a.colptr, a.row, a.perm, a.num_src, a.num_dst, weights, nullptr, g.grad_out, A(1), true, g.value},
    };
    for (const auto& pass : passes) {
      const cudaError_t pass_error = launch_spmm<S>(a, pass, stream);
      if (pass_error != cudaSuccess) return pass_error;
    }
    return cudaSuccess;
  });
}

}  // namespace dfgnn::cuda
