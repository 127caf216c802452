// Adds up what the pieces of long rows left in their slots (row_units.cuh), as soon as the kernel before has: it is
// there by then, waiting (dependent.cuh).
#pragma once

#include <algorithm>

#include "dependent.cuh"
#include "row_units.cuh"

namespace dfgnn::cuda {

// What a slot holds of a piece and a head: of a softmax, its weighted sum of rows of features, its maximum and its sum;
// otherwise a number, if there is one, and sums of rows of features. Those of row r and head h over its pieces, in a
// fixed order, go to the place (r, h) of each result.
//
// kDerivative: of a softmax with derivative (forward_pieces.cuh): two sums of rows, the maximum, the sum, and the part
// of that in the second.
template <class T, bool kSoftmax, bool kDerivative = false>
struct Merge {
  using A = typename Accumulate<T>::type;
  Index ptr;
  int64_t num_rows, num_entries;
  RowUnits units;
  int heads;
  const A* slots;  // [slots][heads][width]
  int width, features;
  A* number = nullptr;  // [num_rows][heads] or null: the number, or the logarithm of the softmax's sum
  int results = 0;      // how many rows of features a slot has,
  T* rows[2] = {};      // and where they go: [num_rows][heads][features], rows so many numbers apart
  int64_t pitch = 0;    // 0: heads * features
  A derivative_factor = 0;
};

// Features that are numbered one after another over results: a derivative's are taken with those of its softmax.
template <class T, bool kSoftmax, bool kDerivative>
__host__ __device__ __forceinline__ int features_at_once(const Merge<T, kSoftmax, kDerivative>& m) {
  return (kDerivative ? 1 : m.results) * m.features;
}

// Of a softmax's sum, the share that a part of it is.
template <class A>
__device__ __forceinline__ A share_of(A part, A sum) {
  return sum == A(0) ? A(0) : part / sum;
}

// A task is what a warp takes at once of a row's sums: of as many heads as have room side by side, `lanes` lanes each,
// all features, or of one of them kFeatures.
struct MergePlan {
  static constexpr int kThreads = 512, kWarps = kThreads / kWarp, kVec = 4, kFeatures = kWarp * kVec;
  static constexpr int kAtOnce = 4;          // slots of a warp
  static constexpr int kOfWarp = 8;          // segments' entries up to which a warp has a task alone
  static constexpr unsigned kBlocks = 1024;  // where there are more, a block takes all heads
  int rows;                                  // of a block
  int lanes;                                 // of a head

  // Rows of a warp come one after another, so there are not many where blocks are few. features: over all results.
  MergePlan(int64_t num_rows, int features)
      : rows(num_rows > (1 << 16) ? kThreads : kWarp), lanes(std::clamp((features + kVec - 1) / kVec, 1, kWarp)) {}

  __host__ __device__ int heads() const { return kWarp / lanes; }
};

// Blocks a multiprocessor, by registers: elsewhere the kernel would spill.
template <class A, bool kDerivative>
constexpr int merge_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 1;
#else
  return sizeof(A) == 4 && !kDerivative ? 2 : 1;
#endif
}

template <class A, int kSums>
struct MergeShared {  // of a block
  A sums[kSums][MergePlan::kWarps][MergePlan::kFeatures];
  A maxima[MergePlan::kWarps][kWarp], totals[kSums][MergePlan::kWarps][kWarp];
};

// The slots of a row in pieces, and sums over them by a warp, or by all warps of a block, which take slots in turn.
template <bool kByBlock, class T, bool kSoftmax, bool kDerivative>
class MergedRow {
 public:
  using A = typename Accumulate<T>::type;
  using Plan = MergePlan;
  using Task = Merge<T, kSoftmax, kDerivative>;
  static constexpr int kSums = kDerivative ? 2 : 1;  // of a feature, at once
  using Shared = MergeShared<A, kSums>;

  // slots: those of m, which are written.
  __device__ __forceinline__ MergedRow(const Task& m, const Plan& plan, const void* slots, int row)
      : m_(m), plan_(plan), slots_(static_cast<const A*>(slots)), row_(row) {
    const Range entries = row_range(m.ptr, row, m.num_entries);
    const int64_t segment = m.units.segment, begin = entries.begin / segment;
    const bool is_listed = m.units.listed > 0;
    first_ = 2 * begin;
    apart_ = is_listed ? 1 : 2;
    begins_within_ = !is_listed && entries.begin > begin * segment;
    count_ = static_cast<int>(is_listed ? m.units.pieces(entries) : (entries.end - 1) / segment + 1 - begin);
  }

