// Sums over lanes of several numbers at once, which lanes share afterwards.
#pragma once

#include "fragment.cuh"

namespace dfgnn::cuda {

// Of so many sums over lanes that are `from`, from / 2, ..., `to` apart, how many a lane has afterwards.
__host__ __device__ constexpr int shared_sums(int from, int to, int count) {
  return from < to || count == 1 ? count : shared_sums(from / 2, to, count / 2);
}

template <int kFrom, int kTo, int kHeld, int kCount, class A>
__device__ __forceinline__ int share_held(A (&x)[kCount]) {
  if constexpr (kFrom < kTo) {
    return 0;
  } else {
    const bool upper = threadIdx.x & kFrom;
    if constexpr (kHeld == 1) {
      x[0] += __shfl_xor_sync(kAllLanes, x[0], kFrom);
      const int first = share_held<kFrom / 2, kTo, 1>(x);
      return upper ? -kCount : first;
    } else {
      constexpr int kHalf = kHeld / 2;
#pragma unroll
      for (int i = 0; i < kHalf; ++i) {
        const A sent = upper ? x[i] : x[i + kHalf], kept = upper ? x[i + kHalf] : x[i];
        x[i] = kept + __shfl_xor_sync(kAllLanes, sent, kFrom);
      }
      const int first = share_held<kFrom / 2, kTo, kHalf>(x);
      return upper ? kHalf + first : first;
    }
  }
}

// Makes them, of a power of two of numbers: the lane's first shared_sums() numbers of x are those from the one on that
// it returns, negative where another lane has the same. (By a loop over halves compilers do not unroll what is done
// with 16 numbers, and choose between registers at run time: eight times as many instructions.)
template <int kFrom, int kTo, int kCount, class A>
__device__ __forceinline__ int share_sums(A (&x)[kCount]) {
  static_assert((kCount & (kCount - 1)) == 0);
  return share_held<kFrom, kTo, kCount>(x);
}

// kCount sums at once over each group of kLanes lanes: lane l of a group has that of number l % kCount.
template <int kLanes, int kCount, class A>
__device__ __forceinline__ A transposed_sum(A (&x)[kCount]) {
  static_assert(kCount <= kLanes && (kCount & (kCount - 1)) == 0);
  share_sums<kCount / 2, 1>(x);
  A sum = x[0];
#pragma unroll
  for (int offset = kCount; offset < kLanes; offset *= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  return sum;
}

// Sums over `lanes` >= kCount neighbouring lanes of each of kCount numbers, a power of two: of the n-th, where the
// lanes are as many parts, to those of the n-th part.
template <int kCount, class A>
__device__ __forceinline__ A scattered_sum(A (&x)[kCount], int lane, int lanes) {
  int offset = lanes / 2;
#pragma unroll
  for (int held = kCount / 2; held > 0; held /= 2) {
    const bool upper = lane & offset;
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const A sent = upper ? x[i] : x[i + held], kept = upper ? x[i + held] : x[i];
      x[i] = kept + __shfl_xor_sync(kAllLanes, sent, offset);
    }
    offset /= 2;
  }
  for (; offset > 0; offset /= 2) x[0] += __shfl_xor_sync(kAllLanes, x[0], offset);
  return x[0];
}

}  // namespace dfgnn::cuda
