// Numbers that a chunk's nodes bring to their edges, for all warps of a block, or of its part, by way of shared memory:
// one thread makes those of a node and head, of what it has loaded while the chunk before was in use.
#pragma once

#include "tile_window.cuh"

namespace dfgnn::cuda::tile {

// Of a chunk: [S::kHeads][kChunk] in shared memory, at a multiple of the size of two.
template <class Numbers>
class ChunkTerms {
 public:
  ChunkTerms() = default;
  __device__ __forceinline__ explicit ChunkTerms(const Numbers* of_heads) : of_heads_(of_heads) {}

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

// Makes them. Loaded: what is loaded of a node and head. Numbers: what is made of it. First start(), and when chunks
// are known set_chunks(); then for each chunk put(), a barrier of the part, and load() for the next. Between two
// windows there is another barrier.
template <class S, class Numbers, class Loaded = Numbers>
class TermsAhead {
 public:
  // Two chunks', which take turns.
  struct Shared {
    alignas(16) Numbers of_turns[S::kParts][2][S::kHeads * kChunk];
  };

  // Of heads from h on.
  __device__ __forceinline__ TermsAhead(Shared& shared, const BlockWindow& w, int heads, int h)
      : shared_(shared),
        begin_(w.begin),
        last_(w.end - 1),
        head_(h + own() / kChunk),
        makes_(own() >= 0 && head_ < heads) {}

  // Starts to load, by load(node, head), those of the tile's first chunk, which most windows meet.
  template <class Load>
  __device__ __forceinline__ void start(const Load& load) {
    this->load(1, load);
  }

  // Of these chunks the first comes first.
  template <class Load>
  __device__ __forceinline__ void set_chunks(uint32_t chunks, const Load& load) {
    if ((chunks & 1) == 0) this->load(chunks, load);
  }

  // Starts to load those of the first of these chunks, if there is one.
  template <class Load>
  __device__ __forceinline__ void load(uint32_t chunks, const Load& load) {
    const int node = begin_ + (__ffs(chunks) - 1) * kChunk + static_cast<int>(threadIdx.x) % kChunk;
    if (makes_ && chunks != 0) loaded_ = load(min(node, last_), head_);
  }

  // Those that were loaded, by make(loaded, k), behind the next barrier.
  template <class Make>
  __device__ __forceinline__ ChunkTerms<Numbers> put(const Make& make) {
    Numbers* to = shared_.of_turns[part<S>()][turn_];
    turn_ ^= 1;
    if (makes_) to[own()] = make(loaded_, own() / kChunk);
    return ChunkTerms<Numbers>(to);
  }

 private:
  // The number of what this thread makes: the last ones do, whose warps have no rows where a window has few.
  __device__ __forceinline__ static int own() {
    return static_cast<int>(threadIdx.x) - (kThreads - S::kHeads * kChunk);
  }

  Shared& shared_;
  const int begin_, last_, head_;
  const bool makes_;
  Loaded loaded_{};
  unsigned turn_ = 0;
};

// In the place of these, where edges need none, or are given them otherwise.
struct NoTermsAhead {
  struct Shared {};

  __device__ __forceinline__ NoTermsAhead(Shared&, const BlockWindow&, int, int) {}
  template <class Load>
  __device__ __forceinline__ void start(const Load&) const {}
  template <class Load>
  __device__ __forceinline__ void set_chunks(uint32_t, const Load&) const {}
  template <class Load>
  __device__ __forceinline__ void load(uint32_t, const Load&) const {}
  template <class Make>
  __device__ __forceinline__ ChunkTerms<float> put(const Make&) const {
    return {};
  }
};

// Of additive scores' sources.
template <Score score, class S, class Numbers = float>
using SrcTerms = std::conditional_t<score == Score::additive, TermsAhead<S, Numbers, float>, NoTermsAhead>;

// What the sources of chunk rows (j, 0) and (j, 1) bring to logits.
template <Score score>
__device__ __forceinline__ ChunkTerms<float>::Pair src_pair(const ChunkTerms<float>& srcs, int k, int j) {
  if constexpr (score == Score::dot) return {{1, 1}};
  return srcs.pair(k, j);
}

}  // namespace dfgnn::cuda::tile
