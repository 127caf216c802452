// Weights of additive scores without an exponential for each edge: the larger of two products of what is made for each
// node. With 0 < slope <= 1, leaky_relu(x) = max(x, slope x), so that
//   exp(leaky_relu(a + b) - m) = max(exp(a + top - m) exp(b - top), exp(slope (a + top) - m) exp(slope (b - top)))
// for any number `top`. Here it is the largest b of the tile, and m what the logit is with that, so that no factor is
// more than 1. Rows all of whose weights are so small that factors may have lost bits go edge by edge.
#pragma once

#include "tile_window.cuh"

namespace dfgnn::cuda::tile {

// Factors of a node: of a + b, and of slope (a + b).
struct alignas(8) AdditiveFactors {
  float whole, sloped;

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
};

// A lane's src of the tile's nodes, as many as most tiles have, of a tile that masks serve.
class TileSrcs {
 public:
  // Starts to load them, all at a time. Past the end, the last again.
  template <class T>
  __device__ __forceinline__ void load(const Typed<T>& a, const BlockWindow& w, int h, int first = 0) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int node = first + i * kWarp + static_cast<int>(threadIdx.x) % kWarp;
      srcs_[i] = src_term<Score::additive>(a, w.begin + min(node, nodes(w) - 1), h);
    }
  }

  // The largest of all lanes, of the whole tile. To be called once.
  template <class T>
  __device__ __forceinline__ float largest(const Typed<T>& a, const BlockWindow& w, int h) {
    float top = -INFINITY;
    for (int first = 0;;) {
#pragma unroll
      for (const float src : srcs_) top = max(top, src);
      first += kAtOnce * kWarp;
      if (first >= nodes(w)) return lanes_max<kWarp>(top);
      load(a, w, h, first);
    }
  }

 private:
  static constexpr int kAtOnce = 8;
  __device__ __forceinline__ static int nodes(const BlockWindow& w) {
    return min(w.end - w.begin, kMaxChunks * kChunk);
  }
  float srcs_[kAtOnce];
};

}  // namespace dfgnn::cuda::tile
