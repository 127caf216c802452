// SDDMM: dot products <dst_i, src_j>, or what else a score makes of two rows, for a run of edges by one warp, balanced
// over edges whatever the rows' lengths.
#pragma once

#include "logit.cuh"

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
