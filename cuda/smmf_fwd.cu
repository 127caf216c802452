// SMMF forward: one kernel, the logits never leave the chip.
#include "forward_rows.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {

cudaError_t smmf_fwd(const Attention& attention, const Outputs& outputs, cudaStream_t stream) {
  return for_score_and_shape(
      attention, [&]<Score score, class S>() { return launch_forward_rows<score, S>(attention, outputs, stream); });
}

}  // namespace dfgnn::cuda
