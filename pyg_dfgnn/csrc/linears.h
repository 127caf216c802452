// What is around attention in a layer, on CUDA.
#pragma once

#include <ATen/ATen.h>

namespace dfgnn {

// [xs, F] of x [N, F] each, one or more, in the accumulation type.
at::Tensor feature_sums_cuda(at::TensorList xs);

// x + y in float32, of x [N, F] and y [F] or [N, F], contiguous: whether a kernel takes them, and what it makes.
bool widening_add_takes(const at::Tensor& x, const at::Tensor& y);
at::Tensor widening_add_cuda(const at::Tensor& x, const at::Tensor& y);

}  // namespace dfgnn
