// How the tile kernels cut a graph, as plain numbers: what counts their work on the CPU reads them too.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DFGNN_ANYWHERE __host__ __device__
#else
#define DFGNN_ANYWHERE
#endif

namespace dfgnn::cuda::tile {

constexpr int kStride = 64;     // tiles begin at multiples of it, or at the first boundary after
constexpr int kWarpRows = 16;   // rows of a warp,
constexpr int kWindow = 64;     // of a block,
constexpr int kChunk = 32;      // and nodes on the other side that they meet at a time
constexpr int kMaxChunks = 24;  // wider tiles go edge by edge

// A node's edges as bits, of its row or of its column: what the row is like (kMaskIrregular, …; below them a bit for
// each chunk in which it has edges), the node that its edges end with where they do not ascend to it, else kNoLast, and
// for each chunk a bit for each node. Nodes are counted from the tile's first.
constexpr int kMaskWords = 2 + kMaxChunks;
constexpr int kMaskIrregular = 1 << kMaxChunks;  // an edge twice, or to outside of the tile: there are no bits
constexpr int kMaskDisordered =
    1 << (kMaxChunks + 1);  // edges that do not ascend, the last aside: self-loops are there
constexpr int kNoLast = kMaxChunks * kChunk;

// Whether heads of that size, in numbers of so many bytes, have kernels: rows are made of 16-byte pieces, and double
// has no tensor cores here. Cosine's one gradient takes sums of two kinds at a time, for which large heads in half
// precision leave no registers, and norms of whole heads, of which a part in float32 has half.
DFGNN_ANYWHERE constexpr bool takes_heads(int64_t number_bytes, int64_t head_dim, bool is_cosine) {
  const int64_t most = is_cosine ? 128 : 256;
  return number_bytes <= 4 && head_dim <= most && head_dim * number_bytes % 16 == 0;
}

// Numbers that say where tiles begin, and, with masks behind them, where windows begin, in the order in which blocks
// take them: from the first of window_blocks() on, then, for those that take the last first, up to the last of as many
// more. Then the masks of rows begin, and behind them the columns'. I: int64_t, or a symbolic integer.
template <class I>
DFGNN_ANYWHERE constexpr I boundaries_of(const I& nodes) {
  return (nodes + (kStride - 1)) / kStride + 1;
}
template <class I>
DFGNN_ANYWHERE constexpr I window_blocks(const I& strides) {
  return strides * 2;
}
constexpr int kWindowWords = 4;
template <class I>
constexpr I windows_begin(const I& nodes) {
  return (boundaries_of(nodes) + (kWindowWords - 1)) / kWindowWords * kWindowWords;  // they are read whole
}
template <class I>
constexpr I masks_begin(const I& nodes) {
  return windows_begin(nodes) + window_blocks(boundaries_of(nodes) - 1) * (2 * kWindowWords);
}
template <class I>
constexpr I size_with_masks(const I& nodes) {
  return masks_begin(nodes) + nodes * (2 * kMaskWords);
}

// Behind that, or behind boundaries alone, the same boundaries each once, and then the number of nodes: the list of
// tiles that the resident kernels read.
template <class I>
constexpr I size_of_list(const I& nodes) {
  return boundaries_of(nodes);
}

// Or, behind boundaries alone, what the kernels by runs read (row_runs.cuh): rows by their numbers of edges, most
// first, and columns the same way, [2, nodes]; then, in that order, where the edges of each begin, and how many there
// are. Rows of as many edges, or of so many at the least, stay as they lie.
constexpr int kOrderWords = 3;
constexpr int kMostOrderEdges = (1 << 9) - 1;
template <class I>
constexpr I size_of_orders(const I& nodes) {
  return nodes * (2 * kOrderWords);
}

// What a tensor of so many numbers has of these.
struct TileParts {
  bool is_valid, masks, list, orders;
};
constexpr TileParts parts_of(int64_t size, int64_t nodes) {
  const int64_t list = size_of_list(nodes), with_masks = size_with_masks(nodes);
  const bool masks = size == with_masks || size == with_masks + list;
  const bool listed = !masks ? size == boundaries_of(nodes) + list : size == with_masks + list;
  const bool ordered = nodes > 0 && size == boundaries_of(nodes) + size_of_orders(nodes);
  return {masks || listed || ordered || size == boundaries_of(nodes), masks, listed, ordered};
}

// Rows of the windows of a tile of that many nodes.
DFGNN_ANYWHERE constexpr int window_rows(int nodes) {
  const int windows = (nodes + kWindow - 1) / kWindow;
  return ((nodes + windows - 1) / windows + kWarpRows - 1) / kWarpRows * kWarpRows;
}

// The rows that a block takes of a tile: first, and how many, of nodes [begin, end).
struct Window {
  int begin, end, first, count;
};
static_assert(sizeof(Window) == kWindowWords * sizeof(int));

// Blocks take the windows of a tile one after another, as they read the same rows, and tiles as they lie, but those of
// less than 4/5 of the mean size before or after all others: a pass may begin at either end, and its last blocks are to
// end at about the same time.
enum class WindowPlace { before, among, after };
DFGNN_ANYWHERE constexpr WindowPlace window_place(int begin, int end, int tiles, int nodes) {
  const bool is_small = int64_t{5} * (end - begin) * tiles < int64_t{4} * nodes;
  return !is_small ? WindowPlace::among : begin < nodes / 2 ? WindowPlace::before : WindowPlace::after;
}

}  // namespace dfgnn::cuda::tile

#undef DFGNN_ANYWHERE
