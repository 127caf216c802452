// The gradient of a matrix that meets what nodes have, on CUDA: what callers of the kernel see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention.h"

namespace dfgnn::cuda {

// Of W [heads size, width], the sum over nodes, and over two pairs of these, of x z^T for each head. x: T [nodes,
// heads, size]; z: T [nodes, heads, width]; size is a multiple of 8 and width of 4, and all are 16-byte aligned. Not of
// float64.
struct ProjectionGradient {
  static constexpr int kPairs = 2;
  Type type;
  int64_t nodes;
  int heads, size, width;
  const void *x[kPairs], *z[kPairs];
};

// sums: of the accumulation type, [parts, heads size, width], of which the sum over parts is the gradient.
int64_t projection_gradient_parts(const ProjectionGradient& task);
cudaError_t projection_gradient(const ProjectionGradient& task, void* sums, cudaStream_t stream);

}  // namespace dfgnn::cuda
