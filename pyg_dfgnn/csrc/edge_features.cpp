// Products with features that edges have of their own, [rows, F], where an edge's are at eid[e]: with s = edge_sddmm,
// y = edge_spmm and z = edge_spmm_t of an edge e into i
//   s[e, h] = <a[i, h], f[eid e]>,    y[i, h] = sum over the edges of i of w[e, h] f[eid e],
//   z[eid e] = sum over h of w[e, h] a[i, h]
// Each is linear in both operands, and its derivatives are the other two: any order of derivative is made of the three.
// `a` is of every destination, or of one node that serves all.
//
// Features that are no edge's get 0, and eid has no row of features twice: each is one edge's, which alone writes its
// z. Edges of features that are out of range make NaN of s and y, and so of the derivatives of z, into which nothing of
// them goes.
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <limits>

#include "autocast.h"
#include "call.h"
#include "checks.h"
#include "find_operator.h"
#include "products.h"

namespace dfgnn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

void check_structure(T rowptr, T eid, const at::Device& device) {
  check_index(rowptr, "rowptr", rowptr, device);
  check_index(eid, "eid", rowptr, device);
  TORCH_CHECK(rowptr.numel() >= 1, "rowptr: expected [N + 1] entries, got none");
}

void check_rows(int64_t rows, const char* name, T like) {
  TORCH_CHECK(rows >= 0, name, ": expected a number of rows, got ", rows);
  TORCH_CHECK(!like.is_cuda() || rows < std::numeric_limits<int32_t>::max(), name,
              ": expected fewer than 2^31 rows on CUDA, got ", rows);
}

void check_features_of_edges(T features, T eid) {
  check_type_of_features(features, "features");
  TORCH_CHECK(features.dim() == 2 && features.size(1) >= 1,
              "features: expected shape [rows, F] with F of at least 1, got ", features.sizes());
  TORCH_CHECK(features.size(0) > 0 || eid.numel() == 0, "features: expected those of edges, got none");
  check_rows(features.size(0), "features", features);
}

void check_nodes(T a, const char* name, T rowptr) {
  check_value(a, name);
  TORCH_CHECK(a.size(0) == 1 || a.size(0) == rowptr.numel() - 1, name,
              ": expected one node or rowptr.numel() - 1 = ", rowptr.numel() - 1, ", got shape ", a.sizes());
}

Compressed compressed(T rowptr, T eid, int64_t rows) {
  return {rowptr.contiguous(), eid.contiguous(), at::Tensor(), rows};
}

template <auto backend>
at::Tensor edge_sddmm(T rowptr, T eid, T a, T features) {
  check_edge_sddmm(rowptr, eid, a, "a", features);
  return backend(compressed(rowptr, eid, features.size(0)), a.contiguous(), features.contiguous().unsqueeze(1));
}

template <auto backend>
at::Tensor edge_spmm(T rowptr, T eid, T weight, T features) {
  check_structure(rowptr, eid, features.device());
  check_features_of_edges(features, eid);
  const auto weights = weights_of_edges(weight, eid.numel(), features, "features");
  return backend(compressed(rowptr, eid, features.size(0)), weights, features.contiguous().unsqueeze(1), false);
}

template <auto backend>
at::Tensor edge_spmm_t(T rowptr, T eid, T weight, T a, int64_t rows) {
  check_structure(rowptr, eid, a.device());
  check_nodes(a, "a", rowptr);
  const auto weights = weights_of_edges(weight, eid.numel(), a, "a");
  TORCH_CHECK(a.size(1) == weight.size(1), "a: expected as many heads as weight (", weight.size(1), "), got shape ",
              a.sizes());
  check_rows(rows, "rows", a);
  return backend(compressed(rowptr, eid, rows), weights, a.contiguous());
}

at::Tensor edge_sddmm_meta(T rowptr, T eid, T a, T features) {
  check_on_meta({{"rowptr", rowptr}, {"eid", eid}, {"a", a}, {"features", features}});
  check_dimensions(a, "a", 3);
  return at::empty_symint({eid.sym_numel(), a.sym_size(1)}, a.options().dtype(accumulate_type(a.scalar_type())));
}

at::Tensor edge_spmm_meta(T rowptr, T eid, T weight, T features) {
  check_on_meta({{"rowptr", rowptr}, {"eid", eid}, {"weight", weight}, {"features", features}});
  check_dimensions(rowptr, "rowptr", 1);
  check_dimensions(weight, "weight", 2);
  check_dimensions(features, "features", 2);
  return at::empty_symint({rowptr.sym_size(0) - 1, weight.sym_size(1), features.sym_size(1)}, features.options());
}

