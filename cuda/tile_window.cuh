// A tile, the windows of rows that blocks take of it, and the edges of a window as bits.
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
};

// Calls visit(Window) for the block's windows. Block t has the first window of the tile that begins in [64 t, 64 t +
// 64), or, where none does, that window of an earlier tile which comes t - its block later. Where that block has a tile
// of its own (at the end of a tile), the tile's first block has its last window too.
template <class Visit>
__device__ __forceinline__ void for_windows(const Attention& a, const Visit& visit) {
  const int t = blockIdx.x, nodes = static_cast<int>(a.num_dst);
  const auto boundary = [&](int i) { return static_cast<int>(clamp_to(a.tiles[i], nodes)); };
  const int end = boundary(t + 1);
  int owner = t, begin = boundary(t);
  if (begin >= end) {
    if (begin <= t * kStride) return;
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
  }
  const int size = window_rows(end - begin), last = (end - begin - 1) / size;
  const bool last_is_mine = owner == t && last > 0 && (t + last + 1) * kStride > end && end < nodes;
  const int step = last_is_mine ? last * size : end;
#pragma unroll 1
  for (int first = begin + (t - owner) * size; first < end; first += step) {
    wait_for_copies();  // shared memory is the previous window's
    __syncthreads();
    visit(Window{begin, end, first, min(size, end - first)});
  }
}

struct EdgeMask {
  static constexpr int kNone = kMaxChunks * kChunk;

  uint32_t words[kWindow][kMaxChunks + 1];
  int16_t last[kWindow];    // the column of a row's last edge where that does not ascend, else kNone
  uint32_t active[kWarps];  // chunks in which a row of the warp has edges

  // Fills the rows of this warp; all warps must come. Returns the warp's rows, as bits, that the mask cannot hold: with
  // an edge twice or to outside of the tile, or, where `ordered`, with edges that do not ascend, the last aside: that
  // is where self-loops are put. These have no bits.
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
    if (part == 0) last[row] = kNone;
    __syncwarp();
    bool irregular = row < w.count && w.chunks() > kMaxChunks;
    int64_t degree = 0;
    if (row < w.count && !irregular) {
      const Range edges = row_range(ptr, w.first + row, num_entries);
      degree = edges.size();
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
          irregular |= !inside;
          if (inside) atomicOr(&words[row][column / kChunk], bit);
          const int64_t e = first + kLanes * u;
          if (ordered && e > edges.begin && __ldg(ind + e - 1) >= nodes[u]) {
            if (e + 1 == edges.end && inside) last[row] = static_cast<int16_t>(column);
            irregular |= e + 1 < edges.end;
          }
        }
      }
    }
    __syncwarp();
    int bits = 0;  // fewer than edges where one is there twice
    for (int c = part; c < chunks; c += kLanes) bits += __popc(words[row][c]);
    bits += __shfl_xor_sync(kAllLanes, bits, 1);
    irregular |= __shfl_xor_sync(kAllLanes, irregular, 1);
    irregular |= bits != degree;
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
// kPositions: whether position() is asked for.
template <class S, bool kPositions>
class MaskRows {
 public:
  __device__ __forceinline__ MaskRows(const EdgeMask& mask, const Index& ptr, int64_t num_entries, const Window& w)
      : rows_(&mask.words[window_row<S>(0)][0]) {
    if constexpr (kPositions) {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const int row = window_row<S>(v);
        last_[v] = mask.last[row];
        if (row < w.count) edges_[v] = row_range(ptr, w.first + row, num_entries);
      }
    }
  }

  // Goes on to a chunk; they come in ascending order.
  __device__ __forceinline__ void load(int chunk) {
    chunk_ = chunk;
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      if (kPositions) before_[v] += __popc(word_[v]);
      word_[v] = rows_[8 * v * (kMaxChunks + 1) + chunk];
#pragma unroll
      for (int c = 0; c < 2; ++c) shifted_[v][c] = word_[v] >> chunk_row<S>(0, c);
    }
  }

  // Whether row v has an edge to element (j, c) of the chunk, and the place of that edge in the compressed form.
  __device__ __forceinline__ bool has(int v, int j, int c) const { return (shifted_[v][c] & 1u << 8 * j) != 0; }
  __device__ __forceinline__ int64_t position(int v, int j, int c) const {
    const int row = chunk_row<S>(j, c), column = chunk_ * kChunk + row;
    if (column == last_[v]) return edges_[v].end - 1;
    return edges_[v].begin + before_[v] + __popc(word_[v] & ((1u << row) - 1)) - (column > last_[v]);
  }

 private:
  const uint32_t* rows_;
  int chunk_ = 0, before_[2] = {0, 0}, last_[2];
  uint32_t word_[2] = {0, 0}, shifted_[2][2] = {};
  Range edges_[2];
};

}  // namespace dfgnn::cuda::tile
