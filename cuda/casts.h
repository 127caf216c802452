// Two arrays of numbers in another type on CUDA, by one kernel: what callers of it see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention.h"

namespace dfgnn::cuda {

// From x[k] to y[k], sizes[k] numbers: from 16 bits to float32 (`narrow` says which), or back (`to_narrow`).
struct CastBoth {
  Type narrow;
  bool to_narrow;
  const void* x[2];
  void* y[2];
  int64_t sizes[2];
};
cudaError_t cast_both(const CastBoth& task, cudaStream_t stream);

}  // namespace dfgnn::cuda
