// Blocks that take runs of rows: short rows by a warp each, long ones by all warps of the block, slice by slice.
#pragma once

#include "logit.cuh"

namespace dfgnn::cuda {

struct RowPlan {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarp;
  int rows_per_block;
  int64_t long_row;  // edges from which on a row has the block to itself
  unsigned blocks;
  int64_t shortest = 0;  // edges below which a row is not for for_rows()
};

// About 256 edges a block, but enough blocks to fill the device.
inline RowPlan plan_rows(int64_t num_rows, int64_t num_edges) {
  constexpr int64_t kEdges = 256, kBlocks = 2048;
  int rows = 32;
  while (rows > 1 && (rows * num_edges > kEdges * num_rows || num_rows < kBlocks * rows)) rows /= 2;
  return {rows, kEdges + 1, static_cast<unsigned>((num_rows + rows - 1) / rows)};
}

// Whether blocks should take all rows: edges are few, so that what a kernel takes is its longest rows and its launch,
// most rows are short, and none has too many for a block.
inline bool is_few(int64_t num_rows, int64_t num_edges, int64_t longest) {
  constexpr int64_t kFew = 1 << 18, kShort = 12, kLongest = 1024;
  return num_edges <= kFew && num_edges < kShort * num_rows && longest >= 0 && longest <= kLongest;
}

// A row a warp, or, of many rows, those of up to 16 edges by `rows_per_warp` groups of lanes.
inline RowPlan plan_few_edges(int64_t num_rows, int rows_per_warp) {
  constexpr int64_t kMany = 8192, kShort = 16, kLong = 33;
  const bool by_groups = rows_per_warp > 1 && num_rows >= kMany;
  const int rows = RowPlan::kWarps * (by_groups ? rows_per_warp : 1);
  return {rows, kLong, static_cast<unsigned>((num_rows + rows - 1) / rows), by_groups ? kShort + 1 : 0};
}

// The warp's share of a long row.
__device__ __forceinline__ Range warp_slice(const Range& row) {
  const int64_t slice = (row.size() + RowPlan::kWarps - 1) / RowPlan::kWarps, warp = threadIdx.x / kWarp;
  return {min(row.begin + warp * slice, row.end), min(row.begin + (warp + 1) * slice, row.end)};
}

// Calls row(r, edges, is_slice) with every row of block `block` of the plan (rows `ptr` of num_rows): with all of its
// edges by one warp, or, in a row that is long, with a slice of them by every warp, after all of the short ones.
template <class Row>
__device__ __forceinline__ void for_rows(const Index& ptr, int64_t num_rows, int64_t num_entries, const RowPlan& plan,
                                         unsigned block, const Row& row) {
  const int first = block * plan.rows_per_block;
  const int last = static_cast<int>(min(static_cast<int64_t>(first) + plan.rows_per_block, num_rows));
  bool any_long = false, is_slice = false;
#pragma unroll 1
  for (int r = first + threadIdx.x / kWarp;; r += is_slice ? 1 : RowPlan::kWarps) {
    if (r >= last) {
      if (is_slice || !__syncthreads_or(any_long)) return;
      is_slice = true;
      r = first;
    }
    const Range edges = row_range(ptr, r, num_entries);
    const bool is_long = edges.size() >= plan.long_row;
    any_long |= is_long;
    if (is_long == is_slice && edges.size() >= plan.shortest) row(r, is_slice ? warp_slice(edges) : edges, is_slice);
  }
}

template <class Row>
__device__ __forceinline__ void for_rows(const Index& ptr, int64_t num_rows, int64_t num_entries, const RowPlan& plan,
                                         const Row& row) {
  for_rows(ptr, num_rows, num_entries, plan, blockIdx.x, row);
}

// Scratch of a block for the sums of its warps' slices.
template <class S>
struct SliceSums {
  typename S::A x[RowPlan::kWarps][S::kFeatures];
};

// Stores factor * (sum of the groups' fragments of a warp) as a row; of a long row, the sum over the block's warps, in
// their order. All threads of the block call it where is_slice.
template <class S>
__device__ __forceinline__ void store_row_sum(Fragment<S>& fragment, typename S::T* row, int features,
                                              typename S::A factor, bool is_slice, SliceSums<S>& sums) {
  using A = typename S::A;
  const int lane = threadIdx.x % S::kLanes, warp = threadIdx.x / kWarp;
  const GroupSum<S> total(fragment);
  constexpr int kCount = GroupSum<S>::kCount;
  if (!is_slice) {
    if (total.writes) fragment.template store<kCount>(row, lane, features, total.first, factor);
    return;
  }
  if (total.writes) {
#pragma unroll
    for (int i = 0; i < kCount * S::kVec; ++i) {
      sums.x[warp][((total.first + i / S::kVec) * S::kLanes + lane) * S::kVec + i % S::kVec] = fragment.x[i];
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < min(S::kFeatures, features); i += RowPlan::kThreads) {
    A sum = A(0);
#pragma unroll
    for (int w = 0; w < RowPlan::kWarps; ++w) sum += sums.x[w][i];
    row[i] = from_accumulate<typename S::T>(sum * factor);
  }
  __syncthreads();
}

// The same for one number a lane group (equal in all of the group's lanes).
template <class S>
__device__ __forceinline__ void store_scalar_sum(typename S::A x, typename S::A* target, bool is_slice) {
  using A = typename S::A;
  __shared__ A sums[RowPlan::kWarps];
#pragma unroll
  for (int offset = kWarp / 2; offset >= S::kLanes; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  if (!is_slice) {
    if (lane == 0) *target = x;
    return;
  }
  if (lane == 0) sums[warp] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    A sum = A(0);
    for (int w = 0; w < RowPlan::kWarps; ++w) sum += sums[w];
    *target = sum;
  }
  __syncthreads();
}

}  // namespace dfgnn::cuda
