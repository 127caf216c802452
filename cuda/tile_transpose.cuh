// From one compressed form of a tile's edges to the other, without a sort: by a matrix of bits, whose transpose is
// taken by blocks where there are many edges, and which is made as the transpose where there are few.
#pragma once

#include "cooperative.cuh"

namespace dfgnn::cuda {

// The form that is there has lines (rows or columns), a line a node; all edges stay in the tile, and none is there
// twice. Nodes are counted from the tile's first.
// All threads of a block come to each step.
class TileTranspose {
 public:
  static constexpr int kMaxNodes = 576, kMaxWords = kMaxNodes / 32;

  struct Shared {
    int begin[kMaxNodes + 1], across_begin[kMaxNodes + 1];  // of the lines that are there, and across them
    // bits_, before_, and results. So much that a multiprocessor with 228 KiB has three blocks.
    alignas(16) unsigned char memory[68 * 1024];
    alignas(16) int begins[kGridThreads / 32][32];  // of a warp's lines across
    BlockSums<int>::Storage sums;
  };
  static_assert(sizeof(Shared) <= 75 * 1024);
  static_assert(32 * kMaxWords * (sizeof(uint32_t) * (kMaxWords | 1) + sizeof(uint16_t) * kMaxWords) <=
                sizeof(Shared::memory));

  __device__ TileTranspose(Shared& shared, int first, int nodes, const int* ind)
      : s_(shared),
        first_(first),
        nodes_(nodes),
        words_((nodes + 31) / 32),
        inverse_((1 << 16) / words_ + 1),
        ind_(ind),
        bits_(reinterpret_cast<uint32_t*>(shared.memory)),
        before_(reinterpret_cast<uint16_t*>(bits_ + 32 * words_ * stride())) {}

  // Reads the lines. Returns this thread's of the blocks of 16 by 32 that have an edge, kAcross: of 32 by 16.
  template <bool kAcross>
  __device__ int read(const int* ptr) {
    auto* zeros = reinterpret_cast<uint4*>(bits_);
    for (int x = threadIdx.x; x < words_ * stride() * (32 / 4); x += kGridThreads) zeros[x] = {};
    for (int i = threadIdx.x; i <= nodes_; i += kGridThreads) s_.begin[i] = ptr[first_ + i];
    __syncthreads();
    is_sparse_ = num_edges() < 16 * nodes_;
    if (is_sparse_) {
      for_each_edge([&](unsigned i, unsigned j, int) { atomicOr(bits(j) + i / 32, 1u << i % 32); });
    } else if (num_edges() > 0) {
      set_bits();
    }
    __syncthreads();
    if (!is_sparse_) count_across();
    const int blocks = is_sparse_ ? count_blocks<!kAcross>() : count_blocks<kAcross>();
    __syncthreads();
    sum_lines_across();
    __syncthreads();
    return blocks;
  }

  // Room until the next tile for so many bytes for each edge; null if there is none.
  __device__ void* room(int bytes) const {
    auto* free = reinterpret_cast<unsigned char*>(before_ + 32 * words_ * words_);
    return free - s_.memory + int64_t{bytes} * num_edges() <= sizeof(s_.memory) ? free : nullptr;
  }

