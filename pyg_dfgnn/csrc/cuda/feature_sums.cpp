// Sums over nodes on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../../../cuda/column_sums.h"
#include "../attention.h"
#include "../linears.h"
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

}  // namespace dfgnn