  // The plan's heads from `first_head` on, of each features from f on, counted over all results, and with the first
  // ones the number or the softmax's sum.
  __device__ __forceinline__ void merge(int first_head, int f, Shared& shared) const {
    constexpr int kVec = Plan::kVec, kAtOnce = Plan::kAtOnce;
    const int thread = threadIdx.x % kWarp, warp = kByBlock ? threadIdx.x / kWarp : 0;
    const int lanes = plan_.lanes, head = min(thread / lanes, min(plan_.heads(), m_.heads - first_head) - 1);
    const int h = first_head + head, count = features_at_once(m_) - f;
    const int lane = thread < (head + 1) * lanes ? thread - head * lanes : Plan::kFeatures;  // of the head, or of none
    const bool has_number = !kSoftmax && m_.number;
    A x[kSums][kVec] = {}, largest = -INFINITY, totals[kSums] = {};
#pragma unroll 1
    for (int first = warp; first < count_; first += kAtOnce * kWarps) {
      A maxima[kAtOnce], of_slots[kAtOnce][kSums], numbers[kAtOnce][kSums][kVec];
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        const int piece = first + t * kWarps;
        const bool is_there = piece < count_;
        const A* from = slot(piece, h);
        maxima[t] = kSoftmax && is_there ? __ldcg(from + kSums * m_.features) : -INFINITY;
#pragma unroll
        for (int k = 0; k < kSums; ++k) {
          of_slots[t][k] = kSoftmax && is_there     ? __ldcg(from + kSums * m_.features + 1 + k)
                           : has_number && is_there ? __ldcg(from)
                                                    : A(0);
        }
        from += has_number + f + lane;
#pragma unroll
        for (int k = 0; k < kSums; ++k) {
#pragma unroll
          for (int v = 0; v < kVec; ++v) {
            const int at = k * m_.features + v * lanes;
            numbers[t][k][v] = is_there && v * lanes + lane < count ? __ldcg(from + at) : A(0);
          }
        }
      }
      if constexpr (kSoftmax) {
        A next = largest;
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t) next = max(next, maxima[t]);
        const A fade = exp_difference(largest, next);
        largest = next;
#pragma unroll
        for (int k = 0; k < kSums; ++k) {
          totals[k] *= fade;
#pragma unroll
          for (int v = 0; v < kVec; ++v) x[k][v] *= fade;
        }
      }
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        const A weight = weight_of(maxima[t], largest);
#pragma unroll
        for (int k = 0; k < kSums; ++k) {
          totals[k] += weight * of_slots[t][k];
#pragma unroll
          for (int v = 0; v < kVec; ++v) x[k][v] += weight * numbers[t][k][v];
        }
      }
    }
    if constexpr (!kByBlock) {
      store_total(h, f, lane == 0, largest, totals[0]);
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        A sums[kSums];
#pragma unroll
        for (int k = 0; k < kSums; ++k) sums[k] = x[k][v];
        store(h, f, v * lanes + lane, count, sums, totals);
      }
    } else {
      __syncthreads();  // all have read what was there
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) shared.sums[k][warp][v * kWarp + thread] = x[k][v];
        shared.totals[k][warp][thread] = totals[k];
      }
      shared.maxima[warp][thread] = largest;
      __syncthreads();
      if (warp >= kVec) return;
      if constexpr (kSoftmax) {
        for (int w = 0; w < kWarps; ++w) largest = max(largest, shared.maxima[w][thread]);
      }
      A sums[kSums] = {};
#pragma unroll
      for (A& total : totals) total = A(0);
      for (int w = 0; w < kWarps; ++w) {
        const A weight = weight_of(shared.maxima[w][thread], largest);
#pragma unroll
        for (int k = 0; k < kSums; ++k) {
          totals[k] += weight * shared.totals[k][w][thread];
          sums[k] += weight * shared.sums[k][w][warp * kWarp + thread];
        }
      }
      store_total(h, f, warp == 0 && lane == 0, largest, totals[0]);
      store(h, f, warp * lanes + lane, count, sums, totals);
    }
  }

 private:
  static constexpr int kWarps = kByBlock ? Plan::kWarps : 1;

  static __device__ __forceinline__ A weight_of(A maximum, A largest) {
    return kSoftmax ? exp_difference(maximum, largest) : A(1);
  }

  // What a piece of the row left.
  __device__ __forceinline__ const A* slot(int piece, int h) const {
    const int64_t slot = first_ + piece * apart_ + (piece == 0 && begins_within_);
    return slots_ + (slot * m_.heads + h) * m_.width;
  }

  __device__ __forceinline__ int64_t place(int h) const { return static_cast<int64_t>(row_) * m_.heads + h; }

  __device__ __forceinline__ void store_total(int h, int f, bool is_first, A largest, A total) const {
    if (f == 0 && is_first && m_.number) m_.number[place(h)] = kSoftmax ? largest + log(total) : total;
  }

  // The i-th feature of a task.
  __device__ __forceinline__ void store(int h, int f, int i, int count, const A (&x)[kSums],
                                        const A (&totals)[kSums]) const {
    if (i >= count) return;
    const int result = f + i >= m_.features, feature = f + i - result * m_.features;
    const int64_t place = row_ * m_.pitch + int64_t{h} * m_.features + feature;
    const A factor = !kSoftmax ? A(1) : totals[0] == A(0) ? A(0) : A(1) / totals[0];
    m_.rows[result][place] = from_accumulate<T>(x[0] * factor);
    if constexpr (kDerivative) {
      const A centred = x[1] - share_of(totals[1], totals[0]) * x[0];
      m_.rows[1][place] = from_accumulate<T>(centred * factor * m_.derivative_factor);
    }
  }

  const Task& m_;
  const Plan& plan_;
  const A* const slots_;
  const int row_;
  int64_t first_;  // slot, of those of segments the lower one
  int apart_, count_;
  bool begins_within_;  // the first segment, whose upper slot it has then
};

