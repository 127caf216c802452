// Derivatives: every forward operator records one node, whose backward is the matching backward operator. That is
// itself differentiable: where a graph is asked of it (create_graph=True) it is computed by differentiable operators.
#include <torch/library.h>

#include "call.h"
#include "composite.h"
#include "derivative.h"
#include "method.h"
#include "saved.h"

namespace dfgnn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// The differentiable tensors of the call are a, b, c, a_edge and bias; they are separate arguments so that autograd
// sees them, and optional ones since it takes an undefined Tensor for a variable.
struct AttentionFunction : torch::autograd::Function<AttentionFunction> {
  // Of AGNN's one x: where it came from goes once, as b. In a's place the node gets what has no gradient, as nobody
  // adds up gradients that are not there in compiled autograd.
  static bool is_one_x(const Call& call) { return call.score == Score::cosine && call.a.is_same(call.b); }

  static variable_list record(const Call& call) {
    at::Tensor a = call.a;
    if (is_one_x(call)) {
      at::AutoDispatchBelowADInplaceOrView guard;
      a = a.detach();
    }
    return apply(a, call.b, call.c, call.a_edge, call.bias, call);
  }

  static variable_list forward(AutogradContext* ctx, const Variable& a, const Variable& b, const Variable& c,
                               const OptTensor& a_edge, const OptTensor& bias, const Call& call) {
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor out, lse, derivative;
    if (keeps_derivative(call)) {
      std::tie(out, lse, derivative) = dispatch_forward_with_derivative(call);
    } else {
      std::tie(out, lse) = dispatch_forward(call);
    }
    const bool one_x = is_one_x(call);
    ctx->save_for_backward({one_x ? at::Tensor() : a, b, c, defined_or_empty(a_edge), defined_or_empty(bias),
                            call.rowptr, call.col, defined_or_empty(call.colptr), defined_or_empty(call.row),
                            defined_or_empty(call.perm), defined_or_empty(call.seed),
                            defined_or_empty(call.route.tiles), out, lse, derivative});
    // Few entries, as each costs as much as a saved tensor. What differs between batches has its own: compiled autograd
    // takes those for inputs, and what a tuple holds for constants.
    auto& data = ctx->saved_data;
    data["operator"] =
        std::make_tuple(static_cast<int64_t>(call.op), static_cast<int64_t>(call.score), one_x, call.route.method);
    data["parameters"] = std::make_tuple(call.scale, call.parameter, call.dropout_p);
    data["max_degree"] = call.route.max_degree;
    data["tile_blocks"] = call.route.tile_blocks;
    data["tile_nodes"] = call.route.tile_nodes;
    data["tile_batches"] = call.route.tile_batches;
    ctx->set_materialize_grads(false);
    return {out, lse};
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    auto& data = ctx->saved_data;
    const auto [op, score, one_x, method] = data["operator"].to<std::tuple<int64_t, int64_t, bool, std::string>>();
    const auto [scale, parameter, dropout_p] =
        data["parameters"].to<std::tuple<std::optional<double>, double, double>>();
    Call call = make_call(
        static_cast<Op>(op), static_cast<Score>(score), saved[5], saved[6], as_optional(saved[7]),
        as_optional(saved[8]), as_optional(saved[9]), saved[one_x ? 1 : 0], saved[1], saved[2], as_optional(saved[3]),
        as_optional(saved[4]), scale, parameter, dropout_p, as_optional(saved[10]),
        make_route(method, data["max_degree"].toSymInt(), as_optional(saved[11]), data["tile_blocks"].toSymInt(),
                   data["tile_nodes"].toSymInt(), data["tile_batches"].toSymInt()));
    call.sum_x = one_x;
    if (!call.colptr.has_value()) {
      std::tie(call.colptr, call.row, call.perm) = dispatch_csr_to_csc(call.rowptr, call.col, call.value().sym_size(0));
    }
    const at::Tensor &out = saved[12], &derivative = saved[14];
    const auto grad_out = grads[0].defined() ? grads[0] : at::zeros_like(out);
    const BackwardInputs inputs{grad_out, as_optional(grads[1]), out, saved[13]};
    if (derivative.defined() && !inputs.grad_lse.has_value() && !at::GradMode::is_enabled()) {
      at::AutoDispatchBelowADInplaceOrView guard;
      const auto [grad_a, grad_b, grad_c] = dispatch_backward_from_derivative(call, inputs, derivative);
      return {grad_a, grad_b, grad_c, at::Tensor(), at::Tensor(), at::Tensor()};
    }
    auto result = dispatch_backward(call, inputs);
    if (one_x) result[0] = at::Tensor();
    if (!call.a_edge.has_value()) result[3] = at::Tensor();
    if (!call.bias.has_value()) result[4] = at::Tensor();
    return {result[0], result[1], result[2], result[3], result[4], at::Tensor()};
  }
};

struct Autograd {
  static ForwardResult forward(Call call) {
    call = with_seed(std::move(call));
    if (!is_recorded(call)) {
      at::AutoDispatchBelowADInplaceOrView guard;
      return dispatch_forward(call);
    }
    const auto result = AttentionFunction::record(call);
    return {result[0], result[1]};
  }

  static CallGradients backward(Call call, BackwardInputs inputs) {
    if (needs_graph(call, inputs)) return backward_composite(call, inputs);
    at::AutoDispatchBelowADInplaceOrView guard;
    return dispatch_backward(call, inputs);
  }

 private:
  template <class Predicate>
  static bool any_operand(const Call& call, const Predicate& is) {
    return is(call.a) || is(call.b) || is(call.c) || (call.a_edge && is(*call.a_edge)) || (call.bias && is(*call.bias));
  }

  // Whether a call needs a node, which costs as much as all else of a call on a small graph. Forward-mode AD, which the
  // operators do not have, gets one, as that is what refuses it.
  static bool is_recorded(const Call& call) {
    const bool records = at::GradMode::is_enabled();
    return any_operand(call, [records](const at::Tensor& t) {
      return (records && t.requires_grad()) || t._fw_grad(/*level=*/0).defined();
    });
  }

  static bool needs_graph(const Call& call, const BackwardInputs& inputs) {
    const auto requires_grad = [](const at::Tensor& t) { return t.requires_grad(); };
    return at::GradMode::is_enabled() &&
           (any_operand(call, requires_grad) || requires_grad(inputs.grad_out) || requires_grad(inputs.out) ||
            requires_grad(inputs.lse) || (inputs.grad_lse && requires_grad(*inputs.grad_lse)));
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  register_forward<Autograd>(m);
  register_backward<Autograd>(m);
}

}  // namespace dfgnn
