// Finds the tiles of a graph: a scan over how far edges reach, then a search for what they leave free.
#include <cub/device/device_scan.cuh>

#include "graph.h"
#include "tile_window.cuh"

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
  const uint32_t irregular = mask.fill<true>(a.rowptr, a.col, a.num_edges, w);
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, row = warp * kWarpRows + lane;
  unsigned long long cost = 0;
  if (lane < kWarpRows && row < w.count && irregular >> lane & 1) {
    cost = row_range(a.rowptr, w.first + row, a.num_edges).size();
  }
  __syncwarp();
  if (lane == 0) cost += __popc(mask.active[warp]);
  if (cost > 0) atomicAdd(reinterpret_cast<unsigned long long*>(blocks), cost);
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
  const int64_t strides = (t.num_nodes + tile::kStride - 1) / tile::kStride;
  tiles_kernel<<<blocks_for(strides + 1), kThreads, 0, stream>>>(t, reach);
  if (t.num_nodes > 0) {
    Attention a{};
    a.rowptr = t.rowptr;
    a.col = t.col;
    a.num_dst = a.num_src = t.num_nodes;
    a.num_edges = t.num_edges;
    a.tiles = {t.tiles, false};
    a.num_tiles = strides;
    blocks_kernel<<<tile::blocks_of(strides), tile::kThreads, 0, stream>>>(a, t.blocks);
  }
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
