// Rows that the tile kernels must take edge by edge.
#pragma once

#include "gradient.cuh"
#include "tile_window.cuh"

namespace dfgnn::cuda::tile {

// 0 where all of accumulator row v is finite, else NaN: a node that is no neighbour may hold an infinity, which its
// weight of zero made NaN.
template <class S>
__device__ __forceinline__ float nan_if_infinite(const Features<S>& acc, int v) {
  float sum = 0;
#pragma unroll
  for (int n = 0; n < S::kFeatures / 8; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) sum += acc.tiles[n][2 * v + c] * 0.0f;
  }
  return sum;
}

// The warp's rows, as bits, for which a thread has something other than 0.
__device__ __forceinline__ uint32_t rows_not_zero(float x, int v) {
  return __reduce_or_sync(kAllLanes, x == 0 ? 0u : 1u << warp_row(v));
}

// A row of one head over the lanes of a warp, in numbers.
template <class S>
class LaneFeatures {
 public:
  using T = typename S::T;
  LaneFeatures() = default;
  __device__ __forceinline__ LaneFeatures(const Typed<T>& a, const void* data, int node, int h) {
    if (data == nullptr) return;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (feature(k) < a.head_dim) x_[k] = to_accumulate(a.features(data, node, h)[feature(k)]);
    }
  }

  __device__ __forceinline__ float dot(const LaneFeatures& other) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum += x_[k] * other.x_[k];
    return lanes_sum<kWarp>(sum);
  }

  __device__ __forceinline__ void fade_and_add(float fade, float weight, const LaneFeatures& other) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) x_[k] = x_[k] * fade + weight * other.x_[k];
  }

  __device__ __forceinline__ void store(const Typed<T>& a, void* data, int node, int h, float scale) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (feature(k) < a.head_dim) a.features(data, node, h)[feature(k)] = from_accumulate<T>(x_[k] * scale);
    }
  }

 private:
  static constexpr int kCount = S::kFeatures / kWarp;
  __device__ __forceinline__ static int feature(int k) { return threadIdx.x % kWarp + k * kWarp; }
  float x_[kCount] = {};
};

}  // namespace dfgnn::cuda::tile
