// Dropout's mask on CUDA tensors: allocation, device and stream around the kernel of cuda/.
#include "../../../cuda/dropout.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../dropout.h"
#include "tensors.h"

namespace dfgnn {

at::Tensor dropout_mask_cuda(const at::Tensor& seed, int64_t num_edges, int64_t heads, double dropout_p) {
  const c10::cuda::CUDAGuard guard(seed.device());
  check_heads("heads", heads, 1);
  const auto mask = at::empty({num_edges, heads}, seed.options().dtype(at::kBool));
  C10_CUDA_CHECK(cuda::dropout_mask(seed.const_data_ptr<int64_t>(), num_edges, static_cast<int>(heads), dropout_p,
                                    mask.mutable_data_ptr<bool>(), c10::cuda::getCurrentCUDAStream()));
  return mask;
}

}  // namespace dfgnn
