// Sums around attention on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../linears.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../../../cuda/column_sums.h"
#include "../../../cuda/widening_add.h"
#include "../attention.h"
#include "tensors.h"

namespace dfgnn {

at::Tensor feature_sums_cuda(const at::Tensor& given) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto x = aligned(given);
  const auto type = type_of(x);
  const int64_t rows = x.size(0), columns = x.size(1);
  const auto options = x.options().dtype(accumulate_type(x.scalar_type()));
  const auto sums = at::empty({columns}, options);
  const auto partial = at::empty({cuda::feature_sums_partial(type, rows, columns)}, options);
  C10_CUDA_CHECK(cuda::feature_sums(type, data_of(x), rows, columns, partial.mutable_data_ptr(),
                                    sums.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return sums;
}

bool widening_add_takes(const at::Tensor& x, const at::Tensor& y) {
  const auto is_aligned = [](const at::Tensor& t) {
    return t.is_contiguous() && reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0;
  };
  return (x.scalar_type() == at::kHalf || x.scalar_type() == at::kBFloat16) &&
         (y.scalar_type() == x.scalar_type() || y.scalar_type() == at::kFloat) && x.size(1) % 8 == 0 && is_aligned(x) &&
         is_aligned(y) && x.device() == y.device();
}

at::Tensor widening_add_cuda(const at::Tensor& x, const at::Tensor& y) {
  const c10::cuda::CUDAGuard guard(x.device());
  const auto sums = at::empty(x.sizes(), x.options().dtype(at::kFloat));
  const cuda::WideningAdd task{
      type_of(x), y.scalar_type() == at::kFloat, y.dim() == 1, x.size(0), x.size(1), data_of(x),
      data_of(y), sums.mutable_data_ptr<float>()};
  C10_CUDA_CHECK(cuda::widening_add(task, c10::cuda::getCurrentCUDAStream()));
  return sums;
}

}  // namespace dfgnn
