// Finds the tiles of a graph, by a scan over how far edges reach and a search for what they leave free, and makes the
// masks of its nodes.
#include <cub/device/device_scan.cuh>

#include "edge_mask.cuh"
#include "graph.h"

namespace dfgnn::cuda {
namespace {

constexpr int kThreads = 256, kLanes = 8;

unsigned blocks_for(int64_t threads) { return static_cast<unsigned>((threads + kThreads - 1) / kThreads); }

struct Largest {
  __device__ __forceinline__ int operator()(int x, int y) const { return max(x, y); }
};

__global__ void start_kernel(int* reach, int64_t num_nodes, int64_t* blocks) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < num_nodes) reach[i] = static_cast<int>(i);
  if (i == 0) *blocks = 0;
}

// reach[i]: the last node of the edges of which i is the first node, that of a row's edges taken together.
__global__ void reach_kernel(FindTiles t, int* reach) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x, row = thread / kLanes;
  int first = static_cast<int>(row), last = first;
  if (row < t.num_nodes) {
    const Range edges = row_range(t.rowptr, row, t.num_edges);
    for (int64_t e = edges.begin + thread % kLanes; e < edges.end; e += kLanes) {
      const int node = checked_node(t.col[e], t.num_nodes);
      if (node == kNoNode) continue;
      first = min(first, node);
      last = max(last, node);
    }
  }
#pragma unroll
  for (int lane = kLanes / 2; lane > 0; lane /= 2) {
    first = min(first, __shfl_xor_sync(kAllLanes, first, lane));
    last = max(last, __shfl_xor_sync(kAllLanes, last, lane));
  }
  if (row < t.num_nodes && thread % kLanes == 0 && last > first) atomicMax(&reach[first], last);
}

// `reach` is now the last node that edges of this and the nodes before reach.
__global__ void tiles_kernel(FindTiles t, const int* reach) {
  const int64_t index = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t begin = index * tile::kStride;
  if (begin >= t.num_nodes + tile::kStride) return;
  int64_t node = begin < t.num_nodes ? begin : t.num_nodes;
  while (node > 0 && node < t.num_nodes && reach[node - 1] >= node) node = reach[node - 1] + 1;
  t.tiles[index] = static_cast<int>(node);
}

__global__ void __launch_bounds__(tile::kThreads) blocks_kernel(const __grid_constant__ Attention a, int64_t* blocks) {
  using namespace tile;
  __shared__ EdgeMask mask;
  Window w;
  if (!find_window(a, w)) return;
  const int64_t degree = mask.fill(a.rowptr, a.col, a.num_edges, w);
  const int chunks = mask.rows[EdgeMask::row()][0];
  const bool is_single = (chunks & (kMaskIrregular | kMaskDisordered)) != 0;
  const uint32_t active = __reduce_or_sync(kAllLanes, is_single ? 0 : chunks);
  unsigned long long cost = threadIdx.x % kWarp == 0 ? __popc(active) : 0;
  if (is_single && EdgeMask::lane_of_row() == 0) cost += degree;
  if (cost > 0) atomicAdd(reinterpret_cast<unsigned long long*>(blocks), cost);
}

// The masks of the block's window.
__global__ void __launch_bounds__(tile::kThreads) masks_kernel(const __grid_constant__ Attention a, int* masks) {
  using namespace tile;
  __shared__ EdgeMask mask;
  Window w;
  if (!find_window(a, w)) return;
  mask.fill(a.rowptr, a.col, a.num_edges, w);
  __syncthreads();
  int* to = masks + static_cast<int64_t>(w.first) * kMaskWords;
  for (int x = threadIdx.x; x < w.count * kMaskWords; x += tile::kThreads) {
    to[x] = mask.rows[x / kMaskWords][x % kMaskWords];
  }
}

// What find_window and masks are read from.
Attention tiled(Index ptr, Index ind, int64_t num_nodes, int64_t num_edges, const int* tiles) {
  Attention a{};
  a.rowptr = ptr;
  a.col = ind;
  a.num_dst = a.num_src = num_nodes;
  a.num_edges = num_edges;
  a.tiles = {tiles, false};
  a.num_tiles = tile::boundaries_of(num_nodes) - 1;
  return a;
}

}  // namespace

cudaError_t find_tiles(const FindTiles& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const size_t array = (static_cast<size_t>(t.num_nodes) * sizeof(int) + 255) / 256 * 256;
  auto* reach = static_cast<int*>(workspace);
  size_t cub_bytes = 0;
  cudaError_t error = cub::DeviceScan::InclusiveScan(nullptr, cub_bytes, reach, reach, Largest(), t.num_nodes, stream);
  if (error != cudaSuccess || workspace == nullptr) {
    workspace_bytes = array + cub_bytes;
    return error;
  }
  start_kernel<<<blocks_for(t.num_nodes + 1), kThreads, 0, stream>>>(reach, t.num_nodes, t.blocks);
  if (t.num_nodes > 0) {
    reach_kernel<<<blocks_for(t.num_nodes * kLanes), kThreads, 0, stream>>>(t, reach);
    error = cub::DeviceScan::InclusiveScan(static_cast<char*>(workspace) + array, cub_bytes, reach, reach, Largest(),
                                           t.num_nodes, stream);
    if (error != cudaSuccess) return error;
  }
  tiles_kernel<<<blocks_for(tile::boundaries_of(t.num_nodes)), kThreads, 0, stream>>>(t, reach);
  if (t.num_nodes > 0) {
    const Attention a = tiled(t.rowptr, t.col, t.num_nodes, t.num_edges, t.tiles);
    blocks_kernel<<<tile::blocks_of(a.num_tiles), tile::kThreads, 0, stream>>>(a, t.blocks);
  }
  return cudaGetLastError();
}

cudaError_t make_masks(const MakeMasks& t, cudaStream_t stream) {
  if (t.num_nodes == 0) return cudaSuccess;
  const Attention a = tiled(t.ptr, t.ind, t.num_nodes, t.num_edges, t.tiles);
  masks_kernel<<<tile::blocks_of(a.num_tiles), tile::kThreads, 0, stream>>>(a, t.masks);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
