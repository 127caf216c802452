// Masked dense attention on tensor cores: what the tile kernels share (Shape, products, staging).
//
// A warp owns 16 rows of a window and goes over the tile's other side in chunks of 32 nodes, whose features lie in
// shared memory:
//   product_nt: acc[16 x 32] += A[16 x F] * chunk[32 x F]^T   (logits, gradients of probabilities)
//   product_nn: acc[16 x F] += P[16 x 32] * chunk[32 x F]     (outputs and gradients of features)
// P stays in the registers that product_nt left it in (FlashAttention-2, Dao 2023). Rows in shared memory are 16 bytes
// longer than their features, so that neither product meets a bank conflict.
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
  static constexpr int kRowStride = kRowBytes + 16;  // of rows in shared memory, bytes
  static constexpr int kChunkBytes = kChunk * kRowStride, kWindowBytes = kWindow * kRowStride;
};

// ---- a warp's rows (lane_group() and lane_in_group(): mma.cuh)

// The row of its warp, and of the window, that accumulator row v of this thread is.
__device__ __forceinline__ int warp_row(int v) { return 8 * v + lane_group(); }
__device__ __forceinline__ int window_row(int v) {
  return static_cast<int>(threadIdx.x / kWarp) * kWarpRows + warp_row(v);
}

// The chunk row of element c (0, 1) of accumulator tile j (0 .. 3).
__device__ __forceinline__ int chunk_row(int j, int c) { return 8 * j + 2 * lane_in_group() + c; }

// What the lane has whose number is that of the chunk row.
__device__ __forceinline__ float of_chunk_row(float x, int j, int c) {
  return __shfl_sync(kAllLanes, x, chunk_row(j, c));
}

// ---- mma

// float32 as the sum of two TF32, of which the mma reads the upper 19 bits: `big` rounded to nearest, `small` what is
// left.
__device__ __forceinline__ void split(uint32_t x, uint32_t& big, uint32_t& small) {
  big = (x + 0x1000u) & 0xffffe000u;
  small = __float_as_uint(__uint_as_float(x) - __uint_as_float(big));
}

// The same with x itself as `big`, which the mma cuts off.
__device__ __forceinline__ uint32_t split_off(uint32_t x) {
  return __float_as_uint(__uint_as_float(x) - __uint_as_float(x & 0xffffe000u));
}

// With float32 operands, each in two TF32, b's being b0 and b1 themselves and what they leave.
__device__ __forceinline__ void mma_split(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&a_small)[4],
                                          uint32_t b0, uint32_t b1) {
  mma_tf32(d, a_small, b0, b1);
  mma_tf32(d, a, split_off(b0), split_off(b1));
  mma_tf32(d, a, b0, b1);
}

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

__device__ __forceinline__ uint4 load_shared(const unsigned char* p) { return *reinterpret_cast<const uint4*>(p); }

// Four matrices of 8 rows of 16 bytes, the address of row r of matrix m being that of lane 8 m + r. A lane gets the
// lane_in_group()-th 4 bytes of row lane_group() of each; transposed, two numbers of 16 bits of that column.
template <bool kTransposed = false>
__device__ __forceinline__ void load_matrices(uint32_t (&x)[4], uint32_t address) {
  if constexpr (kTransposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(x[0]), "=r"(x[1]), "=r"(x[2]), "=r"(x[3])
                 : "r"(address)
                 : "memory");
  }
}

// Accumulators, by tiles of 8 columns: rows v = 0 and 1 of this thread, two columns each: [tile][2 v + column].
using Logits = float[kChunk / 8][4];
template <class S>
using Features = float[S::kFeatures / 8][4];

