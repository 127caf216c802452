// A block's stable counting sort of some thousand items by a small digit, in shared memory, so that items with the same
// digit are written side by side.
#pragma once

#include "cooperative.cuh"

namespace dfgnn::cuda {

constexpr int kSortWarps = kGridThreads / 32;
constexpr int kNoDigit = -1;  // of an item that is left out

// K: int32_t or int64_t, what keys, nodes and positions are. kItems_: of a thread. Digits are below kDigits_.
template <class K, int kItems_, int kDigits_>
class ChunkSort {
 public:
  static constexpr int kItems = kItems_, kDigits = kDigits_;
  static constexpr int kWarpItems = 32 * kItems, kChunk = kGridThreads * kItems;
  static_assert(kChunk <= 1 << 16, "counters and places have 16 bits");

  // The place in its chunk of a thread's i-th item: warps have runs of items, lanes take turns.
  static __device__ __forceinline__ int place(int i) {
    return threadIdx.x / 32 * kWarpItems + i * 32 + threadIdx.x % 32;
  }

  // Ranks a chunk by digits in [0, width): item[i] is the digit of the thread's i-th item, then, in its upper half, the
  // rank of that item among those of its warp and digit, too.
  __device__ __forceinline__ void rank(int (&item)[kItems], int width) {
    const int lane = threadIdx.x % 32;
    uint16_t* mine = counts_[threadIdx.x / 32];
    for (int d = lane; d < width; d += 32) mine[d] = 0;
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kItems; ++i) {
      const int digit = item[i];
      const bool valid = digit != kNoDigit;
      unsigned peers = __ballot_sync(~0u, valid);
      for (int bit = 1; bit < width; bit *= 2) {
        const unsigned set = __ballot_sync(~0u, digit & bit);
        peers &= digit & bit ? set : ~set;
      }
      const int before = __popc(peers & ((1u << lane) - 1)), start = valid ? mine[digit] : 0;
      if (valid) item[i] = (start + before) << 16 | digit;
      __syncwarp();
      if (valid && before == 0) mine[digit] = static_cast<uint16_t>(start + __popc(peers));
      __syncwarp();
    }
  }

  // After rank(): start_of(digit, count) says where that digit's items of this chunk go. All threads must come; it is
  // called by one thread for each digit. Returns how many items there are.
  template <class StartOf>
  __device__ __forceinline__ int place_digits(int width, const StartOf& start_of) {
    __syncthreads();
    K placed = 0;
    for (int first = 0; first < width; first += kGridThreads) {
      const int d = first + threadIdx.x;
      K count = 0;
      if (d < width) {
        for (int warp = 0; warp < kSortWarps; ++warp) count += counts_[warp][d];
      }
      K start = BlockSums<K>(sums_).exclusive(count, placed);
      if (d < width) {
        shift_[d] = start_of(d, count) - start;
        for (int warp = 0; warp < kSortWarps; ++warp) {
          const uint16_t of_warp = counts_[warp][d];
          counts_[warp][d] = static_cast<uint16_t>(start);
          start += of_warp;
        }
      }
      __syncthreads();
    }
    return static_cast<int>(placed);
  }

  // After place_digits(): two numbers of an item, to its place in the sorted chunk.
  __device__ __forceinline__ void put(int item, K first, K second) {
    if (item == kNoDigit) return;
    const int place = counts_[threadIdx.x / 32][item & 0xFFFF] + (item >> 16);
    first_[place] = first;
    second_[place] = second;
  }

  // After put(): calls write(where, first, second) for all items in their new order; digit_of(first, second) is that of
  // an item. All threads must come.
  template <class DigitOf, class Write>
  __device__ __forceinline__ void write(int count, const DigitOf& digit_of, const Write& write) {
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kGridThreads) {
      const K first = first_[i], second = second_[i];
      write(i + shift_[digit_of(first, second)], first, second);
    }
    __syncthreads();
  }

 private:
  K first_[kChunk], second_[kChunk];
  K shift_[kDigits];  // from an item's place in the sorted chunk to its place in the result
  uint16_t counts_[kSortWarps][kDigits];
  typename BlockSums<K>::Storage sums_;
};

// counts[digit] += 1 for each lane's digit that is one; one atomic operation for lanes in a row with the same. kRank:
// returns what the count was before this lane's, lanes being counted in any order.
template <bool kRank = false, class C>
__device__ __forceinline__ C count_digit(C* counts, int digit) {
  const int lane = threadIdx.x % 32, previous = __shfl_up_sync(~0u, digit, 1);
  const bool begins = lane == 0 || digit != previous;
  const unsigned all = __ballot_sync(~0u, begins), until = (2u << lane) - 1, later = all & ~until;
  C before = 0;
  if (begins && digit != kNoDigit) {
    before = atomicAdd(&counts[digit], static_cast<C>(later ? __ffs(later) - 1 - lane : 32 - lane));
  }
  if constexpr (kRank) {
    const int first = 31 - __clz(all & until);
    before = __shfl_sync(~0u, before, first) + (lane - first);
  }
  return before;
}

}  // namespace dfgnn::cuda
