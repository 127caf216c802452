// GAT's scores of nodes, and their gradients.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

namespace dfgnn {

// x [N, H, C] contiguous, att [H, C] of the accumulation type, as are the scores [N, H] and the gradients of att and of
// other, which may be undefined, together [1 or 2, H, C].
std::tuple<at::Tensor, at::Tensor> node_scores_cpu(const at::Tensor& x, const at::Tensor& att, const at::Tensor& other);
std::tuple<at::Tensor, at::Tensor> node_scores_bwd_cpu(const at::Tensor& grad, const at::Tensor& grad_other,
                                                       const at::Tensor& x, const at::Tensor& att,
                                                       const at::Tensor& other);
std::tuple<at::Tensor, at::Tensor> node_scores_cuda(const at::Tensor& x, const at::Tensor& att,
                                                    const at::Tensor& other);
std::tuple<at::Tensor, at::Tensor> node_scores_bwd_cuda(const at::Tensor& grad, const at::Tensor& grad_other,
                                                        const at::Tensor& x, const at::Tensor& att,
                                                        const at::Tensor& other);

}  // namespace dfgnn