// Of rows from `first` on, the tasks of those that have their bit set in `rows`: one after another by the block, or by
// its warps in turn.
template <bool kByBlock, class T, bool kSoftmax, bool kDerivative>
__device__ __forceinline__ void merge_rows(const Merge<T, kSoftmax, kDerivative>& m, const MergePlan& plan,
                                           const void* slots, const uint32_t* rows, int64_t first,
                                           typename MergedRow<kByBlock, T, kSoftmax, kDerivative>::Shared& shared) {
  const int features = max(features_at_once(m), 1);
  int turn = threadIdx.x / kWarp;
#pragma unroll 1
  for (int group = 0; group < plan.rows / kWarp; ++group) {
#pragma unroll 1
    for (uint32_t left = rows[group]; left != 0; left &= left - 1) {
      const int row = static_cast<int>(first) + group * kWarp + __ffs(left) - 1;
#pragma unroll 1
      for (int h = blockIdx.y * plan.heads(); h < m.heads; h += gridDim.y * plan.heads()) {
#pragma unroll 1
        for (int f = 0; f < features; f += MergePlan::kFeatures) {
          if (!kByBlock && turn-- % MergePlan::kWarps != 0) continue;
          MergedRow<kByBlock, T, kSoftmax, kDerivative>(m, plan, slots, row).merge(h, f, shared);
        }
      }
    }
  }
}

// Of a block's rows in pieces, warps take those of few pieces, then all of them the others.
template <class T, bool kSoftmax, bool kDerivative>
__global__ void __launch_bounds__(MergePlan::kThreads, (merge_blocks<typename Accumulate<T>::type, kDerivative>()))
    merge_kernel(const __grid_constant__ Merge<T, kSoftmax, kDerivative> m, const MergePlan plan) {
  __shared__ typename MergedRow<true, T, kSoftmax, kDerivative>::Shared shared;
  __shared__ uint32_t of_warps[MergePlan::kWarps], of_block[MergePlan::kWarps];  // a bit for each row
  const int64_t first = static_cast<int64_t>(blockIdx.x) * plan.rows, mine = first + threadIdx.x;
  int64_t size = 0;
  if (threadIdx.x < plan.rows && mine < m.num_rows) size = row_range(m.ptr, mine, m.num_entries).size();
  const bool is_long = size > m.units.segment, is_very_long = size > MergePlan::kOfWarp * m.units.segment;
  const uint32_t all = __ballot_sync(kAllLanes, is_long), very = __ballot_sync(kAllLanes, is_very_long);
  if (threadIdx.x % kWarp == 0) {
    of_warps[threadIdx.x / kWarp] = all & ~very;
    of_block[threadIdx.x / kWarp] = very;
  }
  const bool has_long_rows = __syncthreads_or(is_long);
  const void* slots = when_written(m.slots);  // all blocks wait, so that the kernel before has ended when this one has
  if (!has_long_rows) return;
  merge_rows<false>(m, plan, slots, of_warps, first, shared);
  merge_rows<true>(m, plan, slots, of_block, first, shared);
}

template <class T, bool kSoftmax, bool kDerivative>
cudaError_t launch_merge(Merge<T, kSoftmax, kDerivative> m, cudaStream_t stream) {
  if (m.units.segments == 0 || m.num_rows == 0) return cudaSuccess;
  if (m.pitch == 0) m.pitch = int64_t{m.heads} * m.features;
  const MergePlan plan(m.num_rows, features_at_once(m));
  const auto blocks = static_cast<unsigned>((m.num_rows + plan.rows - 1) / plan.rows);
  const auto tasks = static_cast<unsigned>((m.heads + plan.heads() - 1) / plan.heads());
  const unsigned heads = std::min(std::max(MergePlan::kBlocks / blocks, 1u), tasks);
  return launch_dependent(merge_kernel<T, kSoftmax, kDerivative>, dim3(blocks, heads), MergePlan::kThreads, 0, stream,
                          m, plan);
}

}  // namespace dfgnn::cuda
