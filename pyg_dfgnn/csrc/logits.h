// The arguments of additive_v2_logits (logits.cpp), and its kernels.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

#include "products.h"

namespace dfgnn {

// x [nodes, H, C], att [H, C], features [rows, F], weight [H * C, F], and eid [E], the row of features of each edge.
struct V2Operands {
  Structure graph;
  at::Tensor x_dst, x_src, att;
  std::optional<at::Tensor> features, weight, eid;
  double negative_slope;

  int64_t num_edges() const { return graph.col.numel(); }
};

// Of x_dst, x_src, att, features, which may be left out, and weight; kernels have those of att and weight in the
// accumulation type.
using V2GradientTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// The kernels of the CPU, of any heads; whether there are CUDA kernels for these heads, and these. Of checked operands,
// grad [E, H] of the accumulation type.
at::Tensor v2_logits_cpu(const V2Operands& operands);
V2GradientTensors v2_gradients_cpu(const at::Tensor& grad, const V2Operands& operands, bool of_features);
bool v2_takes_cuda(const V2Operands& operands);
at::Tensor v2_logits_cuda(const V2Operands& operands);
V2GradientTensors v2_gradients_cuda(const at::Tensor& grad, const V2Operands& operands, bool of_features);

}  // namespace dfgnn
