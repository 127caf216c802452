// Logits in the tile kernels. Those that are products are to the base 2, times log2(e), which comes with the term of
// the window's node; a sum is as it is, as its terms may cancel.
#pragma once

#include "tile.cuh"

namespace dfgnn::cuda::tile {

// Whether sources have keys beside values, which with cosine scores are the keys.
template <Score score>
constexpr bool kHasKeys = score == Score::dot;

// What logits are multiplied by.
template <Score score>
constexpr float kUnit = score == Score::additive ? 1 : kLog2e;

// Of a logit less what its row's have in common.
template <Score score>
__device__ __forceinline__ float weight_of(float logit) {
  return exp2_of(score == Score::additive ? kLog2e * logit : logit);
}

// Whether a row's largest logit is small enough for others to be told apart from it to the base 2 as they are without;
// rows for which it is not go edge by edge.
template <Score score>
__device__ __forceinline__ bool is_precise(float largest) {
  return score == Score::additive || fabsf(largest) <= 1 << 14;
}

// A row's log-sum-exp, with m taken out of its sum of weights, and the inverse of that sum: to 2^-22, and 2 units in
// the last place.
template <Score score>
__device__ __forceinline__ float lse_of_sum(float m, float sum) {
  const float log2_sum = __log2f(sum);
  return score == Score::additive ? m + kLn2 * log2_sum : kLn2 * (m + log2_sum);
}
__device__ __forceinline__ float inverse_of(float sum) { return __fdividef(1, sum); }

// What nodes bring to logits. kRows: windows are of rows, else of columns.
template <bool kRows>
struct Terms {
  // With dot's scale.
  template <Score score, class T>
  __device__ __forceinline__ static float of_window(const Typed<T>& a, int node, int h) {
    if constexpr (score == Score::dot) return kUnit<score> * a.logit_scale;
    return kUnit<score> * (kRows ? dst_term<score>(a, node, h) : src_term<score>(a, node, h));
  }

  template <Score score, class T>
  __device__ __forceinline__ static float of_other(const Typed<T>& a, int node, int h) {
    return kRows ? src_term<score>(a, node, h) : dst_term<score>(a, node, h);
  }
};

// Whether products that make logits have been multiplied by the window's terms (tile_products.cuh).
template <Score score, class S>
constexpr bool kProductsHaveTerms = S::kScaled && score != Score::additive;

// Whether products that make logits begin with masks, which costs nothing, and are multiplied by the window's term, of
// more than 0, afterwards.
template <Score score, class S, bool kPositions>
constexpr bool kMasksFirst = score == Score::dot && !S::kScaled && !kPositions;

}  // namespace dfgnn::cuda::tile
