// GATv2's scores of edges that have features, and their derivatives: what callers of the kernels see. With
//   z_e = x_dst_i + x_src_j + W f_e   and   s_e = <att, leaky_relu(z_e)>
// of every head, nothing of the size of z is stored but, for the backward pass, a bit for each number.
#pragma once

#include "attention.h"

namespace dfgnn::cuda {

// Types as in attention.h; pointers to features of nodes and of edges are aligned to 16 bytes (of f64: to numbers), and
// a head is of whole vectors of 16 bytes (of f64: of numbers), a power of two of them. Heads may be some of those that
// nodes and edges have; they have up to 128 numbers.
struct V2Logits {
  Type type;
  int64_t num_dst, num_src, num_edges;
  int heads, channels;
  int width;                             // of att and W, which have zeros behind heads: at least heads * channels
  int stride;                            // the numbers of an edge in logits and their gradient: at least heads
  int64_t pitch;                         // and of a node in x and its gradient: at least heads * channels
  Index rowptr, col, colptr, row, perm;  // the last three of the gradients of x_src alone
  const void *x_dst, *x_src;             // T [nodes, pitch]
  const void* att;                       // A [width]
  double negative_slope;
  int edge_dim;          // 0: without features
  int64_t num_features;  // rows of features
  Index eid;             // [num_edges], the features of each edge
  const void* features;  // T [num_features, edge_dim]
  const void* weight;    // A [edge_dim, width]: W transposed
  // Whether tensor cores take eight edges at a time. Not f64, nor with a slope of more than 1: which widths, and up to
  // how many features, says V2Parts (csrc/v2_parts.h). The backward pass of octets takes signs of the forward pass.
  bool octets;
};

// logits A [num_edges, stride], of which the first `heads` of every entry are written: NaN where a node or features are
// out of range, 0 where there is no row. And signs [num_edges, 8], of octets alone: bytes, or, where the width is 128,
// of 16 bits. One of both may be null.
cudaError_t v2_logits(const V2Logits& task, void* logits, void* signs, cudaStream_t stream);

// From signs and grad A [num_edges, stride], of which edges that are out of range have no part: T grad_x_dst,
// grad_x_src and grad_features (written where an edge has them; may be null; or A ones, to which it is added), and A
// terms [v2_shares + edge_dim, width], of which the first rows add up to att's gradient and the others are W's,
// transposed. partial: as many numbers as v2_partial says.
struct V2Gradients {
  const void *grad, *signs;
  void *x_dst, *x_src, *features, *terms, *partial;
  bool adds_features;
};
int v2_shares(const V2Logits& task);
int64_t v2_partial(const V2Logits& task);
cudaError_t v2_gradients(const V2Logits& task, const V2Gradients& gradients, cudaStream_t stream);

}  // namespace dfgnn::cuda
