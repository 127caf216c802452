// From one compressed form of a tile's edges to the other, without a sort: by a matrix of bits, whose transpose is
// taken by blocks where there are many edges, and which is made as the transpose where there are few.
#pragma once

#include "cooperative.cuh"

namespace dfgnn::cuda {

// The form that is there has lines (rows or columns), a line a node; all edges stay in the tile, none is there twice.
// Nodes are counted from the tile's first. All threads of a block come to each step.
class TileTranspose {
 public:
  static constexpr int kMaxNodes = 576, kMaxWords = kMaxNodes / 32;

  struct Shared {
    int begin[kMaxNodes + 1], across_begin[kMaxNodes + 1];  // of the lines that are there, and across them
    // Of lines, or, of few edges, of lines across them. A word more, so that 32 lines are in as many banks.
    alignas(16) uint32_t bits[kMaxNodes][kMaxWords + 1];
    uint16_t across_before[kMaxNodes][kMaxWords];  // of a line across: bits in the words before
    BlockSums<int>::Storage sums;
  };

  __device__ TileTranspose(Shared& shared, int first, int nodes, const int* ind)
      : s_(shared), first_(first), nodes_(nodes), words_((nodes + 31) / 32), ind_(ind) {}

  // Reads the lines. Returns this thread's of the blocks of 16 by 32 that have an edge, kAcross: of 32 by 16.
  template <bool kAcross>
  __device__ int read(const int* ptr) {
    auto* bits = reinterpret_cast<uint4*>(s_.bits);
    constexpr int kWords = sizeof(s_.bits[0]) / sizeof(uint32_t), kLines = 32;
    static_assert(kLines * kWords % 4 == 0);
    for (int x = threadIdx.x; x < words_ * (kLines * kWords / 4); x += kGridThreads) bits[x] = {};
    for (int i = threadIdx.x; i <= nodes_; i += kGridThreads) s_.begin[i] = ptr[first_ + i];
    __syncthreads();
    is_sparse_ = s_.begin[nodes_] - s_.begin[0] < 16 * nodes_;
    if (is_sparse_) {
      for_each_edge([&](unsigned i, unsigned j, int) { atomicOr(&s_.bits[j][i / 32], 1u << i % 32); });
    } else {
      set_bits();
    }
    __syncthreads();
    const int blocks = is_sparse_ ? count_blocks<!kAcross>() : count_across<kAcross>();
    __syncthreads();
    sum_lines_across();
    __syncthreads();
    return blocks;
  }

  // Whether places along the lines are where edges are; else they are where edges of lines that ascend would be.
  __device__ __forceinline__ bool places_are_real() const { return is_sparse_; }

  // Calls visit(i, j, place, across) for each edge j of line i, with its place along the lines and that across them.
  // Threads of a warp have edges that are neighbours across the lines, where there are many.
  template <class Visit>
  __device__ void for_edges_across(const Visit& visit) const {
    if (is_sparse_) return for_edges_one_by_one(visit);
    for_blocks([&](int i, int j, uint32_t word) {
      if (!__any_sync(~0u, word != 0)) return;
      int place = begin_along(i, j);
      for_bits(word, transpose(word), begin_across(i, j),
               [&](int k, int across) { visit(32 * i + lane(), 32 * j + k, place++, across); });
    });
  }

  // The same, threads having neighbours in a line.
  template <class Visit>
  __device__ void for_edges(const Visit& visit) const {
    if (is_sparse_) return for_edges_one_by_one(visit);
    for_blocks([&](int i, int j, uint32_t word) {
      if (!__any_sync(~0u, word != 0)) return;
      int across = begin_across(i, j);
      for_bits(transpose(word), word, begin_along(i, j),
               [&](int k, int place) { visit(32 * i + k, 32 * j + lane(), place, across++); });
    });
  }

 private:
  static constexpr int kWarps = kGridThreads / 32;
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ uint32_t below() { return (1u << lane()) - 1; }

