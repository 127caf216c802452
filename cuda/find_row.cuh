// The row of a compressed form that an entry is in: the last that begins at or before it. ptr: [num_rows + 1], anything
// with [].
#pragma once

#include "fragment.cuh"

namespace dfgnn::cuda {

// Of rows [low, high), of which `low` begins at or before entry e.
template <class Ptr>
__device__ __forceinline__ int64_t last_row(const Ptr& ptr, int64_t low, int64_t high, int64_t e) {
  while (high - low > 1) {
    const int64_t middle = (low + high) / 2;
    (ptr[middle] <= e ? low : high) = middle;
  }
  return low;
}

// Of all rows, by a warp, which probes 32 at a time; that of entry e, or of several entries side by side, so that they
// wait for memory together.
template <int kCount, class Ptr>
__device__ __forceinline__ void warp_find_rows(const Ptr& ptr, int64_t num_rows, const int64_t (&e)[kCount],
                                               int64_t (&low)[kCount]) {
  int64_t count = num_rows;
#pragma unroll
  for (int t = 0; t < kCount; ++t) low[t] = 0;
  while (count > 1) {
    const int64_t step = (count + kWarp - 1) / kWarp, lane = threadIdx.x % kWarp;
    int64_t begins[kCount];
    bool is_there[kCount];
#pragma unroll
    for (int t = 0; t < kCount; ++t) {
      const int64_t probe = low[t] + lane * step;
      is_there[t] = lane * step < count && probe < num_rows;
      begins[t] = is_there[t] ? ptr[probe] : 0;
    }
#pragma unroll
    for (int t = 0; t < kCount; ++t) {
      const unsigned before = __ballot_sync(kAllLanes, is_there[t] && begins[t] <= e[t]);
      if (before != 0) low[t] += (kWarp - 1 - __clz(before)) * step;
    }
    count = step;
  }
}
template <class Ptr>
__device__ __forceinline__ int64_t warp_find_row(const Ptr& ptr, int64_t num_rows, int64_t e) {
  int64_t low[1];
  warp_find_rows<1>(ptr, num_rows, {e}, low);
  return low[0];
}

// Of those from a row on that begins at or before e, by one lane. Strides over runs of empty rows by doubling steps,
// then halves: nothing walks row by row over a million of them.
template <class Ptr>
__device__ __forceinline__ int64_t find_row_from(const Ptr& ptr, int64_t num_rows, int64_t from, int64_t e) {
  int64_t low = from, step = 1;
  while (low + step < num_rows && ptr[low + step] <= e) {
    low += step;
    step *= 2;
  }
  return last_row(ptr, low, min(low + step, num_rows), e);
}

}  // namespace dfgnn::cuda
