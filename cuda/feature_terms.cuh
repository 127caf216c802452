// What features of edges add to products of their ends: <projected_i, features_e>, by the lanes that have a head, where
// each of these has a vector of them at the most.
#pragma once

#include "edges.cuh"
#include "products.h"

namespace dfgnn::cuda {

// kAny: there are some. The rows of features of a batch's edges are in `rows`, of this warp alone.
template <class T, bool kAny>
class FeatureTerms {
 public:
  static constexpr int kVec = 8 / sizeof(T);
  using Vector = Packed<Shape<T, kVec, 1, 1>>;

  static bool fits(int width, int lanes) { return width % kVec == 0 && width <= lanes * kVec; }

  __device__ __forceinline__ FeatureTerms(const FeaturesOfEdges& edges, int heads, int lane, int* rows)
      : features_(static_cast<const T*>(edges.features) + lane * kVec),
        projected_(static_cast<const T*>(edges.projected) + lane * kVec),
        left_(edges.width - lane * kVec),
        width_(edges.width),
        heads_(heads),
        rows_(rows) {}

  // Of the next batch. An edge of features that are not there counts as one of no node.
  __device__ __forceinline__ void begin(const FeaturesOfEdges& edges, int64_t first, int count,
                                        EdgeBatch& batch) const {
    if constexpr (kAny) {
      const int lane = threadIdx.x % kWarp;
      const int row = lane < count ? checked_node(edges.eid[first + lane], edges.rows) : 0;
      if (row == kNoNode) batch.source[lane] = kNoNode;
      rows_[lane] = max(row, 0);
      __syncwarp();
    }
  }

  // The lane's vectors: head h's of node i, and those of the batch's edge t.
  __device__ __forceinline__ Vector of_node(int i, int h) const {
    Vector x{};
    if constexpr (kAny) x.load(row_from(projected_ + h * width_, i, heads_ * width_ * sizeof(T)), 0, left_);
    return x;
  }
  __device__ __forceinline__ Vector of_edge(int t) const {
    Vector x{};
    if constexpr (kAny) x.load(row_from(features_, rows_[t], width_ * sizeof(T)), 0, left_);
    return x;
  }

 private:
  const T *features_, *projected_;
  int left_, width_, heads_;
  int* rows_;
};

}  // namespace dfgnn::cuda