  // Calls visit(i, j, place) for each edge j of line i. Some lanes share a line's edges; those of a few lines are on
  // their way at a time.
  template <class Visit>
  __device__ __forceinline__ void for_each_edge(const Visit& visit) const {
    constexpr int kLanes = 4, kLines = kGridThreads / kLanes, kUnroll = 2, kOfLine = 2;
    for (int first = static_cast<int>(threadIdx.x) / kLanes; first < nodes_; first += kUnroll * kLines) {
      int e[kUnroll], end[kUnroll], node[kUnroll][kOfLine];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int line = min(first + u * kLines, nodes_ - 1);
        e[u] = s_.begin[line] + static_cast<int>(threadIdx.x) % kLanes;
        end[u] = first + u * kLines < nodes_ ? s_.begin[line + 1] : 0;
#pragma unroll
        for (int k = 0; k < kOfLine; ++k) {
          if (e[u] + k * kLanes < end[u]) node[u][k] = ind_[e[u] + k * kLanes];
        }
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const unsigned line = first + u * kLines;
#pragma unroll
        for (int k = 0; k < kOfLine; ++k, e[u] += kLanes) {
          if (e[u] < end[u]) visit(line, clamped(node[u][k]), e[u]);
        }
        for (; e[u] < end[u]; e[u] += kLanes) visit(line, clamped(ind_[e[u]]), e[u]);
      }
    }
  }

  template <class Visit>
  __device__ __forceinline__ void for_edges_one_by_one(const Visit& visit) const {
    for_each_edge([&](unsigned i, unsigned j, int place) {
      const int before = __popc(s_.bits[j][i / 32] & ((1u << i % 32) - 1));
      visit(static_cast<int>(i), static_cast<int>(j), place, s_.across_begin[j] + s_.across_before[j][i / 32] + before);
    });
  }

  // A node of the tile, counted from its first.
  __device__ __forceinline__ unsigned clamped(int node) const {
    return min(static_cast<unsigned>(node - first_), static_cast<unsigned>(nodes_ - 1));
  }

