// Sums over rows on CUDA, in a fixed order: what callers of the kernels see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention.h"

namespace dfgnn::cuda {

// sums [columns] of x [rows, columns], of the accumulation type of `type`. partial: as many numbers as
// column_sums_partial says.
int64_t column_sums_partial(int64_t rows, int64_t columns);
cudaError_t column_sums(Type type, const void* x, int64_t rows, int64_t columns, void* partial, void* sums,
                        cudaStream_t stream);

// The same of some matrices of features of `type`, 16-byte aligned, of which there may be many rows: sums [count,
// columns].
struct FeatureMatrices {
  static constexpr int kMost = 8;
  const void* x[kMost];
  int count;
};
int64_t feature_sums_partial(Type type, int count, int64_t rows, int64_t columns);
cudaError_t feature_sums(Type type, const FeatureMatrices& matrices, int64_t rows, int64_t columns, void* partial,
                         void* sums, cudaStream_t stream);

}  // namespace dfgnn::cuda
