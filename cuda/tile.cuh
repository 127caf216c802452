// Masked dense attention on tensor cores: what the tile kernels share (Shape, products, staging).
//
// A warp owns 16 rows of a window and goes over the tile's other side in chunks of 32 nodes, whose features lie in
// shared memory. Both kinds of product read that memory in 16-byte pieces:
//   product_nt: acc[16 x 32] += A[16 x F] * chunk[32 x F]^T   (logits, gradients of probabilities)
//   product_nn: acc[16 x F] += P[16 x 32] * chunk[32 x F]     (outputs and gradients of features)
// The sums go over their index in any order, as long as both operands have the same: that is what lets a thread take
// 16 consecutive bytes of a row for the fragments of two mma steps, and P stay in the registers that product_nt left it
// in (FlashAttention-2, Dao 2023). Which chunk row an accumulator's column stands for (Shape::permute) is chosen so
// that neither product meets a bank conflict.
//
// float32 is kept to float32 accuracy by 3xTF32 (a = big + small, both TF32; small * small is dropped).
#pragma once

#include "logit.cuh"
#include "mma.cuh"
#include "tile_geometry.h"

namespace dfgnn::cuda::tile {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
static_assert(kWindow == kWarps * kWarpRows);

// Features of a head are padded to kFeatures with zeros.
template <class T_, int kFeatures_>
struct Shape {
  using T = T_;
  static constexpr int kFeatures = kFeatures_;
  static constexpr int kRowBytes = kFeatures * sizeof(T);
  static constexpr int kPieces = kRowBytes / 16;
  static constexpr int kRowStride = kRowBytes + (sizeof(T) == 4 ? 32 : 16);  // of rows in shared memory, bytes
  static constexpr int kChunkBytes = kChunk * kRowStride, kWindowBytes = kWindow * kRowStride;

  // Where the n-th of 8 accumulator columns (or rows) is in its group of 8 chunk (or window) rows.
  __device__ __forceinline__ static int permute(int n) {
    return ((sizeof(T) == 4 ? 0x57463120u : 0x73625140u) >> (4 * n)) & 7;
  }
};

// ---- a warp's rows (lane_group() and lane_in_group(): mma.cuh)

// The row of its warp, and of the window, that accumulator row v of this thread is.
template <class S>
__device__ __forceinline__ int warp_row(int v) {
  return 8 * v + S::permute(lane_group());
}
template <class S>
__device__ __forceinline__ int window_row(int v) {
  return static_cast<int>(threadIdx.x / kWarp) * kWarpRows + warp_row<S>(v);
}

// The chunk row of element c (0, 1) of accumulator tile j (0 .. 3).
template <class S>
__device__ __forceinline__ int chunk_row(int j, int c) {
  return 8 * j + S::permute(2 * lane_in_group() + c);
}

// ---- mma

// With float32 operands, each in two TF32.
__device__ __forceinline__ void mma_split(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&a_small)[4],
                                          const uint32_t (&b)[2], const uint32_t (&b_small)[2]) {
  mma_tf32(d, a_small, b[0], b[1]);
  mma_tf32(d, a, b_small[0], b_small[1]);
  mma_tf32(d, a, b[0], b[1]);
}

// float32 as the sum of two TF32: `big` rounded to nearest, `small` what is left, which the mma truncates.
__device__ __forceinline__ void split(uint32_t x, uint32_t& big, uint32_t& small) {
  big = (x + 0x1000u) & 0xffffe000u;
  small = __float_as_uint(__uint_as_float(x) - __uint_as_float(big));
}

__device__ __forceinline__ uint4 load_shared(const unsigned char* p) { return *reinterpret_cast<const uint4*>(p); }

// Accumulators, by tiles of 8 columns: rows v = 0 and 1 of this thread, two columns each: [tile][2 v + column].
using Logits = float[kChunk / 8][4];
template <class S>
using Features = float[S::kFeatures / 8][4];

// acc += A * chunk^T, A the warp's rows of a window in shared memory.
template <class S>
__device__ __forceinline__ void product_nt(Logits& acc, const unsigned char* window, const unsigned char* chunk) {
  using T = typename S::T;
  const unsigned char* a_rows = window + window_row<S>(0) * S::kRowStride + 16 * lane_in_group();
  const unsigned char* b_rows = chunk + S::permute(lane_group()) * S::kRowStride + 16 * lane_in_group();
#pragma unroll 2
  for (int c = 0; c < S::kRowBytes / 64; ++c) {
    const uint4 rows[2] = {load_shared(a_rows + 64 * c), load_shared(a_rows + 8 * S::kRowStride + 64 * c)};
    uint4 b[4];
#pragma unroll
    for (int j = 0; j < 4; ++j) b[j] = load_shared(b_rows + 8 * j * S::kRowStride + 64 * c);
#pragma unroll
    for (int step = 0; step < 2; ++step) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = word(rows[i % 2], 2 * step + i / 2);
      if constexpr (sizeof(T) == 4) {
        uint32_t small[4];
#pragma unroll
        for (int i = 0; i < 4; ++i) split(a[i], a[i], small[i]);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          uint32_t b_big[2], b_small[2];
#pragma unroll
          for (int i = 0; i < 2; ++i) split(word(b[j], 2 * step + i), b_big[i], b_small[i]);
          mma_split(acc[j], a, small, b_big, b_small);
        }
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) mma_half<T>(acc[j], a, word(b[j], 2 * step), word(b[j], 2 * step + 1));
      }
    }
  }
}

