// PMF forward: an SDDMM writes the logits, edge-parallel or, of long rows or on tensor cores, by rows and pieces of
// rows that are as balanced; softmax and SpMM follow by rows.
#include "edges.cuh"
#include "row_dots.cuh"
#include "row_list.cuh"
#include "sddmm.cuh"
#include "shapes.cuh"
#include "softmax_rows.cuh"

namespace dfgnn::cuda {
namespace {

template <Score score, class S>
__global__ void __launch_bounds__(EdgePlan::kThreads, sizeof(typename S::A) == 4 ? 4 : 1)
    logits_kernel(Typed<typename S::T> a, typename S::A* logits, EdgePlan plan) {
  using A = typename S::A;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  __shared__ A dots[EdgePlan::kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  EdgeBatch& batch = batches[warp];

  for_edge_batches(a, plan, batch, [&](int64_t first, int count) {
    for (int h = 0; h < a.heads; ++h) {
      if constexpr (score != Score::additive) {
        warp_dots<S, score>(
            a, a.dst, a.src, h, count, [&](int t) { return batch.row[t]; }, [&](int t) { return batch.source[t]; },
            [&](int t, A dot) { dots[warp][t] = dot; });
        __syncwarp();
      }
      if (lane < count) {
        const A dot = score == Score::additive ? A(0) : dots[warp][lane];
        logits[a.kept(first + lane, h)] =
            logit<score>(a, dot, batch.row[lane], batch.source[lane], first + lane, h).value;
      }
      __syncwarp();
    }
  });
}

}  // namespace

size_t pmf_fwd_workspace(const Attention& a) {
  const size_t number = a.type == Type::f64 ? sizeof(double) : sizeof(float);
  return forward_scratch_bytes(a, plan_forward(a)) + static_cast<size_t>(a.num_edges) * a.heads * number;
}

cudaError_t pmf_fwd(const Attention& a, const Outputs& outputs, void* workspace, cudaStream_t stream) {
  if (a.num_dst == 0) return cudaSuccess;
  return for_score_and_shape(a, [&]<Score score, class S>() {
    using T = typename S::T;
    using A = typename S::A;
    RowUnits units = plan_forward(a);
    const UnitScratch<A> scratch(workspace, a.heads, units);
    A* logits = reinterpret_cast<A*>(static_cast<char*>(workspace) + forward_scratch_bytes(a, units));
    cudaError_t error = list_rows(units, a.rowptr, a.num_dst, a.num_edges, scratch.list, stream);
    if (error != cudaSuccess) return error;
    bool by_rows = false;
    if constexpr (score == Score::dot || score == Score::cosine) {
      by_rows = a.num_edges > 0 && goes_by_rows<score, S>(a);
      if (by_rows) {
        error = launch_row_dots<S>(a, a.dst, a.src, StoreLogit<score, T>{logits}, units, scratch.counters, stream);
      }
    }
    if (!by_rows && a.num_edges > 0) {
      const EdgePlan plan = plan_edges(a.num_edges);
      logits_kernel<score, S><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(Typed<T>{a}, logits, plan);
      error = cudaGetLastError();
    }
    if (error != cudaSuccess) return error;
    return launch_softmax_rows<true, S>(a, logits, outputs, units, scratch, stream);
  });
}

}  // namespace dfgnn::cuda
