// The kernels of attention over messages; see message_attention.cpp.
#pragma once

#include <ATen/ATen.h>

#include "products.h"

namespace dfgnn {

// Operands of a call, checked and contiguous. graph: by destination; q, k, v: T [nodes, H, D]; features: T [rows, F],
// of edge e at eid[e]; on CUDA pieces: of the kernels' shape (cuda/message_geometry.h), and weights: W as kernels read
// it, undefined where there are pieces (cuda/message_attention.h); seed: defined where dropout_p > 0.
struct MessageAttention {
  Compressed graph;
  at::Tensor eid, q, k, v, features, projection;
  int pieces;
  at::Tensor weights;
  double scale, dropout_p;
  at::Tensor seed;
};

struct MessageResults {
  at::Tensor out, lse;
};

struct MessageBackwardInputs {
  at::Tensor grad_out, out, lse;
  bool of_projection, of_features;  // whether their gradients are wanted
};

struct MessageGradients {
  at::Tensor q, logits, weights;
  at::Tensor projection, features;  // of no elements where they are not wanted
};

// Whether there are kernels for such sizes on the CPU. They read W, [heads * head_dim, width], for every node: products
// of large matrices take less time for many nodes at once.
inline bool fits_cpu_kernels(int64_t heads, int64_t head_dim, int64_t width) {
  constexpr int64_t kHeads = 64, kHead = 1 << 13, kNumbers = 1 << 15;
  const int64_t of_head = head_dim * width;
  return 0 < of_head && of_head <= kHead && heads <= kHeads && heads * of_head <= kNumbers;
}

MessageResults message_attention_fwd_cpu(const MessageAttention& call);
MessageGradients message_attention_bwd_cpu(const MessageAttention& call, const MessageBackwardInputs& inputs);
MessageResults message_attention_fwd_cuda(const MessageAttention& call);
MessageGradients message_attention_bwd_cuda(const MessageAttention& call, const MessageBackwardInputs& inputs);

}  // namespace dfgnn
