// The edges of a window of rows as bits, made in shared memory (tile_geometry.h says of what).
#pragma once

#include <type_traits>

#include "tile_window.cuh"

namespace dfgnn::cuda::tile {

struct EdgeMask {
  int rows[kWindow][kMaskWords + 1];  // the last takes bits of nodes that are too far

  static constexpr int kLanes = kWarp / kWarpRows;  // of a row, which take its edges in turn
  __device__ __forceinline__ static int lane_of_row() { return threadIdx.x % kLanes; }
  __device__ __forceinline__ static int row() { return threadIdx.x % kThreads / kLanes; }

  // Of the row of this thread and a neighbour; none where it is behind the window's last.
  template <class Ptr>
  __device__ __forceinline__ static Range edges_of_row(const Ptr& ptr, int64_t num_edges, const BlockWindow& w) {
    return row() < w.count ? row_range(ptr, w.first + row(), num_edges) : Range{0, 0};
  }

  // Fills that row from its edges. `ind` may be what the kernel has written.
  template <class I>
  __device__ __forceinline__ void fill(const Range& edges, const I* ind, const BlockWindow& w) {
    using U = std::make_unsigned_t<I>;
    static_assert(kLanes == 2);
    constexpr int kUnroll = 8;
    const int part = lane_of_row();
    int *mask = rows[row()], *words = mask + 2;
    for (int c = part; c < kMaxChunks; c += kLanes) words[c] = 0;
    if (part == 0) mask[1] = kNoLast;
    __syncwarp();

    bool irregular = edges.size() > kNoLast || w.chunks() > kMaxChunks, disordered = false;
    const int degree = irregular ? 0 : static_cast<int>(edges.size()), count = (degree + 1 - part) / kLanes;
    const I* nodes = ind + edges.begin + part;  // every second one
    const auto place = [&](int n) { return static_cast<unsigned>(kLanes * min(n, count - 1)); };
    U furthest = 0, theirs = 0;  // the column of the neighbour
    I next[kUnroll];
    const auto load = [&](int first) {  // past the end, the last again
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) next[u] = nodes[place(first + u)];
    };
    for (I& column : next) column = 0;
    if (count > 0) load(0);
    const int rounds = __reduce_max_sync(kAllLanes, (degree + 1) / kLanes);
    for (int first = 0; first < rounds; first += kUnroll) {
      U columns[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) columns[u] = static_cast<U>(next[u] - w.begin);
      if (first + kUnroll < count) load(first + kUnroll);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        U before = theirs;  // the column of the edge before
        theirs = __shfl_xor_sync(kAllLanes, columns[u], 1);
        if (part > 0) before = theirs;
        if (first + u >= count) continue;
        const auto column = static_cast<uint32_t>(min(columns[u], static_cast<U>(kNoLast)));
        furthest = max(furthest, columns[u]);
        or_shared(words + column / kChunk, 1u << (column % kChunk));
        const int e = part + kLanes * (first + u);
        if (e > 0 && static_cast<I>(before) >= static_cast<I>(columns[u])) {
          if (e + 1 == degree) mask[1] = static_cast<int>(column);
          disordered |= e + 1 < degree;
        }
      }
    }
    irregular |= furthest >= static_cast<U>(w.end - w.begin);
    __syncwarp();
    int bits = 0, chunks = 0;  // fewer bits than edges where one is there twice
    for (int c = part; c < kMaxChunks; c += kLanes) {
      bits += __popc(words[c]);
      chunks |= (words[c] != 0) << c;
    }
    irregular |= __shfl_xor_sync(kAllLanes, bits, 1) + bits != degree;
    irregular |= __shfl_xor_sync(kAllLanes, irregular, 1);
    disordered |= __shfl_xor_sync(kAllLanes, disordered, 1);
    chunks |= __shfl_xor_sync(kAllLanes, chunks, 1);
    for (int c = part; irregular && c < kMaxChunks; c += kLanes) words[c] = 0;
    if (part == 0) {
      mask[0] = irregular ? kMaskIrregular : chunks | (disordered ? kMaskDisordered : 0);
      if (irregular) mask[1] = kNoLast;
    }
    __syncwarp();
  }

 private:
  __device__ __forceinline__ static void or_shared(int* word, uint32_t bits) {
    asm volatile("red.shared.or.b32 [%0], %1;" ::"r"(shared_address(word)), "r"(bits) : "memory");
  }
};

}  // namespace dfgnn::cuda::tile
