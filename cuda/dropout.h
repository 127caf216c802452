// Attention dropout's mask on CUDA, as the fused kernels draw it.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace dfgnn::cuda {

// mask [num_edges, heads]; seed: on the device.
cudaError_t dropout_mask(const int64_t* seed, int64_t num_edges, int heads, double dropout_p, bool* mask,
                         cudaStream_t stream);

}  // namespace dfgnn::cuda
