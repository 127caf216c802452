// Numbers of edges and heads, [E, heads] in the order of the CSR, without features:
//   additive_logits   s_e = a_dst_i + a_src_j
//   sum_edges         y_i = sum over the edges e of destination i (of source j) of x_e, the derivative of that
//   edge_softmax      p_e = exp(scale s_e) / sum over the edges of i of exp(scale s), 0 where all of these are 0
// Entries of col behind rowptr[-1] get 0, edges of a node that is out of range NaN.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <string>

#include "call.h"
#include "checks.h"
#include "find_operator.h"
#include "products.h"
#include "saved.h"

namespace dfgnn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

void check_edge_numbers(T x, const char* name, T col) {
  TORCH_CHECK(x.dim() == 2 && x.size(0) == col.numel() && x.size(1) >= 1 && x.is_floating_point(), name,
              ": expected floating point numbers of shape [E, heads], E = ", col.numel(), ", got ", x.scalar_type(),
              " of shape ", x.sizes());
}

Compressed by_destination(T rowptr, T col, int64_t num_src) {
  return {rowptr.contiguous(), col.contiguous(), at::Tensor(), num_src};
}

template <auto backend>
at::Tensor additive_logits(T rowptr, T col, T a_dst, T a_src, O colptr, O row, O perm) {
  for (const auto& [name, a] : {std::pair<const char*, T>{"a_dst", a_dst}, {"a_src", a_src}}) {
    TORCH_CHECK(a.dim() == 2 && a.is_floating_point() && a.size(1) >= 1, name,
                ": expected a floating point tensor [nodes, heads] of at least one head, got ", a.scalar_type(),
                " of shape ", a.sizes());
    TORCH_CHECK(a.scalar_type() == a_dst.scalar_type(), name, ": expected the dtype of a_dst (", a_dst.scalar_type(),
                "), got ", a.scalar_type());
    check_device(a, name, col.device());
  }
  TORCH_CHECK(a_src.size(1) == a_dst.size(1), "a_src: expected as many heads as a_dst (", a_dst.size(1),
              "), got shape ", a_src.sizes());
  check_csr(rowptr, col, a_dst.device());
  TORCH_CHECK(a_dst.size(0) == rowptr.numel() - 1, "a_dst: expected rowptr.numel() - 1 = ", rowptr.numel() - 1,
              " nodes, got shape ", a_dst.sizes());
  TORCH_CHECK(a_src.size(0) > 0 || col.numel() == 0, "a_src: expected the nodes that edges come from, got none");
  check_csc(Structure{rowptr, col, colptr, row, perm}, a_src.size(0), a_dst.device());
  const auto type = accumulate_type(a_dst.scalar_type());
  return backend(by_destination(rowptr, col, a_src.size(0)), to_accumulate(a_dst, type), to_accumulate(a_src, type));
}

template <auto backend>
at::Tensor sum_edges(T rowptr, T col, T values, O colptr, O row, O perm, bool transpose) {
  check_csr(rowptr, col, values.device());
  check_edge_numbers(values, "values", col);
  const auto numbers = to_accumulate(values, accumulate_type(values.scalar_type()));
  if (!transpose) return backend(by_destination(rowptr, col, 0), numbers);
  const Structure graph{rowptr, col, colptr, row, perm};
  check_transposable(graph);
  check_csc(graph, colptr->numel() - 1, values.device());
  return backend({colptr->contiguous(), row->contiguous(), perm->contiguous(), rowptr.numel() - 1}, numbers);
}

template <auto backend>
at::Tensor edge_softmax(T rowptr, T col, T logits, double scale) {
  check_csr(rowptr, col, logits.device());
  check_edge_numbers(logits, "logits", col);
  return backend(by_destination(rowptr, col, 0), to_accumulate(logits, accumulate_type(logits.scalar_type())), scale);
}

template <auto backend>
at::Tensor edge_softmax_bwd(T grad, T alpha, T rowptr, T col, double scale) {
  check_csr(rowptr, col, alpha.device());
  const auto type = accumulate_type(alpha.scalar_type());
  for (const auto& [name, x] : {std::pair<const char*, T>{"grad", grad}, {"alpha", alpha}}) {
    check_edge_numbers(x, name, col);
    check_device(x, name, col.device());
  }
  check_shape(grad, "grad", alpha.sizes(), "that of alpha");
  return backend(by_destination(rowptr, col, 0), to_accumulate(grad, type), to_accumulate(alpha, type), scale);
}

at::Tensor additive_logits_meta(T rowptr, T col, T a_dst, T a_src, O colptr, O row, O perm) {
  check_on_meta({{"rowptr", rowptr}, {"col", col}, {"a_dst", a_dst}, {"a_src", a_src}});
  check_on_meta({{"colptr", colptr}, {"row", row}, {"perm", perm}});
  check_dimensions(a_dst, "a_dst", 2);
  return at::empty_symint({col.sym_numel(), a_dst.sym_size(1)},
                          a_dst.options().dtype(accumulate_type(a_dst.scalar_type())));
}

