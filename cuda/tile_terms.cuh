// Numbers that a chunk's nodes bring to their edges, for all warps of a block by way of shared memory: one thread makes
// those of a node and head, of what it has loaded while the chunk before was in use.
#pragma once

#include "tile_window.cuh"

namespace dfgnn::cuda::tile {

// Of a chunk: [S::kHeads][kChunk] in shared memory.
template <class Numbers>
class TermsOfChunk {
 public:
  TermsOfChunk() = default;
  __device__ __forceinline__ explicit TermsOfChunk(const Numbers* of_heads) : of_heads_(of_heads) {}

  // Of head k and chunk rows (j, 0) and (j, 1).
  struct alignas(2 * alignof(Numbers) < 16 ? 2 * alignof(Numbers) : 16) Pair {
    Numbers of[2];
  };
  __device__ __forceinline__ Pair pair(int k, int j) const {
    return *reinterpret_cast<const Pair*>(of_heads_ + k * kChunk + chunk_row(j, 0));
  }

 private:
  const Numbers* of_heads_ = nullptr;
};

// Loaded: what is loaded of a node and head. Numbers: what is made of it. For each chunk that is used: put(), a barrier
// of the part, load() for the next, and, between two windows, another barrier.
template <class S, class Numbers, class Loaded = Numbers>
class ChunkTerms {
 public:
  // Two chunks', which take turns.
  struct Shared {
    alignas(16) Numbers of_turns[S::kParts][2][S::kHeads * kChunk];
  };

  // Of heads from h on.
  __device__ __forceinline__ ChunkTerms(Shared& shared, const BlockWindow& w, int heads, int h)
      : shared_(shared), begin_(w.begin), last_(w.end - 1), head_(h + own() / kChunk) {
    makes_ = own() >= 0 && head_ < heads;
  }

  // Starts to load, by load(node, head), those of the first of these chunks, if there is one.
  template <class Load>
  __device__ __forceinline__ void load(uint32_t chunks, const Load& load) {
    const int node = begin_ + (__ffs(chunks) - 1) * kChunk + static_cast<int>(threadIdx.x) % kChunk;
    if (makes_ && chunks != 0) loaded_ = load(min(node, last_), head_);
  }

  // Those that were loaded, by make(loaded, k), behind the next barrier.
  template <class Make>
  __device__ __forceinline__ TermsOfChunk<Numbers> put(const Make& make) {
    Numbers* to = shared_.of_turns[part<S>()][turn_];
    turn_ ^= 1;
    if (makes_) to[own()] = make(loaded_, own() / kChunk);
    return TermsOfChunk<Numbers>(to);
  }

 private:
  // The number of what this thread makes: the last ones do, whose warps have no rows where a window has few.
  __device__ __forceinline__ static int own() {
    return static_cast<int>(threadIdx.x) - (kThreads - S::kHeads * kChunk);
  }

  Shared& shared_;
  const int begin_, last_, head_;
  bool makes_;
  Loaded loaded_{};
  unsigned turn_ = 0;
};

// In the place of these, where edges need none, or are given them otherwise.
struct NoChunkTerms {
  struct Shared {};

  __device__ __forceinline__ NoChunkTerms(Shared&, const BlockWindow&, int, int) {}
  template <class Load>
  __device__ __forceinline__ void load(uint32_t, const Load&) const {}
  template <class Make>
  __device__ __forceinline__ TermsOfChunk<float> put(const Make&) const {
    return {};
  }
};

// Of additive scores' sources.
template <Score score, class S, class Numbers = float>
using SrcTerms = std::conditional_t<score == Score::additive, ChunkTerms<S, Numbers, float>, NoChunkTerms>;

// What the sources of chunk rows (j, 0) and (j, 1) bring to logits.
template <Score score>
__device__ __forceinline__ auto src_pair(const TermsOfChunk<float>& srcs, int k, int j) {
  using Pair = TermsOfChunk<float>::Pair;
  return score == Score::dot ? Pair{{1, 1}} : srcs.pair(k, j);
}

}  // namespace dfgnn::cuda::tile
