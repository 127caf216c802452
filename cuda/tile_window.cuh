// A tile, the windows of rows that blocks take of it, and the edges of a window as bits.
//
// A tile is a run of nodes [begin, end) whose edges stay inside it: one graph of a batch, or a few small ones. In a
// backward pass over sources "rows" are columns and the compressed form is the CSC.
#pragma once

#include <type_traits>

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

// Whether a block takes several heads, one after the other, with one mask. Large heads leave no registers for the
// loop.
template <class S>
inline constexpr bool kTakesHeads = S::kFeatures < 128;

// Calls visit(h, once) for the block's heads, up to `each` of them: once() is what fill() gives, which is called for
// the first head alone.
template <class S, class Fill, class Visit>
__device__ __forceinline__ void for_heads(int heads, int each, const Fill& fill, const Visit& visit) {
  if constexpr (kTakesHeads<S>) {
    const int begin = static_cast<int>(blockIdx.y) * each, end = min(begin + each, heads);
    uint32_t filled = 0;
    for (int h = begin; h < end; ++h) {
      if (h > begin) __syncthreads();  // all are done with the shared memory of the head before
      visit(h, [&] {
        if (h == begin) filled = fill();
        return filled;
      });
    }
  } else {
    visit(static_cast<int>(blockIdx.y), fill);
  }
}

struct EdgeMask {
  static constexpr int kNone = kMaxChunks * kChunk;

  uint32_t words[kWindow][kMaxChunks + 1];
  int16_t last[kWindow];    // the column of a row's last edge where that does not ascend, else kNone
  uint32_t active[kWarps];  // chunks in which a row of the warp has edges

  // Fills the rows of this warp; all warps must come. Returns the warp's rows, as bits, that the mask cannot hold: with
  // an edge twice or to outside of the tile, or, if kOrdered, with edges that do not ascend, the last aside: that is
  // where self-loops are put. These have no bits.
  // Other threads see the mask after the next barrier.
  template <bool kOrdered>
  __device__ __forceinline__ uint32_t fill(const Index& ptr, const Index& ind, int64_t num_entries, const Window& w) {
    return ind.wide ? fill_as<kOrdered>(ptr, static_cast<const long long*>(ind.data), num_entries, w)
                    : fill_as<kOrdered>(ptr, static_cast<const int*>(ind.data), num_entries, w);
  }

  // Chunks in which a row of the window has edges.
  __device__ __forceinline__ uint32_t all_active() const {
    uint32_t all = 0;
    for (int warp = 0; warp < kWarps; ++warp) all |= active[warp];
    return all;
  }

