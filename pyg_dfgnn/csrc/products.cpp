#include "products.h"

#include <torch/library.h>

#include <string>
#include <tuple>

#include "call.h"
#include "checks.h"
#include "find_operator.h"

namespace dfgnn {
namespace {

void check_nodes(const at::Tensor& x, const char* name, int64_t num_nodes, const char* meaning) {
  TORCH_CHECK(x.size(0) == num_nodes, name, ": expected ", meaning, " = ", num_nodes, " nodes, got shape ", x.sizes());
}

void check_structure(const Structure& graph, int64_t num_src, const at::Device& device) {
  check_csr(graph.rowptr, graph.col, device);
  TORCH_CHECK(num_src > 0 || graph.col.numel() == 0, "col: expected no entries where there are no source nodes, got ",
              graph.col.numel());
  check_csc(graph, num_src, device);
}

template <auto backend>
at::Tensor sddmm(T rowptr, T col, T a, T b, O colptr, O row, O perm) {
  check_sddmm({rowptr, col, colptr, row, perm}, a, b);
  return backend({rowptr.contiguous(), col.contiguous(), at::Tensor(), b.size(0)}, a.contiguous(), b.contiguous());
}

template <auto backend>
at::Tensor spmm(T rowptr, T col, T weight, T x, O colptr, O row, O perm, bool transpose, bool sum_heads) {
  check_value(x, "x");
  if (transpose) check_transposable(Structure{rowptr, col, colptr, row, perm});
  const int64_t num_src = transpose ? colptr->numel() - 1 : x.size(0);
  check_structure({rowptr, col, colptr, row, perm}, num_src, x.device());
  if (transpose) check_nodes(x, "x", rowptr.numel() - 1, "rowptr.numel() - 1");
  const auto weights = weights_of_edges(weight, col.numel(), x, "x");
  TORCH_CHECK(x.size(1) == weight.size(1) || x.size(1) == 1, "x: expected one head or as many as weight (",
              weight.size(1), "), got shape ", x.sizes());
  if (transpose) {
    return backend({colptr->contiguous(), row->contiguous(), perm->contiguous(), rowptr.numel() - 1}, weights,
                   x.contiguous(), sum_heads);
  }
  return backend({rowptr.contiguous(), col.contiguous(), at::Tensor(), num_src}, weights, x.contiguous(), sum_heads);
}

void check_meta(const Structure& g) {
  check_on_meta({{"rowptr", g.rowptr}, {"col", g.col}, {"colptr", g.colptr}, {"row", g.row}, {"perm", g.perm}});
}

at::Tensor sddmm_meta(T rowptr, T col, T a, T b, O colptr, O row, O perm) {
  check_meta({rowptr, col, colptr, row, perm});
  check_on_meta({{"a", a}, {"b", b}});
  const auto heads = a.sym_size(1).max(b.sym_size(1));
  return at::empty_symint({col.sym_numel(), heads}, a.options().dtype(accumulate_type(a.scalar_type())));
}

at::Tensor spmm_meta(T rowptr, T col, T weight, T x, O colptr, O row, O perm, bool transpose, bool sum_heads) {
  check_meta({rowptr, col, colptr, row, perm});
  check_on_meta({{"weight", weight}, {"x", x}});
  check_dimensions(weight, "weight", 2);
  check_dimensions(x, "x", 3);
  if (transpose) check_transposable(Structure{rowptr, col, colptr, row, perm});
  const auto num_rows = (transpose ? *colptr : rowptr).sym_size(0) - 1;
  return at::empty_symint({num_rows, sum_heads ? c10::SymInt(1) : weight.sym_size(1), x.sym_size(2)}, x.options());
}

}  // namespace

void check_sddmm(const Structure& graph, T a, T b) {
  check_value(a, "a");
  check_features(b, "b", a, "a");
  TORCH_CHECK(b.size(2) == a.size(2), "b: expected the head size of a (", a.size(2), "), got shape ", b.sizes());
  TORCH_CHECK(b.size(1) == a.size(1) || b.size(1) == 1 || (a.size(1) == 1 && b.size(1) > 0),
              "b: expected one head or as many as a (", a.size(1), "), got shape ", b.sizes());
  check_structure(graph, b.size(0), a.device());
  check_nodes(a, "a", graph.rowptr.numel() - 1, "rowptr.numel() - 1");
}

at::Tensor dispatch_sddmm(const Structure& g, const at::Tensor& a, const at::Tensor& b) {
  static const auto op = find_operator<at::Tensor(T, T, T, T, O, O, O)>("dfgnn::sddmm");
  return op.call(g.rowptr, g.col, a, b, g.colptr, g.row, g.perm);
}

at::Tensor dispatch_spmm(const Structure& g, const at::Tensor& weight, const at::Tensor& x, bool transpose,
                         bool sum_heads) {
  static const auto op = find_operator<at::Tensor(T, T, T, T, O, O, O, bool, bool)>("dfgnn::spmm");
  return op.call(g.rowptr, g.col, weight, x, g.colptr, g.row, g.perm, transpose, sum_heads);
}

Structure with_csc(Structure graph, const c10::SymInt& num_src) {
  if (!graph.colptr.has_value()) {
    std::tie(graph.colptr, graph.row, graph.perm) = dispatch_csr_to_csc(graph.rowptr, graph.col, num_src);
  }
  return graph;
}

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  const std::string csc = kCscArguments;
  m.def(("sddmm(Tensor rowptr, Tensor col, *, Tensor a, Tensor b, " + csc + ") -> Tensor").c_str());
  m.def(("spmm(Tensor rowptr, Tensor col, *, Tensor weight, Tensor x, " + csc +
         ", bool transpose=False, bool sum_heads=False) -> Tensor")
            .c_str());
}

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) {
  m.impl("sddmm", sddmm<sddmm_cpu>);
  m.impl("spmm", spmm<spmm_cpu>);
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  m.impl("sddmm", sddmm<sddmm_cuda>);
  m.impl("spmm", spmm<spmm_cuda>);
}
#endif

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) {
  m.impl("sddmm", sddmm_meta);
  m.impl("spmm", spmm_meta);
}

}  // namespace dfgnn
