// Rows that the tile kernels must take edge by edge.
#pragma once

#include "tile_window.cuh"

namespace dfgnn::cuda::tile {

// 0 where all of accumulator row v is finite, else NaN: a node that is no neighbour may hold an infinity, which its
// weight of zero made NaN.
template <class S>
__device__ __forceinline__ float nan_if_infinite(const Features<S>& acc, int v) {
  float sum = 0;
#pragma unroll
  for (int n = 0; n < S::kHeadFeatures / 8; ++n) {
#pragma unroll
    for (int c = 0; c < 2; ++c) sum += acc.tiles[n][2 * v + c] * 0.0f;
  }
  return sum;
}

// The warp's rows, as bits, for which a thread has something other than 0.
__device__ __forceinline__ uint32_t rows_not_zero(float x, int v) {
  return __reduce_or_sync(kAllLanes, x == 0 ? 0u : 1u << warp_row(v));
}

}  // namespace dfgnn::cuda::tile
