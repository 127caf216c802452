// Where the tiles of a graph begin, by a whole grid: from how far the edges of each node reach.
#pragma once

#include "cooperative.cuh"
#include "find_row.cuh"
#include "tile_geometry.h"

namespace dfgnn::cuda {

// All threads of the grid come to each step, and meet between them.
class TileSearch {
 public:
  // Zeros before add(), of start() or of the caller.
  struct Arrays {
    int* reach;                // [nodes]
    unsigned long long* told;  // [blocks]
  };
  using Storage = BlockSums<int>::Storage;

  __device__ TileSearch(int64_t nodes, const Arrays& arrays, Storage& storage)
      : nodes_(static_cast<int>(nodes)), w_(arrays), storage_(storage) {}

  __device__ void start() {
    for (int64_t i = grid_thread(); i < nodes_; i += grid_threads()) w_.reach[i] = 0;
    if (grid_thread() < gridDim.x) w_.told[grid_thread()] = 0;
  }

  // Takes an edge between these two, or edges of both to a third.
  __device__ void add(int first, int last) {
    if (last > first) atomicMax(&w_.reach[first], last);
  }

  // Takes all edges of compressed rows or columns, of which the longest has `longest`, if that is known.
  template <class Ptr, class Ind>
  __device__ void add_all(const Ptr& ptr, const Ind& ind, int64_t num_entries, int64_t longest = INT64_MAX) {
    // What is longer than the block's share of all entries has some of them at its first or its last.
    const Share mine = block_share(num_entries);
    const int64_t long_row = max((num_entries + gridDim.x - 1) / gridDim.x, kLongRow);
    add_rows(ptr, ind, num_entries, long_row);
    if (longest > long_row && mine.begin < mine.end && nodes_ > 0) add_shares(ptr, ind, num_entries, long_row, mine);
  }

