// Adds up what the pieces of long rows left in their slots (row_units.cuh), as soon as the kernel before has: it is
// there by then, waiting (dependent.cuh).
#pragma once

#include <algorithm>

#include "dependent.cuh"
#include "row_units.cuh"

namespace dfgnn::cuda {

// What a slot holds of a piece and a head, one after another; sums of row r and head h over its pieces, in a fixed
// order, go to the place (r, h) of each result. Where lse is given, rows of features are weighted sums of a softmax.
template <class T>
struct Merge {
  using A = typename Accumulate<T>::type;
  Index ptr;
  int64_t num_rows, num_entries;
  RowUnits units;
  int heads;
  const A* slots;  // [slots][heads][width]
  int width, features;
  A* number;   // [num_rows][heads] or null: a number,
  T* rows[2];  // [num_rows][heads][features], each or null: rows of features,
  A* lse;      // [num_rows][heads] or null: the softmax's maximum and its sum
};

struct MergePlan {
  static constexpr int kThreads = 512, kWarps = kThreads / kWarp, kVec = 4, kFeatures = kWarp * kVec;
  static constexpr int kAtOnce = 2;         // slots of a warp
  static constexpr unsigned kBlocks = 512;  // where there are more, a block takes all heads
  int rows;                                 // of a block

  // One after another, so not many where blocks are few.
  explicit MergePlan(int64_t num_rows) : rows(num_rows > (1 << 16) ? kThreads : kWarp) {}
};

// The slots of a row in pieces, and sums over them by a block.
template <class T>
class MergedRow {
 public:
  using A = typename Accumulate<T>::type;
  using Plan = MergePlan;
  struct Shared {
    A sums[Plan::kWarps][Plan::kFeatures], states[Plan::kWarps][2];
  };

  // slots: those of m, which are written.
  __device__ __forceinline__ MergedRow(const Merge<T>& m, const void* slots, Shared& shared, int64_t row)
      : m_(m), slots_(static_cast<const A*>(slots)), shared_(shared), row_(row) {
    const Range entries = row_range(m.ptr, row, m.num_entries);
    first_ = entries.begin;
    begin_ = entries.begin / m.units.segment;
    end_ = (entries.end - 1) / m.units.segment + 1;
  }

  // All results of a head.
  __device__ __forceinline__ void merge(int h) const {
    A row_max = A(0), factor = A(1);
    if (m_.lse) factor = merge_states(h, row_max);
    int offset = 0;  // in the slot
    if (m_.number) {
      A x = A(0);
      for (int64_t s = begin_ + lane(); s < end_; s += kWarp) x += number(s, h, 0);
      x = lanes_sum<kWarp>(x);
      if (threadIdx.x == 0) m_.number[row_ * m_.heads + h] = x;
      offset = 1;
    }
    for (T* result : m_.rows) {
      if (!result) continue;
      for (int f = 0; f < m_.features; f += Plan::kFeatures) merge_features(h, row_max, factor, offset, f, result);
      offset += m_.features;
    }
  }

 private:
  static __device__ __forceinline__ int lane() { return threadIdx.x % kWarp; }
  static __device__ __forceinline__ int warp() { return threadIdx.x / kWarp; }

  // What the row's piece in segment s left.
  __device__ __forceinline__ const A* slot(int64_t s, int h) const {
    const int64_t slot = 2 * s + (first_ > s * m_.units.segment);
    return slots_ + (slot * m_.heads + h) * m_.width;
  }
  __device__ __forceinline__ A number(int64_t s, int h, int i) const { return __ldcg(slot(s, h) + i); }

  // The softmax's maximum and, returned, what its weighted sums are to be multiplied by.
  __device__ __forceinline__ A merge_states(int h, A& row_max) const {
    A largest = -INFINITY, sum = A(0);
    for (int64_t s = begin_ + threadIdx.x; s < end_; s += Plan::kThreads) {
      largest = max(largest, number(s, h, m_.features));
    }
    largest = warp_max(largest);
    if (lane() == 0) shared_.states[warp()][0] = largest;
    __syncthreads();
    row_max = shared_.states[0][0];
    for (int w = 1; w < Plan::kWarps; ++w) row_max = max(row_max, shared_.states[w][0]);
    for (int64_t s = begin_ + threadIdx.x; s < end_; s += Plan::kThreads) {
      sum += exp_difference(number(s, h, m_.features), row_max) * number(s, h, m_.features + 1);
    }
    sum = lanes_sum<kWarp>(sum);
    if (lane() == 0) shared_.states[warp()][1] = sum;
    __syncthreads();
    sum = A(0);
    for (int w = 0; w < Plan::kWarps; ++w) sum += shared_.states[w][1];
    if (threadIdx.x == 0) m_.lse[row_ * m_.heads + h] = row_max + log(sum);
    return sum == A(0) ? A(0) : A(1) / sum;
  }

