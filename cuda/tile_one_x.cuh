// The gradient of cosine's one x from sums of edges in accumulators (normalize.h): the pass over rows leaves its part,
// that over columns adds its own.
#pragma once

#include "tile_gradient.cuh"

namespace dfgnn::cuda::tile {

// A row of features as accumulators have it, by pairs. All loads are under way at a time.
template <class S>
class PairsOfRow {
 public:
  using T = typename S::T;
  static constexpr int kCount = S::kHeadFeatures / 8;

  // kStored: by the kernel before.
  template <bool kStored = false>
  __device__ __forceinline__ static PairsOfRow load(const T* row, int features) {
    PairsOfRow pairs;
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      const auto* from = reinterpret_cast<const Pair*>(row + feature(n));
      pairs.pairs_[n] = feature(n) >= features ? Pair{} : kStored ? __ldcg(from) : *from;
    }
    return pairs;
  }
  __device__ __forceinline__ float2 operator[](int n) const {
    return {number_of<T>(&pairs_[n], 0), number_of<T>(&pairs_[n], 1)};
  }
  // The first feature of a lane's n-th pair.
  __device__ __forceinline__ static int feature(int n) { return 8 * n + 2 * lane_in_group(); }

 private:
  using Pair = std::conditional_t<sizeof(T) == 4, float2, uint32_t>;
  Pair pairs_[kCount];
};

// Of a node, whose sums are row v of accumulators.
template <class S>
class GradientOfX {
 public:
  using T = typename S::T;
  using Pairs = PairsOfRow<S>;

  GradientOfX() = default;
  __device__ __forceinline__ GradientOfX(const Typed<T>& a, const Gradients& g, int node, int h)
      : x_(Pairs::load(a.features(a.src, node, h), a.head_dim)),
        to_(a.features(g.value, node, h)),
        features_(a.head_dim) {}

  // Of the sums and x. All lanes come.
  __device__ __forceinline__ float dot(const GradientSums<S>& sums, int v) const {
    float sum = 0;
#pragma unroll
    for (int n = 0; n < Pairs::kCount; ++n) {
      sum += sums.tiles[n][2 * v] * x_[n].x + sums.tiles[n][2 * v + 1] * x_[n].y;
    }
    return lanes_sum<4>(sum * sums.unit(v));
  }

  // Stores factor * sums + own * x.
  __device__ __forceinline__ void store(const GradientSums<S>& sums, int v, float factor, float own) const {
#pragma unroll
    for (int n = 0; n < Pairs::kCount; ++n) store_row_pair<S>(to_, features_, n, sum_at(sums, v, n, factor, own));
  }

  // Adds that and others to what the kernel before has stored.
  __device__ __forceinline__ void add(const GradientSums<S>& sums, int v, float factor, float own,
                                      const GradientSums<S>& others) const {
    const auto before = Pairs::template load<true>(to_, features_);
    const float unit_of_others = others.unit(v);
#pragma unroll
    for (int n = 0; n < Pairs::kCount; ++n) {
      const float2 sum = sum_at(sums, v, n, factor, own);
      store_row_pair<S>(to_, features_, n,
                        {sum.x + before[n].x + unit_of_others * others.tiles[n][2 * v],
                         sum.y + before[n].y + unit_of_others * others.tiles[n][2 * v + 1]});
    }
  }

 private:
  __device__ __forceinline__ float2 sum_at(const GradientSums<S>& sums, int v, int n, float factor, float own) const {
    const float f = factor * sums.unit(v);
    float2 sum{f * sums.tiles[n][2 * v], f * sums.tiles[n][2 * v + 1]};
    if (own != 0) sum = {sum.x + own * x_[n].x, sum.y + own * x_[n].y};
    return sum;
  }

  Pairs x_;
  T* to_;
  int features_;
};

}  // namespace dfgnn::cuda::tile
