// A tile, and the windows of rows that blocks take of it.
//
// A tile is a run of nodes [begin, end) whose edges stay inside it: one graph of a batch, or a few small ones. In a
// backward pass over sources "rows" are columns and the compressed form is the CSC.
#pragma once

#include "tile_parts.cuh"

namespace dfgnn::cuda::tile {

struct BlockWindow : Window {
  __device__ __forceinline__ int chunks() const { return (end - begin + kChunk - 1) / kChunk; }

  // Of a row of the window; past the end, the last.
  __device__ __forceinline__ int node(int row) const { return first + min(row, count - 1); }

  // Whether it is worth while to fetch the tile's first chunk before it is known to have edges of the window.
  __device__ __forceinline__ bool is_narrow() const { return chunks() <= 8; }
};

// The order in which the windows of a graph are taken. A pass that begins where the one before it ended finds in the L2
// cache what that has read or written last.
enum class WindowOrder { from_first, from_last };

// As it was found before; whatever is there, it is one, though perhaps without rows.
__device__ __forceinline__ BlockWindow window_of(const Attention& a, const int4& found) {
  BlockWindow window;
  window.end = min(max(found.y, 0), static_cast<int>(a.num_dst));
  window.begin = max(found.x, 0);
  window.first = max(found.z, window.begin);
  window.count = min(min(found.w, window.end - window.first), kWindow);
  return window;
}

template <WindowOrder kOrder>
__device__ __forceinline__ const int4* window_at(const Attention& a, int place) {
  const int room = static_cast<int>(window_blocks(a.num_tiles));
  return reinterpret_cast<const int4*>(a.windows) + (kOrder == WindowOrder::from_first ? place : 2 * room - 1 - place);
}

// Groups of S::kHeads heads; those whose rows share cache lines.
template <class S>
inline constexpr int kGroups = S::kRowBytes < 128 ? 128 / S::kRowBytes : 1;
template <class S>
__host__ __device__ __forceinline__ int groups_of(int heads) {
  return (heads + S::kHeads - 1) / S::kHeads;
}

// The grid's second dimension, with room for so many windows: a block takes groups that share cache lines, one after
// the other, but where blocks are too few for a device that way, one.
template <class S>
inline unsigned group_blocks(int64_t windows, int heads) {
  constexpr int64_t kFew = 4096;  // a third of which are not there, or more
  const auto groups = static_cast<unsigned>(groups_of<S>(heads)), shared = (groups + kGroups<S> - 1) / kGroups<S>;
  return windows * shared < kFew ? groups : shared;
}

// Calls visit(h) for the first heads of the block's groups.
template <class S, class Visit>
__device__ __forceinline__ void for_groups(int heads, const Visit& visit) {
  if constexpr (kGroups<S> == 1) return visit(static_cast<int>(blockIdx.y) * S::kHeads);
  const int groups = groups_of<S>(heads), blocks = static_cast<int>(gridDim.y), each = (groups + blocks - 1) / blocks;
  const int first = static_cast<int>(blockIdx.y) * each, end = min(first + each, groups);
#pragma unroll 1
  for (int group = first; group < end; ++group) {
    if (group > first) __syncthreads();  // all are done with the shared memory of the group before
    visit(group * S::kHeads);
  }
}

// Calls visit(k) for the k-th head of a group from h on, where there is one.
template <class S, class Visit>
__device__ __forceinline__ void for_heads(int heads, int h, const Visit& visit) {
#pragma unroll
  for (int k = 0; k < S::kHeads; ++k) {
    if (k == 0 || h + k < heads) visit(k);
  }
}

// The warp's rows, as bits, for which a thread has something other than 0.
__device__ __forceinline__ uint32_t rows_not_zero(float x, int v) {
  return __reduce_or_sync(kAllLanes, x == 0 ? 0u : 1u << warp_row(v));
}

// Calls visit(row) for the rows of such a set, as bits, in the first part's warps; what the warp has stored of them
// before comes first.
template <class S, class Visit>
__device__ __forceinline__ void for_rows_of(uint32_t rows, const BlockWindow& w, const Visit& visit) {
  if (!is_first_part<S>()) return;
  __syncwarp();
  for (; rows != 0; rows &= rows - 1) {
    const int row = threadIdx.x / kWarp * kWarpRows + __ffs(rows) - 1;
    if (row < w.count) visit(w.first + row);
  }
}

}  // namespace dfgnn::cuda::tile
