// What the tiles of a graph cost, by a whole grid, in the kernel that has found them or in another.
#pragma once

#include "cooperative.cuh"
#include "edge_mask.cuh"

namespace dfgnn::cuda::tile {

constexpr int kWindowsAtOnce = kGridThreads / kThreads;
using BlockMasks = EdgeMask[kWindowsAtOnce];

// Adds the blocks of tiles (graph.cpp of the operators) to *blocks: of 16 rows and the chunks in which they have edges,
// and the edges of rows that go edge by edge, as all do in wide tiles, whose pointers are taken to ascend.
template <class Ptr, class I>
__device__ void add_blocks(const int* tiles, int nodes, const Ptr& ptr, const I* ind, int64_t num_edges,
                           BlockMasks& masks, int64_t* blocks) {
  const int strides = static_cast<int>(boundaries_of(nodes)) - 1, half = static_cast<int>(threadIdx.x) / kThreads;
  EdgeMask& mask = masks[half];
  unsigned long long cost = 0;
  for (int t = static_cast<int>(blockIdx.x); t < strides; t += static_cast<int>(gridDim.x)) {
    const int begin = tiles[t], end = tiles[t + 1];
    if (end - begin > kMaxChunks * kChunk) {
      const int64_t edges = clamp_to(ptr[end], num_edges) - clamp_to(ptr[begin], num_edges);
      if (threadIdx.x == 0) cost += max(edges, int64_t{0});
      continue;
    }
    for (int first = begin + half * kWindow; first < end; first += kWindowsAtOnce * kWindow) {
      BlockWindow w;
      static_cast<Window&>(w) = {begin, end, first, min(kWindow, end - first)};
      const Range edges = EdgeMask::edges_of_row(ptr, num_edges, w);
      mask.fill(edges, ind, w);
      const int chunks = mask.rows[EdgeMask::row()][0];
      const bool is_single = (chunks & (kMaskIrregular | kMaskDisordered)) != 0;
      const uint32_t active = __reduce_or_sync(kAllLanes, is_single ? 0 : chunks);
      if (threadIdx.x % kWarp == 0) cost += __popc(active);
      if (is_single && EdgeMask::lane_of_row() == 0) cost += edges.size();
      __syncwarp();
    }
  }
  cost = lanes_sum<kWarp>(cost);
  if (threadIdx.x % kWarp == 0 && cost > 0) atomicAdd(reinterpret_cast<unsigned long long*>(blocks), cost);
}

}  // namespace dfgnn::cuda::tile
