// SDDMM: the logits of a run of consecutive edges by one warp, balanced over edges whatever the rows' lengths.
#pragma once

#include "logit.cuh"

namespace dfgnn::cuda {

// Rows of edges by a walk along rowptr, for a warp whose edges only ever increase. `Pointer` is anything with [].
// Strides over runs of empty rows by doubling steps, then halves: a warp never walks row by row over a million of them.
template <class Pointer>
struct RowWalk {
  const Pointer& end_of;  // end_of[r]: one past the last edge of row r
  int64_t row, num_rows;

  // First row at or after the current one that ends behind e.
  __device__ __forceinline__ int64_t find(int64_t e) {
    if (end_of[row] > e) return row;
    int64_t low = row, step = 1;  // end_of[low] <= e
    while (low + step < num_rows && end_of[low + step] <= e) {
      low += step;
      step *= 2;
    }
    int64_t high = low + step < num_rows ? low + step : num_rows - 1;
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (end_of[middle] <= e ? low : high) = middle;
    }
    return row = high;
  }
};

// <a, b> of two rows by a group of lanes; rows longer than a fragment in chunks.
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

// Calls store(e, h, s) with the logit of every edge in [begin, end) and head in [head, head + num_heads).
// Lane groups take (edge, head) pairs in turn; the row's own fragment stays in registers while the row lasts.
template <Score score, class S, class Walk, class Store>
__device__ __forceinline__ void warp_logits(const Typed<typename S::T>& a, int64_t begin, int64_t end, int head,
                                            int num_heads, Walk walk, const Store& store) {
  using A = typename S::A;
  const int lane = threadIdx.x % kWarp;
  if constexpr (score == Score::additive) {
    const int64_t units = (end - begin) * num_heads;
    for (int64_t u = lane; u < units; u += kWarp) {
      const int64_t e = begin + u / num_heads;
      const int h = head + static_cast<int>(u % num_heads);
      bool ok;
      const int64_t j = a.source(e, ok);
      const A s = logit<score>(a, A(0), walk.find(e), j, e, h).value;
      store(e, h, ok ? s : A(NAN));
    }
  } else {
    constexpr int kUnroll = S::kLoop || S::kSteps >= 4 ? 2 : 4;  // rows in flight
    const int group_lane = lane % S::kLanes, group = lane / S::kLanes;
    const int64_t units = (end - begin) * num_heads;
    const int edge_step = S::kGroups / num_heads, head_step = S::kGroups % num_heads;
    int64_t e = begin + group / num_heads;
    int h = group % num_heads;
    Fragment<S> own;
    int64_t own_row = -1;
    int own_head = -1;
    for (int64_t base = 0; base < units; base += kUnroll * S::kGroups) {
      int64_t edges[kUnroll], sources[kUnroll];
      int heads[kUnroll];
      bool ok[kUnroll];
      Fragment<S> gathered[S::kLoop ? 1 : kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        edges[u] = e;
        heads[u] = head + h;
        if (e < end) {
          sources[u] = a.source(e, ok[u]);
          if constexpr (!S::kLoop) gathered[u].load(a.src_row(sources[u], heads[u]), group_lane, a.head_dim);
        }
        e += edge_step;
        h += head_step;
        if (h >= num_heads) {
          h -= num_heads;
          ++e;
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const bool live = edges[u] < end;
        A dot = A(0);
        int64_t i = 0;
        if (live) {
          i = walk.find(edges[u]);
          if constexpr (S::kLoop) {
            dot = long_dot<S>(a.dst_row(i, heads[u]), a.src_row(sources[u], heads[u]), group_lane, a.head_dim);
          } else {
            if (i != own_row || heads[u] != own_head) {
              own.load(a.dst_row(i, heads[u]), group_lane, a.head_dim);
              own_row = i;
              own_head = heads[u];
            }
            dot = own.dot(gathered[u]);
          }
        }
        dot = lanes_sum<S::kLanes>(dot);
        if (live && group_lane == 0) {
          store(edges[u], heads[u], ok[u] ? logit<score>(a, dot, i, sources[u], edges[u], heads[u]).value : A(NAN));
        }
      }
    }
  }
}

}  // namespace dfgnn::cuda
