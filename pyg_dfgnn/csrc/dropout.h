// Attention dropout's mask, for what is computed outside of the fused kernels, which draw it themselves.
#pragma once

#include <ATen/ATen.h>

namespace dfgnn {

// bool [num_edges, heads]: which edges and heads are kept. seed: int64 [1]; 0 <= dropout_p <= 1.
at::Tensor dropout_mask_cpu(const at::Tensor& seed, int64_t num_edges, int64_t heads, double dropout_p);
at::Tensor dropout_mask_cuda(const at::Tensor& seed, int64_t num_edges, int64_t heads, double dropout_p);

at::Tensor dispatch_dropout_mask(const at::Tensor& seed, const c10::SymInt& num_edges, const c10::SymInt& heads,
                                 double dropout_p);

// What weights [num_edges, heads] are multiplied by, numbers of that type: 0 where dropped, 1 / (1 - dropout_p)
// elsewhere.
at::Tensor dropout_factor(const at::Tensor& seed, const c10::SymInt& num_edges, const c10::SymInt& heads,
                          double dropout_p, at::ScalarType type);

// int64 [1] on the device of `like`, from torch's generator.
at::Tensor draw_seed(const at::Tensor& like);

}  // namespace dfgnn
