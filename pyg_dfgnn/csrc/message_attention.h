// The kernels of attention over messages; see message_attention.cpp.
#pragma once

#include <ATen/ATen.h>

#include "products.h"

namespace dfgnn {

// Operands of a call, checked and contiguous. graph: by destination; q, k, v: T [nodes, H, D]; features: T [rows, F],
// of edge e at eid[e]; pieces: of the kernels' shape (cuda/message_geometry.h); weights: W as kernels read it,
// undefined where there are pieces (cuda/message_attention.h); seed: defined where dropout_p > 0.
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

MessageResults message_attention_fwd_cuda(const MessageAttention& call);
MessageGradients message_attention_bwd_cuda(const MessageAttention& call, const MessageBackwardInputs& inputs);

}  // namespace dfgnn
