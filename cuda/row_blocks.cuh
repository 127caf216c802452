// Blocks that take runs of rows: short rows by a warp each, long ones by all warps of the block, slice by slice.
#pragma once

#include "logit.cuh"

namespace dfgnn::cuda {

struct RowPlan {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int64_t kLongRow = 256;  // edges from which on a row has the block to itself
  int rows_per_block;
  unsigned blocks;
};

// About 256 edges a block, but enough blocks to fill the device.
inline RowPlan plan_rows(int64_t num_rows, int64_t num_edges) {
  constexpr int64_t kEdges = 256, kBlocks = 2048;
  int rows = 32;
  while (rows > 1 && (rows * num_edges > kEdges * num_rows || num_rows < kBlocks * rows)) rows /= 2;
  return {rows, static_cast<unsigned>((num_rows + rows - 1) / rows)};
}

// The warp's share of a long row.
__device__ __forceinline__ Range warp_slice(const Range& row) {
  const int64_t slice = (row.size() + RowPlan::kWarps - 1) / RowPlan::kWarps, warp = threadIdx.x / kWarp;
  return {min(row.begin + warp * slice, row.end), min(row.begin + (warp + 1) * slice, row.end)};
}

// Calls row(r, edges, is_slice) with every row of the block (rows `ptr` of num_rows): with all of its edges by one
// warp, or, in a row that is long, with a slice of them by every warp, after all of the short ones.
template <class Row>
__device__ __forceinline__ void for_rows(const Index& ptr, int64_t num_rows, int64_t num_entries, const RowPlan& plan,
                                         const Row& row) {
  const int first = blockIdx.x * plan.rows_per_block;
  const int last = static_cast<int>(min(static_cast<int64_t>(first) + plan.rows_per_block, num_rows));
  bool any_long = false;
  for (int r = first + threadIdx.x / kWarp; r < last; r += RowPlan::kWarps) {
    const Range edges = row_range(ptr, r, num_entries);
    if (edges.size() > RowPlan::kLongRow) {
      any_long = true;
    } else {
      row(r, edges, false);
    }
  }
  if (!__syncthreads_or(any_long)) return;
  for (int r = first; r < last; ++r) {
    const Range edges = row_range(ptr, r, num_entries);
    if (edges.size() > RowPlan::kLongRow) row(r, warp_slice(edges), true);
  }
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
