// The edges of a window of rows, read from the masks of these rows (tile_geometry.h).
#pragma once

#include "tile_window.cuh"

namespace dfgnn::cuda::tile {

// What masks say of a window's chunks and of a warp's rows, as bits.
struct WindowEdges {
  uint32_t active;  // chunks in which a row of the window has edges,
  uint32_t mine;    // and those in which one of this warp has
  uint32_t others;  // rows of this warp that masks do not serve: past the window's end, or to go edge by edge
};

// The masks of a window's rows in shared memory.
struct WindowMasks {
  alignas(8) int rows[kWindow][kMaskWords];

  // Starts to copy what the tile's chunks need.
  __device__ __forceinline__ void stage(const int* masks, const BlockWindow& w) {
    constexpr int kLanes = kThreads / kWindow, kPiece = 2;  // of a row; words
    const int row = threadIdx.x / kLanes, words = min(2 + w.chunks(), kMaskWords);
    if (row >= w.count) return;
    const int* from = masks + static_cast<int64_t>(w.first + row) * kMaskWords;
    for (int x = static_cast<int>(threadIdx.x) % kLanes * kPiece; x < words; x += kLanes * kPiece) {
      asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(shared_address(rows[row] + x)), "l"(from + x)
                   : "memory");
    }
  }

  // Whether a row that they serve has any.
  __device__ __forceinline__ bool has_edges(int row) const { return (rows[row][0] & (kMaskIrregular - 1)) != 0; }

  // kPositions: whether places of edges are asked for.
  template <bool kPositions>
  __device__ __forceinline__ WindowEdges read(const BlockWindow& w) const {
    constexpr uint32_t kSingle = kPositions ? kMaskIrregular | kMaskDisordered : kMaskIrregular;
    const int lane = threadIdx.x % kWarp, warp_first = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
    const auto chunks_of = [&](int row) -> uint32_t {
      return row < w.count && w.chunks() <= kMaxChunks ? rows[row][0] : kSingle;
    };
    const auto in_any = [&](uint32_t chunks) {
      return __reduce_or_sync(kAllLanes, (chunks & kSingle) != 0 ? 0 : chunks) &
             ((1u << min(w.chunks(), kMaxChunks)) - 1);
    };
    uint32_t active = 0;
#pragma unroll
    for (int row = 0; row < kWindow; row += kWarp) active |= in_any(chunks_of(row + lane));
    const uint32_t chunks = chunks_of(warp_first + lane % kWarpRows);
    return {active, in_any(chunks), __ballot_sync(kAllLanes, (chunks & kSingle) != 0 && lane < kWarpRows)};
  }
};

// Whether logits have terms of their edges; then there are edges.
template <class T>
__device__ __forceinline__ bool has_edge_terms(const Typed<T>& a) {
  return (a.bias != nullptr || a.a_edge != nullptr) && a.num_edges > 0;
}

// Calls make<true>() where has_terms, which kMay allows, and else make<false>(), so that no element of a chunk asks.
template <bool kMay, class Make>
__device__ __forceinline__ void with_terms(bool has_terms, const Make& make) {
  if constexpr (kMay) {
    if (has_terms) return make.template operator()<true>();
  }
  make.template operator()<false>();
}

// Places of edges in the compressed form, counted from those of a window's first row.
class Places {
 public:
  __device__ __forceinline__ Places(const Index& ptr, int64_t num_entries, const BlockWindow& w)
      : ptr_(ptr),
        num_entries_(num_entries),
        window_first_(w.first),
        base_(row_range(ptr, w.first, num_entries).begin) {}

  struct Row {
    int begin = 0, last = 0;  // places of its first and its last edge
  };

  __device__ __forceinline__ Row of(int row) const {
    const Range edges = row_range(ptr_, window_first_ + row, num_entries_);
    return {static_cast<int>(edges.begin - base_), static_cast<int>(edges.end - 1 - base_)};
  }