// acc += P * chunk, P in the layout of product_nt's acc. Columns of acc: see store_row.
template <class S>
__device__ __forceinline__ void product_nn(Features<S>& acc, const Logits& p, const unsigned char* chunk) {
  using T = typename S::T;
  if constexpr (sizeof(T) == 4) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      uint32_t big[4], small[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) split(__float_as_uint(p[j][i % 2 * 2 + i / 2]), big[i], small[i]);
      const unsigned char* b0 = chunk + chunk_row<S>(j, 0) * S::kRowStride + 16 * lane_group();
      const unsigned char* b1 = chunk + chunk_row<S>(j, 1) * S::kRowStride + 16 * lane_group();
#pragma unroll
      for (int u = 0; u < S::kFeatures / 32; ++u) {
        const uint4 x = load_shared(b0 + 128 * u), y = load_shared(b1 + 128 * u);
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          uint32_t b_big[2], b_small[2];
          split(word(x, n), b_big[0], b_small[0]);
          split(word(y, n), b_big[1], b_small[1]);
          mma_split(acc[4 * u + n], big, small, b_big, b_small);
        }
      }
    }
  } else {
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int k = 0; k < 2; ++k) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float (&pair)[4] = p[2 * k + i / 2];
        a[i] = pack<T>(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
      }
      const unsigned char* row =
          chunk + (16 * k + lane / 8 % 2 * 8 + S::permute(lane % 8)) * S::kRowStride + lane / 16 * 16;
      const auto address = static_cast<uint32_t>(__cvta_generic_to_shared(row));
#pragma unroll
      for (int n = 0; n < S::kFeatures / 16; ++n) {
        uint32_t b[4];
        asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                     : "=r"(b[0]), "=r"(b[1]), "=r"(b[2]), "=r"(b[3])
                     : "r"(address + 32 * n)
                     : "memory");
        mma_half<T>(acc[2 * n], a, b[0], b[1]);
        mma_half<T>(acc[2 * n + 1], a, b[2], b[3]);
      }
    }
  }
}

// Writes accumulator row v of product_nn, scaled, to a row of `features` features.
template <class S>
__device__ __forceinline__ void store_row(const Features<S>& acc, int v, float scale, typename S::T* row,
                                          int features) {
  const int t = lane_in_group();
  if constexpr (sizeof(typename S::T) == 4) {
#pragma unroll
    for (int u = 0; u < S::kFeatures / 32; ++u) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int f = 32 * u + 8 * t + 4 * c, i = 2 * v + c;
        if (f < features) {
          *reinterpret_cast<float4*>(row + f) = make_float4(acc[4 * u][i] * scale, acc[4 * u + 1][i] * scale,
                                                            acc[4 * u + 2][i] * scale, acc[4 * u + 3][i] * scale);
        }
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < S::kFeatures / 8; ++n) {
      const int f = 8 * n + 2 * t;
      if (f < features) {
        *reinterpret_cast<uint32_t*>(row + f) = pack<typename S::T>(acc[n][2 * v] * scale, acc[n][2 * v + 1] * scale);
      }
    }
  }
}

// ---- staging

__device__ __forceinline__ void copy_async(unsigned char* to, const void* from, bool valid) {
  asm volatile(
      "cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(static_cast<uint32_t>(__cvta_generic_to_shared(to))),
      "l"(from), "r"(valid ? 16 : 0)
      : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_group 0;" ::: "memory"); }

// Starts copying rows [first, first + kRows) of head h to shared memory; those at and past `end` become zeros.
template <class S, int kRows = kChunk>
__device__ __forceinline__ void stage(unsigned char* to, const Typed<typename S::T>& a, const void* data, int first,
                                      int end, int h) {
  constexpr int kPerPiece = 16 / sizeof(typename S::T), kRowsAtOnce = kThreads / S::kPieces;
  const int row = threadIdx.x / S::kPieces, feature = threadIdx.x % S::kPieces * kPerPiece;
  const auto* from = a.features(data, first + row, h) + feature;
  const int left = feature < a.head_dim ? end - first - row : 0;
  const int64_t step = static_cast<int64_t>(kRowsAtOnce) * a.heads * a.head_dim;
  to += row * S::kRowStride + threadIdx.x % S::kPieces * 16;
#pragma unroll
  for (int k = 0; k < kRows / kRowsAtOnce; ++k) {
    copy_async(to + k * kRowsAtOnce * S::kRowStride, k * kRowsAtOnce < left ? from : a.features(data, 0, 0),
               k * kRowsAtOnce < left);
    from += step;
  }
  commit_copies();
}

// Two buffers that chunks pass through, one being copied while the other is worked on. start(to) starts to copy what
// comes next, if anything does.
template <class S>
class Ring {
 public:
  __device__ __forceinline__ explicit Ring(unsigned char* buffers) : buffers_(buffers) {}

  template <class Start>
  __device__ __forceinline__ void push(const Start& start) {
    start(buffers_ + last_ * S::kChunkBytes);
    last_ ^= 1;
  }

  // The chunk that was pushed last, when all threads have it; the one before must be done with, its place is taken.
  template <class Start>
  __device__ __forceinline__ const unsigned char* next(const Start& start) {
    wait_for_copies();
    __syncthreads();
    const unsigned char* chunk = buffers_ + (last_ ^ 1) * S::kChunkBytes;
    push(start);
    return chunk;
  }

 private:
  unsigned char* buffers_;
  int last_ = 0;
};

}  // namespace dfgnn::cuda::tile
