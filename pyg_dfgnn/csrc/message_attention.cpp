// Attention over messages x_j + W f_e, from the source j and the features f of an edge e into i, fused:
//   s[e, h] = scale <q[i, h], k[j, h] + W_h f_e>
//   y[i, h] = sum over the edges of i of alpha[e, h] (v[j, h] + W_h f_e)
// with alpha = dropout(softmax of s over the edges of i), and W, "projection", [H D, F]. Backward a kernel by
// destination makes dq, df, and alpha and the gradient ds of each edge's product, of which the rest is made:
//   dk = spmm^T(ds, q),   dv = spmm^T(alpha, dy),   dW = sum over nodes of q (sum of ds f)^T + dy (sum of alpha f)^T
// Of shapes that have no kernels, and for second derivatives, it is message_sddmm, edge_softmax and message_spmm.
#include "message_attention.h"

#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <string>
#include <tuple>
#include <utility>

#include "../../cuda/message_geometry.h"
#include "attention.h"
#include "autocast.h"
#include "call.h"
#include "checks.h"
#include "dropout.h"
#include "find_operator.h"
#include "projection.h"
#include "saved.h"

namespace dfgnn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// A call's arguments but for those that have gradients.
struct Setting {
  Structure g;
  at::Tensor eid;
  double scale, dropout_p;
  at::Tensor seed;

  // What weights are multiplied by: 0 where dropped.
  at::Tensor kept(const at::Tensor& like) const {
    return dropout_factor(seed, like.sym_size(0), like.sym_size(1), dropout_p, like.scalar_type());
  }
};

// And those that have.
struct Operands {
  at::Tensor q, k, v, features, w;
};

using ForwardTensors = std::tuple<at::Tensor, at::Tensor>;
using BackwardTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Message = at::Tensor(T, T, T, T, T, T, T, O, O, O);
using Forward = ForwardTensors(T, T, T, T, T, T, T, T, double, double, O);
using Backward = BackwardTensors(T, T, T, T, T, T, T, T, T, T, T, double, double, O, bool, bool);

// Of messages of b or x, with the call's features and W.
at::Tensor dispatch_message_sddmm(const Setting& call, T a, T b, const Operands& of) {
  static const auto op = find_operator<Message>("dfgnn::message_sddmm");
  const auto& g = call.g;
  return op.call(g.rowptr, g.col, call.eid, a, b, of.features, of.w, g.colptr, g.row, g.perm);
}

at::Tensor dispatch_message_spmm(const Setting& call, T weight, T x, const Operands& of) {
  static const auto op = find_operator<Message>("dfgnn::message_spmm");
  const auto& g = call.g;
  return op.call(g.rowptr, g.col, call.eid, weight, x, of.features, of.w, g.colptr, g.row, g.perm);
}

at::Tensor by_operators(const Setting& call, const Operands& x) {
  const auto logits = dispatch_message_sddmm(call, x.q, x.k, x);
  auto alpha = dispatch_edge_softmax(call.g.rowptr, call.g.col, logits, call.scale);
  if (call.dropout_p > 0) alpha = alpha * call.kept(alpha);
  return dispatch_message_spmm(call, alpha, x.v, x);
}

void check(const Setting& call, const Operands& x) {
  const auto& [q, k, v, features, w] = x;
  check_type_of_features(q, "q");
  check_dimensions(q, "q", 3);
  TORCH_CHECK(q.sym_size(0) == call.g.rowptr.sym_numel() - 1,
              "q: expected rowptr.numel() - 1 = ", call.g.rowptr.sym_numel() - 1, " nodes, got shape ", q.sym_sizes());
  for (const auto& [name, t] : {std::pair<const char*, T>{"k", k}, {"v", v}}) {
    check_like(t, name, q, "q");
    check_dimensions(t, name, 3);
    TORCH_CHECK(t.sym_size(1) == q.sym_size(1) && t.sym_size(2) == q.sym_size(2), name,
                ": expected as many heads as q, of the same size, ", q.sym_sizes().slice(1), ", got shape ",
                t.sym_sizes());
  }
  TORCH_CHECK(v.sym_size(0) == k.sym_size(0), "v: expected as many nodes as k (", k.sym_size(0), "), got shape ",
              v.sym_sizes());
  check_like(features, "features", q, "q");
  check_dimensions(features, "features", 2);
  check_like(w, "projection", q, "q");
  check_dimensions(w, "projection", 2);
  TORCH_CHECK(w.sym_size(0) == q.sym_size(1) * q.sym_size(2) && w.sym_size(1) == features.sym_size(1),
              "projection: expected shape [heads * head size, F] = [", q.sym_size(1) * q.sym_size(2), ", ",
              features.sym_size(1), "], got ", w.sym_sizes());
  check_dimensions(call.eid, "eid", 1);
  TORCH_CHECK(call.eid.sym_numel() == call.g.col.sym_numel(), "eid: expected [E] = ", call.g.col.sym_numel(),
              " entries, got ", call.eid.sym_numel());
  check_csc(call.g, k.sym_size(0), q.device());
  check_probability(call.dropout_p);
}

