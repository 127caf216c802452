// The operands of one fused attention call, as every backend sees them.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

namespace dfgnn {

enum class Score { dot, cosine, additive, additive_v2 };
enum class Method { smmf, pmf, tile, resident };

// Whether the value is src, so that one row a source serves both.
inline bool value_is_src(Score score) { return score == Score::cosine || score == Score::additive_v2; }

// One call's operands, checked and contiguous (see operands.cpp). N_dst rows are destinations, N_src columns are
// sources, E = col.numel() edges, H heads of size D. T is the value's dtype; A is the accumulation type: double when T
// is double, float otherwise.
//
// The logit of head h of edge e = (i <- j), at position e of the CSR:
//   dot          s = scale * <dst_i, src_j>                                  + bias_e
//   cosine       s = dst_scale_i * src_scale_j * <dst_i, src_j>              + bias_e     (value is src)
//   additive     s = leaky_relu(dst_i + src_j + a_edge_e, negative_slope)    + bias_e
//   additive_v2  s = <att, leaky_relu(dst_i + src_j, negative_slope)>        + bias_e     (value is src)
// out_i = sum_j dropout(softmax_j(s)) value_j;  lse_i = log sum_j exp(s_ij), -inf for a row without edges (out_i = 0).
struct Attention {
  Score score;
  at::Tensor rowptr, col;        // CSR by destination, [N_dst + 1] and [E], both int32 or both int64
  at::Tensor colptr, row, perm;  // CSC by source, [N_src + 1], [E], [E]: perm[c] is the CSR position of CSC entry c
                                 // (same dtype as rowptr; defined in a backward pass only)
  at::Tensor dst;                // T [N_dst, H, D]; additive: A [N_dst, H]
  at::Tensor src;                // T [N_src, H, D]; additive: A [N_src, H]
  at::Tensor value;              // T [N_src, H, D]; the same tensor as src where value_is_src
  at::Tensor beta;               // cosine only: A [1] or [H]
  double eps = 0.0;              // cosine only: norms count from there on
  at::Tensor dst_scale;          // cosine only, of set_scales(): A [N_dst, H] beta / |x_i|,
  at::Tensor src_scale;          // and A [N_src, H] 1 / |x_j|
  at::Tensor att;                // additive_v2 only: A [H, D]
  at::Tensor a_edge;             // additive only, optional: A [E, H] in CSR order
  at::Tensor bias;               // optional: A [E, H] in CSR order
  double scale = 1.0;            // dot only
  double negative_slope = 0.0;   // additive, additive_v2
  double dropout_p = 0.0;        // in [0, 1]
  at::Tensor seed;               // int64 [1] on the operands' device; defined where dropout_p > 0
  at::Tensor tiles;              // where the caller gave them, alone or with masks (graph.cpp) or their list
  int64_t max_degree = -1;       // edges of the longest row, where the caller gave it
  int64_t tile_nodes = -1;       // the most of a tile, for the resident method, where the caller gave them,
  int64_t tile_batches = -1;     // and the most batches of edges

  int64_t num_dst() const { return rowptr.numel() - 1; }
  int64_t num_src() const { return value.size(0); }
  int64_t num_edges() const { return col.numel(); }
  int64_t heads() const { return value.size(1); }
  int64_t head_dim() const { return value.size(2); }
};

// What a backward pass is given beside the operands.
struct Saved {
  at::Tensor grad_out;  // T [N_dst, H, D]
  at::Tensor out;       // T [N_dst, H, D]
  at::Tensor lse;       // A [N_dst, H]
  at::Tensor grad_lse;  // optional: A [N_dst, H]
  bool sum_x = false;   // Call::sum_x
};

// Gradients of the logit's operands as the kernels make them, each with the dtype and shape of its operand;
// operands.cpp turns cosine's into those of x and beta, and additive_v2's, which lack the factor att, into those of x
// and att. Of cosine's one x, dst and src, with sum_x, the kernels of tile and resident make all of it: value is then
// that of x, by_beta the terms of beta's sum over nodes, A [N_dst, H], and dst and src are undefined. Else, with
// ds' = ds * leaky_relu', a number for additive and [D] for additive_v2:
struct Gradients {
  at::Tensor dst;     // dot: scale * sum_j ds src_j;  cosine: sum_j ds src_scale_j src_j;  additive, _v2: sum_j ds'
  at::Tensor src;     // dot: scale * sum_i ds dst_i;  cosine: sum_i ds dst_scale_i dst_i;  additive, _v2: sum_i ds'
  at::Tensor value;   // sum_i dropout(p) grad_out_i, T [N_src, H, D]
  at::Tensor a_edge;  // additive, where a_edge is defined: ds', A [E, H]
  at::Tensor bias;    // where bias is defined: ds, A [E, H]
  at::Tensor by_beta;
};

using ForwardResult = std::tuple<at::Tensor, at::Tensor>;  // out T [N_dst, H, D], lse A [N_dst, H]

// On the CPU all methods are one fused kernel: a core has neither shared memory to fill nor warps to balance; its
// edge-balanced chunks of rows are what pmf balances and its row of scores in the L1 cache what smmf keeps on chip.
ForwardResult forward_cpu(const Attention& attention);
Gradients backward_cpu(const Attention& attention, const Saved& saved);

// Methods tile and resident: where they can run (method.h).
ForwardResult forward_cuda(Attention attention, Method method);
Gradients backward_cuda(Attention attention, const Saved& saved, Method method);

// Additive_v2's gradients of x_dst, x_src and att, the first two in the place of those that it is given.
std::tuple<at::Tensor, at::Tensor, at::Tensor> att_gradients_cpu(const Attention& attention, const Gradients& given);
std::tuple<at::Tensor, at::Tensor, at::Tensor> att_gradients_cuda(const Attention& attention, const Gradients& given);

inline at::ScalarType accumulate_type(at::ScalarType type) { return type == at::kDouble ? at::kDouble : at::kFloat; }

}  // namespace dfgnn
