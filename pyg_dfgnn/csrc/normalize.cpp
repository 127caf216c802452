#include "normalize.h"

#include <c10/core/GradMode.h>

#include <algorithm>

#include "attention.h"

namespace dfgnn {
namespace {

// Whether autograd watches: then these are torch's operators, as in the derivative of a derivative.
bool needs_graph(at::TensorList tensors) {
  return c10::GradMode::is_enabled() && std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) {
           return t.defined() && t.requires_grad();
         });
}

}  // namespace

at::Tensor reciprocal_norm(const at::Tensor& x, double eps) {
  if (x.is_cpu() && !needs_graph({x})) return reciprocal_norm_cpu(x, eps);
#ifdef DFGNN_WITH_CUDA
  if (x.is_cuda() && !needs_graph({x})) return reciprocal_norm_cuda(x, eps);
#endif
  const auto type = accumulate_type(x.scalar_type());
  return at::linalg_vector_norm(x, 2, {-1}, false, type).clamp_min(eps).reciprocal();
}

std::tuple<at::Tensor, at::Tensor> normalize_backward(const at::Tensor& x, const at::Tensor& g, double eps,
                                                      const at::Tensor& beta, const at::Tensor& added) {
  const bool by_kernels = !needs_graph({x, g, beta, added}) && g.scalar_type() == x.scalar_type() && g.is_contiguous();
  if (x.is_cpu() && by_kernels) return normalize_backward_cpu(x, g, eps, beta, added);
#ifdef DFGNN_WITH_CUDA
  if (x.is_cuda() && by_kernels) return normalize_backward_cuda(x, g, eps, beta, added);
#endif
  const auto type = accumulate_type(x.scalar_type());
  const auto x_type = x.to(type), g_type = g.to(type);
  const auto r = reciprocal_norm(x, eps), projection = r * (x_type * g_type).sum(-1);
  const auto project = at::where(r < 1.0 / eps, r * projection, at::zeros({}, r.options()));
  const auto factor = beta.defined() ? r * beta.unsqueeze(0) : r;
  auto grad = factor.unsqueeze(-1) * (g_type - project.unsqueeze(-1) * x_type);
  if (added.defined()) grad = grad + added;
  return {grad.to(x.scalar_type()), projection};
}

}  // namespace dfgnn
