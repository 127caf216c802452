// Sums over nodes on CUDA.
#pragma once

#include <ATen/ATen.h>

namespace dfgnn {

// [F] of x [N, F], contiguous, in the accumulation type.
at::Tensor feature_sums_cuda(const at::Tensor& x);

}  // namespace dfgnn