// As kernels take them, on CUDA with zeros behind features; {} where there are none. Compiled code is of these sizes
// alone; of sizes that cannot be known there are none.
std::optional<Operands> for_kernels(const Operands& x) {
  const std::array<c10::SymInt, 3> sizes{x.q.sym_size(1), x.q.sym_size(2), x.w.sym_size(1)};
  const bool are_known = std::all_of(sizes.begin(), sizes.end(), [](const auto& size) { return size.has_hint(); });
  if (!are_known || !(x.q.is_cuda() || x.q.is_cpu())) return {};
  const auto size = [&](int i) { return sizes[i].guard_int(__FILE__, __LINE__); };
  const auto heads = size(0), head_dim = size(1), width = size(2);
  if (x.q.is_cpu()) return fits_cpu_kernels(heads, head_dim, width) ? std::optional(x) : std::nullopt;
  const auto bytes = static_cast<int>(x.q.element_size());
  const auto shape = width > 0 ? cuda::message_shape(bytes, heads, head_dim, width) : cuda::MessageShape{};
  if (shape.lanes == 0) return {};
  auto padded = x;
  if (const auto padding = cuda::whole_width(bytes, shape, width) - width; padding > 0) {
    for (auto* t : {&padded.features, &padded.w}) *t = at::constant_pad_nd(*t, {0, padding});
  }
  return padded;
}

// y, and the logarithm of the softmax's sum.
ForwardTensors forward_by_kernel(const Setting& call, const Operands& x) {
  static const auto op = find_operator<Forward>("dfgnn::message_attention_fwd");
  return op.call(call.g.rowptr, call.g.col, call.eid, x.q, x.k, x.v, x.features, x.w, call.scale, call.dropout_p,
                 as_optional(call.seed));
}

struct MessageAttentionFunction : torch::autograd::Function<MessageAttentionFunction> {
  static Variable forward(AutogradContext* ctx, const Variable& q, const Variable& k, const Variable& v,
                          const Variable& features, const Variable& w, const Setting& call) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto [y, lse] = forward_by_kernel(call, {q, k, v, features, w});
    ctx->save_for_backward(with_structure(call.g, {q, k, v, features, w, call.eid, call.seed, y, lse}));
    ctx->saved_data["parameters"] = std::make_tuple(call.scale, call.dropout_p);
    return y;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NoAutocast guard;
    const auto saved = ctx->get_saved_variables();
    const auto* of_call = saved.data() + kStructure;
    const auto [scale, dropout_p] = ctx->saved_data["parameters"].to<std::tuple<double, double>>();
    const Operands x{of_call[0], of_call[1], of_call[2], of_call[3], of_call[4]};
    const Setting call{saved_structure(saved), of_call[5], scale, dropout_p, of_call[6]};
    const auto& dy = grads[0];
    const bool of_features = ctx->needs_input_grad(3), of_w = ctx->needs_input_grad(4);
    const auto parts = at::GradMode::is_enabled() ? by_operators(call, x, dy, of_w, of_features)
                                                  : by_kernel(call, x, of_call[7], of_call[8], dy, of_w, of_features);
    variable_list result(6);
    if (ctx->needs_input_grad(0)) result[0] = parts.q;
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(2)) {
      const auto both = with_csc(call.g, x.k.sym_size(0));
      if (ctx->needs_input_grad(1)) result[1] = dispatch_spmm(both, parts.logits, x.q, true, false);
      if (ctx->needs_input_grad(2)) result[2] = dispatch_spmm(both, parts.weights, dy, true, false);
    }
    if (of_features) result[3] = parts.features;
    if (of_w) result[4] = parts.w;
    return result;
  }

 private:
  // What the gradients are made of: dq, ds, alpha, dW, df.
  struct Parts {
    at::Tensor q, logits, weights, w, features;
  };

  static Parts by_kernel(const Setting& call, const Operands& x, T y, T lse, T dy, bool of_w, bool of_features) {
    static const auto op = find_operator<Backward>("dfgnn::message_attention_bwd");
    const auto [q, logits, weights, of_projection, features] =
        op.call(dy, y, lse, call.g.rowptr, call.g.col, call.eid, x.q, x.k, x.v, x.features, x.w, call.scale,
                call.dropout_p, as_optional(call.seed), of_w, of_features);
    return {q, logits, weights, of_projection, features};
  }

  // By operators that have derivatives.
  static Parts by_operators(const Setting& call, const Operands& x, T dy, bool of_w, bool of_features) {
    const auto& g = call.g;
    const auto logits = dispatch_message_sddmm(call, x.q, x.k, x);
    const auto p = dispatch_edge_softmax(g.rowptr, g.col, logits, call.scale);
    auto weights = p, dp = dispatch_message_sddmm(call, dy, x.v, x);
    if (call.dropout_p > 0) {
      const auto kept = call.kept(p);
      weights = weights * kept;
      dp = dp * kept;
    }
    const auto ds = edge_softmax_gradient(g.rowptr, g.col, dp, p, call.scale);
    const Projection projection(x.w, x.q);
    Parts parts{dispatch_message_spmm(call, ds, x.k, x), ds, weights, {}, {}};
    if (of_w) {
      parts.w = projection.gradient(x.q, dispatch_edge_spmm(g.rowptr, call.eid, ds, x.features)) +
                projection.gradient(dy, dispatch_edge_spmm(g.rowptr, call.eid, weights, x.features));
    }
    if (of_features) {
      const auto rows = x.features.sym_size(0);
      parts.features = dispatch_edge_spmm_t(g.rowptr, call.eid, ds, projection.of(x.q), rows) +
                       dispatch_edge_spmm_t(g.rowptr, call.eid, weights, projection.of(dy), rows);
    }
    return parts;
  }
};

