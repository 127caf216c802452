// Norms of cosine's rows in the tile kernels, made of them as they are made fit for products.
#pragma once

#include "row_groups.cuh"
#include "tile.cuh"

namespace dfgnn::cuda::tile {

struct NoNorms {
  static constexpr bool kAreMade = false;
};

// Their reciprocals, of the rows of a window or chunk: [heads][kRows] in shared memory.
template <int kRows>
struct RowNorms {
  static constexpr bool kAreMade = true;
  float* norms;
  double eps;

  __device__ __forceinline__ void put(int k, int row, float squares) const {
    norms[k * kRows + row] = reciprocal_norm_of(squares, eps);
  }
  __device__ __forceinline__ float of(int k, int row) const { return norms[k * kRows + row]; }
};

// Of a block with cosine scores: of a window and two chunks, which take turns.
template <class S>
struct BlockNorms {
  float window[S::kHeads * kWindow];
  alignas(2 * sizeof(float)) float chunks[2][S::kHeads * kChunk];  // as ChunkTerms has it
};
struct NoBlockNorms {};
template <Score score, class S>
using ScoreNorms = std::conditional_t<score == Score::cosine, BlockNorms<S>, NoBlockNorms>;

}  // namespace dfgnn::cuda::tile
