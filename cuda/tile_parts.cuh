// Heads that are too large for a warpgroup, in S::kParts parts, each of S::kFeatures features: a block has a warpgroup
// (threadIdx.y) for each of them, with rows, chunks and sums of its own as for a whole head, and dots are sums of what
// all have of them. Elsewhere S::kParts is 1, and nothing of this costs anything.
#pragma once

#include "tile.cuh"

namespace dfgnn::cuda::tile {

template <class S>
__device__ __forceinline__ int part() {
  return S::kParts == 1 ? 0 : static_cast<int>(threadIdx.y);
}

// Of those that know the same, the one that stores it.
template <class S>
__device__ __forceinline__ bool is_first_part() {
  return part<S>() == 0;
}

// The part's share of head h of a node, and how many features that is.
template <class S, class Data>
__device__ __forceinline__ auto* part_of_row(const Typed<typename S::T>& a, Data* data, int node, int h) {
  return a.features(data, node, h) + part<S>() * S::kFeatures;
}
template <class S>
__device__ __forceinline__ int features_of_part(const Typed<typename S::T>& a) {
  return S::kParts == 1 ? a.head_dim : min(a.head_dim - part<S>() * S::kFeatures, S::kFeatures);
}

// Waits for the part's other threads.
template <class S>
__device__ __forceinline__ void sync_part() {
  if constexpr (S::kParts == 1) {
    __syncthreads();
  } else {
    asm volatile("barrier.sync %0, %1;" ::"r"(1 + part<S>()), "n"(kThreads) : "memory");
  }
}

// Adds what the same threads of two parts have; both get the sums. All lanes of a warp come, with products ended.
template <class S>
class PartSums {
  static_assert(S::kParts == 1 || S::kScaled, "products of others may be under way");

 public:
  struct Storage {
    float4 slots[S::kParts][kChunk / 8][kThreads];
  };
  struct NoStorage {};
  using Shared = std::conditional_t<S::kParts == 1, NoStorage, Storage>;

  __device__ __forceinline__ explicit PartSums(Shared& shared) : shared_(shared) {}

  template <int kTiles>
  __device__ __forceinline__ void add(float (&x)[kTiles][4]) const {
    if constexpr (S::kParts > 1) {
      static_assert(S::kParts == 2 && kTiles <= kChunk / 8);
      const int own = part<S>(), thread = static_cast<int>(threadIdx.x);
#pragma unroll
      for (int j = 0; j < kTiles; ++j) shared_.slots[own][j][thread] = make_float4(x[j][0], x[j][1], x[j][2], x[j][3]);
      sync_warps();
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        const float4 other = shared_.slots[1 - own][j][thread];
        x[j][0] += other.x;
        x[j][1] += other.y;
        x[j][2] += other.z;
        x[j][3] += other.w;
      }
      sync_warps();  // all have been read
    }
  }

  __device__ __forceinline__ void add(float& x) const {
    if constexpr (S::kParts > 1) {
      float tile[1][4] = {{x}};
      add(tile);
      x = tile[0][0];
    }
  }

 private:
  // Waits for the warps of the same rows.
  __device__ __forceinline__ static void sync_warps() {
    const int barrier = 1 + S::kParts + static_cast<int>(threadIdx.x) / kWarp;
    asm volatile("barrier.sync %0, %1;" ::"r"(barrier), "n"(S::kParts * kWarp) : "memory");
  }

  Shared& shared_;
};

}  // namespace dfgnn::cuda::tile
