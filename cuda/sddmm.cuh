// SDDMM: dot products <dst_i, src_j>, or what else a score makes of two rows, for a run of edges by one warp, balanced
// over edges whatever the rows' lengths.
#pragma once

#include "logit.cuh"

namespace dfgnn::cuda {

// Sums of leaky_relu, or of its slopes, made of two: one of what is above zero, times 1 - negative_slope, and one of
// all, times negative_slope. So neither takes a choice between factors for each number.
template <class A>
class Slopes {
 public:
  __device__ __forceinline__ explicit Slopes(A below_zero) : below_zero_(below_zero) {}

  __device__ __forceinline__ A operator()(A above_zero, A all) const {
    return (A(1) - below_zero_) * above_zero + below_zero_ * all;
  }

  // Adds a weight to what is above zero of its product with leaky_relu'(x + y); then makes the sum of such products.
  template <class Fragment, class X, class Y>
  __device__ __forceinline__ static void add(Fragment& above_zero, A weight, const X& x, const Y& y) {
#pragma unroll
    for (int i = 0; i < Fragment::kSize; ++i) {
      if (x[i] > -y[i]) above_zero.x[i] += weight;
    }
  }
  template <class Fragment>
  __device__ __forceinline__ void complete(Fragment& above_zero, A weights) const {
#pragma unroll
    for (A& x : above_zero.x) x = (*this)(x, weights);
  }

  __device__ __forceinline__ A below_zero() const { return below_zero_; }

 private:
  A below_zero_;
};

// What a score makes of a lane's share of two rows, before the sum over lanes: <x, y>, or additive_v2's
// <att, leaky_relu(x + y)>, whose share of att stays in registers.
template <Score score, class S, bool kOfGradient = false>
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

template <class S, bool kOfGradient>
class PairScore<Score::additive_v2, S, kOfGradient> {
 public:
  using A = typename S::A;

  __device__ __forceinline__ PairScore(const Typed<typename S::T>& a, int h, int lane, int feature = 0)
      : slopes_(a.slope_below_zero) {
    att_.load(static_cast<const A*>(a.att) + h * a.head_dim + feature, lane, a.head_dim - feature);
  }

  template <class X, class Y>
  __device__ __forceinline__ A operator()(const X& x, const Y& y) const {
    A above_zero = A(0), all = A(0);
#pragma unroll
    for (int i = 0; i < S::kSteps * S::kVec; ++i) {
      const A z = x[i] + y[i];
      if constexpr (kOfGradient) {
        all += att_[i] * (slope(z) * z);
      } else {
        above_zero += att_[i] * above_zero_of(z);
        all += att_[i] * z;
      }
    }
    if (kOfGradient) return all;
    return slopes_.below_zero() == A(0) ? above_zero : slopes_(above_zero, all);  // where `all` is infinite
  }

  // leaky_relu'(z)
  __device__ __forceinline__ A slope(A z) const { return z > A(0) ? A(1) : slopes_.below_zero(); }

  // sum += weight * leaky_relu'(x + y)
  template <class X, class Y>
  __device__ __forceinline__ void add_slopes(Fragment<S>& sum, A weight, const X& x, const Y& y) const {
#pragma unroll
    for (int i = 0; i < Fragment<S>::kSize; ++i) sum.x[i] += weight * slope(x[i] + y[i]);
  }

 private:
  // max(z, 0), but NaN for NaN.
  __device__ __forceinline__ static float above_zero_of(float z) {
    asm("max.NaN.f32 %0, %0, 0f00000000;" : "+f"(z));
    return z;
  }
  __device__ __forceinline__ static double above_zero_of(double z) { return z < 0 ? 0 : z; }

  NumberFragment<S> att_;
  Slopes<A> slopes_;
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

// Calls store(e, dot) for e in [0, count): `destination(e)` and `source(e)` are the edge's nodes, kNoNode counting as
// node 0. Groups of lanes take edges in turn; the destination's fragment stays in registers while the row lasts.
template <class S, Score score = Score::dot, class Destination, class Source, class Store>
__device__ __forceinline__ void warp_dots(const Typed<typename S::T>& a, const void* dst, const void* src, int h,
                                          int count, const Destination& destination, const Source& source,
                                          const Store& store) {
  using A = typename S::A;
  constexpr int kUnroll = S::kLoop ? 1 : 4 / S::kSteps;  // rows in flight: 4 loads a lane, in few registers
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const RowReader<S> dst_row(a, dst, h, lane), src_row(a, src, h, lane);
  const PairScore<score, S> pair(a, h, lane);
  Packed<S> own;
  int own_row = kNoNode;
  for (int base = group; base - group < count; base += kUnroll * S::kGroups) {
    Packed<S> gathered[kUnroll];
    int edges[kUnroll];  // past the end, the last again: a load more, and no branch
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      edges[u] = min(base + u * S::kGroups, count - 1);
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
      if (base + u * S::kGroups < count && lane == 0) store(edges[u], dot);
    }
  }
}

}  // namespace dfgnn::cuda
