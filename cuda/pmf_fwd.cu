// PMF forward: an edge-parallel SDDMM writes the logits, softmax and SpMM follow by rows.
#include "edges.cuh"
#include "forward_rows.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

template <Score score, class S>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    logits_kernel(Typed<typename S::T> a, typename S::A* scores, EdgePlan plan) {
  const Range edges = warp_edges(a, plan);
  if (edges.size() <= 0) return;
  const RowEnds ends{a.rowptr};
  const RowWalk<RowEnds> walk{ends, warp_find_row(a.rowptr, a.num_dst, edges.begin), a.num_dst};
  warp_logits<score, S>(a, edges.begin, edges.end, 0, a.heads, walk,
                        [&](int64_t e, int h, typename S::A s) { scores[e * a.heads + h] = s; });
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
