// Blocks that take runs of rows: short rows by a warp each, long ones by all warps of the block, slice by slice, and
// very long ones, where there may be any, in pieces (row_units.cuh), which blocks of their own take.
#pragma once

#include "row_units.cuh"

namespace dfgnn::cuda {

struct RowPlan {
  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarp;
  int rows_per_block;
  int64_t long_row;  // edges from which on a row has the block to itself
  unsigned blocks;
  int64_t shortest = 0;  // edges below which a row is not for for_rows()
  RowUnits units{};      // says which pieces there are; the first blocks are for them
};

// About 256 edges a block and at least a row for each warp, but enough blocks to fill the device.
inline RowPlan plan_rows(int64_t num_rows, int64_t num_edges) {
  constexpr int64_t kEdges = 256, kBlocks = 2048;
  int rows = 32;
  while (rows > RowPlan::kWarps && rows * num_edges > kEdges * num_rows) rows /= 2;
  while (rows > 1 && num_rows < kBlocks * rows) rows /= 2;
  return {rows, kEdges + 1, static_cast<unsigned>((num_rows + rows - 1) / rows)};
}

// Cuts rows that one block would take longer for than the others for all else; few segments, as each is looked at. A
// slot has `numbers`, of all heads; slots take 8M numbers at the most.
inline RowUnits cut_rows(int64_t num_entries, int64_t numbers) {
  constexpr int64_t kFew = 1 << 14, kLeast = 1024, kSegments = 1024, kNumbers = int64_t{1} << 23;
  RowUnits units{};
  if (num_entries <= kFew) return units;
  units.segment = std::max(num_entries / kSegments, kLeast);
  while (units.segment < num_entries && 2 * (num_entries / units.segment + 1) * numbers > kNumbers) units.segment *= 2;
  if (units.segment < num_entries) {
    units.segments = static_cast<unsigned>((num_entries + units.segment - 1) / units.segment);
  }
  return units;
}

// The same as plan_rows() with very long rows in pieces.
inline RowPlan plan_pieces(int64_t num_rows, int64_t num_entries, int64_t numbers) {
  RowPlan plan = plan_rows(num_rows, num_entries);
  if (num_rows > 0) plan.units = cut_rows(num_entries, numbers);
  plan.blocks += static_cast<unsigned>(plan.units.slots());
  return plan;
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

// What belongs to a slot (row_units.cuh): entries of a row that began before the segment, or that begins in it.
struct Piece {
  int row;
  Range of_row, edges;
  bool is_there;

  __device__ __forceinline__ Piece(const Index& ptr, int64_t num_rows, int64_t num_entries, const RowUnits& units,
                                   unsigned slot) {
    const int64_t begin = slot / 2 * units.segment, end = min(begin + units.segment, num_entries);
    const bool begins_within = slot % 2 == 1;
    row = static_cast<int>(warp_find_row(ptr, num_rows, begins_within ? end - 1 : begin));
    of_row = row_range(ptr, row, num_entries);
    is_there = of_row.size() > units.segment && (of_row.begin > begin) == begins_within;
    edges = {max(of_row.begin, begin), min(of_row.end, end)};
  }
};

// Calls row(r, edges, is_slice, slot) with every row of block `block` of the plan (rows `ptr` of num_rows): with all of
// its edges by one warp, or, in a row that is long, with a slice of them by every warp, after all of the short ones.
// With kPieces the plan may say that first blocks take slices of pieces, whose sums are for a slot; else that is
// kWhole.
template <bool kPieces, class Row>
__device__ __forceinline__ void for_rows(const Index& ptr, int64_t num_rows, int64_t num_entries, const RowPlan& plan,
                                         unsigned block, const Row& row) {
  const unsigned slots = kPieces ? static_cast<unsigned>(plan.units.slots()) : 0;
  const bool is_piece = kPieces && block < slots;
  const int64_t first_row = static_cast<int64_t>(block - slots) * plan.rows_per_block;
  int first = static_cast<int>(first_row);
  int last = static_cast<int>(min(first_row + plan.rows_per_block, num_rows));
  Range edges{};
  if (is_piece) {
    const Piece piece(ptr, num_rows, num_entries, plan.units, block);
    if (!piece.is_there) return;
    first = piece.row, last = first + 1;
    edges = piece.edges;
  }
  bool any_long = false, is_slice = is_piece;
#pragma unroll 1
  for (int r = first + (is_piece ? 0 : threadIdx.x / kWarp);; r += is_slice ? 1 : RowPlan::kWarps) {
    if (r >= last) {
      if (is_slice || !__syncthreads_or(any_long)) return;
      is_slice = true;
      r = first;
    }
    if (!is_piece) {
      edges = row_range(ptr, r, num_entries);
      if (slots > 0 && edges.size() > plan.units.segment) continue;
      const bool is_long = edges.size() >= plan.long_row;
      any_long |= is_long;
      if (is_long != is_slice || edges.size() < plan.shortest) continue;
    }
    row(r, is_slice ? warp_slice(edges) : edges, is_slice,
        is_piece ? static_cast<int>(block) : static_cast<int>(kWhole));
  }
}

template <bool kPieces, class Row>
__device__ __forceinline__ void for_rows(const Index& ptr, int64_t num_rows, int64_t num_entries, const RowPlan& plan,
                                         const Row& row) {
  for_rows<kPieces>(ptr, num_rows, num_entries, plan, blockIdx.x, row);
}

// Scratch of a block for the sums of its warps' slices.
template <class S>
struct SliceSums {
  typename S::A x[RowPlan::kWarps][S::kFeatures];
};

// Stores factor * (sum of the groups' fragments of a warp) as a row, or, where it is not null, as a piece; of a long
// row, the sum over the block's warps, in their order. All threads of the block call it where is_slice.
template <class S>
__device__ __forceinline__ void store_row_sum(Fragment<S>& fragment, typename S::T* row, int features,
                                              typename S::A factor, bool is_slice, SliceSums<S>& sums,
                                              typename S::A* piece = nullptr) {
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
    if (piece) {
      piece[i] = sum * factor;
    } else {
      row[i] = from_accumulate<typename S::T>(sum * factor);
    }
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
