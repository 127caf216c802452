// Products of float32 numbers as they are, in TF32 (tf32.cuh), for heads too small to be worth making halves of: low
// times low is dropped.
#pragma once

#include "tf32.cuh"
#include "tile.cuh"

namespace dfgnn::cuda::tile {

// The nearest number of TF32.
__device__ __forceinline__ uint32_t rounded(uint32_t x) {
  uint32_t y;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(__uint_as_float(x)));
  return y;
}

// What becomes of numbers.
template <int kCount>
struct Changed {
  uint32_t x[kCount];

  template <class Change>
  __device__ __forceinline__ Changed(const uint32_t (&numbers)[kCount], const Change& change) {
#pragma unroll
    for (int i = 0; i < kCount; ++i) x[i] = change(numbers[i]);
  }
};

// d += a * b for kTiles tiles. Without kSplit numbers are rounded to TF32.
template <bool kSplit, int kTiles>
__device__ __forceinline__ void multiply_whole(float (*d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2 * kTiles]) {
  const auto multiply = [&](const uint32_t (&left)[4], const uint32_t (&right)[2 * kTiles]) {
#pragma unroll
    for (int j = 0; j < kTiles; ++j) mma_tf32(d[j], left, right[2 * j], right[2 * j + 1]);
  };
  if constexpr (kSplit) {
    multiply(Changed(a, low_part).x, b);
    multiply(a, Changed(b, low_part).x);
    multiply(a, b);
  } else {
    multiply(Changed(a, rounded).x, Changed(b, rounded).x);
  }
}

// The weights of a warp's rows as a factor.
template <class S>
struct WholeWeights {
  uint32_t p[kChunk / 8][4];

  __device__ __forceinline__ void set(const Logits& weights, const Features<S>&, const Chunk<S>&) {
#pragma unroll
    for (int j = 0; j < kChunk / 8; ++j) {
#pragma unroll
      for (int x = 0; x < 4; ++x) p[j][x] = __float_as_uint(weights[j][x % 2 * 2 + x / 2]);
    }
  }
};

// acc += P * chunk. In a sum over 8 nodes, number k of a factor is node 2 k, and number k + 4 is node 2 k + 1, as
// accumulators have them.
template <class S>
__device__ __forceinline__ void whole_nn(Features<S>& acc, const WholeWeights<S>& weights, const Chunk<S>& chunk,
                                         int head) {
  constexpr int kTiles = S::kHeadFeatures / 8;
#pragma unroll
  for (int j = 0; j < kChunk / 8; ++j) {
    uint32_t b[2 * kTiles];
#pragma unroll
    for (int x = 0; x < 2 * kTiles; ++x) {
      const int byte = head * S::kHeadBytes + (x / 2 * 8 + lane_group()) * static_cast<int>(sizeof(float));
      b[x] = *reinterpret_cast<const uint32_t*>(chunk.bytes + chunk.place(chunk_row(j, x % 2), byte / 16) + byte % 16);
    }
    multiply_whole<S::kSplit, kTiles>(acc.tiles, weights.p[j], b);
  }
}

}  // namespace dfgnn::cuda::tile
