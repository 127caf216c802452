// GAT's scores of nodes, <att, x> of each head:
//   node_scores(x, att, other)                     [N, H] each, of one or two vectors att, in one pass over x
//   gat_scores(x_src, x_dst, att_src, att_dst)     of both ends of edges, which is one pass where these are one tensor
// They are of the accumulation type. PyG's (x * att).sum(-1) takes two passes each, and four back.
#include "node_scores.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include "autocast.h"
#include "call.h"
#include "checks.h"
#include "find_operator.h"
#include "saved.h"

namespace dfgnn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

using Scores = std::tuple<at::Tensor, at::Tensor>;           // of other [0] where there is none
using GradientTensors = std::tuple<at::Tensor, at::Tensor>;  // of x, and of att and other, [1 or 2, H, C]

at::Tensor vector_of_heads(T att, const char* name, T x) {
  return logit_term(att, name, x, {x.size(1), x.size(2)}, "[heads, head size]");
}

at::Tensor gradient_of_scores(T grad, const char* name, T x) {
  check_shape(grad, name, {x.size(0), x.size(1)}, "[nodes, heads]");
  check_device(grad, name, x.device());
  check_floating_point(grad, name);
  return to_accumulate(grad, accumulate_type(x.scalar_type()));
}

// Of torch's operators, which have derivatives of any order.
GradientTensors gradients_of(T grad, T grad_other, T x, T att, T other) {
  const auto type = accumulate_type(x.scalar_type());
  const auto of_x = [](T g, T vector) { return g.unsqueeze(-1) * vector; };
  const auto of_att = [&](T g) { return (g.unsqueeze(-1) * x.to(type)).sum(0); };
  const auto d = grad.to(type);
  const auto grad_x = of_x(d, att.to(type));
  if (!other.defined()) return {grad_x.to(x.scalar_type()), of_att(d).unsqueeze(0)};
  const auto d_other = grad_other.to(type);
  return {(grad_x + of_x(d_other, other.to(type))).to(x.scalar_type()), at::stack({of_att(d), of_att(d_other)})};
}

template <auto backend>
Scores node_scores(T x, T att, O other) {
  check_value(x, "x");
  const auto vector = vector_of_heads(att, "att", x);
  return backend(x.contiguous(), vector, other ? vector_of_heads(*other, "other", x) : at::Tensor());
}

template <auto backend>
GradientTensors node_scores_bwd(T grad, O grad_other, T x, T att, O other) {
  check_value(x, "x");
  TORCH_CHECK(grad_other.has_value() == other.has_value(),
              "grad_other: expected one exactly where other is given, got ", grad_other.has_value() ? "one" : "none");
  const auto vector = vector_of_heads(att, "att", x), d = gradient_of_scores(grad, "grad", x);
  auto second = at::Tensor(), d_second = at::Tensor();
  if (other) {
    second = vector_of_heads(*other, "other", x);
    d_second = gradient_of_scores(*grad_other, "grad_other", x);
  }
  return backend(d, d_second, x.contiguous(), vector, second);
}

Scores node_scores_meta(T x, T att, O other) {
  check_on_meta({{"x", x}, {"att", att}, {"other", other}});
  check_dimensions(x, "x", 3);
  const auto options = x.options().dtype(accumulate_type(x.scalar_type()));
  const auto scores = [&] { return at::empty_symint({x.sym_size(0), x.sym_size(1)}, options); };
  return {scores(), other ? scores() : at::empty({0}, options)};
}

GradientTensors node_scores_bwd_meta(T grad, O grad_other, T x, T att, O other) {
  check_on_meta({{"grad", grad}, {"grad_other", grad_other}, {"x", x}, {"att", att}, {"other", other}});
  check_dimensions(x, "x", 3);
  return {at::empty_symint(x.sym_sizes(), x.options()),
          at::empty_symint({other ? 2 : 1, x.sym_size(1), x.sym_size(2)},
                           x.options().dtype(accumulate_type(x.scalar_type())))};
}

Scores dispatch(T x, T att, O other) {
  static const auto op = find_operator<Scores(T, T, O)>("dfgnn::node_scores");
  return op.call(x, att, other);
}

