// Norms of rows of features [N, H, D], and the way back from normalised rows: what the cosine score is made of.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

namespace dfgnn {

// How: kernels of the device, or torch's operators, which autograd and tracers see.
enum class By { kernels, operators };

// 1 / max(|x|, eps), as torch.nn.functional.normalize has it: A [N, H].
at::Tensor reciprocal_norm(const at::Tensor& x, double eps, By by);

// From g = d/d(r x), r = reciprocal_norm(x), to
//   grad = beta r (g - [|x| > eps] r^2 <x, g> x) + added   like x, and   r <x, g>   A [N, H].
// beta: A [1] or [H]; beta and added, which is like x, may be undefined. By kernels, all are contiguous, and g like x.
std::tuple<at::Tensor, at::Tensor> normalize_backward(const at::Tensor& x, const at::Tensor& g, double eps,
                                                      const at::Tensor& beta, const at::Tensor& added, By by);

// What the kernels put a number of each row into: A [N, H].
at::Tensor empty_scalars(const at::Tensor& x);

at::Tensor reciprocal_norm_cpu(const at::Tensor& x, double eps);
std::tuple<at::Tensor, at::Tensor> normalize_backward_cpu(const at::Tensor& x, const at::Tensor& g, double eps,
                                                          const at::Tensor& beta, const at::Tensor& added);

at::Tensor reciprocal_norm_cuda(const at::Tensor& x, double eps);
std::tuple<at::Tensor, at::Tensor> normalize_backward_cuda(const at::Tensor& x, const at::Tensor& g, double eps,
                                                           const at::Tensor& beta, const at::Tensor& added);

}  // namespace dfgnn
