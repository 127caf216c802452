// The list of units of very long rows (row_units.cuh): who goes over rows side by side finds them of about the same
// length, so that warps that begin together are at the same place of their rows all along.
#pragma once

#include <cub/block/block_radix_sort.cuh>
#include <cub/block/block_scan.cuh>

#include "row_units.cuh"

namespace dfgnn::cuda {

// Lists the units of a neighbourhood of kRows rows, the longest first. Of kChunk rows side by side, pieces that are at
// the same place of their rows come one after another: about as many as a block has warps.
struct RowList {
  static constexpr int kThreads = 1024, kWarps = kThreads / kWarp, kEach = 4, kRows = kThreads * kEach;
  static constexpr int kChunk = 28, kChunks = (kRows + kChunk - 1) / kChunk;
};

static __global__ void __launch_bounds__(RowList::kThreads)
    list_rows_kernel(Index ptr, int64_t num_rows, int64_t num_entries, RowUnits units, ListedUnit* list) {
  constexpr int kEach = RowList::kEach, kBits = 24, kChunk = RowList::kChunk, kChunks = RowList::kChunks;
  using Sort = cub::BlockRadixSort<unsigned, RowList::kThreads, kEach, int>;
  using Scan = cub::BlockScan<int64_t, RowList::kThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  static_assert(kChunks <= RowList::kThreads && kChunk <= kWarp);
  __shared__ union {
    typename Sort::TempStorage sort;
    struct {
      typename Scan::TempStorage scan;
      uint16_t rows[kChunks * kChunk];
      int64_t places[kChunks];
    };
  } shared;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * RowList::kRows;
  const auto range = [&](int64_t row) { return row_range(ptr, row, num_entries); };
  unsigned keys[kEach];
  int rows[kEach];
#pragma unroll
  for (int t = 0; t < kEach; ++t) {  // past the last row: as if shorter than any
    rows[t] = static_cast<int>(threadIdx.x) * kEach + t;
    constexpr int64_t kMost = (1 << kBits) - 2;
    const int64_t row = first + rows[t], size = row < num_rows ? min(range(row).size(), kMost) : -1;
    keys[t] = static_cast<unsigned>(size + 1);
  }
  Sort(shared.sort).SortDescending(keys, rows, 0, kBits);
  __syncthreads();
#pragma unroll
  for (int t = 0; t < kEach; ++t) shared.rows[threadIdx.x * kEach + t] = static_cast<uint16_t>(rows[t]);
  __syncthreads();

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const auto row_of = [&](int chunk) {  // the lane's, or num_rows
    const int at = chunk * kChunk + lane;
    return lane < kChunk && at < RowList::kRows ? min(first + shared.rows[at], num_rows) : num_rows;
  };
  const auto pieces_of = [&](int64_t row) { return row < num_rows ? static_cast<int>(units.pieces(range(row))) : 0; };
  for (int chunk = warp; chunk < kChunks; chunk += RowList::kWarps) {
    const int total = __reduce_add_sync(kAllLanes, pieces_of(row_of(chunk)));
    if (lane == 0) shared.places[chunk] = total;
  }
  __syncthreads();
  int64_t before = threadIdx.x < kChunks ? shared.places[threadIdx.x] : 0, all;
  Scan(shared.scan).ExclusiveSum(before, before, all);
  if (threadIdx.x < kChunks) shared.places[threadIdx.x] = before;
  __syncthreads();

  // Rows before these have no more pieces than there are places before `begin`.
  const auto place_of = [&](int64_t row) {
    if (row == 0 || row >= num_rows) return row == 0 ? 0 : units.listed;
    return row + (units.segments > 0 ? range(row).begin / units.segment : 0);
  };
  const int64_t begin = place_of(first), end = place_of(first + RowList::kRows);
  for (int chunk = warp; chunk < kChunks; chunk += RowList::kWarps) {
    const int64_t row = row_of(chunk);
    const Range entries = row < num_rows ? range(row) : Range{0, 0};
    const int pieces = pieces_of(row), most = __reduce_max_sync(kAllLanes, pieces);
    const int64_t size = pieces > 1 ? (entries.size() + pieces - 1) / pieces : entries.size();
    int64_t place = begin + shared.places[chunk];
    for (int piece = 0; piece < most; ++piece) {
      const unsigned lanes = __ballot_sync(kAllLanes, piece < pieces);
      const int64_t own = place + __popc(lanes & ((1u << lane) - 1)),
                    from = min(entries.begin + piece * size, entries.end);
      if (piece < pieces && own >= begin && own < end) {  // as long as ptr does not descend
        list[own] = {from, static_cast<int>(row), static_cast<int>(min(size, entries.end - from)),
                     pieces > 1 ? static_cast<int>(units.first_slot(entries)) + piece : static_cast<int>(kWhole)};
      }
      place += __popc(lanes);
    }
  }
  for (int64_t place = begin + all + threadIdx.x; place < end; place += RowList::kThreads) list[place] = {};
}

// Lists the units, if the plan says so.
inline cudaError_t list_rows(RowUnits& units, const Index& ptr, int64_t num_rows, int64_t num_entries, ListedUnit* list,
                             cudaStream_t stream) {
  if (units.listed == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((num_rows + RowList::kRows - 1) / RowList::kRows);
  list_rows_kernel<<<blocks, RowList::kThreads, 0, stream>>>(ptr, num_rows, num_entries, units, list);
  units.list = list;
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
