// Norms of rows of features [N, H, D], and the way back from normalised rows: what the cosine score is made of.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

namespace dfgnn {

// How: kernels of the device, or torch's operators, which autograd and tracers see.
enum class By { kernels, operators };

// 1 / max(|x|, eps), as torch.nn.functional.normalize has it, and that times beta, A [1] or [H]: A [N, H]. Without beta
// the first alone, and where it is not needed, the second alone.
struct Norms {
  at::Tensor reciprocal, scaled;
};
Norms reciprocal_norms(const at::Tensor& x, const at::Tensor& beta, double eps, By by, bool needs_norm = true);

// From g = d/d(beta r x) and h = d/d(r x), r = 1 / max(|x|, eps), to
//   grad = beta r (g - [|x| > eps] r^2 <x, g> x) + r (h - [|x| > eps] r^2 <x, h> x) + added   like x, and
//   r <x, g>   A [N, H].
// beta: A [1] or [H]; beta, h and added, which is like x, may be undefined. By kernels, all are contiguous, g and h
// like x, and grad may be put in the place of g.
std::tuple<at::Tensor, at::Tensor> normalize_backward(const at::Tensor& x, const at::Tensor& g, const at::Tensor& beta,
                                                      const at::Tensor& h, const at::Tensor& added, double eps, By by);

// What the kernels put a number of each row into: A [N, H].
at::Tensor empty_scalars(const at::Tensor& x);

// x.sum(0) of A [N, H]. (By torch it takes a block up to 2^17 numbers, and on the CPU its bits depend on threads.)
at::Tensor sum_of_scalars_cpu(const at::Tensor& x);
at::Tensor sum_of_scalars_cuda(const at::Tensor& x);

at::Tensor reciprocal_norm_cpu(const at::Tensor& x, double eps);
std::tuple<at::Tensor, at::Tensor> normalize_backward_cpu(const at::Tensor& x, const at::Tensor& g, double eps,
                                                          const at::Tensor& beta, const at::Tensor& added);

Norms reciprocal_norms_cuda(const at::Tensor& x, const at::Tensor& beta, double eps, bool needs_norm);
std::tuple<at::Tensor, at::Tensor> normalize_backward_cuda(const at::Tensor& x, const at::Tensor& g,
                                                           const at::Tensor& beta, const at::Tensor& h,
                                                           const at::Tensor& added, double eps);

}  // namespace dfgnn
