// SDDMM: dot products <dst_i, src_j> of a run of edges by one warp, balanced over edges whatever the rows' lengths.
#pragma once

#include "logit.cuh"

namespace dfgnn::cuda {

// <a, b> of two rows by a group of lanes (before the sum over them); rows longer than a fragment in chunks.
template <class S>
__device__ __forceinline__ typename S::A long_dot(const typename S::T* a, const typename S::T* b, int lane,
                                                  int features) {
  typename S::A sum = 0;
  for (int f = 0; f < features; f += S::kFeatures) {
    Fragment<S> x, y;
    x.load(a + f, lane, features - f);
    y.load(b + f, lane, features - f);
    sum += x.dot(y);
  }
  return sum;
}

// Calls store(e, dot) for e in [begin, end): `destination(e)` and `source(e)` are the edge's nodes, kNoNode counting as
// node 0. Groups of lanes take edges in turn; the destination's fragment stays in registers while the row lasts.
template <class S, class Destination, class Source, class Store>
__device__ __forceinline__ void warp_dots(const Typed<typename S::T>& a, const void* dst, const void* src, int h,
                                          int begin, int end, const Destination& destination, const Source& source,
                                          const Store& store) {
  using A = typename S::A;
  constexpr int kUnroll = S::kLoop ? 1 : (S::kSteps >= 4 ? 2 : 4);  // rows in flight
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  Fragment<S> own;
  int own_row = kNoNode;
  for (int base = begin; base < end; base += kUnroll * S::kGroups) {
    Packed<S> gathered[kUnroll];
    if constexpr (!S::kLoop) {
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int e = base + u * S::kGroups + group;
        if (e < end) gathered[u].load(a.features(src, max(source(e), 0), h), lane, a.head_dim);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int e = base + u * S::kGroups + group;
      A dot = A(0);
      if (e < end) {
        const int i = destination(e);
        if constexpr (S::kLoop) {
          dot = long_dot<S>(a.features(dst, i, h), a.features(src, max(source(e), 0), h), lane, a.head_dim);
        } else {
          if (i != own_row) own.load(a.features(dst, i, h), lane, a.head_dim);
          own_row = i;
          dot = own.dot(gathered[u]);
        }
      }
      dot = lanes_sum<S::kLanes>(dot);
      if (e < end && lane == 0) store(e, dot);
    }
  }
}

}  // namespace dfgnn::cuda
