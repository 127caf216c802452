// Norms of rows of features on CUDA, for the cosine score: what callers of the kernels see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention.h"

namespace dfgnn::cuda {

// Rows x [num_rows, size] of `type`, contiguous, 16-byte aligned; norms count from eps on.
struct Rows {
  Type type;
  const void* x;
  int64_t num_rows;
  int size;
  double eps;
};

// reciprocal [num_rows] = 1 / max(|x|, eps), of the accumulation type.
cudaError_t reciprocal_norm(const Rows& rows, void* reciprocal, cudaStream_t stream);

// From g = d/d(r x), r = reciprocal_norm, to grad = factor r (g - [|x| > eps] r^2 <x, g> x) + added, like x, and
// projection [num_rows] = r <x, g>, of the accumulation type. factor [heads] (of the accumulation type, rows go through
// the heads), added (like x) and projection may be null.
struct NormalizeBackward {
  const void *g, *factor, *added;
  int heads;
  void *grad, *projection;
};
cudaError_t normalize_backward(const Rows& rows, const NormalizeBackward& task, cudaStream_t stream);

}  // namespace dfgnn::cuda
