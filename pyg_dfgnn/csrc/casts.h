// Two tensors in other types: a cast costs more on the host than on the GPU, and terms of logits come by twos.
#pragma once

#include <ATen/ATen.h>

#include <utility>

#include "normalize.h"

namespace dfgnn {

// a and b, contiguous, of those types.
std::pair<at::Tensor, at::Tensor> cast_both(const at::Tensor& a, at::ScalarType a_type, const at::Tensor& b,
                                            at::ScalarType b_type, By by);

// The same of CUDA tensors that are contiguous, both of one type and to one, of which one is float32 and the other has
// 16 bits.
std::pair<at::Tensor, at::Tensor> cast_both_cuda(const at::Tensor& a, const at::Tensor& b, at::ScalarType type);

}  // namespace dfgnn
