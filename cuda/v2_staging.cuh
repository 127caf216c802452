// Signs and gradients of scores of 32 edges by octets, on their way to a warp's shared memory while it works on those
// of 32 others.
#pragma once

#include "async_copy.cuh"
#include "v2_octets.cuh"

namespace dfgnn::cuda {

// How a warp's shared memory, of two stages, is laid out.
struct V2Staged {
  // Between numbers of edges, so that those of neighbours are in other banks.
  __host__ __device__ static int pitch(const V2Logits& task) {
    const int heads = task.width / task.channels;
    return heads < 4 ? heads : heads + 4;
  }
  __host__ __device__ static int sign_bytes(int width) { return width > 64 ? 2 * kV2Octet : kV2Octet; }
  __host__ __device__ static int of_warp(const V2Logits& task) {
    return 2 * kWarp * (sign_bytes(task.width) + pitch(task) * static_cast<int>(sizeof(float)));
  }
};

template <class S>
class V2Staging {
 public:
  using Signs = typename V2Octet<S>::Signs;

  const int pitch;  // numbers between gradients of edges

  // memory: of the block, aligned to 16 bytes.
  __device__ __forceinline__ V2Staging(const V2Terms<S>& terms, const V2Gradients& g, void* memory)
      : pitch(V2Staged::pitch(terms)),
        terms_(terms),
        g_(g),
        stages_(static_cast<char*>(memory) + threadIdx.x / kWarp * V2Staged::of_warp(terms)),
        has_vectors_((terms.heads | terms.stride) % 4 == 0 && reinterpret_cast<uintptr_t>(g.grad) % 16 == 0) {}

  // Starts to copy what is of the lane's edge; zeros where there is none.
  __device__ __forceinline__ void start(int stage, int64_t edge, bool is_there) const {
    const int lane = threadIdx.x % kWarp;
    copy_async<kOfEdge>(shared_address(signs(stage, lane)), static_cast<const char*>(g_.signs) + edge * kOfEdge,
                        is_there);
    const float* const from = static_cast<const float*>(g_.grad) + edge * terms_.stride;
    const uint32_t to = shared_address(grads(stage, lane));
    if (has_vectors_) {
#pragma unroll 1
      for (int h = 0; h < terms_.heads; h += 4) copy_async(to + h * 4, from + h, is_there);
    } else {
#pragma unroll 1
      for (int h = 0; h < terms_.heads; ++h) copy_async<4>(to + h * 4, from + h, is_there);
    }
    commit_copies();
  }

  // Until all stages but the last `kStages` that were started are there.
  template <int kStages>
  __device__ __forceinline__ void wait() const {
    wait_for_groups<kStages>();
    __syncwarp();
  }

  // Of the t-th edge: the words of eight lanes; gradients of heads.
  __device__ __forceinline__ Signs* signs(int stage, int t) const {
    return reinterpret_cast<Signs*>(stages_ + stage * kWarp * (kOfEdge + pitch * 4) + t * kOfEdge);
  }
  __device__ __forceinline__ float* grads(int stage, int t) const {
    return reinterpret_cast<float*>(signs(stage, kWarp)) + t * pitch;
  }

 private:
  static constexpr int kOfEdge = kV2Octet * sizeof(Signs);

  const V2Terms<S>& terms_;
  const V2Gradients& g_;
  char* const stages_;
  const bool has_vectors_;
};

}  // namespace dfgnn::cuda