at::Tensor sum_edges_meta(T rowptr, T col, T values, O colptr, O row, O perm, bool transpose) {
  check_on_meta({{"rowptr", rowptr}, {"col", col}, {"values", values}});
  check_on_meta({{"colptr", colptr}, {"row", row}, {"perm", perm}});
  check_dimensions(values, "values", 2);
  if (transpose) check_transposable(Structure{rowptr, col, colptr, row, perm});
  return at::empty_symint({(transpose ? *colptr : rowptr).sym_size(0) - 1, values.sym_size(1)},
                          values.options().dtype(accumulate_type(values.scalar_type())));
}

at::Tensor edge_softmax_meta(T rowptr, T col, T logits, double) {
  check_on_meta({{"rowptr", rowptr}, {"col", col}, {"logits", logits}});
  check_dimensions(logits, "logits", 2);
  return at::empty_symint(logits.sym_sizes(), logits.options().dtype(accumulate_type(logits.scalar_type())));
}

at::Tensor edge_softmax_bwd_meta(T grad, T alpha, T rowptr, T col, double) {
  check_on_meta({{"grad", grad}, {"alpha", alpha}, {"rowptr", rowptr}, {"col", col}});
  check_dimensions(alpha, "alpha", 2);
  return at::empty_symint(alpha.sym_sizes(), alpha.options().dtype(accumulate_type(alpha.scalar_type())));
}

at::Tensor dispatch_logits(const Structure& g, T a_dst, T a_src) {
  static const auto op = find_operator<at::Tensor(T, T, T, T, O, O, O)>("dfgnn::additive_logits");
  return op.call(g.rowptr, g.col, a_dst, a_src, g.colptr, g.row, g.perm);
}

at::Tensor dispatch_sum(const Structure& g, T values, bool transpose) {
  static const auto op = find_operator<at::Tensor(T, T, T, O, O, O, bool)>("dfgnn::sum_edges");
  return op.call(g.rowptr, g.col, values, g.colptr, g.row, g.perm, transpose);
}

at::Tensor dispatch_softmax_bwd(T grad, T alpha, T rowptr, T col, double scale) {
  static const auto op = find_operator<at::Tensor(T, T, T, T, double)>("dfgnn::edge_softmax_bwd");
  return op.call(grad, alpha, rowptr, col, scale);
}

struct AdditiveLogits : torch::autograd::Function<AdditiveLogits> {
  static Variable forward(AutogradContext* ctx, const Variable& a_dst, const Variable& a_src, const Structure& graph) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward(with_structure(graph));
    ctx->saved_data["num_src"] = a_src.sym_size(0);
    ctx->saved_data["dtype"] = a_dst.scalar_type();
    return dispatch_logits(graph, a_dst, a_src);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto graph = saved_structure(ctx->get_saved_variables());
    const auto dtype = ctx->saved_data["dtype"].toScalarType();
    variable_list result(3);
    if (ctx->needs_input_grad(0)) result[0] = dispatch_sum(graph, grads[0], false).to(dtype);
    if (ctx->needs_input_grad(1)) {
      const auto both = with_csc(graph, ctx->saved_data["num_src"].toSymInt());
      result[1] = dispatch_sum(both, grads[0], true).to(dtype);
    }
    return result;
  }
};

struct SumEdges : torch::autograd::Function<SumEdges> {
  static Variable forward(AutogradContext* ctx, const Variable& values, const Structure& graph, bool transpose) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward(with_structure(graph));
    ctx->saved_data["transpose"] = transpose;
    ctx->saved_data["dtype"] = values.scalar_type();
    return dispatch_sum(graph, values, transpose);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto graph = saved_structure(ctx->get_saved_variables());
    const auto& grad = grads[0];
    at::Tensor of_edges;
    if (TORCH_GUARD_SIZE_OBLIVIOUS(grad.sym_size(0).sym_eq(0))) {  // no nodes: entries are no edges
      of_edges = at::zeros_symint({graph.col.sym_numel(), grad.sym_size(1)}, grad.options());
    } else if (ctx->saved_data["transpose"].toBool()) {
      const auto none = at::zeros_symint({graph.rowptr.sym_size(0) - 1, grad.sym_size(1)}, grad.options());
      of_edges = dispatch_logits(graph, none, grad);
    } else {
      of_edges = to_edges(graph, grad);
    }
    return {of_edges.to(ctx->saved_data["dtype"].toScalarType()), at::Tensor(), at::Tensor()};
  }

  // The numbers of destinations at their edges, wherever these come from.
  static at::Tensor to_edges(const Structure& graph, const at::Tensor& x) {
    const auto none = at::zeros_symint({1, x.sym_size(1)}, x.options());
    return dispatch_logits({graph.rowptr, at::zeros_like(graph.col), {}, {}, {}}, x, none);
  }
};

