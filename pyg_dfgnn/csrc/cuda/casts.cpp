// Casts of CUDA tensors: allocation, device and stream around the kernel of cuda/.
#include "../casts.h"

#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../../../cuda/casts.h"
#include "tensors.h"

namespace dfgnn {

std::pair<at::Tensor, at::Tensor> cast_both_cuda(const at::Tensor& a, const at::Tensor& b, at::ScalarType type) {
  const c10::cuda::CUDAGuard guard(a.device());
  const auto options = a.options().dtype(type);
  const at::Tensor to_a = at::detail::empty_cuda(a.sizes(), options), to_b = at::detail::empty_cuda(b.sizes(), options);
  const bool to_narrow = a.scalar_type() == at::kFloat;
  C10_CUDA_CHECK(cuda::cast_both({to_narrow ? type_of(to_a) : type_of(a),
                                  to_narrow,
                                  {data_of(a), data_of(b)},
                                  {to_a.mutable_data_ptr(), to_b.mutable_data_ptr()},
                                  {a.numel(), b.numel()}},
                                 c10::cuda::getCurrentCUDAStream()));
  return {to_a, to_b};
}

}  // namespace dfgnn
