// Sums around attention on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../linears.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <vector>

#include "../../../cuda/column_sums.h"
#include "../../../cuda/widening_add.h"
#include "../attention.h"
#include "tensors.h"

namespace dfgnn {

at::Tensor feature_sums_cuda(at::TensorList given) {
  const c10::cuda::CUDAGuard guard(given[0].device());
  const auto type = type_of(given[0]);
  const int64_t rows = given[0].size(0), columns = given[0].size(1), count = given.size();
  const auto options = given[0].options().dtype(accumulate_type(given[0].scalar_type()));
  const auto sums = at::empty({count, columns}, options);
  for (int64_t first = 0; first < count; first += cuda::FeatureMatrices::kMost) {
    cuda::FeatureMatrices matrices{};
    std::vector<at::Tensor> held;
    for (const auto& x : given.slice(first, std::min<int64_t>(count - first, cuda::FeatureMatrices::kMost))) {
      held.push_back(aligned(x.contiguous()));
      matrices.x[matrices.count++] = data_of(held.back());
    }
    const auto partial = at::empty({cuda::feature_sums_partial(type, matrices.count, rows, columns)}, options);
    C10_CUDA_CHECK(cuda::feature_sums(type, matrices, rows, columns, partial.mutable_data_ptr(),
                                      sums[first].mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  }
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