GradientTensors dispatch_backward(T grad, O grad_other, T x, T att, O other) {
  static const auto op = find_operator<GradientTensors(T, O, T, T, O)>("dfgnn::node_scores_bwd");
  return op.call(grad, grad_other, x, att, other);
}

struct NodeScores : torch::autograd::Function<NodeScores> {
  static variable_list forward(AutogradContext* ctx, const Variable& x, const Variable& att, const OptTensor& other) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({x, att, defined_or_empty(other)});
    auto [scores, others] = dispatch(x, att, other);
    if (!other) ctx->mark_non_differentiable({others});
    return {scores, others};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &x = saved[0], &att = saved[1], &other = saved[2];
    const auto grad_other = other.defined() ? grads[1] : at::Tensor();
    const auto [of_x, of_vectors] =
        at::GradMode::is_enabled() ? gradients_of(grads[0], grad_other, x, att, other)
                                   : dispatch_backward(grads[0], as_optional(grad_other), x, att, as_optional(other));
    const auto of_other = other.defined() ? of_vectors.select(0, 1).to(other.scalar_type()) : at::Tensor();
    return {of_x, of_vectors.select(0, 0).to(att.scalar_type()), of_other};
  }
};

Scores node_scores_autograd(T x, T att, O other) {
  check_given({{"x", x}, {"att", att}});
  const auto scores = NodeScores::apply(x, att, other);
  return {scores[0], scores[1]};
}

// Features are what a linear layer made of them; vectors of half precision may be of another one.
Scores node_scores_autocast(T x, T att, O other) {
  const NoAutocast guard;
  return dispatch(x, to_full_precision(att), other ? OptTensor(to_full_precision(*other)) : std::nullopt);
}

// What operators on the way would name otherwise.
void check_vector(T att, const char* name, T x, const char* x_name) {
  check_value(x, x_name);
  TORCH_CHECK(att.dim() == 2 && att.sym_size(0) == x.sym_size(1) && att.sym_size(1) == x.sym_size(2), name,
              ": expected shape [heads, head size] = [", x.sym_size(1), ", ", x.sym_size(2), "], got ",
              att.sym_sizes());
  const auto type = att.scalar_type();  // half precision that is not x's, autocast may widen
  TORCH_CHECK(type == x.scalar_type() || type == at::kFloat || at::isReducedFloatingType(type), name,
              ": expected the dtype of ", x_name, " (", x.scalar_type(), ") or float32, got ", type);
  check_device(att, name, x.device());
}

Scores gat_scores(T x_src, T x_dst, T att_src, T att_dst) {
  check_vector(att_src, "att_src", x_src, "x_src");
  check_vector(att_dst, "att_dst", x_dst, "x_dst");
  if (x_src.is_same(x_dst)) return dispatch(x_src, att_src, att_dst);
  return {std::get<0>(dispatch(x_src, att_src, {})), std::get<0>(dispatch(x_dst, att_dst, {}))};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  m.def("node_scores(Tensor x, Tensor att, Tensor? other=None) -> (Tensor scores, Tensor other_scores)");
  m.def(
      "node_scores_bwd(Tensor grad, Tensor? grad_other, Tensor x, Tensor att, Tensor? other=None) -> "
      "(Tensor grad_x, Tensor grad_att)");
  m.def("gat_scores(Tensor x_src, Tensor x_dst, Tensor att_src, Tensor att_dst) -> (Tensor a_src, Tensor a_dst)",
        gat_scores);
}

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) {
  m.impl("node_scores", node_scores<node_scores_cpu>);
  m.impl("node_scores_bwd", node_scores_bwd<node_scores_bwd_cpu>);
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  m.impl("node_scores", node_scores<node_scores_cuda>);
  m.impl("node_scores_bwd", node_scores_bwd<node_scores_bwd_cuda>);
}
#endif

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) {
  m.impl("node_scores", node_scores_meta);
  m.impl("node_scores_bwd", node_scores_bwd_meta);
}

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  m.impl("node_scores", node_scores_autograd);
  m.impl("node_scores_bwd", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(dfgnn, AutocastCPU, m) { m.impl("node_scores", node_scores_autocast); }

TORCH_LIBRARY_IMPL(dfgnn, AutocastCUDA, m) { m.impl("node_scores", node_scores_autocast); }

}  // namespace dfgnn