at::Tensor edge_spmm_t_meta(T rowptr, T eid, T weight, T a, c10::SymInt rows) {
  check_on_meta({{"rowptr", rowptr}, {"eid", eid}, {"weight", weight}, {"a", a}});
  check_dimensions(a, "a", 3);
  return at::empty_symint({std::move(rows), a.sym_size(2)}, a.options());
}

// The derivatives of the three: by weight (the gradient of s in its place), by a, and by the features.
at::Tensor by_weight(T rowptr, T eid, T a, T features, T weight) {
  return dispatch_edge_sddmm(rowptr, eid, a, features).to(weight.scalar_type());
}

at::Tensor by_nodes(T rowptr, T eid, T weight, T features, T a) {
  const auto of_rows = dispatch_edge_spmm(rowptr, eid, weight, features);
  return TORCH_GUARD_SIZE_OBLIVIOUS(a.sym_size(0).sym_eq(1)) ? of_rows.sum(0, /*keepdim=*/true) : of_rows;
}

at::Tensor by_features(T rowptr, T eid, T weight, T a, T features) {
  return dispatch_edge_spmm_t(rowptr, eid, weight, a, features.sym_size(0));
}

struct EdgeSddmm : torch::autograd::Function<EdgeSddmm> {
  static Variable forward(AutogradContext* ctx, T rowptr, T eid, const Variable& a, const Variable& features) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({rowptr, eid, a, features});
    return dispatch_edge_sddmm(rowptr, eid, a, features);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NoAutocast guard;
    const auto saved = ctx->get_saved_variables();
    const auto &rowptr = saved[0], &eid = saved[1], &a = saved[2], &features = saved[3];
    variable_list result(4);
    if (ctx->needs_input_grad(2)) result[2] = by_nodes(rowptr, eid, grads[0], features, a);
    if (ctx->needs_input_grad(3)) result[3] = by_features(rowptr, eid, grads[0], a, features);
    return result;
  }
};

struct EdgeSpmm : torch::autograd::Function<EdgeSpmm> {
  static Variable forward(AutogradContext* ctx, T rowptr, T eid, const Variable& weight, const Variable& features) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({rowptr, eid, weight, features});
    return dispatch_edge_spmm(rowptr, eid, weight, features);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NoAutocast guard;
    const auto saved = ctx->get_saved_variables();
    const auto &rowptr = saved[0], &eid = saved[1], &weight = saved[2], &features = saved[3];
    variable_list result(4);
    if (ctx->needs_input_grad(2)) result[2] = by_weight(rowptr, eid, grads[0], features, weight);
    if (ctx->needs_input_grad(3)) result[3] = by_features(rowptr, eid, weight, grads[0], features);
    return result;
  }
};

struct EdgeSpmmT : torch::autograd::Function<EdgeSpmmT> {
  static Variable forward(AutogradContext* ctx, T rowptr, T eid, const Variable& weight, const Variable& a,
                          const c10::SymInt& rows) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward({rowptr, eid, weight, a});
    return dispatch_edge_spmm_t(rowptr, eid, weight, a, rows);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NoAutocast guard;
    const auto saved = ctx->get_saved_variables();
    const auto &rowptr = saved[0], &eid = saved[1], &weight = saved[2], &a = saved[3];
    variable_list result(5);
    if (TORCH_GUARD_SIZE_OBLIVIOUS(grads[0].sym_size(0).sym_eq(0))) {  // z has no rows: entries are no edges
      return {{}, {}, at::zeros_like(weight), at::zeros_like(a), {}};
    }
    if (ctx->needs_input_grad(2)) result[2] = by_weight(rowptr, eid, a, grads[0], weight);
    if (ctx->needs_input_grad(3)) result[3] = by_nodes(rowptr, eid, weight, grads[0], a);
    return result;
  }
};

at::Tensor edge_sddmm_autograd(T rowptr, T eid, T a, T features) {
  check_given({{"rowptr", rowptr}, {"eid", eid}, {"a", a}, {"features", features}});
  return EdgeSddmm::apply(rowptr, eid, a, features);
}

at::Tensor edge_spmm_autograd(T rowptr, T eid, T weight, T features) {
  check_given({{"rowptr", rowptr}, {"eid", eid}, {"weight", weight}, {"features", features}});
  return EdgeSpmm::apply(rowptr, eid, weight, features);
}

