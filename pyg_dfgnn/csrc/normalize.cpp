#include "normalize.h"

#include "attention.h"

namespace dfgnn {

at::Tensor empty_scalars(const at::Tensor& x) {
  return at::empty({x.size(0), x.size(1)}, x.options().dtype(accumulate_type(x.scalar_type())));
}

Norms reciprocal_norms(const at::Tensor& x, const at::Tensor& beta, double eps, By by,
                       [[maybe_unused]] bool needs_norm) {
#ifdef DFGNN_WITH_CUDA
  if (by == By::kernels && x.is_cuda()) return reciprocal_norms_cuda(x, beta, eps, needs_norm);
#endif
  Norms norms;
  if (by == By::kernels) {
    norms.reciprocal = reciprocal_norm_cpu(x, eps);
  } else {
    const auto type = accumulate_type(x.scalar_type());
    norms.reciprocal = at::linalg_vector_norm(x, 2, {-1}, false, type).clamp_min(eps).reciprocal();
  }
  if (beta.defined()) norms.scaled = norms.reciprocal * beta.unsqueeze(0);
  return norms;
}

std::tuple<at::Tensor, at::Tensor> normalize_backward(const at::Tensor& x, const at::Tensor& g, const at::Tensor& beta,
                                                      const at::Tensor& h, const at::Tensor& added, double eps, By by) {
#ifdef DFGNN_WITH_CUDA
  if (by == By::kernels && x.is_cuda()) return normalize_backward_cuda(x, g, beta, h, added, eps);
#endif
  if (h.defined()) {
    const auto of_h = std::get<0>(normalize_backward(x, h, {}, {}, added, eps, by));
    return normalize_backward(x, g, beta, {}, of_h, eps, by);
  }
  if (by == By::kernels) return normalize_backward_cpu(x, g, eps, beta, added);
  const auto type = accumulate_type(x.scalar_type());
  const auto g_type = g.to(type);
  // A row that nothing came back to has no part in the projection, even if it is not a number.
  const auto is_absent = x.isnan().any(-1, /*keepdim=*/true) & (g_type == 0).all(-1, /*keepdim=*/true);
  const auto x_type = at::where(is_absent, at::zeros({}, g_type.options()), x.to(type));
  const auto r = reciprocal_norms(x_type, {}, eps, by).reciprocal, projection = r * (x_type * g_type).sum(-1);
  const auto project = at::where(r < 1.0 / eps, r * projection, at::zeros({}, r.options()));
  const auto factor = beta.defined() ? r * beta.unsqueeze(0) : r;
  auto grad = factor.unsqueeze(-1) * (g_type - project.unsqueeze(-1) * x_type);
  if (added.defined()) grad = grad + added;
  return {grad.to(x.scalar_type()), projection};
}

}  // namespace dfgnn