 private:
  template <bool kOrdered, class I>
  __device__ __forceinline__ uint32_t fill_as(const Index& ptr, const I* ind, int64_t num_entries, const Window& w) {
    using U = std::make_unsigned_t<I>;
    constexpr int kLanes = kWarp / kWarpRows;  // a row's, which take its edges in turn
    static_assert(kLanes == 2);
    constexpr int kUnroll = 8;
    const int warp = threadIdx.x / kWarp, part = threadIdx.x % kLanes;
    const int row = warp * kWarpRows + static_cast<int>(threadIdx.x) % kWarp / kLanes;
    const int chunks = min(w.chunks(), kMaxChunks);
    for (int c = part; c < chunks; c += kLanes) words[row][c] = 0;
    if (kOrdered && part == 0) last[row] = kNone;
    __syncwarp();

    Range edges{0, 0};
    if (row < w.count) edges = row_range(ptr, w.first + row, num_entries);
    bool irregular = edges.size() > kNone || w.chunks() > kMaxChunks;
    const int degree = irregular ? 0 : static_cast<int>(edges.size()), count = (degree + 1 - part) / kLanes;
    const I* nodes = ind + edges.begin + part;  // every second one
    const auto place = [&](int n) { return static_cast<unsigned>(kLanes * min(n, count - 1)); };
    U furthest = 0;
    I next[kUnroll];
    const auto load = [&](int first) {  // past the end, the last again
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) next[u] = __ldg(nodes + place(first + u));
    };
    if (count > 0) load(0);
    for (int first = 0; first < count; first += kUnroll) {
      U columns[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) columns[u] = static_cast<U>(next[u] - w.begin);
      if (first + kUnroll < count) load(first + kUnroll);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const auto column = static_cast<uint32_t>(min(columns[u], static_cast<U>(kNone)));  // its word is there, too
        furthest = max(furthest, columns[u]);
        or_shared(&words[row][column / kChunk], 1u << (column % kChunk));
        if constexpr (kOrdered) {
          const int e = part + static_cast<int>(place(first + u));
          if (e > 0 && __ldg(ind + edges.begin + e - 1) - w.begin >= static_cast<I>(columns[u])) {
            if (e + 1 == degree) last[row] = static_cast<int16_t>(column);
            irregular |= e + 1 < degree;
          }
        }
      }
    }
    irregular |= furthest >= static_cast<U>(w.end - w.begin);
    __syncwarp();
    int bits = 0;  // fewer than edges where one is there twice
    uint32_t any = 0;
    for (int c = part; c < chunks; c += kLanes) {
      bits += __popc(words[row][c]);
      any |= static_cast<uint32_t>(words[row][c] != 0) << c;
    }
    bits += __shfl_xor_sync(kAllLanes, bits, 1);
    irregular |= bits != degree;
    irregular |= __shfl_xor_sync(kAllLanes, irregular, 1);
    for (int c = part; irregular && c < chunks; c += kLanes) words[row][c] = 0;
    any = __reduce_or_sync(kAllLanes, irregular ? 0 : any);
    if (threadIdx.x % kWarp == 0) active[warp] = any;
    const uint32_t lanes = __ballot_sync(kAllLanes, irregular);
    uint32_t rows = 0;
    for (uint32_t left = lanes & 0x55555555u; left != 0; left &= left - 1) rows |= 1u << (__ffs(left) - 1) / kLanes;
    return rows;
  }

  __device__ __forceinline__ static void or_shared(uint32_t* word, uint32_t bits) {
    asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(shared_address(word)), "r"(bits) : "memory");
  }
};

// Calls visit(row) for the rows of a set that fill() gave; what the warp has stored of them before comes first.
template <class Visit>
__device__ __forceinline__ void for_rows_of(uint32_t rows, const Window& w, const Visit& visit) {
  __syncwarp();
  for (; rows != 0; rows &= rows - 1) {
    const int row = threadIdx.x / kWarp * kWarpRows + __ffs(rows) - 1;
    if (row < w.count) visit(w.first + row);
  }
}

// The rows of this thread's accumulators: their words of the mask as chunks go by, and the places of their edges.
// kPositions: whether position() is asked for.
template <bool kPositions>
class MaskRows {
 public:
  __device__ __forceinline__ MaskRows(const EdgeMask& mask, const Index& ptr, int64_t num_entries, const Window& w)
      : rows_(&mask.words[window_row(0)][0]) {
    if constexpr (kPositions) {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const int row = window_row(v);
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
      shifted_[v] = word_[v] >> chunk_row(0, 0);
    }
  }

  // Whether row v has an edge to element (j, c) of the chunk, and the place of that edge in the compressed form.
  __device__ __forceinline__ bool has(int v, int j, int c) const { return (shifted_[v] & 1u << (8 * j + c)) != 0; }
  __device__ __forceinline__ int64_t position(int v, int j, int c) const {
    const int row = chunk_row(j, c), column = chunk_ * kChunk + row;
    if (column == last_[v]) return edges_[v].end - 1;
    return edges_[v].begin + before_[v] + __popc(word_[v] & ((1u << row) - 1)) - (column > last_[v]);
  }

 private:
  const uint32_t* rows_;
  int chunk_ = 0, before_[2] = {0, 0}, last_[2];
  uint32_t word_[2] = {0, 0}, shifted_[2] = {};
  Range edges_[2];
};

}  // namespace dfgnn::cuda::tile
