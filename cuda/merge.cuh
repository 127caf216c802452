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
template <class T, bool kSoftmax>
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
};

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
template <class A>
constexpr int merge_blocks() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 1;
#else
  return sizeof(A) == 4 ? 2 : 1;
#endif
}

template <class A>
struct MergeShared {  // of a block
  A sums[MergePlan::kWarps][MergePlan::kFeatures];
  A maxima[MergePlan::kWarps][kWarp], totals[MergePlan::kWarps][kWarp];
};

// The slots of a row in pieces, and sums over them by a warp, or by all warps of a block, which take slots in turn.
template <bool kByBlock, class T, bool kSoftmax>
class MergedRow {
 public:
  using A = typename Accumulate<T>::type;
  using Plan = MergePlan;

  // slots: those of m, which are written.
  __device__ __forceinline__ MergedRow(const Merge<T, kSoftmax>& m, const Plan& plan, const void* slots, int row)
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
  __device__ __forceinline__ void merge(int first_head, int f, MergeShared<A>& shared) const {
    constexpr int kVec = Plan::kVec, kAtOnce = Plan::kAtOnce;
    const int thread = threadIdx.x % kWarp, warp = kByBlock ? threadIdx.x / kWarp : 0;
    const int lanes = plan_.lanes, head = min(thread / lanes, min(plan_.heads(), m_.heads - first_head) - 1);
    const int h = first_head + head, count = m_.results * m_.features - f;
    const int lane = thread < (head + 1) * lanes ? thread - head * lanes : Plan::kFeatures;  // of the head, or of none
    const bool has_number = !kSoftmax && m_.number;
    A x[kVec] = {}, largest = -INFINITY, total = A(0);
#pragma unroll 1
    for (int first = warp; first < count_; first += kAtOnce * kWarps) {
      A maxima[kAtOnce], totals[kAtOnce], numbers[kAtOnce][kVec];
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        const int piece = first + t * kWarps;
        const bool is_there = piece < count_;
        const A* from = slot(piece, h);
        maxima[t] = kSoftmax && is_there ? __ldcg(from + m_.features) : -INFINITY;
        totals[t] = kSoftmax && is_there     ? __ldcg(from + m_.features + 1)
                    : has_number && is_there ? __ldcg(from)
                                             : A(0);
        from += has_number + f + lane;
#pragma unroll
        for (int v = 0; v < kVec; ++v) {
          numbers[t][v] = is_there && v * lanes + lane < count ? __ldcg(from + v * lanes) : A(0);
        }
      }
      if constexpr (kSoftmax) {
        A next = largest;
#pragma unroll
        for (int t = 0; t < kAtOnce; ++t) next = max(next, maxima[t]);
        const A fade = exp_difference(largest, next);
        largest = next;
        total *= fade;
#pragma unroll
        for (int v = 0; v < kVec; ++v) x[v] *= fade;
      }
#pragma unroll
      for (int t = 0; t < kAtOnce; ++t) {
        const A weight = weight_of(maxima[t], largest);
        total += weight * totals[t];
#pragma unroll
        for (int v = 0; v < kVec; ++v) x[v] += weight * numbers[t][v];
      }
    }
    if constexpr (!kByBlock) {
      store_total(h, f, lane == 0, largest, total);
#pragma unroll
      for (int v = 0; v < kVec; ++v) store(h, f, v * lanes + lane, count, x[v], total);
    } else {
      __syncthreads();  // all have read what was there
#pragma unroll
      for (int v = 0; v < kVec; ++v) shared.sums[warp][v * kWarp + thread] = x[v];
      shared.maxima[warp][thread] = largest;
      shared.totals[warp][thread] = total;
      __syncthreads();
      if (warp >= kVec) return;
      if constexpr (kSoftmax) {
        for (int w = 0; w < kWarps; ++w) largest = max(largest, shared.maxima[w][thread]);
      }
      A sum = A(0);
      total = A(0);
      for (int w = 0; w < kWarps; ++w) {
        const A weight = weight_of(shared.maxima[w][thread], largest);
        total += weight * shared.totals[w][thread];
        sum += weight * shared.sums[w][warp * kWarp + thread];
      }
      store_total(h, f, warp == 0 && lane == 0, largest, total);
      store(h, f, warp * lanes + lane, count, sum, total);
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
  __device__ __forceinline__ void store(int h, int f, int i, int count, A x, A total) const {
    if (i >= count) return;
    const int result = f + i >= m_.features, feature = f + i - result * m_.features;
    const A factor = !kSoftmax ? A(1) : total == A(0) ? A(0) : A(1) / total;
    m_.rows[result][row_ * m_.pitch + int64_t{h} * m_.features + feature] = from_accumulate<T>(x * factor);
  }

  const Merge<T, kSoftmax>& m_;
  const Plan& plan_;
  const A* const slots_;
  const int row_;
  int64_t first_;  // slot, of those of segments the lower one
  int apart_, count_;
  bool begins_within_;  // the first segment, whose upper slot it has then
};

// Of rows from `first` on, the tasks of those that have their bit set in `rows`: one after another by the block, or by
// its warps in turn.
template <bool kByBlock, class T, bool kSoftmax>
__device__ __forceinline__ void merge_rows(const Merge<T, kSoftmax>& m, const MergePlan& plan, const void* slots,
                                           const uint32_t* rows, int64_t first,
                                           MergeShared<typename Accumulate<T>::type>& shared) {
  const int features = max(m.results * m.features, 1);
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
          MergedRow<kByBlock, T, kSoftmax>(m, plan, slots, row).merge(h, f, shared);
        }
      }
    }
  }
}

// Of a block's rows in pieces, warps take those of few pieces, then all of them the others.
template <class T, bool kSoftmax>
__global__ void __launch_bounds__(MergePlan::kThreads, (merge_blocks<typename Accumulate<T>::type>()))
    merge_kernel(const __grid_constant__ Merge<T, kSoftmax> m, const MergePlan plan) {
  __shared__ MergeShared<typename Accumulate<T>::type> shared;
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

template <class T, bool kSoftmax>
cudaError_t launch_merge(Merge<T, kSoftmax> m, cudaStream_t stream) {
  if (m.units.segments == 0 || m.num_rows == 0) return cudaSuccess;
  if (m.pitch == 0) m.pitch = int64_t{m.heads} * m.features;
  const MergePlan plan(m.num_rows, m.results * m.features);
  const auto blocks = static_cast<unsigned>((m.num_rows + plan.rows - 1) / plan.rows);
  const auto tasks = static_cast<unsigned>((m.heads + plan.heads() - 1) / plan.heads());
  const unsigned heads = std::min(std::max(MergePlan::kBlocks / blocks, 1u), tasks);
  return launch_dependent(merge_kernel<T, kSoftmax>, dim3(blocks, heads), MergePlan::kThreads, 0, stream, m, plan);
}

}  // namespace dfgnn::cuda
