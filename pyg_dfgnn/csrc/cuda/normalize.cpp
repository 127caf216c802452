// Norms of rows on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../../../cuda/normalize.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../normalize.h"
#include "tensors.h"

namespace dfgnn {
namespace {

cuda::Rows rows_of(const at::Tensor& x, double eps) {
  return {type_of(x), data_of(x), x.size(0) * x.size(1), static_cast<int>(x.size(2)), eps};
}

}  // namespace

at::Tensor reciprocal_norm_cuda(const at::Tensor& given, double eps) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto x = aligned(given);
  auto reciprocal = empty_scalars(x);
  C10_CUDA_CHECK(
      cuda::reciprocal_norm(rows_of(x, eps), reciprocal.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return reciprocal;
}

std::tuple<at::Tensor, at::Tensor> normalize_backward_cuda(const at::Tensor& given, const at::Tensor& g, double eps,
                                                           const at::Tensor& beta, const at::Tensor& added) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto x = aligned(given);
  auto grad = at::empty_like(x), projection = empty_scalars(x);
  const cuda::NormalizeBackward task{data_of(g),
                                     data_of(beta),
                                     data_of(added),
                                     beta.defined() ? static_cast<int>(beta.numel()) : 1,
                                     grad.mutable_data_ptr(),
                                     projection.mutable_data_ptr()};
  C10_CUDA_CHECK(cuda::normalize_backward(rows_of(x, eps), task, c10::cuda::getCurrentCUDAStream()));
  return {grad, projection};
}

}  // namespace dfgnn