  // Some lanes share a line's edges, each takes some in a row and puts bits of a word together before it stores them.
  // Edges are on their way while those before are stored.
  __device__ void set_bits() const {
    constexpr int kLanes = 8, kLines = 32 / kLanes, kUnroll = 8;
    const int some_edge = s_.begin[0];
    int first = threadIdx.x / 32 * kLines, line, e, end;
    const auto begin_line = [&] {
      line = min(first + lane() / kLanes, nodes_ - 1);
      const int begin = s_.begin[line], line_end = s_.begin[line + 1];
      const int each = (line_end - begin + kLanes - 1) / kLanes;
      e = begin + lane() % kLanes * each;
      end = min(e + each, line_end);
    };
    int next[kUnroll];
    const auto load = [&] {  // past the end, the last again
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) next[u] = ind_[max(min(e + u, end - 1), some_edge)];
    };
    if (first >= nodes_) return;
    begin_line();
    load();
    while (first < nodes_) {
      uint32_t* words = s_.bits[line];
      const bool has_edges = e < end;
      int node[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) node[u] = next[u];
      e += kUnroll;
      if (!__any_sync(~0u, e < end)) {
        first += kWarps * kLines;
        begin_line();
      }
      load();
      if (!has_edges) continue;
      int at = 0;
      uint32_t word = 0;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const unsigned j = clamped(node[u]);
        const int next_at = static_cast<int>(j / 32);
        if (next_at != at) {
          if (word != 0) atomicOr(&words[at], word);
          word = 0;
        }
        at = next_at;
        word |= 1u << j % 32;
      }
      atomicOr(&words[at], word);
    }
  }

  // This thread's of the blocks that have a bit: of 16 lines by 32 bits of a word, or of 32 by 16 (kHalfWords).
  template <bool kHalfWords>
  static __device__ __forceinline__ int blocks_of(uint32_t word) {
    const uint32_t low = __ballot_sync(~0u, kHalfWords ? (word & 0xFFFF) != 0 : word != 0);
    const uint32_t high = kHalfWords ? __ballot_sync(~0u, word > 0xFFFF) : low >> 16;
    return lane() == 0 ? ((kHalfWords ? low : low & 0xFFFF) != 0) + (high != 0) : 0;
  }

  template <bool kHalfWords>
  __device__ int count_blocks() const {
    int blocks = 0;
    for_blocks([&](int, int, uint32_t word) { blocks += blocks_of<kHalfWords>(word); });
    return blocks;
  }

  // The same, and the bits of words across the lines.
  template <bool kHalfWords>
  __device__ int count_across() const {
    int blocks = 0;
    for_blocks([&](int i, int j, uint32_t word) {
      const bool is_empty = !__any_sync(~0u, word != 0);
      s_.across_before[32 * j + lane()][i] = is_empty ? 0 : static_cast<uint16_t>(__popc(transpose(word)));
      if (!is_empty) blocks += blocks_of<kHalfWords>(word);
    });
    return blocks;
  }

  // Calls visit(k, n) for the bits k of this thread's word in ascending order, n being where the lane is in line k,
  // which begins with `begin` of lane k, as its word is `turned`.
  template <class Visit>
  static __device__ __forceinline__ void for_bits(uint32_t word, uint32_t turned, int begin, const Visit& visit) {
    constexpr int kFew = 8;
    const auto place = [&](int k) {
      const int line_begin = __shfl_sync(~0u, begin, k);
      return line_begin + __popc(__shfl_sync(~0u, turned, k) & below());
    };
    if (__reduce_max_sync(~0u, __popc(word)) > kFew) {
#pragma unroll
      for (int k = 0; k < 32; ++k) {
        const int n = place(k);
        if (word >> k & 1) visit(k, n);
      }
    } else {
      while (__any_sync(~0u, word != 0)) {
        const int k = max(__ffs(word) - 1, 0), n = place(k);
        if (word != 0) visit(k, n);
        word &= word - 1;
      }
    }
  }

  // Calls visit(i, j, word) for blocks of 32 lines and 32 bits; a thread has the word of line 32 i + lane.
  template <class Visit>
  __device__ __forceinline__ void for_blocks(const Visit& visit) const {
    for (int x = threadIdx.x / 32; x < words_ * words_; x += kWarps) {
      const int i = x / words_, j = x % words_;
      visit(i, j, s_.bits[32 * i + lane()][j]);
    }
  }

  // Of 32 x 32 bits, a thread having a line: halves change places, then quarters, and so on.
  static __device__ __forceinline__ uint32_t transpose(uint32_t word) {
    uint32_t low = 0x0000FFFF;
#pragma unroll
    for (int half = 16; half > 0; half /= 2) {
      const uint32_t other = __shfl_xor_sync(~0u, word, half);
      word = lane() & half ? (word & ~low) | (other & ~low) >> half : (word & low) | (other & low) << half;
      low ^= low << half / 2;
    }
    return word;
  }

  __device__ void sum_lines_across() {
    BlockSums<int> sums(s_.sums);
    int before = s_.begin[0];
    for (int first = 0; first < nodes_; first += kGridThreads) {
      const int j = first + threadIdx.x;
      int count = 0;
      for (int w = 0; j < nodes_ && w < words_; ++w) {
        const int bits = is_sparse_ ? __popc(s_.bits[j][w]) : s_.across_before[j][w];
        s_.across_before[j][w] = static_cast<uint16_t>(count);
        count += bits;
      }
      const int begin = sums.exclusive(count, before);
      if (j < nodes_) s_.across_begin[j] = begin;
    }
    if (threadIdx.x == 0) s_.across_begin[nodes_] = before;
  }

  // Where the edges of block (i, j) begin: of line 32 i + lane, and of line 32 j + lane across.
  __device__ __forceinline__ int begin_along(int i, int j) const {
    const int line = 32 * i + lane();
    int place = s_.begin[min(line, nodes_)];
    for (int w = 0; w < j; ++w) place += __popc(s_.bits[line][w]);
    return place;
  }
  __device__ __forceinline__ int begin_across(int i, int j) const {
    const int line = 32 * j + lane();
    return s_.across_begin[min(line, nodes_)] + s_.across_before[line][i];
  }

  Shared& s_;
  const int first_, nodes_, words_;
  const int* const ind_;
  bool is_sparse_ = false;
};

}  // namespace dfgnn::cuda
