// PMF forward: an edge-parallel SDDMM writes the logits, softmax and SpMM follow by rows.
#include "edges.cuh"
#include "forward_rows.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

template <Score score, class S>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    logits_kernel(Typed<typename S::T> a, typename S::A* scores, EdgePlan plan) {
  using A = typename S::A;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  __shared__ A dots[EdgePlan::kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  EdgeBatch& batch = batches[warp];

  for_edge_batches(a, plan, batch, [&](int64_t first, int count) {
    for (int h = 0; h < a.heads; ++h) {
      if constexpr (score != Score::additive) {
        warp_dots<S, score>(
            a, a.dst, a.src, h, 0, count, [&](int t) { return batch.row[t]; }, [&](int t) { return batch.source[t]; },
            [&](int t, A dot) { dots[warp][t] = dot; });
        __syncwarp();
      }
      if (lane < count) {
        const A dot = score == Score::additive ? A(0) : dots[warp][lane];
        scores[a.scalar(first + lane, h)] =
            logit<score>(a, dot, batch.row[lane], batch.source[lane], first + lane, h).value;
      }
      __syncwarp();
    }
  });
}

}  // namespace

cudaError_t pmf_fwd(const Attention& attention, const Outputs& outputs, void* scores, cudaStream_t stream) {
  if (attention.num_edges > 0 && attention.num_dst > 0) {
    const cudaError_t error = for_score_and_shape(attention, [&]<Score score, class S>() {
      const EdgePlan plan = plan_edges(attention.num_edges);
      logits_kernel<score, S><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(
          Typed<typename S::T>{attention}, static_cast<typename S::A*>(scores), plan);
      return cudaGetLastError();
    });
    if (error != cudaSuccess) return error;
  }
  return for_type_and_shape(attention.type, attention.head_dim, [&]<class S>() {
    using A = typename S::A;
    return launch_forward_rows<S>(attention, StoredLogits<A>{static_cast<const A*>(scores)}, outputs, stream);
  });
}

}  // namespace dfgnn::cuda