  __device__ __forceinline__ int num_edges() const { return s_.begin[nodes_] - s_.begin[0]; }

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
      for_bits(word, begin_across(i, j),
               [&](int k, int across) { visit(32 * i + lane(), 32 * j + k, place++, across); });
    });
  }

 private:
  static constexpr int kWarps = kGridThreads / 32;
  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  static __device__ __forceinline__ uint32_t below() { return (1u << lane()) - 1; }

  // Words from line to line, so that 32 lines are in as many banks.
  __device__ __forceinline__ int stride() const { return words_ | 1; }
  __device__ __forceinline__ uint32_t* bits(int line) const { return bits_ + line * stride(); }
  __device__ __forceinline__ uint16_t* before(int line) const { return before_ + line * words_; }

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
      const int in_word = __popc(bits(j)[i / 32] & ((1u << i % 32) - 1));
      visit(static_cast<int>(i), static_cast<int>(j), place, s_.across_begin[j] + before(j)[i / 32] + in_word);
    });
  }

  // A node of the tile, counted from its first.
  __device__ __forceinline__ unsigned clamped(int node) const {
    return min(static_cast<unsigned>(node - first_), static_cast<unsigned>(nodes_ - 1));
  }

  // Some lanes share a line's edges, each takes some in a row and puts bits of a word together before it stores them.
  // Edges of a few lines are on their way at a time.
  __device__ void set_bits() const {
    constexpr int kLanes = 8, kLines = kGridThreads / kLanes, kAtOnce = 2, kUnroll = 8;
    const int some_edge = s_.begin[0];
    for (int first = static_cast<int>(threadIdx.x) / kLanes; first < nodes_; first += kAtOnce * kLines) {
      int e[kAtOnce], end[kAtOnce];
#pragma unroll
      for (int l = 0; l < kAtOnce; ++l) {
        const int line = min(first + l * kLines, nodes_ - 1);
        const int begin = s_.begin[line], line_end = s_.begin[line + 1];
        const int each = (line_end - begin + kLanes - 1) / kLanes;
        e[l] = begin + static_cast<int>(threadIdx.x) % kLanes * each;
        end[l] = first + l * kLines < nodes_ ? min(e[l] + each, line_end) : 0;
      }
      bool goes_on;
      do {
        int node[kAtOnce][kUnroll];
#pragma unroll
        for (int x = 0; x < kAtOnce * kUnroll; ++x) {  // past the end, the last again
          const int l = x / kUnroll;
          node[l][x % kUnroll] = ind_[max(min(e[l] + x % kUnroll, end[l] - 1), some_edge)];
        }
        goes_on = false;
#pragma unroll
        for (int l = 0; l < kAtOnce; ++l) {
          if (e[l] < end[l]) set_bits_of(first + l * kLines, node[l]);
          e[l] += kUnroll;
          goes_on |= e[l] < end[l];
        }
      } while (goes_on);
    }
  }

  template <int kCount>
  __device__ __forceinline__ void set_bits_of(int line, const int (&nodes)[kCount]) const {
    int at = 0;
    uint32_t word = 0;
#pragma unroll
    for (const int node : nodes) {
      const unsigned j = clamped(node);
      const int next_at = static_cast<int>(j / 32);
      if (next_at != at) {
        if (word != 0) atomicOr(bits(line) + at, word);
        word = 0;
      }
      at = next_at;
      word |= 1u << j % 32;
    }
    atomicOr(bits(line) + at, word);
  }

  // This thread's of the blocks that have a bit: of 16 lines by 32 bits of a word, or of 32 by 16 (kHalfWords).
  template <bool kHalfWords>
  __device__ int count_blocks() const {
    constexpr int kLines = kHalfWords ? 32 : 16;
    int blocks = 0;
    for (int x = threadIdx.x; x < 32 / kLines * words_ * words_; x += kGridThreads) {
      const uint32_t* word = bits(x / words_ * kLines) + x % words_;
      uint32_t any = 0;
#pragma unroll
      for (int line = 0; line < kLines; ++line) any |= word[line * stride()];
      blocks += kHalfWords ? ((any & 0xFFFF) != 0) + (any > 0xFFFF) : any != 0;
    }
    return blocks;
  }

  // The bits of words across the lines.
  __device__ void count_across() const {
    for_blocks([&](int i, int j, uint32_t word) {
      const bool is_empty = !__any_sync(~0u, word != 0);
      before(32 * j + lane())[i] = is_empty ? 0 : static_cast<uint16_t>(__popc(transpose(word)));
    });
  }

  // Calls visit(k, n) for the bits k of this thread's word in ascending order, n being where the lane is in line k
  // across, which begins with `begin` of lane k.
  template <class Visit>
  __device__ __forceinline__ void for_bits(uint32_t word, int begin, const Visit& visit) const {
    constexpr int kAtOnce = 8;  // so that latencies overlap
    int* begins = s_.begins[threadIdx.x / 32];
    __syncwarp();
    begins[lane()] = begin;
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < 32; first += kAtOnce, word >>= kAtOnce) {
      int n[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; u += 4) {
        const int4 some = *reinterpret_cast<const int4*>(begins + first + u);
        n[u] = some.x, n[u + 1] = some.y, n[u + 2] = some.z, n[u + 3] = some.w;
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) n[u] += __popc(__ballot_sync(~0u, (word & 1u << u) != 0) & below());
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        if ((word & 1u << u) != 0) visit(first + u, n[u]);
      }
    }
  }

  // Calls visit(i, j, word) for blocks of 32 lines and 32 bits; a thread has the word of line 32 i + lane.
  template <class Visit>
  __device__ __forceinline__ void for_blocks(const Visit& visit) const {
    for (int x = threadIdx.x / 32; x < words_ * words_; x += kWarps) {
      const int i = x * inverse_ >> 16, j = x - i * words_;
      visit(i, j, bits(32 * i + lane())[j]);
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
    int all_before = s_.begin[0];
    for (int first = 0; first < nodes_; first += kGridThreads) {
      const int j = first + threadIdx.x;
      int count = 0;
      for (int w = 0; j < nodes_ && w < words_; ++w) {
        const int in_word = is_sparse_ ? __popc(bits(j)[w]) : before(j)[w];
        before(j)[w] = static_cast<uint16_t>(count);
        count += in_word;
      }
      const int begin = sums.exclusive(count, all_before);
      if (j < nodes_) s_.across_begin[j] = begin;
    }
    if (threadIdx.x == 0) s_.across_begin[nodes_] = all_before;
  }

  // Of a line, in the words before that one.
  __device__ __forceinline__ int bits_before(int line, int word) const {
    constexpr int kAtOnce = 4;
    int count = 0;
#pragma unroll 1
    for (int first = 0; first < word; first += kAtOnce) {
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) count += first + u < word ? __popc(bits(line)[first + u]) : 0;
    }
    return count;
  }

  // Where the edges of block (i, j) begin: of line 32 i + lane, and of line 32 j + lane across.
  __device__ __forceinline__ int begin_along(int i, int j) const {
    const int line = 32 * i + lane();
    return s_.begin[min(line, nodes_)] + bits_before(line, j);
  }
  __device__ __forceinline__ int begin_across(int i, int j) const {
    const int line = 32 * j + lane();
    return s_.across_begin[min(line, nodes_)] + before(line)[i];
  }

  Shared& s_;
  const int first_, nodes_, words_;
  const int inverse_;  // of words_, times 2^16, and a little more: for numbers of blocks
  const int* const ind_;
  uint32_t* const bits_;    // of lines, or, of few edges, of lines across them
  uint16_t* const before_;  // of a line across: bits in the words before
  bool is_sparse_ = false;
};

}  // namespace dfgnn::cuda
