// Tensor core products m16n8 with float accumulators, for any sm_80 and later.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

#include "fragment.cuh"

namespace dfgnn::cuda {

// One warp's place in the fragments: element (row or column, depth) belongs to lane 4 * group + in_group.
__device__ __forceinline__ int lane_group() { return threadIdx.x % kWarp / 4; }
__device__ __forceinline__ int lane_in_group() { return threadIdx.x % 4; }

// Two numbers as one word of 16-bit ones.
template <class T>
__device__ __forceinline__ uint32_t pack(float low, float high) {
  if constexpr (std::is_same_v<T, __half>) {
    const __half2 x = __floats2half2_rn(low, high);
    return reinterpret_cast<const uint32_t&>(x);
  } else {
    const __nv_bfloat162 x = __floats2bfloat162_rn(low, high);
    return reinterpret_cast<const uint32_t&>(x);
  }
}

// Whether tensor cores take rows of this shape: where they have kFeatures, no fewer.
template <class S>
inline constexpr bool kTensorRows =
    sizeof(typename S::T) == 2 && S::kVec == 8 && (S::kFeatures == 64 || S::kFeatures == 128);

template <class S>
bool tensor_rows(int head_dim) {
  return kTensorRows<S> && head_dim == S::kFeatures;
}

template <class T>
__device__ __forceinline__ void mma_half(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (std::is_same_v<T, __half>) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
}

}  // namespace dfgnn::cuda
