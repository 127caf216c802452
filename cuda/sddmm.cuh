// SDDMM: dot products <dst_i, src_j>, or what else a score makes of two rows, for a run of edges by one warp, balanced
// over edges whatever the rows' lengths.
#pragma once

#include "logit.cuh"
#include "mma.cuh"

namespace dfgnn::cuda {

// What a score makes of a lane's share of two rows, before the sum over lanes: <x, y>, or additive_v2's
// <att, leaky_relu(x + y)>, whose share of att stays in registers.
template <Score score, class S>
class PairScore {
 public:
  using A = typename S::A;

  __device__ __forceinline__ PairScore(const Typed<typename S::T>&, int, int, int = 0) {}

  template <class X, class Y>
  __device__ __forceinline__ A operator()(const X& x, const Y& y) const {
    A sum = A(0);
#pragma unroll
    for (int i = 0; i < S::kSteps * S::kVec; ++i) sum += x[i] * y[i];
    return sum;
  }
};

template <class S>
class PairScore<Score::additive_v2, S> {
 public:
  using A = typename S::A;

  __device__ __forceinline__ PairScore(const Typed<typename S::T>& a, int h, int lane, int feature = 0)
      : slope_below_zero_(a.slope_below_zero) {
    att_.load(static_cast<const A*>(a.att) + h * a.head_dim + feature, lane, a.head_dim - feature);
  }

  template <class X, class Y>
  __device__ __forceinline__ A operator()(const X& x, const Y& y) const {
    A sum = A(0);
#pragma unroll
    for (int i = 0; i < S::kSteps * S::kVec; ++i) sum += att_[i] * (slope(x[i] + y[i]) * (x[i] + y[i]));
    return sum;
  }

  // leaky_relu'(z)
  __device__ __forceinline__ A slope(A z) const { return z > A(0) ? A(1) : slope_below_zero_; }

 private:
  NumberFragment<S> att_;
  A slope_below_zero_;
};

// The same of two rows that may be longer than a fragment, in chunks.
template <Score score, class S>
__device__ __forceinline__ typename S::A long_pair_score(const Typed<typename S::T>& a, const typename S::T* row,
                                                         const typename S::T* other, int h, int lane) {
  typename S::A sum = 0;
  for (int f = 0; f < a.head_dim; f += S::kFeatures) {
    Fragment<S> x, y;
    x.load(row + f, lane, a.head_dim - f);
    y.load(other + f, lane, a.head_dim - f);
    sum += PairScore<score, S>(a, h, lane, f)(x, y);
  }
  return sum;
}

// A row of 16-bit features over eight lanes: what tensor cores multiply. Four rows are the operand of an mma whose row
// (or column) 2 r holds half of row r's features, 2 r + 1 the other half.
template <class S>
using OctetShape = Shape<typename S::T, 8, 8, S::kFeatures / 64, false, true>;

__device__ __forceinline__ int octet() { return threadIdx.x % kWarp / 8; }
__device__ __forceinline__ int lane_in_octet() { return threadIdx.x % 8; }

// Products of the 8 rows `first`, `second` that the octets of lanes hold with the 4 rows b: dots[0] is that of the
// first row of this lane's octet with row b of octet lane_in_group(), dots[1] that of the second.
template <class O>
__device__ __forceinline__ void octet_dots(float (&dots)[2], const Packed<O>& first, const Packed<O>& second,
                                           const Packed<O>& b) {
  float acc[4] = {};
#pragma unroll
  for (int s = 0; s < O::kSteps; ++s) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {  // in any order of the features, as long as both operands have the same
      const uint32_t a[4] = {word(first.steps[s], k), word(second.steps[s], k), word(first.steps[s], k + 1),
                             word(second.steps[s], k + 1)};
      mma_half<typename O::T>(acc, a, word(b.steps[s], k), word(b.steps[s], k + 1));
    }
  }
  const bool odd = lane_group() & 1;  // the halves' products are where both are even, and where both are odd
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    const float half = odd ? acc[2 * v + 1] : acc[2 * v];
    dots[v] = half + __shfl_xor_sync(kAllLanes, half, 4);
  }
}

// 16 rows that a warp gathers for products with one row: the octets of lanes hold four at a time, those of entries 4 j
// + octet(). `place` is the entry that is a lane's own where there is a number each; lanes of odd groups have the same.
template <class S>
struct OctetRows {
  using O = OctetShape<S>;
  using Reader = RowReader<O>;
  Packed<O> rows[4];

  __device__ __forceinline__ static int place() { return 4 * lane_in_group() + octet(); }

  // The rows of the lanes' own nodes.
  __device__ __forceinline__ void load(int node, const Reader& row) {
#pragma unroll
    for (int j = 0; j < 4; ++j) rows[j] = row(__shfl_sync(kAllLanes, node, 8 * octet() + j));
  }

  // The lane's own entry's row times the other, which all octets have.
  __device__ __forceinline__ float dot(const Packed<O>& other) const {
    float low[2], high[2];
    octet_dots<O>(low, rows[0], rows[1], other);
    octet_dots<O>(high, rows[2], rows[3], other);
    const bool odd = lane_in_group() & 1;
    return lane_in_group() < 2 ? (odd ? low[1] : low[0]) : (odd ? high[1] : high[0]);
  }
};

// Calls store(e, dot) for e in [begin, end): `destination(e)` and `source(e)` are the edge's nodes, kNoNode counting as
// node 0. Groups of lanes take edges in turn; the destination's fragment stays in registers while the row lasts.
template <class S, Score score = Score::dot, class Destination, class Source, class Store>
__device__ __forceinline__ void warp_dots(const Typed<typename S::T>& a, const void* dst, const void* src, int h,
                                          int begin, int end, const Destination& destination, const Source& source,
                                          const Store& store) {
  using A = typename S::A;
  constexpr int kUnroll = S::kLoop ? 1 : 4 / S::kSteps;  // rows in flight: 4 loads a lane, in few registers
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const RowReader<S> dst_row(a, dst, h, lane), src_row(a, src, h, lane);
  const PairScore<score, S> pair(a, h, lane);
  Packed<S> own;
  int own_row = kNoNode;
  for (int base = begin + group; base - group < end; base += kUnroll * S::kGroups) {
    Packed<S> gathered[kUnroll];
    int edges[kUnroll];  // past the end, the last again: a load more, and no branch
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      edges[u] = min(base + u * S::kGroups, end - 1);
      if constexpr (!S::kLoop) gathered[u] = src_row(max(source(edges[u]), 0));
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int i = destination(edges[u]);
      A dot;
      if constexpr (S::kLoop) {
        dot =
            long_pair_score<score, S>(a, a.features(dst, i, h), a.features(src, max(source(edges[u]), 0), h), h, lane);
      } else {
        if (i != own_row) own = dst_row(i);
        own_row = i;
        dot = pair(own, gathered[u]);
      }
      dot = lanes_sum<S::kLanes>(dot);
      if (base + u * S::kGroups < end && lane == 0) store(edges[u], dot);
    }
  }
}

}  // namespace dfgnn::cuda
