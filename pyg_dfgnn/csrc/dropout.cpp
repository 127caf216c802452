#include "dropout.h"

#include <torch/library.h>

#include <limits>

#include "checks.h"
#include "find_operator.h"

namespace dfgnn {
namespace {

template <auto backend>
at::Tensor dropout_mask(const at::Tensor& seed, int64_t num_edges, int64_t heads, double dropout_p) {
  check_probability(dropout_p);
  check_seed(seed, seed.device());
  TORCH_CHECK(num_edges >= 0, "num_edges: expected a number >= 0, got ", num_edges);
  TORCH_CHECK(heads >= 0, "heads: expected a number >= 0, got ", heads);
  return backend(seed, num_edges, heads, dropout_p);
}

at::Tensor dropout_mask_meta(const at::Tensor& seed, c10::SymInt num_edges, c10::SymInt heads, double) {
  return at::empty_symint({std::move(num_edges), std::move(heads)}, seed.options().dtype(at::kBool));
}

}  // namespace

at::Tensor dispatch_dropout_mask(const at::Tensor& seed, const c10::SymInt& num_edges, const c10::SymInt& heads,
                                 double dropout_p) {
  static const auto op =
      find_operator<at::Tensor(const at::Tensor&, c10::SymInt, c10::SymInt, double)>("dfgnn::dropout_mask");
  return op.call(seed, num_edges, heads, dropout_p);
}

at::Tensor dropout_factor(const at::Tensor& seed, const c10::SymInt& num_edges, const c10::SymInt& heads,
                          double dropout_p, at::ScalarType type) {
  const double kept = dropout_p < 1 ? 1 / (1 - dropout_p) : 0;
  return dispatch_dropout_mask(seed, num_edges, heads, dropout_p).to(type) * kept;
}

at::Tensor draw_seed(const at::Tensor& like) {
  return at::randint(std::numeric_limits<int64_t>::max(), {1}, like.options().dtype(at::kLong).requires_grad(false));
}

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  m.def("dropout_mask(Tensor seed, SymInt num_edges, SymInt heads, float dropout_p) -> Tensor");
}

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) { m.impl("dropout_mask", dropout_mask<dropout_mask_cpu>); }

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) { m.impl("dropout_mask", dropout_mask<dropout_mask_cuda>); }
#endif

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) { m.impl("dropout_mask", dropout_mask_meta); }

}  // namespace dfgnn
