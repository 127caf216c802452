// Attention dropout's mask, for what is computed outside of the fused kernels, which draw it themselves.
#pragma once

#include <ATen/ATen.h>

namespace dfgnn {

// bool [num_edges, heads]: which edges and heads are kept. seed: int64 [1]; 0 <= dropout_p <= 1.
at::Tensor dropout_mask_cpu(const at::Tensor& seed, int64_t num_edges, int64_t heads, double dropout_p);
at::Tensor dropout_mask_cuda(const at::Tensor& seed, int64_t num_edges, int64_t heads, double dropout_p);

at::Tensor dispatch_dropout_mask(const at::Tensor& seed, const c10::SymInt& num_edges, const c10::SymInt& heads,
                                 double dropout_p);

}  // namespace dfgnn
