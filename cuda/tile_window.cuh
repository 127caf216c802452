// A tile, the windows of rows that blocks take of it, and the edges of a window as bits.
//
// A tile is a run of nodes [begin, end) whose edges stay inside it: one graph of a batch, or a few small ones. In a
// backward pass over sources "rows" are columns and the compressed form is the CSC.
#pragma once

#include "tile.cuh"

namespace dfgnn::cuda::tile {

constexpr int kMaxChunks = 24;  // wider tiles go edge by edge

struct Window {
  int begin, end;    // of the tile
  int first, count;  // rows

  __device__ __forceinline__ int chunks() const { return (end - begin + kChunk - 1) / kChunk; }
};

// Calls visit(Window) for every window of the block's share of its tile: windows of a tile have the same size, and are
// dealt out along the grid's y.
template <class Visit>
__device__ __forceinline__ void for_windows(const Attention& a, const Visit& visit) {
  const int t = blockIdx.x, nodes = static_cast<int>(a.num_dst);
  // Whatever the tiles say, each row is somebody's.
  const int begin = t == 0 ? 0 : static_cast<int>(clamp_to(a.tiles[t], nodes));
  const int end = t == static_cast<int>(gridDim.x) - 1 ? nodes : static_cast<int>(clamp_to(a.tiles[t + 1], nodes));
  if (begin >= end) return;
  const int windows = (end - begin + kWindow - 1) / kWindow;
  const int size = ((end - begin + windows - 1) / windows + kWarpRows - 1) / kWarpRows * kWarpRows;
  for (int first = begin + blockIdx.y * size; first < end; first += gridDim.y * size) {
    __syncthreads();  // shared memory is the previous window's
    visit(Window{begin, end, first, min(size, end - first)});
  }
}

struct EdgeMask {
  uint32_t words[kWindow][kMaxChunks + 1];
  uint32_t active[kWarps];  // chunks in which a row of the warp has edges

  // Fills the rows of this warp; all warps must come. Returns the warp's rows, as bits, that the mask cannot hold: with
  // an edge twice or to outside of the tile, or, where `ordered`, with edges that do not ascend. These have no bits.
  // Other threads see the mask after the next barrier.
  __device__ __forceinline__ uint32_t fill(const Index& ptr, const Index& ind, int64_t num_entries, const Window& w,
                                           bool ordered) {
    return ind.wide ? fill_as(ptr, static_cast<const long long*>(ind.data), num_entries, w, ordered)
                    : fill_as(ptr, static_cast<const int*>(ind.data), num_entries, w, ordered);
  }

  // Chunks in which a row of the window has edges.
  __device__ __forceinline__ uint32_t all_active() const {
    uint32_t all = 0;
    for (int warp = 0; warp < kWarps; ++warp) all |= active[warp];
    return all;
  }

 private:
  template <class I>
  __device__ __forceinline__ uint32_t fill_as(const Index& ptr, const I* ind, int64_t num_entries, const Window& w,
                                              bool ordered) {
    constexpr int kLanes = kWarp / kWarpRows;  // a row's
    static_assert(kLanes == 2);
    const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, part = lane % kLanes;
    const int row = warp * kWarpRows + lane / kLanes;
    const int chunks = min(w.chunks(), kMaxChunks);
    for (int c = part; c < chunks; c += kLanes) words[row][c] = 0;
    __syncwarp();
    bool irregular = false;
    if (row < w.count) {
      const Range edges = row_range(ptr, w.first + row, num_entries);
      const auto columns = static_cast<unsigned>(min(w.end - w.begin, kMaxChunks * kChunk));
      constexpr int kUnroll = 16;
      for (int64_t first = edges.begin + part; first < edges.end; first += kLanes * kUnroll) {
        const int count = static_cast<int>(min(edges.end - first, static_cast<int64_t>(kLanes * kUnroll)));
        I nodes[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) nodes[u] = __ldg(ind + first + (kLanes * u < count ? kLanes * u : 0));
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (kLanes * u >= count) break;
          const auto column = static_cast<std::make_unsigned_t<I>>(nodes[u] - w.begin);
          const bool inside = column < columns;
          const uint32_t bit = 1u << (column % kChunk);
          irregular |= !inside || (atomicOr(&words[row][inside ? column / kChunk : 0], bit) & bit) != 0;
          const int64_t e = first + kLanes * u;
          if (ordered) irregular |= e > edges.begin && __ldg(ind + e - 1) >= nodes[u];
        }
      }
    }
    irregular |= __shfl_xor_sync(kAllLanes, irregular, 1);
    const uint32_t lanes = __ballot_sync(kAllLanes, irregular);
    uint32_t rows = 0;
#pragma unroll
    for (int r = 0; r < kWarpRows; ++r) rows |= (lanes >> r * kLanes & 1) << r;
    __syncwarp();
    for (int c = part; irregular && c < chunks; c += kLanes) words[row][c] = 0;
    __syncwarp();
    uint32_t any = 0;
    for (int r = 0; lane < chunks && r < kWarpRows; ++r) any |= words[warp * kWarpRows + r][lane];
    any = __ballot_sync(kAllLanes, any != 0);
    if (lane == 0) active[warp] = any;
    return rows;
  }
};

// Calls visit(row) for the rows of a set that fill() gave.
template <class Visit>
__device__ __forceinline__ void for_rows_of(uint32_t rows, const Window& w, const Visit& visit) {
  for (; rows != 0; rows &= rows - 1) {
    const int row = threadIdx.x / kWarp * kWarpRows + __ffs(rows) - 1;
    if (row < w.count) visit(w.first + row);
  }
}

// The rows of this thread's accumulators: their words of the mask as chunks go by, and the places of their edges.
template <class S>
class MaskRows {
 public:
  __device__ __forceinline__ MaskRows(const EdgeMask& mask) : rows_(&mask.words[window_row<S>(0)][0]) {}

  __device__ __forceinline__ void load(int chunk) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      word_[v] = rows_[8 * v * (kMaxChunks + 1) + chunk];
#pragma unroll
      for (int c = 0; c < 2; ++c) shifted_[v][c] = word_[v] >> chunk_row<S>(0, c);
    }
  }

  // Whether row v has an edge to element (j, c) of the chunk, and how many of the row's edges lie before that.
  __device__ __forceinline__ bool has(int v, int j, int c) const { return (shifted_[v][c] & 1u << 8 * j) != 0; }
  __device__ __forceinline__ int rank(int v, int j, int c) const {
    return before_[v] + __popc(word_[v] & ((1u << chunk_row<S>(j, c)) - 1));
  }

  __device__ __forceinline__ void pass() {
#pragma unroll
    for (int v = 0; v < 2; ++v) before_[v] += __popc(word_[v]);
  }

 private:
  const uint32_t* rows_;
  uint32_t word_[2] = {}, shifted_[2][2] = {};
  int before_[2] = {};
};

}  // namespace dfgnn::cuda::tile
