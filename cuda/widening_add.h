// Sums of numbers of half precision, in float32, on CUDA: what callers of the kernel see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention.h"

namespace dfgnn::cuda {

// sums [rows, features] = x [rows, features] + y, of `type`, or y of float32 (`wide_y`); y has one row (`one_row`), or
// as many. Features are a multiple of 8, and all is 16-byte aligned.
struct WideningAdd {
  Type type;
  bool wide_y, one_row;
  int64_t rows, features;
  const void *x, *y;
  float* sums;
};
cudaError_t widening_add(const WideningAdd& task, cudaStream_t stream);

}  // namespace dfgnn::cuda
