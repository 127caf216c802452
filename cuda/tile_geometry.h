// How the tile kernels cut a graph, as plain numbers: what counts their work on the CPU reads them too.
#pragma once

#include <cstdint>

namespace dfgnn::cuda::tile {

constexpr int kStride = 64;     // tiles begin at multiples of it, or at the first boundary after
constexpr int kWarpRows = 16;   // rows of a warp,
constexpr int kWindow = 64;     // of a block,
constexpr int kChunk = 32;      // and nodes on the other side that they meet at a time
constexpr int kMaxChunks = 24;  // wider tiles go edge by edge

// Whether heads of that size, in numbers of so many bytes, have kernels: rows are made of 16-byte pieces, and double
// has no tensor cores here.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr bool takes_heads(int64_t number_bytes, int64_t head_dim) {
  return number_bytes <= 4 && head_dim <= 128 && head_dim * number_bytes % 16 == 0;
}

// Rows of the windows of a tile of that many nodes.
#ifdef __CUDACC__
__host__ __device__
#endif
    constexpr int window_rows(int nodes) {
  const int windows = (nodes + kWindow - 1) / kWindow;
  return ((nodes + windows - 1) / windows + kWarpRows - 1) / kWarpRows * kWarpRows;
}

}  // namespace dfgnn::cuda::tile
