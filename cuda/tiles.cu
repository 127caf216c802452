// Tiles of a graph, what they cost, their list and sizes.
#include <cooperative_groups.h>

#include <algorithm>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "graph.h"
#include "resident_geometry.h"
#include "tile_blocks.cuh"
#include "tile_search.cuh"

namespace dfgnn::cuda {
namespace {

__global__ void __launch_bounds__(kGridThreads)
    find_tiles_kernel(const __grid_constant__ FindTiles t, const __grid_constant__ TileSearch::Arrays arrays) {
  __shared__ TileSearch::Storage storage;
  const auto grid = cooperative_groups::this_grid();
  TileSearch search(t.num_nodes, arrays, storage);
  if (grid_thread() == 0) *t.blocks = 0;
  search.start();
  grid.sync();
  search.add_all(t.rowptr, t.col, t.num_edges);
  grid.sync();
  search.find(t.tiles, tile::boundaries_of(t.num_nodes));
}

// Apart, as it takes twice as many registers.
__global__ void __launch_bounds__(kGridThreads) blocks_kernel(const __grid_constant__ FindTiles t) {
  __shared__ tile::BlockMasks masks;
  t.col.typed([&](const auto* ind) {
    tile::add_blocks(t.tiles, static_cast<int>(t.num_nodes), t.rowptr, ind, t.num_edges, masks, t.blocks);
  });
}

// By one block.
constexpr int kListThreads = 1024;
__global__ void __launch_bounds__(kListThreads)
    list_kernel(const int* tiles, int64_t num_boundaries, int num_nodes, int* list) {
  using Scan = cub::BlockScan<int, kListThreads>;
  __shared__ typename Scan::TempStorage storage;
  int64_t listed = 0;
  for (int64_t begin = 0; begin < num_boundaries; begin += kListThreads) {
    const int64_t i = begin + threadIdx.x;
    const bool is_tile = i + 1 < num_boundaries && tiles[i] < tiles[i + 1];
    int place, count;
    Scan(storage).ExclusiveSum(is_tile, place, count);
    if (is_tile) list[listed + place] = tiles[i];
    listed += count;
    __syncthreads();
  }
  for (int64_t i = listed + threadIdx.x; i < num_boundaries; i += kListThreads) list[i] = num_nodes;
}

// A block a tile.
constexpr int kSizeThreads = 128;
__global__ void __launch_bounds__(kSizeThreads) sizes_kernel(const __grid_constant__ MeasureTiles t) {
  using Reduce = cub::BlockReduce<int64_t, kSizeThreads>;
  __shared__ typename Reduce::TempStorage storage;
  const int64_t begin = clamp_to(t.tiles[blockIdx.x], t.num_nodes),
                end = clamp_to(t.tiles[blockIdx.x + 1], t.num_nodes);
  if (begin >= end) return;
  int64_t batches = 0;
  if (end - begin <= resident::kMostNodes) {
    for (int side = 0; side < 2; ++side) {
      const Index& ptr = side == 0 ? t.rowptr : t.colptr;
      int64_t sum = 0, longest = 0;
      for (int64_t i = begin + threadIdx.x; i < end; i += kSizeThreads) {
        const int64_t own = resident::batches_of(clamp_to(ptr[i + 1] - ptr[i], int64_t{1} << 32));
        sum += own;
        longest = max(longest, own);
      }
      sum = Reduce(storage).Sum(sum);
      __syncthreads();
      longest = Reduce(storage).Reduce(longest, [](int64_t a, int64_t b) { return max(a, b); });
      __syncthreads();
      batches = max(batches, resident::batches_of_slices(sum, longest));  // right in thread 0
    }
  }
  if (threadIdx.x == 0) {
    auto* sizes = reinterpret_cast<unsigned long long*>(t.sizes);
    atomicMax(sizes, static_cast<unsigned long long>(end - begin));
    atomicMax(sizes + 1, static_cast<unsigned long long>(batches));
  }
}

}  // namespace

cudaError_t find_tiles(const FindTiles& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  int64_t blocks = 0;
  cudaError_t error = max_grid(find_tiles_kernel, 0, blocks);
  if (error != cudaSuccess) return error;
  blocks = grid_for(ceil_div(t.num_edges, 8 * kGridThreads) + ceil_div(t.num_nodes, kGridThreads), blocks);
  TileSearch::Arrays arrays{};
  Workspace places(workspace);
  places.place(arrays.reach, t.num_nodes);
  places.place(arrays.told, blocks);
  if (workspace == nullptr) {
    workspace_bytes = places.bytes();
    return cudaSuccess;
  }
  error = launch_cooperative(find_tiles_kernel, blocks, 0, stream, t, arrays);
  if (error != cudaSuccess || t.num_nodes == 0) return error;
  constexpr int64_t kMostBlocks = 2048;
  const int64_t strides = tile::boundaries_of(t.num_nodes) - 1;
  blocks_kernel<<<static_cast<unsigned>(std::min(strides, kMostBlocks)), kGridThreads, 0, stream>>>(t);
  return cudaGetLastError();
}

cudaError_t list_tiles(const int* tiles, int64_t num_nodes, int* list, cudaStream_t stream) {
  list_kernel<<<1, kListThreads, 0, stream>>>(tiles, tile::boundaries_of(num_nodes), static_cast<int>(num_nodes), list);
  return cudaGetLastError();
}

cudaError_t measure_tiles(const MeasureTiles& t, cudaStream_t stream) {
  const cudaError_t error = cudaMemsetAsync(t.sizes, 0, 2 * sizeof(int64_t), stream);
  if (error != cudaSuccess || t.num_nodes == 0) return error;
  sizes_kernel<<<static_cast<unsigned>(tile::boundaries_of(t.num_nodes) - 1), kSizeThreads, 0, stream>>>(t);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
