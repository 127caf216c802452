// Copies of features in heads of another size, on CUDA: what callers of the kernel see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dfgnn::cuda {

// Of each of `count` arrays x [heads, from] the first numbers of each head, and zeros behind them where y [heads, to]
// has more. Numbers are of 2 or 4 bytes; y is 16-byte aligned, of at least one number a head.
struct ResizeHeads {
  static constexpr int kMost = 3;
  int number_bytes, from, to, count;
  int64_t heads[kMost];
  const void* x[kMost];
  void* y[kMost];
};
cudaError_t resize_heads(const ResizeHeads& task, cudaStream_t stream);

}  // namespace dfgnn::cuda
