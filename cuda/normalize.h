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

// reciprocal [num_rows] = 1 / max(|x|, eps), and scaled [num_rows] = factor * reciprocal, of the accumulation type, as
// is factor [heads], through which rows go; one of the results may be null.
struct ReciprocalNorm {
  const void* factor;
  int heads;
  void *reciprocal, *scaled;
};
cudaError_t reciprocal_norm(const Rows& rows, const ReciprocalNorm& task, cudaStream_t stream);

// From g = d/d(factor r x) and h = d/d(r x), r = 1 / max(|x|, eps), to
//   grad = factor r (g - [|x| > eps] r^2 <x, g> x) + r (h - [|x| > eps] r^2 <x, h> x) + added, like x, and
//   projection [num_rows] = r <x, g>, of the accumulation type.
// factor [heads] (of the accumulation type, rows go through the heads), and h and added (like x) may be null; grad may
// be g.
struct NormalizeBackward {
  const void *g, *h, *added, *factor;
  int heads;
  void *grad, *projection;
};
cudaError_t normalize_backward(const Rows& rows, const NormalizeBackward& task, cudaStream_t stream);

}  // namespace dfgnn::cuda
