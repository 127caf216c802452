// Dot products of edges: of a tile's own rows with the rows of a chunk that their edges lead to.
#pragma once

#include "resident_chunk.cuh"
#include "row_groups.cuh"

namespace dfgnn::cuda::resident {

// The row of a group's edges. Which of a row's steps comes first depends on the group: steps have sums of their own, so
// that no result depends on where the row is in the order.
template <class S>
class OwnRow {
 public:
  __device__ __forceinline__ explicit OwnRow(const Packed<S>& row) {
#pragma unroll
    for (int x = 0; x < S::kNumbers; ++x) own_[x] = row.number(x / S::kVec, x % S::kVec);
  }

  // Dots of the edges of batches, the rows that they lead to being `others`: sums = dots, or += dots, `sums` being that
  // of the group's first edge.
  template <int kEdges>
  __device__ __forceinline__ void add_dots(const Packed<S> (&others)[kEdges], bool is_first, float* sums) const {
    const int lane = lane_in_group();
    float* sum = sums + lane / kBatch * (kGroups * kBatch) + lane % kBatch;
    const bool has_one = kEdges == kLanes || lane < kEdges;
    const float before = is_first || !has_one ? 0.f : *sum;
    float dots[kLanes] = {};
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      float steps[S::kSteps] = {};
#pragma unroll
      for (int x = 0; x < S::kNumbers; ++x) steps[x / S::kVec] += own_[x] * others[u].number(x / S::kVec, x % S::kVec);
      dots[u] = steps[0] + steps[1];
    }
    const float dot = transposed_sum<kLanes>(dots);
    if (has_one) *sum = before + dot;
  }

 private:
  float own_[S::kNumbers];
};

// On tensor cores: eight groups' own rows times two rows of each, of which the diagonal is of use. A lane's pieces are
// factors as they lie in memory, in whatever order, which is the same for both.
template <class S>
  requires(sizeof(typename S::T) == 2)
class OwnRow<S> {
 public:
  __device__ __forceinline__ explicit OwnRow(const Packed<S>& row) : own_(row) {}

  template <int kEdges>
  __device__ __forceinline__ void add_dots(const Packed<S> (&others)[kEdges], bool is_first, float* sums) const {
#pragma unroll
    for (int u = 0; u < kEdges; u += kBatch) {
      float2* sum = reinterpret_cast<float2*>(sums + u * kGroups);
      float2 before{};
      if (!is_first && has_diagonal()) before = *sum;
      float steps[S::kSteps][4] = {};
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
        const uint4 own = own_.steps[s], x = others[u].steps[s], y = others[u + 1].steps[s];
        mma_half<typename S::T>(steps[s], {x.x, y.x, x.y, y.y}, own.x, own.y);
        mma_half<typename S::T>(steps[s], {x.z, y.z, x.w, y.w}, own.z, own.w);
      }
      const auto dot = [&](int i) { return steps[0][i] + steps[1][i]; };
      const float2 even{dot(0), dot(2)}, odd{dot(1), dot(3)}, own = lane_group() % 2 ? odd : even;
      if (has_diagonal()) *sum = {before.x + own.x, before.y + own.y};
    }
  }

 private:
  // Whether this lane has elements (group, group), in the lane_group() % 2-th of its columns.
  __device__ __forceinline__ static bool has_diagonal() { return lane_in_group() == lane_group() / 2; }

  const Packed<S> own_;
};

// The warp's own rows, a slice ahead: the first is on its way as soon as there is one of these. kAnywhere: they may be
// those of a chunk.
template <class S, bool kAnywhere>
class OwnRows {
 public:
  __device__ __forceinline__ OwnRows(const Slices<S>& edges, const Rows& rows) : edges_(edges), rows_(rows) {
    load(threadIdx.x / kWarp);
  }

  // sums = own rows times rows of the chunk, or, if it is not the first, += : a number for each edge.
  __device__ __forceinline__ void add_dots(const Chunk<S>& chunk, bool is_first, float* sums) {
#pragma unroll 1
    for (int t = threadIdx.x / kWarp; t < edges_.count(); t += S::kWarps) {
      const OwnRow<S> own(next_);
      load(t + S::kWarps);
      edges_.for_steps(t, [&]<int kBatches>(int place, const uint2(&offsets)[kBatches]) {
        Packed<S> others[kBatches * kBatch];
#pragma unroll
        for (int u = 0; u < kBatches * kBatch; ++u) {
          others[u].load_shared(chunk.memory + (&offsets[u / kBatch].x)[u % kBatch], pieces_);
        }
        own.add_dots(others, is_first, sums + place * kBatch);
      });
    }
  }

 private:
  __device__ __forceinline__ void load(int t) {
    if (t < edges_.count()) next_.template load<kAnywhere>(rows_, edges_.row(t).node, pieces_);
  }

  const Slices<S>& edges_;
  const Rows rows_;
  const Pieces<S> pieces_;
  Packed<S> next_;
};

}  // namespace dfgnn::cuda::resident
