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

// Whether W of so many numbers is small enough for the CPU's kernels, which read it for every node.
inline bool fits_cpu_kernels(int64_t numbers) { return numbers > 0 && numbers <= int64_t(1) << 15; }

MessageResults message_attention_fwd_cpu(const MessageAttention& call);
MessageGradients message_attention_bwd_cpu(const MessageAttention& call, const MessageBackwardInputs& inputs);
MessageResults message_attention_fwd_cuda(const MessageAttention& call);
MessageGradients message_attention_bwd_cuda(const MessageAttention& call, const MessageBackwardInputs& inputs);

}  // namespace dfgnn
