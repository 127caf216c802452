// What dropout leaves of the edges between a warp's rows, or columns, and a chunk.
#pragma once

#include "tile_masks.cuh"

namespace dfgnn::cuda::tile {

// Puts the lowest bits of x where a mask of 16 bits has its ones, in that order (Hacker's Delight, 7-5): in four steps
// bits move left by 8, 4, 2 and 1.
class Deposit {
 public:
  Deposit() = default;
  __device__ __forceinline__ explicit Deposit(uint32_t mask) : mask_(mask) {
    uint32_t left = mask, zeros = ~mask << 1;  // at and before which there is a number of zeros to count
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      uint32_t odd = zeros;  // whether an odd number of these are to the right
#pragma unroll
      for (int shift = 1; shift < 16; shift *= 2) odd ^= odd << shift;
      moves_[step] = odd & left;
      left = (left ^ moves_[step]) | moves_[step] >> (1 << step);
      zeros &= ~odd;
    }
  }

  __device__ __forceinline__ uint32_t operator()(uint32_t x) const {
#pragma unroll
    for (int step = 3; step >= 0; --step) x = (x & ~moves_[step]) | (x << (1 << step) & moves_[step]);
    return x & mask_;
  }

 private:
  uint32_t mask_ = 0, moves_[4] = {};
};

// Edges of a row to 16 nodes, half a word of its mask. Those that ascend follow each other in the CSR, so that a draw
// serves up to four of them.
struct HalfWord {
  static constexpr int kNodes = kChunk / 2;

  uint32_t ascending = 0, last = 0;  // nodes, as bits: of edges that ascend, and of the row's last, if that does not
  int64_t first_edge = 0, last_edge = 0;  // in the CSR: of the former, and the latter
  Deposit deposit;                        // to `ascending`

  // mask: the row's, of which `word` is the one with these nodes, the lower half or the upper one, and `before` edges
  // come with words before it.
  HalfWord() = default;
  __device__ __forceinline__ HalfWord(const Range& row, int last_node, int before, uint32_t word, int first_node)
      : last_edge(row.end - 1) {
    const int shift = first_node % kChunk;
    const uint32_t nodes = word >> shift & ((1u << kNodes) - 1);
    const auto last_place = static_cast<uint32_t>(last_node - first_node);
    last = last_place < kNodes ? nodes & 1u << last_place : 0;
    ascending = nodes & ~last;
    deposit = Deposit(ascending);
    first_edge = row.begin + before + __popc(word & ((1u << shift) - 1)) - (last_node < first_node);
  }

  // The nodes of edges that are kept.
  template <class A>
  __device__ __forceinline__ uint32_t draw(const Dropout<A>& dropout, int h) const {
    const int begin = static_cast<int>(first_edge & 3), end = ascending == 0 ? 0 : begin + __popc(ascending);
    uint32_t edges = 0;
#pragma unroll 1
    for (int x = 0; x < end; x += 8) {
      const int64_t four = (first_edge + x) >> 2;
      edges |= (dropout.keeps_four(four, h) | dropout.keeps_four(four + 1, h) << 4) << x;
    }
    const uint32_t kept = deposit(edges >> begin);
    return last != 0 && dropout.keeps(last_edge, h) ? kept | last : kept;
  }
};

// For this thread's accumulators. A lane draws for half of a word: of one of the warp's rows, or, where the warp has
// columns, of one of the chunk's rows to these columns. In ascending order of chunks; the whole warp comes.
template <bool kRows>
class KeptEdges {
 public:
  template <class T>
  __device__ __forceinline__ KeptEdges(const Typed<T>& a, const WindowMasks& masks, const BlockWindow& w,
                                       uint32_t others) {
    const int warp_first = static_cast<int>(threadIdx.x) / kWarp * kWarpRows;
    if constexpr (kRows) {
      const int of_warp = lane() / 2, row = warp_first + of_warp;
      mask_ = masks.rows[row];
      has_bits_ = !(others >> of_warp & 1);
      if (has_bits_) row_ = row_range(a.rowptr, w.first + row, a.num_edges);
    } else {
      first_column_ = w.first - w.begin + warp_first;
    }
  }

