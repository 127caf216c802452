// Chunks of one or two matrices that pass through shared memory, some being used while others are copied.
#pragma once

#include "tile_rows.cuh"
#include "tile_terms.cuh"
#include "tile_window.cuh"

namespace dfgnn::cuda::tile {

// For each chunk: first(), then second() if kHasSecond, then, unless kFirstUntilSecond, release(). The first matrix's
// rows may be used until second() where kFirstUntilSecond, else until release(); the second's until the next first().
// All threads of the block, or of its part, must come to each, with products of what they may no longer use ended.
// kDouble: room for two chunks of each matrix, which takes one barrier a chunk and not one a matrix.
template <class S, bool kHasSecond, bool kFirstUntilSecond, bool kDouble>
class Chunks {
  static_assert(kHasSecond || kDouble);
  static_assert(!(S::kScaled && kHasSecond && kDouble), "what second() gives must be scaled before a barrier");
  static_assert(S::kHeads == 1 || kDouble, "heads take turns with both matrices");
  static constexpr int kMatrices = kHasSecond ? 2 : 1;

 public:
  static constexpr bool kIsDouble = kDouble;
  static constexpr int kBytes = (kDouble ? 2 : 1) * kMatrices * Chunk<S>::kBytes;

  __device__ __forceinline__ explicit Chunks(const SharedBytes& buffers) : buffers_(buffers) {}

  // Goes on to a window, after a barrier behind the last first() and, if there is one, second() and release() of the
  // window before. Starts to copy the tile's first chunk, if it is worth while before edges are known.
  __device__ __forceinline__ void begin(const Rows<S>& first, const Rows<S>& second, const BlockWindow& w) {
    first_ = first;
    second_ = second;
    begin_ = w.begin;
    end_ = w.end;
    left_ = w.is_narrow();
    start();
  }

  // For compilers to know that all lanes agree on where chunks are: before each one, in blocks that take several
  // windows.
  __device__ __forceinline__ void agree() { turn_ = __shfl_sync(kAllLanes, turn_, 0); }

  // Of these chunks; what was copied before has arrived.
  __device__ __forceinline__ void set_chunks(uint32_t chunks) {
    const bool is_right = (left_ & chunks) != 0;
    left_ = chunks;
    if (!is_right) start();
  }

  __device__ __forceinline__ Chunk<S> first() { return first_with(NoNorms{}); }

  // With norms of its rows, until the next first().
  __device__ __forceinline__ Chunk<S> first(BlockNorms<S>& norms, double eps, ChunkTerms<float>& of_rows) {
    static_assert(kDouble, "the next chunk's would go to the same place");
    const RowNorms<kChunk> made{norms.chunks[turn_], eps};
    of_rows = ChunkTerms<float>(made.norms);
    return first_with(made);
  }

  __device__ __forceinline__ Chunk<S> second() {
    const Chunk<S> second{now_ + Chunk<S>::kBytes};
    if (!kDouble) {
      wait_for_copies();
      Rows<S>::prepare(second);
      sync_part<S>();
      if (kFirstUntilSecond) next();
    }
    return second;
  }

  __device__ __forceinline__ void release() {
    if (kDouble) return;
    sync_part<S>();
    next();
  }

 private:
  template <class Norms>
  __device__ __forceinline__ Chunk<S> first_with(const Norms& norms) {
    wait_for_copies();
    now_ = buffer(0);
    Rows<S>::prepare(now_, norms);
    sync_part<S>();
    if (kDouble) {
      next();
    } else {
      stage(second_, 1);
    }
    return now_;
  }

  __device__ __forceinline__ void stage(const Rows<S>& rows, int matrix) const {
    rows.stage(buffer(matrix), begin_ + (__ffs(left_) - 1) * kChunk, end_);
  }

  __device__ __forceinline__ Chunk<S> buffer(int matrix) const {
    return {buffers_ + static_cast<int>(turn_ * kMatrices + matrix) * Chunk<S>::kBytes};
  }

  __device__ __forceinline__ void start() const {
    if (left_ == 0) return;
    stage(first_, 0);
    if (kDouble && kHasSecond) stage(second_, 1);
  }

  __device__ __forceinline__ void next() {
    left_ &= left_ - 1;
    if (kDouble) turn_ ^= 1;
    start();
  }

  Rows<S> first_, second_;
  int begin_ = 0, end_ = 0;
  const SharedBytes buffers_;
  Chunk<S> now_{};
  uint32_t left_ = 0;  // chunks that have not been used
  unsigned turn_ = 0;
};

// The first matrix of a chunk; with cosine scores, the terms of its rows are their norms.
template <Score score, class S, class Chunks, class Numbers>
__device__ __forceinline__ Chunk<S> first_of(Chunks& chunks, ScoreNorms<score, S>& norms, double eps,
                                             ChunkTerms<Numbers>& of_rows) {
  if constexpr (score == Score::cosine) {
    return chunks.first(norms, eps, of_rows);
  } else {
    return chunks.first();
  }
}

// Makes a window's rows, which have been copied, fit for products, behind a barrier of the block; with cosine scores,
// for which `norms` has room, leaves the norms of the thread's accumulator rows.
template <Score score, class S>
__device__ __forceinline__ void prepare_window(const WindowRows<S>& rows, ScoreNorms<score, S>& norms, double eps,
                                               float (&of_row)[S::kHeads][2]) {
  if constexpr (score == Score::cosine) {
    const RowNorms<kWindow> made{norms.window, eps};
    Rows<S>::prepare(rows, made);
    __syncthreads();
#pragma unroll
    for (int k = 0; k < S::kHeads; ++k) {
#pragma unroll
      for (int v = 0; v < 2; ++v) of_row[k][v] = made.of(k, window_row(v));
    }
  } else {
    if (score != Score::additive) Rows<S>::prepare(rows);
    __syncthreads();
  }
}

}  // namespace dfgnn::cuda::tile
