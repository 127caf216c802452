// A tile, and the windows of rows that blocks take of it.
//
// A tile is a run of nodes [begin, end) whose edges stay inside it: one graph of a batch, or a few small ones. In a
// backward pass over sources "rows" are columns and the compressed form is the CSC.
#pragma once

#include "tile.cuh"

namespace dfgnn::cuda::tile {

struct Window {
  int begin, end;    // of the tile
  int first, count;  // rows

  __device__ __forceinline__ int chunks() const { return (end - begin + kChunk - 1) / kChunk; }

  // Of a row of the window; past the end, the last.
  __device__ __forceinline__ int node(int row) const { return first + min(row, count - 1); }

  // Whether it is worth while to fetch the tile's first chunk before it is known to have edges of the window.
  __device__ __forceinline__ bool is_narrow() const { return chunks() <= 8; }
};

// The block's window, if it has one, of a grid of blocks_of(strides) by heads. Of the first `strides` blocks, block t
// has the first window of the tile that begins in [64 t, 64 t + 64), or, where none does, that window of an earlier
// tile which comes t - its block later. Where that block has a tile of its own (at the end of a tile), block strides +
// t of the tile's first block t has its last window.
__device__ __forceinline__ bool find_window(const Attention& a, Window& window) {
  const int strides = static_cast<int>(a.num_tiles), nodes = static_cast<int>(a.num_dst);
  const bool is_last = blockIdx.x >= static_cast<unsigned>(strides);
  const int t = static_cast<int>(blockIdx.x) - (is_last ? strides : 0);
  const auto boundary = [&](int i) { return static_cast<int>(clamp_to(a.tiles[i], nodes)); };
  const int end = boundary(t + 1);
  int owner = t, begin = boundary(t);
  if (begin >= end) {
    if (is_last || begin <= t * kStride) return false;
    const int lane = threadIdx.x % kWarp;  // the last with an earlier boundary; most likely near
    const uint32_t earlier = __ballot_sync(kAllLanes, lane < t && boundary(max(t - 1 - lane, 0)) < end);
    owner = t - __ffs(earlier);
    if (earlier == 0) {
      int low = 0;
      for (owner = max(t - kWarp, 0); owner - low > 1;) {
        const int middle = (low + owner) / 2;
        (boundary(middle) < end ? low : owner) = middle;
      }
      owner = low;
    }
    begin = boundary(owner);
    if (begin >= end) return false;
  }
  const int size = window_rows(end - begin), last = (end - begin - 1) / size;
  if (is_last && (last == 0 || (t + last + 1) * kStride <= end || end >= nodes)) return false;
  const int first = begin + (is_last ? last : t - owner) * size;
  window = {begin, end, first, min(size, end - first)};
  return first < end;
}

inline unsigned blocks_of(int64_t strides) { return static_cast<unsigned>(2 * strides); }

// Whether a block takes several heads, one after the other. Large heads leave no registers for the loop.
template <class S>
inline constexpr bool kTakesHeads = S::kFeatures < 128;

// Calls visit(h) for the block's heads, up to `each` of them.
template <class S, class Visit>
__device__ __forceinline__ void for_heads(int heads, int each, const Visit& visit) {
  if constexpr (kTakesHeads<S>) {
    const int begin = static_cast<int>(blockIdx.y) * each, end = min(begin + each, heads);
    for (int h = begin; h < end; ++h) {
      if (h > begin) __syncthreads();  // all are done with the shared memory of the head before
      visit(h);
    }
  } else {
    visit(static_cast<int>(blockIdx.y));
  }
}

// Calls visit(row) for the rows of a set, as bits; what the warp has stored of them before comes first.
template <class Visit>
__device__ __forceinline__ void for_rows_of(uint32_t rows, const Window& w, const Visit& visit) {
  __syncwarp();
  for (; rows != 0; rows &= rows - 1) {
    const int row = threadIdx.x / kWarp * kWarpRows + __ffs(rows) - 1;
    if (row < w.count) visit(w.first + row);
  }
}

}  // namespace dfgnn::cuda::tile
