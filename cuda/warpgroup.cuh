// Products of a warpgroup, four warps of 16 rows, on Hopper's tensor cores (wgmma): the second factor, and the first
// too where no registers hold it, are read from shared memory once for all four. Elsewhere kHasWarpgroups is false, and
// nothing else here may be called.
//
// Matrices in shared memory lie as for a swizzle of 128 bytes: panels of 128 bytes a row, at multiples of 1024, in
// which 16-byte piece c of row r lies at r * 128 + (c ^ r % 8) * 16.
#pragma once

#include "mma.cuh"

namespace dfgnn::cuda::warpgroup {

#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // machine code for sm_90a
constexpr bool kHasWarpgroups = true;
#else
constexpr bool kHasWarpgroups = false;
#endif

constexpr int kPanelBytes = 128;

// Makes what this thread has written to shared memory, before the next barrier, visible to products after it.
__device__ __forceinline__ void publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Of a matrix whose panels have so many rows, from an address, in units of 16 bytes so that numbers of these can be
// added to go elsewhere in the matrix.
__device__ __forceinline__ uint64_t descriptor(const void* p, int panel_rows) {
  constexpr uint64_t kSwizzle = 1ull << 62, kEightRows = static_cast<uint64_t>(8 * kPanelBytes / 16) << 32;
  const uint64_t panel = static_cast<unsigned>(panel_rows * kPanelBytes / 16);
  return kSwizzle | kEightRows | panel << 16 | static_cast<uint64_t>(__cvta_generic_to_shared(p)) / 16;
}

// Products are started between begin() and commit(), and run until wait() returns. Meanwhile nothing may touch their
// registers, accumulators and factors; keep() holds the compiler's hands off them until after wait().
__device__ __forceinline__ void begin() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }
template <int kTiles>
__device__ __forceinline__ void keep(float (&x)[kTiles][4]) {
#pragma unroll
  for (int i = 0; i < 4 * kTiles; ++i) asm volatile("" : "+f"(x[i / 4][i % 4])::"memory");
}
__device__ __forceinline__ void keep(const uint32_t (&a)[4]) {
  asm volatile("" ::"r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]) : "memory");
}

#define DFGNN_REGISTERS_16 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
#define DFGNN_REGISTERS_32 DFGNN_REGISTERS_16 ",%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define DFGNN_REGISTERS_64                                                                       \
  DFGNN_REGISTERS_32                                                                             \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54" \
  ",%55,%56,%57,%58,%59,%60,%61,%62,%63"
#define DFGNN_TILE(d, j) "+f"(d[j][0]), "+f"(d[j][1]), "+f"(d[j][2]), "+f"(d[j][3])
#define DFGNN_TILES_4(d, j) DFGNN_TILE(d, j), DFGNN_TILE(d, j + 1), DFGNN_TILE(d, j + 2), DFGNN_TILE(d, j + 3)
#define DFGNN_TILES_8(d, j) DFGNN_TILES_4(d, j), DFGNN_TILES_4(d, j + 4)
#define DFGNN_WGMMA(columns, type) "wgmma.mma_async.sync.aligned.m64n" columns "k16.f32." type "." type

// d [64 x 32] += A [64 x 16] B [32 x 16]^T, from descriptors, or d = that where !adds.
#define DFGNN_MULTIPLY_NT(type)                                                                                \
  asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; " DFGNN_WGMMA("32", type) " {" DFGNN_REGISTERS_16        \
                                                                                "}, %16, %17, p, 1, 1, 0, 0;}" \
               : DFGNN_TILES_4(d, 0)                                                                           \
               : "l"(a), "l"(b), "r"(static_cast<int>(adds)))
template <class T>
__device__ __forceinline__ void multiply_nt(float (&d)[4][4], uint64_t a, uint64_t b, bool adds) {
  if constexpr (std::is_same_v<T, __half>) {
    DFGNN_MULTIPLY_NT("f16");
  } else {
    DFGNN_MULTIPLY_NT("bf16");
  }
}

// d [64 x columns] += A [64 x 16] B [16 x columns], B from a descriptor.
#define DFGNN_MULTIPLY_NN(columns, type, registers, tiles, a0, a1, a2, a3, b0)                                   \
  asm volatile(DFGNN_WGMMA(columns, type) " {" registers "}, {" a0 "," a1 "," a2 "," a3 "}, " b0 ", 1, 1, 1, 1;" \
               : tiles                                                                                           \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b))
#define DFGNN_MULTIPLY_NN_64(type) \
  DFGNN_MULTIPLY_NN("64", type, DFGNN_REGISTERS_32, DFGNN_TILES_8(d, 0), "%32", "%33", "%34", "%35", "%36")
#define DFGNN_TILES_16 DFGNN_TILES_8(d, 0), DFGNN_TILES_8(d, 8)
#define DFGNN_MULTIPLY_NN_128(type) \
  DFGNN_MULTIPLY_NN("128", type, DFGNN_REGISTERS_64, DFGNN_TILES_16, "%64", "%65", "%66", "%67", "%68")
template <class T, int kTiles>
__device__ __forceinline__ void multiply_nn(float (&d)[kTiles][4], const uint32_t (&a)[4], uint64_t b) {
  static_assert(kTiles == 8 || kTiles == 16);
  if constexpr (kTiles == 8 && std::is_same_v<T, __half>) {
    DFGNN_MULTIPLY_NN_64("f16");
  } else if constexpr (kTiles == 8) {
    DFGNN_MULTIPLY_NN_64("bf16");
  } else if constexpr (std::is_same_v<T, __half>) {
    DFGNN_MULTIPLY_NN_128("f16");
  } else {
    DFGNN_MULTIPLY_NN_128("bf16");
  }
}

#undef DFGNN_REGISTERS_16
#undef DFGNN_REGISTERS_32
#undef DFGNN_REGISTERS_64
#undef DFGNN_TILE
#undef DFGNN_TILES_4
#undef DFGNN_TILES_8
#undef DFGNN_WGMMA
#undef DFGNN_MULTIPLY_NT
#undef DFGNN_MULTIPLY_NN
#undef DFGNN_MULTIPLY_NN_64
#undef DFGNN_TILES_16
#undef DFGNN_MULTIPLY_NN_128

}  // namespace dfgnn::cuda::warpgroup
