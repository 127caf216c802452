// Additive attention whose forward pass makes the derivative of out, too, so that the backward pass gathers the rows of
// one matrix, once: what training takes of long rows on CUDA.
//
// An additive score is a number that a destination brings and one that a source brings, so that out_i depends on
// a_dst_i as on one number a head, by which it has one derivative, of out's shape:
//   derivative_i = sum_j p_ij slope_ij (k_ij v_j - out_i),   grad_a_dst_i = <grad_out_i, derivative_i>.
#pragma once

#include "call.h"

namespace dfgnn {

using DerivativeResult = std::tuple<at::Tensor, at::Tensor, at::Tensor>;  // out, lse and derivative, T [N_dst, H, D]

// To the dispatcher.
DerivativeResult dispatch_forward_with_derivative(const Call& call);
std::array<at::Tensor, 3> dispatch_backward_from_derivative(const Call& call, const BackwardInputs& inputs,
                                                            const at::Tensor& derivative);

// Kernels, of operands that they take (additive_heads of cuda/attention.h).
DerivativeResult forward_with_derivative_cuda(Attention attention);
Gradients backward_from_derivative_cuda(Attention attention, const Saved& saved, const at::Tensor& derivative);

}  // namespace dfgnn