// acc += A * chunk^T, A the warp's rows of a window in shared memory.
template <class S>
__device__ __forceinline__ void product_nt(Logits& acc, const unsigned char* window, const unsigned char* chunk) {
  using T = typename S::T;
  constexpr int kStepBytes = 32;  // of a row, in an mma
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint32_t a_rows =
      shared_address(window + (warp * kWarpRows + lane % 16) * S::kRowStride + lane / 16 * (kStepBytes / 2));
  const uint32_t b_rows =
      shared_address(chunk + (lane / 16 * 8 + lane % 8) * S::kRowStride + lane / 8 % 2 * (kStepBytes / 2));
#pragma unroll 4
  for (int step = 0; step < S::kRowBytes / kStepBytes; ++step) {
    uint32_t a[4], b[2][4];
    load_matrices(a, a_rows + step * kStepBytes);
#pragma unroll
    for (int i = 0; i < 2; ++i) load_matrices(b[i], b_rows + 16 * i * S::kRowStride + step * kStepBytes);
    if constexpr (sizeof(T) == 4) {
      uint32_t small[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) small[i] = split_off(a[i]);
#pragma unroll
      for (int j = 0; j < 4; ++j) mma_split(acc[j], a, small, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) mma_half<T>(acc[j], a, b[j / 2][j % 2 * 2], b[j / 2][j % 2 * 2 + 1]);
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
      const unsigned char* rows = chunk + chunk_row(j, 0) * S::kRowStride + 16 * lane_group();
#pragma unroll
      for (int u = 0; u < S::kFeatures / 32; ++u) {
        const uint4 x = load_shared(rows + 128 * u), y = load_shared(rows + S::kRowStride + 128 * u);
#pragma unroll
        for (int n = 0; n < 4; ++n) mma_split(acc[4 * u + n], big, small, word(x, n), word(y, n));
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
      const uint32_t rows = shared_address(chunk + (16 * k + lane % 16) * S::kRowStride + lane / 16 * 16);
#pragma unroll
      for (int n = 0; n < S::kFeatures / 16; ++n) {
        uint32_t b[4];
        load_matrices<true>(b, rows + 32 * n);
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
  const int feature = lane_in_group() * (sizeof(typename S::T) == 4 ? 8 : 2);
  auto* to = row + feature;
  const int left = features - feature;
  if constexpr (sizeof(typename S::T) == 4) {
#pragma unroll
    for (int u = 0; u < S::kFeatures / 32; ++u) {
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int f = 32 * u + 4 * c, i = 2 * v + c;
        if (f < left) {
          *reinterpret_cast<float4*>(to + f) = make_float4(acc[4 * u][i] * scale, acc[4 * u + 1][i] * scale,
                                                           acc[4 * u + 2][i] * scale, acc[4 * u + 3][i] * scale);
        }
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < S::kFeatures / 8; ++n) {
      if (8 * n < left) {
        *reinterpret_cast<uint32_t*>(to + 8 * n) =
            pack<typename S::T>(acc[n][2 * v] * scale, acc[n][2 * v + 1] * scale);
      }
    }
  }
}

// ---- staging

// Where not valid, zeros instead.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// But for those of the last kGroups groups.
template <int kGroups>
__device__ __forceinline__ void wait_for_copies_but() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

// A head's rows of features, as a block copies them to shared memory: a thread takes 16 bytes of every kAtOnce-th row.
template <class S>
class Rows {
 public:
  using T = typename S::T;
  __device__ __forceinline__ Rows(const Typed<T>& a, const void* data, int h)
      : from_(reinterpret_cast<const unsigned char*>(a.features(data, row(), h)) + piece() * 16),
        stride_(a.heads * a.head_dim * static_cast<int>(sizeof(T))),
        valid_(piece() * 16 < a.head_dim * static_cast<int>(sizeof(T))) {}

  // These or, of the same shape, others.
  __device__ __forceinline__ Rows or_else(bool choose_others, const Rows& others) const {
    Rows rows = *this;
    rows.from_ = choose_others ? others.from_ : from_;
    return rows;
  }

  // Starts copying rows [first, first + kRows); those at and past `end` become zeros.
  template <int kRows = kChunk>
  __device__ __forceinline__ void stage(unsigned char* to, int first, int end) const {
    const unsigned char* from = from_ + static_cast<int64_t>(first) * stride_;
    const int left = valid_ ? end - first - row() : 0;
    const uint32_t address = shared_address(to) + row() * S::kRowStride + piece() * 16;
#pragma unroll
    for (int k = 0; k < kRows / kAtOnce; ++k) {
      copy_async(address + k * kAtOnce * S::kRowStride, from, k * kAtOnce < left);
      from += kAtOnce * static_cast<int64_t>(stride_);
    }
  }

 private:
  static constexpr int kPieces = S::kRowBytes / 16, kAtOnce = kThreads / kPieces;
  __device__ __forceinline__ static int row() { return threadIdx.x / kPieces; }
  __device__ __forceinline__ static int piece() { return threadIdx.x % kPieces; }

  const unsigned char* from_;  // in node 0
  int stride_;                 // bytes from node to node
  bool valid_;
};

// Buffers that chunks pass through, one being worked on while the others are copied. start(to) starts to copy what
// comes next, if anything does.
template <class S, int kBuffers>
class Ring {
 public:
  __device__ __forceinline__ explicit Ring(unsigned char* buffers) : buffers_(buffers) {}

  // To be called kBuffers - 1 times before next().
  template <class Start>
  __device__ __forceinline__ void push(const Start& start) {
    start(buffers_ + to_fill_ * S::kChunkBytes);
    commit_copies();
    to_fill_ = to_fill_ == kBuffers - 1 ? 0 : to_fill_ + 1;
  }

  // The next chunk, when all threads have it; the one before must be done with, its place is taken.
  template <class Start>
  __device__ __forceinline__ const unsigned char* next(const Start& start) {
    wait_for_copies_but<kBuffers - 2>();
    __syncthreads();
    push(start);
    return buffers_ + to_fill_ * S::kChunkBytes;  // the oldest
  }

 private:
  unsigned char* buffers_;
  int to_fill_ = 0;
};

}  // namespace dfgnn::cuda::tile
