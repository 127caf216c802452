// What GATv2's scores of edges and their derivatives are made of, by the lanes of a warp: lanes share the channels of
// all heads of an edge, so that those of a head are neighbours. Several edges are on their way at a time, for which a
// number of W is read once.
#pragma once

#include <algorithm>
#include <type_traits>

#include "logit.cuh"
#include "v2_logits.h"

namespace dfgnn::cuda {

// S: the shape of a row of all heads, without loop.
template <class S>
constexpr int kV2Size = S::kSteps * S::kVec;
template <class S>
constexpr int kV2Edges = std::min(kV2Size<S> > 4 ? 2 : 4, S::kLanes);  // on their way at a time

template <class S>
struct V2Terms : V2Logits {
  using T = typename S::T;
  using A = typename S::A;
  int lanes;  // that have a head

  explicit V2Terms(const V2Logits& task) : V2Logits(task), lanes(channels / S::kVec) {}

  // The lane's channels in a row of A [width].
  __device__ __forceinline__ Fragment<S> numbers(const void* row, int lane) const {
    Fragment<S> x;
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      const int f = (s * S::kLanes + lane) * S::kVec;
      const A* from = static_cast<const A*>(row) + f;
#pragma unroll
      for (int v = 0; v < S::kVec; v += kWide) {
        if constexpr (kWide == 4) {
          const float4 four = f < width ? __ldg(reinterpret_cast<const float4*>(from + v)) : float4{};
          x.x[s * S::kVec + v] = four.x, x.x[s * S::kVec + v + 1] = four.y;
          x.x[s * S::kVec + v + 2] = four.z, x.x[s * S::kVec + v + 3] = four.w;
        } else {
          x.x[s * S::kVec + v] = f < width ? __ldg(from + v) : A(0);
        }
      }
    }
    return x;
  }
  __device__ __forceinline__ Fragment<S> weights(int f, int lane) const {
    return numbers(static_cast<const A*>(weight) + static_cast<int64_t>(f) * width, lane);
  }
  __device__ __forceinline__ const T* node(const void* x, int n) const { return static_cast<const T*>(x) + n * pitch; }
  // Of features from f on.
  template <int kCount>
  __device__ __forceinline__ Fragment<Shape<T, kCount, 1, 1>> some_features(int64_t offset, int f) const {
    Fragment<Shape<T, kCount, 1, 1>> some;
    some.load(static_cast<const T*>(features) + offset + f, 0, kCount);
    return some;
  }
  __device__ __forceinline__ int head(int s, int lane) const { return (s * S::kLanes + lane) * S::kVec / channels; }

  // Where the features of the edge at position e begin: 0 where there are none, -1 where they are out of range.
  __device__ __forceinline__ int64_t offset_of_features(int64_t e) const {
    return edge_dim == 0 ? 0 : offset_of_row(eid[e]);
  }
  // Stores or adds a number of the gradients of features.
  __device__ __forceinline__ void put_feature(const V2Gradients& g, int64_t at, A x) const {
    if (g.adds_features) {
      static_cast<A*>(g.features)[at] += x;
    } else {
      static_cast<T*>(g.features)[at] = from_accumulate<T>(x);
    }
  }
  __device__ __forceinline__ int64_t offset_of_row(int64_t row) const {
    return static_cast<uint64_t>(row) < static_cast<uint64_t>(num_features) ? row * edge_dim : -1;
  }

  // Calls visit(the number of features, f) so that all are visited, some at a time where rows of them are whole
  // vectors.
  template <class Visit>
  __device__ __forceinline__ void for_features(int first, int last, const Visit& visit) const {
    constexpr int kMany = sizeof(A) == 8 ? 2 : 4;
    if (edge_dim % kMany == 0) {
      for (int f = first; f < last; f += kMany) visit(std::integral_constant<int, kMany>(), f);
    } else {
      for (int f = first; f < last; ++f) visit(std::integral_constant<int, 1>(), f);
    }
  }

  // Adds W f to what edges have.
  template <int kCount>
  __device__ __forceinline__ void add_features(Fragment<S> (&z)[kCount], const int64_t (&offsets)[kCount],
                                               int lane) const {
    for_features(0, edge_dim, [&](auto count, int f) {
      constexpr int kAtOnce = decltype(count)::value;
      Fragment<Shape<T, kAtOnce, 1, 1>> some[kCount];
#pragma unroll
      for (int u = 0; u < kCount; ++u) some[u] = some_features<kAtOnce>(max(offsets[u], int64_t{0}), f);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const auto w = weights(f + j, lane);
#pragma unroll
        for (int u = 0; u < kCount; ++u) z[u].add(some[u][j], w);
      }
    });
  }

 private:
  static constexpr int kWide = S::kVec % 4 == 0 && sizeof(A) == 4 ? 4 : 1;
};

// Entries of a row by the lanes of a warp, 32 at a time: their nodes, their edges, and where the features of these
// begin (-1: of what is no edge). What those behind them take is on its way.
template <class S, bool by_destination>
class V2Entries {
 public:
  struct Entry {
    int node;
    int64_t edge, offset;
  };

  __device__ __forceinline__ V2Entries(const V2Terms<S>& terms, const Range& entries)
      : terms_(terms), end_(entries.end) {
    load(entries.begin);
    advance(entries.begin);
  }

  // The lane's of those that begin there: one after the other.
  __device__ __forceinline__ Entry take(int64_t first) {
    const Entry entry{node_, edge_, offset()};
    advance(first + kWarp);
    return entry;
  }

 private:
  // Of those that begin there; past the end, the last entry again.
  __device__ __forceinline__ void load(int64_t first) {
    if (first >= end_) return;
    const int64_t c = min(first + threadIdx.x % kWarp, end_ - 1);
    later_node_ = {by_destination ? terms_.col : terms_.row, c};
    if constexpr (!by_destination) later_edge_ = {terms_.perm, c};
  }

  // To those, which are on their way.
  __device__ __forceinline__ void advance(int64_t first) {
    const int64_t c = first + threadIdx.x % kWarp;
    const bool is_there = c < end_;
    node_ = is_there ? later_node_.check(by_destination ? terms_.num_src : terms_.num_dst) : kNoNode;
    edge_ = !is_there ? 0 : by_destination ? c : clamp_to(later_edge_.value(), terms_.num_edges - 1);
    if (terms_.edge_dim > 0 && first < end_) row_of_features_ = {terms_.eid, edge_};
    load(first + kWarp);
  }

  __device__ __forceinline__ int64_t offset() const {
    if (node_ == kNoNode) return -1;
    return terms_.edge_dim == 0 ? 0 : terms_.offset_of_row(row_of_features_.value());
  }

  const V2Terms<S>& terms_;
  const int64_t end_;
  int node_;
  int64_t edge_;
  LoadedNode later_node_;
  LoadedIndex later_edge_, row_of_features_;
};

}  // namespace dfgnn::cuda
