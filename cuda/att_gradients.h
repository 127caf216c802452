// The way back from additive_v2's sums of features on CUDA: what callers of the kernels see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention.h"

namespace dfgnn::cuda {

// A side of the edges' sums: rows x of `type`, and g, the gradient of att * x without its factor att.
struct AttSide {
  int64_t nodes;
  const void *x, *g, *added;  // T [nodes, width]; added may be null
  void* grad;                 // the same: att * g + added; may be g
};

// Both, from att [width], and grad_att [width], the sum of x * g over all nodes in a fixed order, of the accumulation
// type. All are contiguous; features 16-byte aligned. partial: as many numbers as att_partial says.
struct AttGradients {
  Type type;
  int64_t width;
  const void* att;
  AttSide sides[2];
  void *partial, *grad_att;
};
int64_t att_partial(const AttGradients& task);
cudaError_t att_gradients(const AttGradients& task, cudaStream_t stream);

}  // namespace dfgnn::cuda
