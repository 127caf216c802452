// Products of float32 numbers on tensor cores, in TF32: a number is the sum of two of these, high and low, of 22 bits
// together. TF32 has float32's exponents, so nothing is scaled.
#pragma once

#include <cstdint>

namespace dfgnn::cuda {

constexpr uint32_t kBelowTf32 = (1u << 13) - 1;  // the last bits of a number, at which tensor cores do not look

// What those bits are worth.
__device__ __forceinline__ uint32_t low_part(uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(x & ~kBelowTf32));
}

// d += a * b, m16n8k8.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace dfgnn::cuda