at::Tensor edge_spmm_t_autograd(T rowptr, T eid, T weight, T a, c10::SymInt rows) {
  check_given({{"rowptr", rowptr}, {"eid", eid}, {"weight", weight}, {"a", a}});
  return EdgeSpmmT::apply(rowptr, eid, weight, a, rows);
}

// As of sddmm and spmm: features are cast to the autocast dtype, weights keep their precision.
at::Tensor edge_sddmm_autocast(T rowptr, T eid, T a, T features) {
  const NoAutocast guard;
  return dispatch_edge_sddmm(rowptr, eid, autocast_features(a), autocast_features(features));
}

at::Tensor edge_spmm_autocast(T rowptr, T eid, T weight, T features) {
  const NoAutocast guard;
  return dispatch_edge_spmm(rowptr, eid, to_full_precision(weight), autocast_features(features));
}

at::Tensor edge_spmm_t_autocast(T rowptr, T eid, T weight, T a, c10::SymInt rows) {
  const NoAutocast guard;
  return dispatch_edge_spmm_t(rowptr, eid, to_full_precision(weight), autocast_features(a), std::move(rows));
}

// edge_spmm in the precision of the features, in autocast too.
at::Tensor edge_sums(T rowptr, T eid, T weight, T features) {
  const NoAutocast guard;
  return dispatch_edge_spmm(rowptr, eid, weight, features);
}

void register_autocast(torch::Library& m) {
  m.impl("edge_sddmm", edge_sddmm_autocast);
  m.impl("edge_spmm", edge_spmm_autocast);
  m.impl("edge_spmm_t", edge_spmm_t_autocast);
}

}  // namespace

void check_edge_sddmm(T rowptr, T eid, T a, const char* name, T features) {
  check_structure(rowptr, eid, features.device());
  check_features_of_edges(features, eid);
  check_nodes(a, name, rowptr);
  check_features(a, name, features.unsqueeze(1), "features");
  TORCH_CHECK(a.size(2) == features.size(1), name, ": expected as many numbers a head as features have (",
              features.size(1), "), got shape ", a.sizes());
}

at::Tensor dispatch_edge_sddmm(T rowptr, T eid, T a, T features) {
  static const auto op = find_operator<at::Tensor(T, T, T, T)>("dfgnn::edge_sddmm");
  return op.call(rowptr, eid, a, features);
}

at::Tensor dispatch_edge_spmm(T rowptr, T eid, T weight, T features) {
  static const auto op = find_operator<at::Tensor(T, T, T, T)>("dfgnn::edge_spmm");
  return op.call(rowptr, eid, weight, features);
}

at::Tensor dispatch_edge_spmm_t(T rowptr, T eid, T weight, T a, c10::SymInt rows) {
  static const auto op = find_operator<at::Tensor(T, T, T, T, c10::SymInt)>("dfgnn::edge_spmm_t");
  return op.call(rowptr, eid, weight, a, std::move(rows));
}

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  m.def("edge_sddmm(Tensor rowptr, Tensor eid, *, Tensor a, Tensor features) -> Tensor");
  m.def("edge_spmm(Tensor rowptr, Tensor eid, *, Tensor weight, Tensor features) -> Tensor");
  m.def("edge_sums(Tensor rowptr, Tensor eid, *, Tensor weight, Tensor features) -> Tensor", edge_sums);
  m.def("edge_spmm_t(Tensor rowptr, Tensor eid, *, Tensor weight, Tensor a, SymInt rows) -> Tensor");
}

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) {
  m.impl("edge_sddmm", edge_sddmm<sddmm_cpu>);
  m.impl("edge_spmm", edge_spmm<spmm_cpu>);
  m.impl("edge_spmm_t", edge_spmm_t<edge_spmm_t_cpu>);
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  m.impl("edge_sddmm", edge_sddmm<sddmm_cuda>);
  m.impl("edge_spmm", edge_spmm<spmm_cuda>);
  m.impl("edge_spmm_t", edge_spmm_t<edge_spmm_t_cuda>);
}
#endif

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) {
  m.impl("edge_sddmm", edge_sddmm_meta);
  m.impl("edge_spmm", edge_spmm_meta);
  m.impl("edge_spmm_t", edge_spmm_t_meta);
}

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  m.impl("edge_sddmm", edge_sddmm_autograd);
  m.impl("edge_spmm", edge_spmm_autograd);
  m.impl("edge_spmm_t", edge_spmm_t_autograd);
}

TORCH_LIBRARY_IMPL(dfgnn, AutocastCPU, m) { register_autocast(m); }

TORCH_LIBRARY_IMPL(dfgnn, AutocastCUDA, m) { register_autocast(m); }

}  // namespace dfgnn
