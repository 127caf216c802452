// The arguments of additive_v2_logits (logits.cpp), and its kernels.
#pragma once

#include <ATen/ATen.h>

#include <optional>
#include <tuple>

#include "products.h"
#include "v2_parts.h"

namespace dfgnn {

// x [nodes, H, C], att [H, C], features [rows, F], weight [H * C, F], and eid [E], the row of features of each edge.
struct V2Operands {
  Structure graph;
  at::Tensor x_dst, x_src, att;
  std::optional<at::Tensor> features, weight, eid;
  double negative_slope;
  std::optional<at::Tensor> signs = {};  // [E, bytes] of the forward pass (V2Parts)

  int64_t num_edges() const { return graph.col.numel(); }
  // Sizes that graphs do not change. (Those of a tensor's other dimensions stay symbols where they are.)
  int64_t edge_dim() const { return features.has_value() ? fixed_size(*features, 1) : 0; }
  bool has_edges() const { return num_edges() > 0 && x_dst.size(0) > 0; }
  V2Parts parts(bool with_signs) const {
    return {x_src.scalar_type(), fixed_size(att, 0), fixed_size(att, 1), edge_dim(), negative_slope, with_signs};
  }
  static int64_t fixed_size(const at::Tensor& x, int64_t dim) { return x.sym_size(dim).guard_int(__FILE__, __LINE__); }
};

// Of x_dst, x_src, att, features, which may be left out, and weight; kernels have those of att and weight in the
// accumulation type.
using V2GradientTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// Kernels, of checked operands that have edges; grad [E, H] of the accumulation type. On CUDA the forward pass may
// leave signs to the backward pass, which makes them again where there are none.
at::Tensor v2_logits_cpu(const V2Operands& operands);
at::Tensor v2_logits_cuda(const V2Operands& operands);
std::tuple<at::Tensor, at::Tensor> v2_logits_and_signs_cuda(const V2Operands& operands);
V2GradientTensors v2_gradients_cpu(const at::Tensor& grad, const V2Operands& operands, bool of_features);
V2GradientTensors v2_gradients_cuda(const at::Tensor& grad, const V2Operands& operands, bool of_features);

}  // namespace dfgnn