// Arguments of the operator as such; a seed is drawn where there is to be one.
std::pair<Setting, Operands> checked(T rowptr, T col, T eid, T q, T k, T v, T features, T w,
                                     std::optional<double> scale, double dropout_p, O seed, O colptr, O row, O perm) {
  check_given({{"rowptr", rowptr}, {"col", col}, {"eid", eid}});
  Setting call{{rowptr, col, colptr, row, perm}, eid, 1, dropout_p, defined_or_empty(seed)};
  Operands x{q, k, v, features, w};
  check(call, x);
  call.scale = scale ? *scale : 1 / std::sqrt(static_cast<double>(q.sym_size(2).guard_int(__FILE__, __LINE__)));
  if (dropout_p > 0 && !call.seed.defined()) call.seed = draw_seed(q);
  return {call, x};
}

at::Tensor message_attention(T rowptr, T col, T eid, T q, T k, T v, T features, T w, std::optional<double> scale,
                             double dropout_p, O seed, O colptr, O row, O perm) {
  const auto [call, x] = checked(rowptr, col, eid, q, k, v, features, w, scale, dropout_p, seed, colptr, row, perm);
  const auto of_kernels = for_kernels(x);
  return of_kernels ? std::get<0>(forward_by_kernel(call, *of_kernels)) : by_operators(call, x);
}

at::Tensor message_attention_autograd(T rowptr, T col, T eid, T q, T k, T v, T features, T w,
                                      std::optional<double> scale, double dropout_p, O seed, O colptr, O row, O perm) {
  const auto [call, x] = checked(rowptr, col, eid, q, k, v, features, w, scale, dropout_p, seed, colptr, row, perm);
  const auto of_kernels = for_kernels(x);
  if (!of_kernels) return by_operators(call, x);
  const auto& [kernel_q, kernel_k, kernel_v, kernel_features, kernel_w] = *of_kernels;
  return MessageAttentionFunction::apply(kernel_q, kernel_k, kernel_v, kernel_features, kernel_w, call);
}

// Features are cast to the autocast dtype.
at::Tensor message_attention_autocast(T rowptr, T col, T eid, T q, T k, T v, T features, T w,
                                      std::optional<double> scale, double dropout_p, O seed, O colptr, O row, O perm) {
  const NoAutocast guard;
  static const auto op = find_operator<at::Tensor(T, T, T, T, T, T, T, T, std::optional<double>, double, O, O, O, O)>(
      "dfgnn::message_attention");
  return op.call(rowptr, col, eid, autocast_features(q), autocast_features(k), autocast_features(v),
                 autocast_features(features), autocast_features(w), scale, dropout_p, seed, colptr, row, perm);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  m.def((std::string("message_attention(Tensor rowptr, Tensor col, *, Tensor eid, Tensor q, Tensor k, Tensor v, "
                     "Tensor features, Tensor projection, float? scale=None, float dropout_p=0.0, "
                     "Tensor? seed=None, ") +
         kCscArguments + ") -> Tensor")
            .c_str());
}

TORCH_LIBRARY_IMPL(dfgnn, CompositeExplicitAutograd, m) { m.impl("message_attention", message_attention); }

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) { m.impl("message_attention", message_attention_autograd); }

TORCH_LIBRARY_IMPL(dfgnn, AutocastCPU, m) { m.impl("message_attention", message_attention_autocast); }

TORCH_LIBRARY_IMPL(dfgnn, AutocastCUDA, m) { m.impl("message_attention", message_attention_autocast); }

}  // namespace dfgnn
