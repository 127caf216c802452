// What the tile kernels read of a graph beside its features: windows of its tiles, and masks of its nodes.
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "edge_mask.cuh"
#include "graph.h"

namespace dfgnn::cuda {
namespace {

// How many windows have a place before others, among them, or after them; no more than 2^30, whatever tiles are.
struct WindowCounts {
  unsigned before, among, after;

  __device__ __forceinline__ WindowCounts operator+(const WindowCounts& x) const {
    constexpr unsigned kMost = 1 << 30;
    return {min(before + x.before, kMost), min(among + x.among, kMost), min(after + x.after, kMost)};
  }
};

// All windows in the order in which blocks take them, twice (tile_geometry.h). By one block, of which a thread takes
// some strides of nodes at a time, and the windows of the tiles that begin there.
constexpr int kOrderThreads = 512, kOrderItems = 4;
__global__ void __launch_bounds__(kOrderThreads)
    windows_kernel(const int* tiles, int strides, int nodes, int4* windows) {
  using namespace tile;
  using Count = cub::BlockReduce<WindowCounts, kOrderThreads>;
  using Scan = cub::BlockScan<WindowCounts, kOrderThreads>;
  __shared__ union {
    typename Count::TempStorage count;
    typename Scan::TempStorage scan;
  } storage;
  __shared__ WindowCounts shared_total;
  const auto total = [&](const WindowCounts& own) {
    const WindowCounts sum = Count(storage.count).Sum(own);
    if (threadIdx.x == 0) shared_total = sum;
    __syncthreads();
    return shared_total;
  };
  // Calls visit(begin, end) for those tiles of this thread that have nodes, of the next kOrderItems * kOrderThreads
  // strides.
  const auto for_tiles = [&](int first_stride, const auto& visit) {
    int bounds[kOrderItems + 1];
#pragma unroll
    for (int u = 0; u <= kOrderItems; ++u) {
      const int t = first_stride + static_cast<int>(threadIdx.x) * kOrderItems + u;
      bounds[u] = min(max(__ldg(tiles + min(t, strides)), 0), nodes);
    }
#pragma unroll
    for (int u = 0; u < kOrderItems; ++u) {
      if (bounds[u] < bounds[u + 1]) visit(bounds[u], bounds[u + 1]);
    }
  };
  const auto for_all = [&](const auto& round) {
    for (int first = 0; first < strides; first += kOrderItems * kOrderThreads) round(first);
  };

  unsigned own_tiles = 0;
  for_all([&](int first) { for_tiles(first, [&](int, int) { ++own_tiles; }); });
  const int num_tiles = static_cast<int>(total({0, own_tiles, 0}).among);
  const auto count_in = [&](WindowCounts& counts, int begin, int end) -> unsigned& {
    const WindowPlace place = window_place(begin, end, num_tiles, nodes);
    return place == WindowPlace::before ? counts.before : place == WindowPlace::among ? counts.among : counts.after;
  };
  const auto count = [&](int first) {
    WindowCounts counts{};
    for_tiles(first, [&](int begin, int end) {
      const int size = window_rows(end - begin);
      count_in(counts, begin, end) += (end - begin + size - 1) / size;
    });
    return counts;
  };
  WindowCounts own{};
  for_all([&](int first) { own = own + count(first); });
  __syncthreads();
  const WindowCounts all = total(own);

  const unsigned room = window_blocks(strides), used = min(all.before + all.among + all.after, room);
  const unsigned last_begin = 2 * room - used;               // of those that end with the last place
  WindowCounts next{0, all.before, all.before + all.among};  // places
  for_all([&](int first) {
    WindowCounts places, round;
    __syncthreads();
    Scan(storage.scan).ExclusiveScan(count(first), places, WindowCounts{}, [](auto x, auto y) { return x + y; }, round);
    places = next + places;
    next = next + round;
    for_tiles(first, [&](int begin, int end) {
      const int size = window_rows(end - begin);
      unsigned& place = count_in(places, begin, end);
      for (int row = begin; row < end && place < room; row += size) {
        windows[place] = windows[place + last_begin] = {begin, end, row, min(size, end - row)};
        ++place;
      }
    });
  });
  for (unsigned i = used + threadIdx.x; i < last_begin; i += kOrderThreads) windows[i] = {};
}

// The masks of the rows of the block's window, or of its columns.
__global__ void __launch_bounds__(tile::kThreads) masks_kernel(const __grid_constant__ Attention a, int* masks) {
  using namespace tile;
  __shared__ EdgeMask mask;
  const BlockWindow w = window_of(a, __ldg(window_at<WindowOrder::from_first>(a, static_cast<int>(blockIdx.x))));
  if (w.count <= 0) return;
  const Range edges = EdgeMask::edges_of_row(blockIdx.y == 0 ? a.rowptr : a.colptr, a.num_edges, w);
  (blockIdx.y == 0 ? a.col : a.row).typed([&](const auto* ind) { mask.fill(edges, ind, w); });
  __syncthreads();
  int* to = masks + (static_cast<int64_t>(blockIdx.y) * a.num_dst + w.first) * kMaskWords;
  for (int x = threadIdx.x; x < w.count * kMaskWords; x += tile::kThreads) {
    to[x] = mask.rows[x / kMaskWords][x % kMaskWords];
  }
}

}  // namespace

cudaError_t order_windows(const int* tiles, int64_t num_nodes, int* windows, cudaStream_t stream) {
  if (num_nodes == 0) return cudaSuccess;
  const int strides = static_cast<int>(tile::boundaries_of(num_nodes)) - 1;
  windows_kernel<<<1, kOrderThreads, 0, stream>>>(tiles, strides, static_cast<int>(num_nodes),
                                                  reinterpret_cast<int4*>(windows));
  return cudaGetLastError();
}

cudaError_t make_masks(const MakeMasks& t, cudaStream_t stream) {
  if (t.num_nodes == 0) return cudaSuccess;
  Attention a{};
  a.rowptr = t.rowptr;
  a.col = t.col;
  a.colptr = t.colptr;
  a.row = t.row;
  a.num_dst = a.num_src = t.num_nodes;
  a.num_edges = t.num_edges;
  a.num_tiles = tile::boundaries_of(t.num_nodes) - 1;
  a.windows = t.windows;
  const dim3 blocks(static_cast<unsigned>(tile::window_blocks(a.num_tiles)), t.colptr.data == nullptr ? 1 : 2);
  masks_kernel<<<blocks, tile::kThreads, 0, stream>>>(a, t.masks);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
