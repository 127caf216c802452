// What both passes of the tile kernels' backward are made of: terms of rows, the gradient of an edge, and what a block
// has in shared memory.
#pragma once

#include "gradient.cuh"
#include "tile_chunks.cuh"
#include "tile_logit.cuh"
#include "tile_masks.cuh"

namespace dfgnn::cuda::tile {

// What a node brings to the gradients of its row's logits.
struct RowTerms {
  float term, lse, delta;

  // With lse in the unit of logits, for masked_gradient. That of a row without edges is no number to subtract from
  // masks; any will do. One that is too large makes all logits NaN.
  template <Score score>
  __device__ __forceinline__ RowTerms in_unit() const {
    const float of_unit = kUnit<score> * lse;
    return {term, of_unit == -INFINITY ? 0 : is_precise<score>(of_unit) ? of_unit : NAN, delta};
  }

  // In shared memory; dot scores have no terms.
  template <Score score>
  using Shared = std::conditional_t<score == Score::dot, float2, float4>;
  __device__ __forceinline__ explicit operator float2() const { return {lse, delta}; }
  __device__ __forceinline__ explicit operator float4() const { return {lse, delta, term, 0}; }
  __device__ __forceinline__ static RowTerms of(const float2& shared) { return {1, shared.x, shared.y}; }
  __device__ __forceinline__ static RowTerms of(const float4& shared) { return {shared.z, shared.x, shared.y}; }
};

// What a chunk's nodes bring: sources to a pass over rows, rows to one over columns.
template <Score score, class S, bool kRows>
using BackwardTerms = std::conditional_t<kRows, SrcTerms<score, S>, TermsAhead<S, RowTerms::Shared<score>, RowTerms>>;

// A quarter of each head of a row of `out`, which the four lanes of an accumulator row share.
template <class S>
class OutPieces {
 public:
  using T = typename S::T;

  // All loads are under way at a time.
  __device__ __forceinline__ OutPieces(const Typed<T>& a, const Gradients& g, int node, int h) {
    for_heads<S>(a.heads, h, [&](int k) {
      const T* out = part_of_row<S>(a, g.out, node, h + k);
      const int features = features_of_part<S>(a);
#pragma unroll
      for (int x = 0; x < kCount; ++x) {
        const int feature = piece(x) * kNumbers;
        pieces_[k][x] = feature < features ? *reinterpret_cast<const uint4*>(out + feature) : uint4{};
      }
    });
  }

  // <grad_out, out> of head k, grad_out being a row in shared memory.
  __device__ __forceinline__ float dot(const WindowRows<S>& grads, int row, int k) const {
    float sum = 0;
#pragma unroll
    for (int x = 0; x < kCount; ++x) {
      const Piece<S> grad(grads, row, k * kPieces + piece(x) % kPieces);
#pragma unroll
      for (int f = 0; f < kNumbers; ++f) sum += grad.x[f] * number_of<T>(&pieces_[k][x], f);
    }
    return lanes_sum<kLanes>(sum);
  }

 private:
  static constexpr int kLanes = 4, kNumbers = Piece<S>::kNumbers, kPieces = S::kHeadBytes / 16;
  static constexpr int kCount = (kPieces + kLanes - 1) / kLanes;
  static __device__ __forceinline__ int piece(int x) { return x * kLanes + lane_in_group(); }
  uint4 pieces_[S::kHeads][kCount];
};

// As edge_gradient, of a logit with its mask, which makes all of it 0 where there is no edge. keep: 1 without
// kPositions.
template <Score score>
__device__ __forceinline__ EdgeGradient<float> masked_gradient(const Logit<float>& s, float dp, const RowTerms& row,
                                                               float keep) {
  const float p = weight_of<score>(s.value - row.lse);
  const float ds = p * (keep * dp - row.delta);
  return {keep * p, ds, ds * s.slope};
}

// Sums of edges: scaled in float16, too, for gradients have no size of their own, and halves end at 2^-24.
template <class S>
using GradientSums = Features<S, S::kScaled || std::is_same_v<typename S::T, __half>>;

// The gradient of a node's dst or src: accumulator row v, or, with the additive score, a number.
template <Score score, class S>
__device__ __forceinline__ void store_gradient(const Typed<typename S::T>& a, void* to, int node, int h,
                                               const GradientSums<S>& grad, int v, float grad_scalar) {
  if constexpr (score != Score::additive) {
    const float factor = score == Score::dot ? a.logit_scale : 1;
    store_row<S>(grad, v, factor, part_of_row<S>(a, to, node, h), features_of_part<S>(a));
  } else if (lane_in_group() == 0 && is_first_part<S>()) {
    static_cast<float*>(to)[a.scalar(node, h)] = grad_scalar;
  }
}

// Whether destinations have queries beside the gradient of `out`, and sources keys beside values. kRows: of the pass
// over rows, else over columns.
template <Score score, bool kOfDestinations>
constexpr bool kHasSecond = kOfDestinations ? score != Score::additive : kHasKeys<score>;

// What a pass over columns adds up, beside the gradients of additive scores: both, or, where registers do not do for
// that, the gradients of one of the two.
enum class Sums { both, of_src, of_value };

// Shared memory: windows of one or two matrices, then chunks of one or two. Two of each would cost float32, and large
// heads, a block.
template <Score score, class S, bool kRows>
constexpr int kWindowsBytes = (kHasSecond<score, kRows> ? 2 : 1) * WindowRows<S>::kBytes;
template <Score score, class S, bool kRows>
using BackwardChunks =
    Chunks<S, kHasSecond<score, !kRows>, kRows, (!kHasSecond<score, !kRows> || !(S::kScaled || S::kLarge))>;
template <Score score, class S, bool kRows>
constexpr int kStagesBytes = kWindowsBytes<score, S, kRows> + BackwardChunks<score, S, kRows>::kBytes;

// What a block has in shared memory.
template <Score score, class S, bool kRows, Sums kSums = Sums::both>
struct BackwardStages {
  WindowMasks& masks;
  ScoreNorms<score, S>& norms;
  PartSums<S> parts;
  WindowRows<S> first, second;  // what products with chunks of the first and the second matrix are made of
  BackwardChunks<score, S, kRows> chunks;

  // memory: the part's.
  __device__ __forceinline__ BackwardStages(WindowMasks& window_masks, ScoreNorms<score, S>& block_norms,
                                            typename PartSums<S>::Shared& sums, const SharedBytes& memory)
      : masks(window_masks),
        norms(block_norms),
        parts(sums),
        first{memory},
        second{memory + (kHasSecond<score, kRows> ? WindowRows<S>::kBytes : 0)},
        chunks(memory + kWindowsBytes<score, S, kRows>) {}

  // Starts to copy what heads from h on need of a window.
  __device__ __forceinline__ void start(const Typed<typename S::T>& a, const Gradients& g, const BlockWindow& w,
                                        int h) {
    const int end = w.first + w.count;
    if (is_first_part<S>()) masks.stage(kRows ? a.row_masks : a.column_masks, w);
    const Rows<S> grads(a, g.grad_out, h), queries(a, a.dst, h), values(a, a.value, h), keys(a, a.src, h);
    if (kSums != Sums::of_value) (kRows ? grads : values).stage(first, w.first, end);
    if (kHasSecond<score, kRows>) (kRows ? queries : keys).stage(second, w.first, end);
    chunks.begin(kRows ? values : grads, kRows ? keys : queries, w);
  }
};

}  // namespace dfgnn::cuda::tile
