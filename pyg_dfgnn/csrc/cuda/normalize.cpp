// Norms of rows on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../../../cuda/normalize.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../../../cuda/column_sums.h"
#include "../normalize.h"
#include "tensors.h"

namespace dfgnn {
namespace {

cuda::Rows rows_of(const at::Tensor& x, double eps) {
  return {type_of(x), data_of(x), x.size(0) * x.size(1), static_cast<int>(x.size(2)), eps};
}

}  // namespace

Norms reciprocal_norms_cuda(const at::Tensor& given, const at::Tensor& beta, double eps, bool needs_norm) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto x = aligned(given);
  Norms norms;
  if (needs_norm) norms.reciprocal = empty_scalars(x);
  if (beta.defined()) norms.scaled = empty_scalars(x);
  const cuda::ReciprocalNorm task{data_of(beta), beta.defined() ? static_cast<int>(beta.numel()) : 1,
                                  writable(norms.reciprocal), writable(norms.scaled)};
  C10_CUDA_CHECK(cuda::reciprocal_norm(rows_of(x, eps), task, c10::cuda::getCurrentCUDAStream()));
  return norms;
}

at::Tensor sum_of_scalars_cuda(const at::Tensor& x) {
  const c10::cuda::CUDAGuard guard(x.device());
  const int64_t nodes = x.size(0), heads = x.size(1);
  auto sums = at::empty({heads}, x.options());
  const auto partial = at::empty({cuda::column_sums_partial(nodes, heads)}, x.options());
  C10_CUDA_CHECK(cuda::column_sums(type_of(x), data_of(x), nodes, heads, partial.mutable_data_ptr(),
                                   sums.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return sums;
}

std::tuple<at::Tensor, at::Tensor> normalize_backward_cuda(const at::Tensor& given, const at::Tensor& g,
                                                           const at::Tensor& beta, const at::Tensor& h,
                                                           const at::Tensor& added, double eps) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto x = aligned(given);
  auto grad = g, projection = empty_scalars(x);
  const cuda::NormalizeBackward task{data_of(g),
                                     data_of(h),
                                     data_of(added),
                                     data_of(beta),
                                     beta.defined() ? static_cast<int>(beta.numel()) : 1,
                                     grad.mutable_data_ptr(),
                                     projection.mutable_data_ptr()};
  C10_CUDA_CHECK(cuda::normalize_backward(rows_of(x, eps), task, c10::cuda::getCurrentCUDAStream()));
  return {grad, projection};
}

}  // namespace dfgnn