  // Writes tiles, `count` boundaries. Calls visit(tile, nodes) for each tile once; `nodes` are those of what it ends
  // with that has no edges to the nodes before.
  template <class Visit>
  __device__ void find(int* tiles, int64_t count, const Visit& visit) {
    const Share mine = block_share(nodes_);
    tell(find_own(mine));
    const Found before = ask_before();
    int last_end = before.last_end;
    if (grid_thread() == 0) tiles[0] = 0;
    for_rounds(mine, [&](int64_t first) {
      int end[kEach], last_before[kEach], last;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = first + k;
        end[k] = i < mine.end && max(w_.reach[i], before.furthest) == i ? static_cast<int>(i) + 1 : 0;
      }
      __syncthreads();
      Scan(storage_).ExclusiveScan(end, last_before, 0, Larger(), last);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (end[k] == 0) continue;
        // All tiles that begin behind the boundary before, and up to this one, begin here.
        const int begin = max(last_end, last_before[k]), tile = begin / tile::kStride;
        const int64_t end_tile = end[k] < nodes_ ? end[k] / tile::kStride : count - 1;
        for (int64_t t = tile + 1; t <= end_tile; ++t) tiles[t] = end[k];
        if (tile < end_tile) visit(tile, end[k] - begin);
      }
      last_end = max(last_end, last);
    });
  }
  __device__ void find(int* tiles, int64_t count) {
    find(tiles, count, [](int, int) {});
  }

 private:
  using Scan = BlockSums<int>::Scan;
  static constexpr int kEach = 4;            // nodes, or blocks, of a thread
  static constexpr int64_t kLongRow = 1024;  // edges from which on no few lanes should take a row

  // Widens [first, last] by the other ends of entries begin, begin + step ...
  template <class Ind>
  __device__ __forceinline__ void widen(const Ind& ind, int64_t begin, int64_t end, int step, int64_t& first,
                                        int64_t& last) const {
    for (int64_t e = begin; e < end; e += step) {
      const int64_t node = ind[e];
      if (node < 0 || node >= nodes_) continue;
      first = min(first, node);
      last = max(last, node);
    }
  }

  // Rows of up to `most` edges, by some lanes each.
  template <class Ptr, class Ind>
  __device__ void add_rows(const Ptr& ptr, const Ind& ind, int64_t num_entries, int64_t most) {
    constexpr int kLanes = 8;
    constexpr int64_t kRows = 32 / kLanes;
    for (int64_t base = grid_thread() / 32 * kRows; base < nodes_; base += grid_threads() / 32 * kRows) {
      const int64_t i = base + threadIdx.x % 32 / kLanes;
      int64_t first = i, last = i;
      if (i < nodes_) {
        const int64_t begin = max(int64_t(0), static_cast<int64_t>(ptr[i]));
        const int64_t end = min(num_entries, static_cast<int64_t>(ptr[i + 1]));
        if (end - begin <= most) widen(ind, begin + threadIdx.x % kLanes, end, kLanes, first, last);
      }
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        first = min(first, __shfl_xor_sync(~0u, first, offset));
        last = max(last, __shfl_xor_sync(~0u, last, offset));
      }
      if (i < nodes_ && threadIdx.x % kLanes == 0) add(static_cast<int>(first), static_cast<int>(last));
    }
  }

  // What a block's share has of longer ones.
  template <class Ptr, class Ind>
  __device__ void add_shares(const Ptr& ptr, const Ind& ind, int64_t num_entries, int64_t most, const Share& share) {
    int64_t rows[2];
    warp_find_rows<2>(ptr, nodes_, {share.begin, share.end - 1}, rows);
    for (int t = 0; t < (rows[0] == rows[1] ? 1 : 2); ++t) {
      const int64_t i = rows[t];
      const int64_t begin = max(int64_t(0), static_cast<int64_t>(ptr[i]));
      const int64_t end = min(num_entries, static_cast<int64_t>(ptr[i + 1]));
      if (end - begin <= most) continue;
      int64_t first = i, last = i;
      widen(ind, max(begin, share.begin) + threadIdx.x, min(end, share.end), kGridThreads, first, last);
      const int low = __reduce_min_sync(kAllLanes, static_cast<int>(first));
      const int high = __reduce_max_sync(kAllLanes, static_cast<int>(last));
      if (threadIdx.x % kWarp == 0) add(low, high);
    }
  }

  // Of nodes in a row: the furthest node that edges of theirs reach, and the last boundary behind one of them, or 0,
  // as far as can be told without the nodes before.
  struct Found {
    int furthest, last_end;
  };

  // Calls visit(first) for the first of each thread's nodes, by the whole block.
  template <class Visit>
  static __device__ __forceinline__ void for_rounds(const Share& nodes, const Visit& visit) {
    for (int64_t first = nodes.begin; first < nodes.end; first += kEach * kGridThreads) {
      visit(first + kEach * static_cast<int64_t>(threadIdx.x));
    }
  }

  // From how far edges of a node reach to how far those of it and the block's nodes before do, which is to itself where
  // the next node may be a boundary: it is one if those of other blocks reach no further.
  __device__ Found find_own(const Share& mine) {
    Found found{-1, 0};
    int end = 0;
    for_rounds(mine, [&](int64_t first) {
      int reach[kEach], furthest;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {  // a node reaches itself
        const int64_t i = first + k;
        reach[k] = i < mine.end ? max(w_.reach[i], static_cast<int>(i)) : -1;
      }
      __syncthreads();
      Scan(storage_).InclusiveScan(reach, reach, Larger(), furthest);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const int64_t i = first + k;
        if (i >= mine.end) continue;
        const int until = max(reach[k], found.furthest);
        w_.reach[i] = until;
        if (until == i) end = static_cast<int>(i) + 1;
      }
      found.furthest = max(found.furthest, furthest);
    });
    found.last_end = largest(end);
    return found;
  }

  // Blocks tell those behind them what they have found, as a number that is not 0.
  __device__ void tell(const Found& found) {
    if (threadIdx.x > 0) return;
    atomicExch(&w_.told[blockIdx.x],
               static_cast<unsigned long long>(found.furthest + 2) << 32 | static_cast<unsigned>(found.last_end));
  }

  // What the blocks before have found. All run at a time: this one waits for them.
  __device__ Found ask_before() {
    Found all{-1, 0};
    for (unsigned base = 0; base < blockIdx.x; base += kEach * kGridThreads) {
      int furthest[kEach], furthest_before[kEach], last_end[kEach], of_round, end = 0;
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        const unsigned block = base + kEach * threadIdx.x + k;
        unsigned long long told = 1ull << 32;
        while (block < blockIdx.x) {
          told = *const_cast<const volatile unsigned long long*>(w_.told + block);
          if (told != 0) break;
        }
        furthest[k] = static_cast<int>(told >> 32) - 2;
        last_end[k] = static_cast<int>(told);
      }
      __syncthreads();
      Scan(storage_).ExclusiveScan(furthest, furthest_before, -1, Larger(), of_round);
#pragma unroll
      for (int k = 0; k < kEach; ++k) {
        if (last_end[k] > max(furthest_before[k], all.furthest)) end = max(end, last_end[k]);
      }
      all = {max(all.furthest, of_round), max(all.last_end, largest(end))};
    }
    return all;
  }

  // Of the block.
  __device__ int largest(int value) {
    int all;
    __syncthreads();
    Scan(storage_).InclusiveScan(value, value, Larger(), all);
    return all;
  }

  const int nodes_;
  const Arrays& w_;
  Storage& storage_;
};

}  // namespace dfgnn::cuda
