// Products of nodes' heads with one or two vectors, GAT's scores of nodes, on CUDA: what callers of the kernels see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "attention.h"

namespace dfgnn::cuda {

// x T [nodes, heads, head_dim], 16-byte aligned; att [heads, head_dim] of the accumulation type, the second of them
// null where there is one. All are contiguous.
struct NodeScores {
  Type type;
  int64_t nodes;
  int heads, head_dim;
  const void *x, *att[2];
};

// scores [nodes, heads] of the accumulation type: <x, att> of each head.
cudaError_t node_scores(const NodeScores& task, void* const (&scores)[2], cudaStream_t stream);

// From gradients of the scores to grad_x, like x, and grad_att, of the accumulation type, [1 or 2, heads, head_dim],
// sums over all nodes in a fixed order. partial: as many numbers as node_scores_partial says.
struct NodeScoresGradients {
  const void* scores[2];
  void *grad_x, *grad_att, *partial;
};
int64_t node_scores_partial(const NodeScores& task);
cudaError_t node_scores_gradients(const NodeScores& task, const NodeScoresGradients& gradients, cudaStream_t stream);

}  // namespace dfgnn::cuda