  // In the whole of the form; something in it, whatever the place.
  __device__ __forceinline__ int64_t of_all(int place) const { return clamp_to(base_ + place, num_entries_ - 1); }

 private:
  const Index& ptr_;
  const int64_t num_entries_;
  const int window_first_;
  const int64_t base_;
};

// The place of a row's edge to a column of the tile that is bit `bit` of a word, which comes after `before` edges of
// words before it. last: the mask's.
__device__ __forceinline__ int place_of(const Places::Row& row, int last, int before, uint32_t word, uint32_t bit,
                                        int column) {
  return column == last ? row.last : row.begin + before + __popc(word & (bit - 1)) - (column > last);
}

// The rows of this thread's accumulators: their words of the masks as chunks go by, and the places of their edges. For
// several heads what is to be added to logits is made once.
template <bool kPositions, int kHeads>
class MaskRows {
 public:
  // `others`: the rows that masks do not serve.
  __device__ __forceinline__ MaskRows(const WindowMasks& masks, const Places& places, uint32_t others)
      : rows_(masks.rows[window_row(0)]), others_(others) {
    if constexpr (kPositions) {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        if (has_bits(v)) places_[v] = places.of(window_row(v));
      }
    }
  }

  // Goes on to a chunk; they come in ascending order.
  __device__ __forceinline__ void load(int chunk) {
    chunk_ = chunk;
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      if (kPositions) before_[v] += __popc(word_[v]);
      word_[v] = has_bits(v) ? rows_[8 * v * kMaskWords + 2 + chunk] : 0;
      shifted_[v] = word_[v] >> chunk_row(0, 0);
      if constexpr (kHeads > 1) {
#pragma unroll
        for (int x = 0; x < 8; ++x) masks_[v][x] = make_mask(v, x);
      }
    }
  }

  // Whether row v has an edge to element (j, c) of the chunk; what to add to a logit for that, which is -inf where it
  // has none and else changes nothing; and the place of that edge.
  __device__ __forceinline__ bool has(int v, int j, int c) const { return (shifted_[v] & 1u << (8 * j + c)) != 0; }
  __device__ __forceinline__ float mask(int v, int j, int c) const {
    if constexpr (kHeads > 1) return masks_[v][2 * j + c];
    return make_mask(v, 2 * j + c);
  }
  __device__ __forceinline__ void get_masks(Logits& to) const {
#pragma unroll
    for (int x = 0; x < 16; ++x) to[x / 4][x % 4] = mask(x % 4 / 2, x / 4, x % 2);
  }
  __device__ __forceinline__ int place(int v, int j, int c) const {
    const int row = chunk_row(j, c), last = rows_[8 * v * kMaskWords + 1];
    return place_of(places_[v], last, before_[v], word_[v], 1u << row, chunk_ * kChunk + row);
  }

 private:
  __device__ __forceinline__ bool has_bits(int v) const { return !(others_ >> warp_row(v) & 1); }

  // 0xff800000 is -inf, and 0x00800000, the least number of full precision, is as good as 0. One instruction puts the
  // sign of a byte in all bits of the first, if compilers do not know the rest: that gridDim.z is 1.
  __device__ __forceinline__ float make_mask(int v, int x) const {
    const uint32_t unset = ~shifted_[v] << (7 - x % 2), least = gridDim.z << 23;
    uint32_t mask;
    asm("prmt.b32 %0, %1, %2, %3;" : "=r"(mask) : "r"(unset), "r"(least), "r"(0x8654 | x / 2 << 12));
    return __uint_as_float(mask);
  }

  const int* rows_;
  const uint32_t others_;
  int chunk_ = 0, before_[2] = {0, 0};
  uint32_t word_[2] = {0, 0}, shifted_[2] = {};
  float masks_[2][kHeads > 1 ? 8 : 1] = {};
  Places::Row places_[2];
};

}  // namespace dfgnn::cuda::tile