struct EdgeSoftmax : torch::autograd::Function<EdgeSoftmax> {
  static Variable forward(AutogradContext* ctx, const Variable& logits, T rowptr, T col, double scale) {
    at::AutoDispatchBelowADInplaceOrView guard;
    auto alpha = dispatch_edge_softmax(rowptr, col, logits, scale);
    ctx->save_for_backward({alpha, rowptr, col});
    ctx->saved_data["scale"] = scale;
    ctx->saved_data["dtype"] = logits.scalar_type();
    return alpha;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto saved = ctx->get_saved_variables();
    const auto &alpha = saved[0], &rowptr = saved[1], &col = saved[2], &grad = grads[0];
    const double scale = ctx->saved_data["scale"].toDouble();
    const auto found = at::GradMode::is_enabled() ? edge_softmax_gradient(rowptr, col, grad, alpha, scale)
                                                  : dispatch_softmax_bwd(grad, alpha, rowptr, col, scale);
    return {found.to(ctx->saved_data["dtype"].toScalarType()), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor additive_logits_autograd(T rowptr, T col, T a_dst, T a_src, O colptr, O row, O perm) {
  check_given({{"rowptr", rowptr}, {"col", col}, {"a_dst", a_dst}, {"a_src", a_src}});
  return AdditiveLogits::apply(a_dst, a_src, Structure{rowptr, col, colptr, row, perm});
}

at::Tensor sum_edges_autograd(T rowptr, T col, T values, O colptr, O row, O perm, bool transpose) {
  check_given({{"rowptr", rowptr}, {"col", col}, {"values", values}});
  return SumEdges::apply(values, Structure{rowptr, col, colptr, row, perm}, transpose);
}

at::Tensor edge_softmax_autograd(T rowptr, T col, T logits, double scale) {
  check_given({{"rowptr", rowptr}, {"col", col}, {"logits", logits}});
  return EdgeSoftmax::apply(logits, rowptr, col, scale);
}

}  // namespace

at::Tensor dispatch_edge_softmax(T rowptr, T col, T logits, double scale) {
  static const auto op = find_operator<at::Tensor(T, T, T, double)>("dfgnn::edge_softmax");
  return op.call(rowptr, col, logits, scale);
}

at::Tensor edge_softmax_gradient(T rowptr, T col, T grad, T alpha, double scale) {
  const Structure graph{rowptr, col, {}, {}, {}};
  // Of what is no edge there may be anything.
  const auto is_edge = SumEdges::to_edges(graph, at::ones_symint({rowptr.sym_size(0) - 1, 1}, alpha.options()));
  const auto weighted = alpha * grad.masked_fill(is_edge == 0, 0);
  const auto sum = SumEdges::to_edges(graph, dispatch_sum(graph, weighted, false));
  return scale * (weighted - alpha * sum);
}

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  const std::string csc = kCscArguments;
  m.def(("additive_logits(Tensor rowptr, Tensor col, *, Tensor a_dst, Tensor a_src, " + csc + ") -> Tensor").c_str());
  m.def(
      ("sum_edges(Tensor rowptr, Tensor col, *, Tensor values, " + csc + ", bool transpose=False) -> Tensor").c_str());
  m.def("edge_softmax(Tensor rowptr, Tensor col, *, Tensor logits, float scale=1.0) -> Tensor");
  m.def("edge_softmax_bwd(Tensor grad, Tensor alpha, Tensor rowptr, Tensor col, *, float scale=1.0) -> Tensor");
}

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) {
  m.impl("additive_logits", additive_logits<add_ends_cpu>);
  m.impl("sum_edges", sum_edges<sum_edges_cpu>);
  m.impl("edge_softmax", edge_softmax<edge_softmax_cpu>);
  m.impl("edge_softmax_bwd", edge_softmax_bwd<edge_softmax_bwd_cpu>);
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  m.impl("additive_logits", additive_logits<add_ends_cuda>);
  m.impl("sum_edges", sum_edges<sum_edges_cuda>);
  m.impl("edge_softmax", edge_softmax<edge_softmax_cuda>);
  m.impl("edge_softmax_bwd", edge_softmax_bwd<edge_softmax_bwd_cuda>);
}
#endif

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) {
  m.impl("additive_logits", additive_logits_meta);
  m.impl("sum_edges", sum_edges_meta);
  m.impl("edge_softmax", edge_softmax_meta);
  m.impl("edge_softmax_bwd", edge_softmax_bwd_meta);
}

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  m.impl("additive_logits", additive_logits_autograd);
  m.impl("sum_edges", sum_edges_autograd);
  m.impl("edge_softmax", edge_softmax_autograd);
  m.impl("edge_softmax_bwd", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace dfgnn
