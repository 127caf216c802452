// Where the tiles of a graph begin, by a whole grid: from how far the edges of each node reach.
#pragma once

#include <cooperative_groups.h>

#include "cooperative.cuh"
#include "tile_geometry.h"

namespace dfgnn::cuda {

// All threads of the grid come to each step, and meet between them.
class TileSearch {
 public:
  struct Arrays {
    int* reach;        // [nodes]; zeros before add(), of start() or of the caller
    int *sums, *ends;  // [blocks]
  };
  using Storage = BlockSums<int>::Storage;

  __device__ TileSearch(int64_t nodes, const Arrays& arrays, Storage& storage)
      : nodes_(static_cast<int>(nodes)), w_(arrays), storage_(storage) {}

  __device__ void start() {
    for (int64_t i = grid_thread(); i < nodes_; i += grid_threads()) w_.reach[i] = 0;
  }

  // Takes an edge between these two, or edges of both to a third.
  __device__ void add(int first, int last) {
    if (last > first) atomicMax(&w_.reach[first], last);
  }

  // Takes all edges of compressed rows or columns.
  template <class Ptr, class Ind>
  __device__ void add_all(const Ptr& ptr, const Ind& ind, int64_t num_entries) {
    constexpr int kLanes = 8;  // of a row
    constexpr int64_t kRows = 32 / kLanes;
    for (int64_t base = grid_thread() / 32 * kRows; base < nodes_; base += grid_threads() / 32 * kRows) {
      const int64_t i = base + threadIdx.x % 32 / kLanes;
      int64_t first = i, last = i;
      if (i < nodes_) {
        const int64_t begin = max(int64_t(0), static_cast<int64_t>(ptr[i]));
        const int64_t end = min(num_entries, static_cast<int64_t>(ptr[i + 1]));
        for (int64_t e = begin + threadIdx.x % kLanes; e < end; e += kLanes) {
          const int64_t node = ind[e];
          if (node < 0 || node >= nodes_) continue;
          first = min(first, node);
          last = max(last, node);
        }
      }
#pragma unroll
      for (int offset = kLanes / 2; offset > 0; offset /= 2) {
        first = min(first, __shfl_xor_sync(~0u, first, offset));
        last = max(last, __shfl_xor_sync(~0u, last, offset));
      }
      if (i < nodes_ && threadIdx.x % kLanes == 0) add(static_cast<int>(first), static_cast<int>(last));
    }
  }

  // Writes tiles, `count` boundaries. Calls visit(tile, nodes) for each tile once; `nodes` are those of what it ends
  // with that has no edges to the nodes before.
  template <class Visit>
  __device__ void find(int* tiles, int64_t count, const Visit& visit) {
    find_reach_until();
    int before = 0;  // the last boundary before
    for (int64_t b = threadIdx.x; b < blockIdx.x; b += kGridThreads) before = max(before, w_.ends[b]);
    scan(before, before);
    if (grid_thread() == 0) tiles[0] = 0;
    const Share mine = block_share(nodes_);
    for (int64_t first = mine.begin; first < mine.end; first += kGridThreads) {
      const int node = static_cast<int>(first) + static_cast<int>(threadIdx.x);
      const bool ends_here = node < mine.end && w_.reach[node] == node;
      int last;
      const int until = max(before, scan_before(ends_here ? node + 1 : 0, last));
      before = max(before, last);
      if (!ends_here) continue;
      // All tiles that begin behind the boundary before, and up to this one, begin here.
      const int64_t end = node + 1 < nodes_ ? (node + 1) / tile::kStride : count - 1;
      const int tile = until / tile::kStride;
      for (int64_t t = tile + 1; t <= end; ++t) tiles[t] = node + 1;
      if (tile < end) visit(tile, node + 1 - until);
    }
  }
  __device__ void find(int* tiles, int64_t count) {
    find(tiles, count, [](int, int) {});
  }

 private:
  // From how far edges of a node reach to how far those of it and the nodes before do, which is to itself where the
  // next node is a boundary.
  __device__ void find_reach_until() {
    const auto grid = cooperative_groups::this_grid();
    const Share mine = block_share(nodes_);
    int largest = -1, until = -1, end = 0;
    for (int64_t i = mine.begin + threadIdx.x; i < mine.end; i += kGridThreads) largest = max(largest, reach_of(i));
    scan(largest, largest);
    if (threadIdx.x == 0) w_.sums[blockIdx.x] = largest;
    grid.sync();
    for (int64_t b = threadIdx.x; b < blockIdx.x; b += kGridThreads) until = max(until, w_.sums[b]);
    scan(until, until);
    for (int64_t first = mine.begin; first < mine.end; first += kGridThreads) {
      const int64_t i = first + threadIdx.x;
      int all;
      const int reach = max(until, scan(i < mine.end ? reach_of(i) : -1, all));
      until = max(until, all);
      if (i >= mine.end) continue;
      w_.reach[i] = reach;
      if (reach == i) end = static_cast<int>(i) + 1;
    }
    scan(end, end);
    if (threadIdx.x == 0) w_.ends[blockIdx.x] = end;
    grid.sync();
  }

  // A node reaches itself.
  __device__ int reach_of(int64_t i) const { return max(w_.reach[i], static_cast<int>(i)); }

  // The largest value of this thread and those before; `all`: of the block.
  __device__ int scan(int value, int& all) {
    int until, largest;
    __syncthreads();
    BlockSums<int>::Scan(storage_).InclusiveScan(value, until, Larger(), largest);
    all = largest;
    return until;
  }

  // The same of those before alone, or 0.
  __device__ int scan_before(int value, int& all) {
    int before, largest;
    __syncthreads();
    BlockSums<int>::Scan(storage_).ExclusiveScan(value, before, 0, Larger(), largest);
    all = largest;
    return before;
  }

  const int nodes_;
  const Arrays& w_;
  Storage& storage_;
};

}  // namespace dfgnn::cuda
