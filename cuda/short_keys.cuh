// Keys that have few items, which are ranked one by one: a lane takes an item of very few, a warp a key of more.
#pragma once

#include "find_row.cuh"
#include "sorted_edges.cuh"

namespace dfgnn::cuda {

template <class K>
class ShortKeys {
 public:
  static constexpr int kMost = 256;  // items of a key: beyond, a sort is faster

  // Calls put(p, place) for every item of every key, self-loops behind a key's others aside, which lie p by p at
  // pointers[key] .. and go to their places by `numbers`, [capacity], those that are equal as they lie. By the whole
  // grid.
  template <class Put>
  static __device__ void rank(const SortedEdges<K>& edges, const K* numbers, const Put& put) {
    rank_by_lanes(edges, numbers, put);
    rank_by_warps(edges, numbers, put);
  }

 private:
  static constexpr int kOfLane = 32;  // items of a key, at the most, that lanes take one by one

  static __device__ __forceinline__ K end_of(const SortedEdges<K>& edges, int64_t key) {
    return edges.pointers[key + 1] - (key < edges.num_loops);
  }

  static __device__ __forceinline__ K place_of(const K* numbers, K begin, K end, K p) {
    const K own = numbers[p];
    K place = begin;
#pragma unroll 4
    for (K q = begin; q < end; ++q) {
      const K other = numbers[q];
      place += other < own || (other == own && q < p);
    }
    return place;
  }

  // A warp takes items in a row, so that it finds their keys in few steps.
  template <class Put>
  static __device__ void rank_by_lanes(const SortedEdges<K>& edges, const K* numbers, const Put& put) {
    const int64_t count = edges.pointers[edges.num_keys], warps = grid_threads() / kWarp;
    const int64_t of_warp = ceil_div(ceil_div(count, warps), kWarp) * kWarp, begin = grid_thread() / kWarp * of_warp;
    const int64_t stop = min(begin + of_warp, count);
    if (begin >= stop) return;
    int64_t key = warp_find_row(edges.pointers, edges.num_keys, begin);
    for (int64_t p = begin + threadIdx.x % kWarp; p < stop; p += kWarp) {
      key = find_row_from(edges.pointers, edges.num_keys, key, p);
      const K first = edges.pointers[key], end = end_of(edges, key);
      if (p < end && end - first <= kOfLane) put(static_cast<K>(p), place_of(numbers, first, end, static_cast<K>(p)));
    }
  }

  template <class Put>
  static __device__ void rank_by_warps(const SortedEdges<K>& edges, const K* numbers, const Put& put) {
    const int lane = threadIdx.x % kWarp;
    const int64_t warp = grid_thread() / kWarp, warps = grid_threads() / kWarp;
    const int64_t of_warp = min(ceil_div(edges.num_keys, warps), int64_t{kWarp});  // neighbouring keys at a time
    for (int64_t first = warp * of_warp; first < edges.num_keys; first += warps * of_warp) {
      const int64_t key = first + lane;
      const bool has_key = lane < of_warp && key < edges.num_keys;
      const K begin = has_key ? edges.pointers[key] : 0, end = has_key ? end_of(edges, key) : 0;
      for (unsigned left = __ballot_sync(~0u, end - begin > kOfLane); left != 0; left &= left - 1) {
        const int owner = __ffs(left) - 1;
        const K begins = __shfl_sync(~0u, begin, owner), ends = __shfl_sync(~0u, end, owner);
        for (K p = begins + lane; p < ends; p += kWarp) put(p, place_of(numbers, begins, ends, p));
      }
    }
  }
};

}  // namespace dfgnn::cuda
