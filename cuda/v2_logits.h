// GATv2's scores of edges that have features, and their derivatives: what callers of the kernels see. With
//   z_e = x_dst_i + x_src_j + W f_e   and   s_e = <att, leaky_relu(z_e)>
// of every head, nothing of the size of z is stored.
#pragma once

#include "attention.h"

namespace dfgnn::cuda {

// Types as in attention.h; pointers to features of nodes are 16-byte aligned, and a head is of whole vectors of 16
// bytes (of f64: of numbers), a power of two of them (v2_takes).
struct V2Logits {
  Type type;
  int64_t num_dst, num_src, num_edges;
  int heads, channels;
  Index rowptr, col, colptr, row, perm;  // the last three of the gradients of x_src alone
  const void *x_dst, *x_src;             // T [nodes, heads, channels]
  const void* att;                       // A [heads, channels]
  double negative_slope;
  int edge_dim;          // 0: without features
  int64_t num_features;  // rows of features
  Index eid;             // [num_edges], the features of each edge
  const void* features;  // T [num_features, edge_dim]
  const void* weight;    // A [edge_dim, heads * channels]: W transposed
};

bool v2_takes(Type type, int heads, int channels);

// logits A [num_edges, heads] of every entry that belongs to a row: NaN where a node or features are out of range.
cudaError_t v2_logits(const V2Logits& task, void* logits, cudaStream_t stream);

// From grad A [num_edges, heads], of which edges that are out of range have no part: T grad_x_dst, grad_x_src and
// grad_features (written where an edge has them; may be null), and A grad_terms [1 + edge_dim, heads * channels], of
// which the first row is att's gradient and the others W's, transposed. partial: as many numbers as v2_partial says.
struct V2Gradients {
  const void* grad;
  void *x_dst, *x_src, *features, *terms, *partial;
};
int64_t v2_partial(const V2Logits& task);
cudaError_t v2_gradients(const V2Logits& task, const V2Gradients& gradients, cudaStream_t stream);

}  // namespace dfgnn::cuda
