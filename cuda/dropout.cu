#include "dropout.h"
#include "logit.cuh"

namespace dfgnn::cuda {
namespace {

__global__ void mask_kernel(Typed<float> a, bool* mask) {
  const Dropout dropout(a);
  const int64_t count = a.num_edges * a.heads, step = static_cast<int64_t>(gridDim.x) * blockDim.x;
  for (int64_t t = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x; t < count; t += step) {
    mask[t] = dropout.factor(t / a.heads, static_cast<int>(t % a.heads)) != 0.0f;
  }
}

}  // namespace

cudaError_t dropout_mask(const int64_t* seed, int64_t num_edges, int heads, double dropout_p, bool* mask,
                         cudaStream_t stream) {
  constexpr int64_t kThreads = 256, kMaxBlocks = 4096;
  const int64_t blocks = (num_edges * heads + kThreads - 1) / kThreads;
  if (blocks == 0) return cudaSuccess;
  Attention a{};
  a.num_edges = num_edges;
  a.heads = heads;
  a.dropout_p = dropout_p;
  a.seed = seed;
  mask_kernel<<<static_cast<unsigned>(blocks < kMaxBlocks ? blocks : kMaxBlocks), kThreads, 0, stream>>>(
      Typed<float>{a}, mask);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
