// Derivatives of sddmm and spmm, made of sddmm and spmm, and their autocast. With s_e = <a_i, b_j> and y_i = sum_e w_e
// x_j over the edges e = (i <- j), and ^T for the sum over the edges of a source:
//   da = spmm(ds, b),  db = spmm^T(ds, a);    dw = sddmm(dy, x),  dx = spmm^T(w, dy);   and of spmm^T with i and j
// exchanged. What has one head for all is summed over the heads, and the other way round.
#include <torch/library.h>

#include "autocast.h"
#include "call.h"
#include "checks.h"
#include "products.h"
#include "saved.h"

namespace dfgnn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

bool one_head(const at::Tensor& x) { return x.sym_size(1) == 1; }

struct SddmmFunction : torch::autograd::Function<SddmmFunction> {
  static Variable forward(AutogradContext* ctx, const Variable& a, const Variable& b, const Structure& graph) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward(with_structure(graph, {a, b}));
    return dispatch_sddmm(graph, a, b);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NoAutocast guard;
    const auto saved = ctx->get_saved_variables();
    const auto &a = saved[kStructure], &b = saved[kStructure + 1], &ds = grads[0];
    const auto graph = saved_structure(saved);
    variable_list result(3);
    if (ctx->needs_input_grad(0)) result[0] = dispatch_spmm(graph, ds, b, false, one_head(a));
    if (ctx->needs_input_grad(1)) {
      result[1] = dispatch_spmm(with_csc(graph, b.sym_size(0)), ds, a, true, one_head(b));
    }
    return result;
  }
};

struct SpmmFunction : torch::autograd::Function<SpmmFunction> {
  static Variable forward(AutogradContext* ctx, const Variable& weight, const Variable& x, const Structure& graph,
                          bool transpose, bool sum_heads) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward(with_structure(graph, {weight, x}));
    ctx->saved_data["transpose"] = transpose;
    return dispatch_spmm(graph, weight, x, transpose, sum_heads);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NoAutocast guard;
    const auto saved = ctx->get_saved_variables();
    const auto &weight = saved[kStructure], &x = saved[kStructure + 1], &dy = grads[0];
    const auto graph = saved_structure(saved);
    const bool transpose = ctx->saved_data["transpose"].toBool();
    variable_list result(5);
    if (ctx->needs_input_grad(0)) {
      const auto dw = transpose ? dispatch_sddmm(graph, x, dy) : dispatch_sddmm(graph, dy, x);
      result[0] = dw.expand_symint(weight.sym_sizes()).to(weight.scalar_type());
    }
    if (ctx->needs_input_grad(1)) {
      const auto both = transpose ? graph : with_csc(graph, x.sym_size(0));
      result[1] = dispatch_spmm(both, weight, dy, !transpose, one_head(x));
    }
    return result;
  }
};

at::Tensor sddmm_autograd(T rowptr, T col, T a, T b, O colptr, O row, O perm) {
  check_given({{"rowptr", rowptr}, {"col", col}, {"a", a}, {"b", b}});
  return SddmmFunction::apply(a, b, Structure{rowptr, col, colptr, row, perm});
}

at::Tensor spmm_autograd(T rowptr, T col, T weight, T x, O colptr, O row, O perm, bool transpose, bool sum_heads) {
  check_given({{"rowptr", rowptr}, {"col", col}, {"weight", weight}, {"x", x}});
  return SpmmFunction::apply(weight, x, Structure{rowptr, col, colptr, row, perm}, transpose, sum_heads);
}

// Features are cast to the autocast dtype; weights, which are few, keep their precision.
at::Tensor sddmm_autocast(T rowptr, T col, T a, T b, O colptr, O row, O perm) {
  const NoAutocast guard;
  return dispatch_sddmm({rowptr, col, colptr, row, perm}, autocast_features(a), autocast_features(b));
}

at::Tensor spmm_autocast(T rowptr, T col, T weight, T x, O colptr, O row, O perm, bool transpose, bool sum_heads) {
  const NoAutocast guard;
  return dispatch_spmm({rowptr, col, colptr, row, perm}, to_full_precision(weight), autocast_features(x), transpose,
                       sum_heads);
}

void register_autocast(torch::Library& m) {
  m.impl("sddmm", sddmm_autocast);
  m.impl("spmm", spmm_autocast);
}

}  // namespace

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  m.impl("sddmm", sddmm_autograd);
  m.impl("spmm", spmm_autograd);
}

TORCH_LIBRARY_IMPL(dfgnn, AutocastCPU, m) { register_autocast(m); }

TORCH_LIBRARY_IMPL(dfgnn, AutocastCUDA, m) { register_autocast(m); }

}  // namespace dfgnn
