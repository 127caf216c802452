// Weights of additive scores without an exponential for each edge: the larger of two products of what is made for each
// node. With 0 < slope <= 1, leaky_relu(x) = max(x, slope x), so that
//   exp(leaky_relu(a + b) - m) = max(exp(a + top - m) exp(b - top), exp(slope (a + top) - m) exp(slope (b - top)))
// for any number `top`. Here it is the largest b of the tile, and m what the logit is with that, so that no factor is
// more than 1. Rows all of whose weights are so small that factors may have lost bits go edge by edge.
#pragma once

#include "tile_window.cuh"

namespace dfgnn::cuda::tile {

// Factors of a node: of a + b, and of slope (a + b).
struct AdditiveFactors {
  float whole, sloped;

  // Where that is less, sums of weights are too small.
  static constexpr float kLeast = 0x1p-40f;

  __device__ __forceinline__ static float exponential(float x) { return exp2_of(kLog2e * x); }

  __device__ __forceinline__ static AdditiveFactors of_src(float b, float top, float slope) {
    return {exponential(b - top), exponential(slope * (b - top))};
  }

  // And m.
  __device__ __forceinline__ static AdditiveFactors of_dst(float a, float top, float slope, float& m) {
    const float most = a + top;
    m = max(most, slope * most);
    return {exponential(most - m), exponential(slope * most - m)};
  }

  __device__ __forceinline__ float weight(const AdditiveFactors& src) const {
    return max(whole * src.whole, sloped * src.sloped);
  }

  __device__ __forceinline__ AdditiveFactors of_chunk_row(int j, int c) const {
    return {tile::of_chunk_row(whole, j, c), tile::of_chunk_row(sloped, j, c)};
  }
};

// The largest src of the tile, for all lanes of a warp; of tiles that masks serve.
template <class T>
__device__ __forceinline__ float largest_src(const Typed<T>& a, const BlockWindow& w, int h) {
  float top = -INFINITY;
  const int end = min(w.end, w.begin + kMaxChunks * kChunk);
  for (int node = w.begin + static_cast<int>(threadIdx.x) % kWarp; node < end; node += kWarp) {
    top = max(top, src_term<Score::additive>(a, node, h));
  }
  return lanes_max<kWarp>(top);
}

}  // namespace dfgnn::cuda::tile
