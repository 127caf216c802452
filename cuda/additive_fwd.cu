// Forward pass of additive scores with the derivative of out by dst.
#include "additive_shapes.cuh"
#include "row_list.cuh"
#include "softmax_rows.cuh"

namespace dfgnn::cuda {
namespace {

constexpr int kSums = 2;

}  // namespace

AdditiveHeads additive_heads(Type type, int heads, int head_dim) {
  Attention shape{};
  shape.heads = heads;
  shape.head_dim = head_dim;
  auto taken = AdditiveHeads::none;
  for_type_and_shape(type, head_dim, [&]<class S>() {
    taken = additive_heads_of<S>(shape);
    return cudaSuccess;
  });
  return taken;
}

size_t additive_fwd_workspace(const Attention& a) { return forward_scratch_bytes(a, plan_forward(a), kSums); }

cudaError_t additive_fwd(const Attention& a, const Outputs& outputs, void* workspace, cudaStream_t stream) {
  if (a.num_dst == 0) return cudaSuccess;
  return for_type_and_shape(a.type, a.head_dim, [&]<class S>() {
    RowUnits units = plan_forward(a);
    const UnitScratch<typename S::A> scratch(workspace, a.heads, units);
    const cudaError_t error = list_rows(units, a.rowptr, a.num_dst, a.num_edges, scratch.list, stream);
    if (error != cudaSuccess) return error;
    if constexpr (kNarrowSoftmax<S>) {
      if (additive_heads_of<S>(a) == AdditiveHeads::side_by_side) {
        return launch_narrow_softmax<S, kSums>(a, outputs, units, scratch, stream);
      }
    }
    return launch_softmax_rows<false, S, kSums>(a, nullptr, outputs, units, scratch, stream);
  });
}

}  // namespace dfgnn::cuda
