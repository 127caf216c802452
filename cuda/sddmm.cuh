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
  constexpr int kUnroll = S::kLoop ? 1 : 4 / S::kSteps;  // rows in flight: 4 loads a lane, in few registers
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const RowReader<S> dst_row(a, dst, h, lane), src_row(a, src, h, lane);
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
        dot = long_dot<S>(a.features(dst, i, h), a.features(src, max(source(edges[u]), 0), h), lane, a.head_dim);
      } else {
        if (i != own_row) own = dst_row(i);
        own_row = i;
        dot = packed_dot(own, gathered[u]);
      }
      dot = lanes_sum<S::kLanes>(dot);
      if (base + u * S::kGroups < end && lane == 0) store(edges[u], dot);
    }
  }
}

}  // namespace dfgnn::cuda