  template <class T>
  __device__ __forceinline__ void load(const Typed<T>& a, const BlockWindow& w, int chunk) {
    if constexpr (kRows) {
      before_ += __popc(word_);
      word_ = has_bits_ ? mask_[2 + chunk] : 0;
      edges_ = HalfWord(row_, mask_[1], before_, word_, chunk * kChunk + lane() % 2 * HalfWord::kNodes);
    } else {
      const int row = w.begin + chunk * kChunk + lane(), word = first_column_ / kChunk;
      edges_ = {};
      single_ = -1;
      if (row >= w.end || word >= kMaxChunks) return;
      const int* mask = a.row_masks + static_cast<int64_t>(row) * kMaskWords;
      if ((__ldg(mask) & (kMaskIrregular | kMaskDisordered)) != 0) {
        single_ = row;
        return;
      }
      int before = 0;
#pragma unroll 4
      for (int x = 0; x < word; ++x) before += __popc(__ldg(mask + 2 + x));
      edges_ = HalfWord(row_range(a.rowptr, row, a.num_edges), __ldg(mask + 1), before, __ldg(mask + 2 + word),
                        first_column_);
    }
  }

  template <class T>
  __device__ __forceinline__ void draw(const Typed<T>& a, const BlockWindow& w, const Dropout<float>& dropout, int h) {
    uint32_t kept = edges_.draw(dropout, h);
    if constexpr (kRows) {
      kept <<= lane() % 2 * HalfWord::kNodes;
      kept |= __shfl_xor_sync(kAllLanes, kept, 1);
#pragma unroll
      for (int v = 0; v < 2; ++v) kept_[v] = __shfl_sync(kAllLanes, kept, 2 * warp_row(v)) >> chunk_row(0, 0);
    } else {
      if (single_ >= 0) kept = draw_edge_by_edge(a, w, dropout, h);
      kept_[0] = kept_[1] = 0;
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const int j = x / 2, c = x % 2, place = 8 * j + c;
        const uint32_t of_row = __shfl_sync(kAllLanes, kept, chunk_row(j, c));
#pragma unroll
        for (int v = 0; v < 2; ++v) kept_[v] |= (of_row >> warp_row(v) & 1) << place;
      }
    }
  }

  // Of the weight of row v's edge to element (j, c) of the chunk; where nothing was drawn, that of all.
  __device__ __forceinline__ float factor(const Dropout<float>& dropout, int v, int j, int c) const {
    return (kept_[v] & 1u << (8 * j + c)) != 0 ? dropout.kept() : 0;
  }

 private:
  __device__ __forceinline__ static int lane() { return static_cast<int>(threadIdx.x) % kWarp; }

  // Of a row without bits.
  template <class T>
  __device__ uint32_t draw_edge_by_edge(const Typed<T>& a, const BlockWindow& w, const Dropout<float>& dropout,
                                        int h) const {
    const Range row = row_range(a.rowptr, single_, a.num_edges);
    uint32_t kept = 0;
    for (int64_t e = row.begin; e < row.end; ++e) {
      const auto column = static_cast<uint64_t>(a.col[e] - w.begin - first_column_);
      if (column < HalfWord::kNodes && dropout.keeps(e, h)) kept |= 1u << column;
    }
    return kept;
  }

  HalfWord edges_;
  uint32_t kept_[2] = {~0u, ~0u};
  // Of rows:
  const int* mask_ = nullptr;
  bool has_bits_ = false;
  Range row_ = {};
  int before_ = 0;
  uint32_t word_ = 0;
  // Of columns:
  int first_column_ = 0, single_ = -1;
};

}  // namespace dfgnn::cuda::tile