  // Features from f on, as many as the block takes at once: warps take slots in turn.
  __device__ __forceinline__ void merge_features(int h, A row_max, A factor, int offset, int f, T* result) const {
    constexpr int kVec = Plan::kVec, kAtOnce = Plan::kAtOnce, kWarps = Plan::kWarps;
    A x[kVec] = {};
#pragma unroll 1
    for (int64_t first = begin_ + warp(); first < end_; first += kAtOnce * kWarps) {
      A m[kAtOnce], numbers[kAtOnce][kVec];
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {  // past the end, the last again
        const A* from = slot(min(first + t * kWarps, end_ - 1), h);
        m[t] = m_.lse ? __ldcg(from + m_.features) : A(0);
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          numbers[t][v] = __ldcg(from + offset + min(f + v * kWarp + lane(), m_.features - 1));
        }
      }
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        const A weight = m_.lse ? exp_difference(m[t], row_max) : A(1);
        if (first + t * kWarps >= end_) break;
#pragma unroll
        for (int v = 0; v < kVec; ++v) x[v] += weight * numbers[t][v];
      }
    }
    __syncthreads();  // all have read what was there
#pragma unroll
    for (int v = 0; v < kVec; ++v) shared_.sums[warp()][v * kWarp + lane()] = x[v];
    __syncthreads();
    const int i = f + static_cast<int>(threadIdx.x);
    if (threadIdx.x < Plan::kFeatures && i < m_.features) {
      A total = A(0);
      for (int w = 0; w < kWarps; ++w) total += shared_.sums[w][threadIdx.x];
      result[(row_ * m_.heads + h) * m_.features + i] = from_accumulate<T>(total * factor);
    }
  }

  const Merge<T>& m_;
  const A* const slots_;
  Shared& shared_;
  const int64_t row_;
  int64_t first_, begin_, end_;  // its first entry; segments
};

template <class T>
__global__ void __launch_bounds__(MergePlan::kThreads, 2)
    merge_kernel(const __grid_constant__ Merge<T> m, const MergePlan plan) {
  __shared__ typename MergedRow<T>::Shared shared;
  __shared__ uint32_t long_rows[MergePlan::kWarps];
  const int64_t first = static_cast<int64_t>(blockIdx.x) * plan.rows, mine = first + threadIdx.x;
  const bool is_long =
      threadIdx.x < plan.rows && mine < m.num_rows && row_range(m.ptr, mine, m.num_entries).size() > m.units.segment;
  const uint32_t ballot = __ballot_sync(kAllLanes, is_long);
  if (threadIdx.x % kWarp == 0) long_rows[threadIdx.x / kWarp] = ballot;
  const bool has_long_rows = __syncthreads_or(is_long);
  const void* slots = when_written(m.slots);  // all blocks wait, so that the kernel before has ended when this one has
  if (!has_long_rows) return;

  for (int group = 0; group < plan.rows / kWarp; ++group) {
    for (uint32_t left = long_rows[group]; left != 0; left &= left - 1) {
      const MergedRow<T> row(m, slots, shared, first + group * kWarp + __ffs(left) - 1);
      for (int h = blockIdx.y; h < m.heads; h += gridDim.y) row.merge(h);
    }
  }
}

template <class T>
cudaError_t launch_merge(const Merge<T>& m, cudaStream_t stream) {
  if (m.units.segments == 0 || m.num_rows == 0) return cudaSuccess;
  const MergePlan plan(m.num_rows);
  const auto blocks = static_cast<unsigned>((m.num_rows + plan.rows - 1) / plan.rows);
  const unsigned heads = std::min(std::max(MergePlan::kBlocks / blocks, 1u), static_cast<unsigned>(m.heads));
  return launch_dependent(merge_kernel<T>, dim3(blocks, heads), MergePlan::kThreads, 0, stream, m, plan);
}

}  // namespace dfgnn::cuda
