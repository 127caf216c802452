// Masked dense attention on tensor cores: what the tile kernels share (Shape, products, staging).
//
// A warp owns 16 rows of a window and goes over the tile's other side in chunks of 32 nodes, whose features lie in
// shared memory:
//   product_nt: acc[16 x 32]  = A[16 x F] * chunk[32 x F]^T   (logits, gradients of probabilities)
//   product_nn: acc[16 x F] += P[16 x 32] * chunk[32 x F]     (outputs and gradients of features)
// P stays in the registers that product_nt left it in (FlashAttention-2, Dao 2023). Rows in shared memory are 16 bytes
// longer than their features, so that neither product meets a bank conflict.
//
// float32 keeps its accuracy as a sum of two halves, high and low, of 22 bits together (Markidis et al. 2018; low times
// low is dropped). Halves have few exponents, so each row is first scaled by a power of two, which puts its largest
// number between 2^14 and 2^15; low parts in shared memory are held times 2^11, so that what is 2^28 times
// smaller than the largest of its row still has its 22 bits.
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
  // Whether rows are split into halves: in shared memory the high parts, then the low parts, then the inverse scale.
  static constexpr bool kSplit = sizeof(T) == 4;
  using Factor = std::conditional_t<kSplit, __half, T>;  // of products
  static constexpr int kRowBytes = kFeatures * sizeof(T), kPartBytes = kFeatures * sizeof(Factor);
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

// ---- powers of two

// 2^(exponent - 127)
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float(exponent << 23); }
__device__ __forceinline__ int exponent_of(float x) { return __float_as_int(x) >> 23 & 255; }

// What brings a number of that magnitude to [2^kBits, 2^(kBits + 1)), as long as that and its inverse are numbers.
template <int kBits>
__device__ __forceinline__ int scaling_exponent(float magnitude) {
  constexpr int kSum = 2 * 127 + kBits;
  return kSum - max(exponent_of(magnitude), kSum - 253);
}

constexpr int kHighBits = 14, kLowBits = 11;  // of a row's largest number; what low parts are times
constexpr float kUp = 1 << kLowBits, kDown = 1 / kUp;

// ---- mma

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// Four matrices of 8 rows of 16 bytes, the address of row r of matrix m being that of lane 8 m + r. A lane gets the
// lane_in_group()-th 4 bytes of row lane_group() of each; transposed, two numbers of 16 bits of that column.
template <bool kTransposed = false>
__device__ __forceinline__ void load_matrices(uint32_t* x, uint32_t address) {
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

// Logits of a warp's rows, by tiles of 8 columns, of which a thread has rows v = 0 and 1, two columns each:
// [tile][2 v + column].
using Logits = float[kChunk / 8][4];

// Sums of features, the same way.
template <class S>
struct Features {
  float tiles[S::kFeatures / 8][4] = {};
  int exponents[2] = {253, 253};  // where kSplit: row v is held times power_of_two(exponents[v])

  __device__ __forceinline__ void scale(const float (&by)[2]) {
#pragma unroll
    for (auto& tile : tiles) {
#pragma unroll
      for (int x = 0; x < 4; ++x) tile[x] *= by[x / 2];
    }
  }

  // Rows times these factors of 0 to 1. What is held keeps its size, so that later weights find their place beside it.
  __device__ __forceinline__ void fade(const float (&by)[2]) {
    float held_by[2];
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      held_by[v] = by[v];
      if constexpr (S::kSplit) {
        const int up = by[v] == 0 ? 253 - exponents[v] : min(127 - exponent_of(by[v]), 253 - exponents[v]);
        if (by[v] > 0) held_by[v] *= power_of_two(127 + up);
        exponents[v] += up;
      }
    }
    scale(held_by);
  }
};

template <class S>
__device__ __forceinline__ float row_scale(const unsigned char* row) {
  return *reinterpret_cast<const float*>(row + S::kRowBytes);
}

// The numbers that were 16 bytes of a row before it was split.
template <class S>
struct Piece {
  static constexpr int kNumbers = 16 / sizeof(typename S::T);
  float x[kNumbers];

  __device__ __forceinline__ Piece(const unsigned char* row, int piece) {
    using Vector = std::conditional_t<S::kSplit, uint2, uint4>;
    const auto* vectors = reinterpret_cast<const Vector*>(row);
    const Vector high = vectors[piece];
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) x[i] = number(high, i);
    if constexpr (S::kSplit) {
      const Vector low = vectors[S::kFeatures / kNumbers + piece];
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        if (!isinf(x[i])) x[i] += number(low, i) * kDown;
        x[i] *= row_scale<S>(row);
      }
    }
  }

 private:
  template <class Vector>
  __device__ __forceinline__ static float number(const Vector& vector, int i) {
    return to_accumulate(reinterpret_cast<const typename S::Factor*>(&vector)[i]);
  }
};

// d += a * b for kTiles tiles.
template <class S, int kTiles>
__device__ __forceinline__ void multiply(float (*d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2 * kTiles]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) mma_half<typename S::Factor>(d[j], a, b[2 * j], b[2 * j + 1]);
}

// acc = A * chunk^T, A the warp's rows of a window in shared memory; acc is 0 before.
template <class S>
__device__ __forceinline__ void product_nt(Logits& acc, const unsigned char* window, const unsigned char* chunk) {
  constexpr int kStepBytes = 32;  // of a row, in an mma
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const uint32_t a_rows =
      shared_address(window + (warp * kWarpRows + lane % 16) * S::kRowStride + lane / 16 * (kStepBytes / 2));
  const uint32_t b_rows =
      shared_address(chunk + (lane / 16 * 8 + lane % 8) * S::kRowStride + lane / 8 % 2 * (kStepBytes / 2));
  Logits low = {};  // times 2^kLowBits
#pragma unroll 4
  for (int step = 0; step < S::kPartBytes / kStepBytes; ++step) {
    const uint32_t a_row = a_rows + step * kStepBytes, b_row = b_rows + step * kStepBytes;
    uint32_t a[4], b[8];
    load_matrices(a, a_row);
    load_matrices(b, b_row);
    load_matrices(b + 4, b_row + 16 * S::kRowStride);
    if constexpr (S::kSplit) {
      uint32_t a_low[4], b_low[8];
      load_matrices(a_low, a_row + S::kPartBytes);
      load_matrices(b_low, b_row + S::kPartBytes);
      load_matrices(b_low + 4, b_row + S::kPartBytes + 16 * S::kRowStride);
      multiply<S, 4>(low, a_low, b);
      multiply<S, 4>(low, a, b_low);
    }
    multiply<S, 4>(acc, a, b);
  }
  if constexpr (S::kSplit) {
    float scale[2];
#pragma unroll
    for (int v = 0; v < 2; ++v) scale[v] = row_scale<S>(window + window_row(v) * S::kRowStride);
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const float by = row_scale<S>(chunk + chunk_row(x / 2, x % 2) * S::kRowStride);
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const int i = 2 * v + x % 2;
        // the smaller first: it may be that only all three have a product
        acc[x / 2][i] = (acc[x / 2][i] + low[x / 2][i] * kDown) * min(by, scale[v]) * max(by, scale[v]);
      }
    }
  }
}

// Weights for rows of a chunk that are held scaled: times their scales, and times what acc holds a row times, which is
// lowered where they would outgrow it.
template <class S>
__device__ __forceinline__ void scale_weights(Logits& p, Features<S>& acc, const unsigned char* chunk) {
  constexpr float kLimit = 1 << (kHighBits + 1);
  constexpr int kBits = 11;  // of a row's largest weight, so that it may grow
  float largest[2] = {0, 0};
#pragma unroll
  for (int x = 0; x < 8; ++x) {
    const float by = row_scale<S>(chunk + chunk_row(x / 2, x % 2) * S::kRowStride);
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      float& weight = p[x / 2][2 * v + x % 2];
      weight *= by;
      largest[v] = max(largest[v], fabsf(weight));
    }
  }
  bool outgrows = false;
#pragma unroll
  for (int v = 0; v < 2; ++v) outgrows |= largest[v] * power_of_two(acc.exponents[v]) >= kLimit;
  if (__any_sync(kAllLanes, outgrows)) {
    float by[2];
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const int to = min(acc.exponents[v], scaling_exponent<kBits>(lanes_max<4>(largest[v])));
      by[v] = power_of_two(max(127 + to - acc.exponents[v], 0));
      acc.exponents[v] = to;
    }
    acc.scale(by);
  }
#pragma unroll
  for (int x = 0; x < 16; ++x) p[x / 4][x % 4] *= power_of_two(acc.exponents[x % 4 / 2]);
}

// acc += P * chunk, P in the layout of product_nt's acc.
template <class S>
__device__ __forceinline__ void product_nn(Features<S>& acc, const Logits& weights, const unsigned char* chunk) {
  using Factor = typename S::Factor;
  Logits p;
#pragma unroll
  for (int x = 0; x < 16; ++x) p[x / 4][x % 4] = weights[x / 4][x % 4];
  if constexpr (S::kSplit) scale_weights<S>(p, acc, chunk);
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
    uint32_t a[4], a_low[4], a_down[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float x = p[2 * k + i / 2][i % 2 * 2], y = p[2 * k + i / 2][i % 2 * 2 + 1];
      a[i] = pack<Factor>(x, y);
      if constexpr (S::kSplit) {
        const auto& high = reinterpret_cast<const __half2&>(a[i]);
        const float2 rounded = __half22float2(high);
        a_low[i] = pack<Factor>(x - rounded.x, y - rounded.y);
        const __half2 down = __hmul2(high, __float2half2_rn(kDown));
        a_down[i] = reinterpret_cast<const uint32_t&>(down);
      }
    }
    const uint32_t rows = shared_address(chunk + (16 * k + lane % 16) * S::kRowStride + lane / 16 * 16);
#pragma unroll
    for (int n = 0; n < S::kFeatures / 16; ++n) {
      uint32_t b[4];
      load_matrices<true>(b, rows + 32 * n);
      if constexpr (S::kSplit) {
        uint32_t b_low[4];
        load_matrices<true>(b_low, rows + S::kPartBytes + 32 * n);
        multiply<S, 2>(acc.tiles + 2 * n, a_low, b);
        multiply<S, 2>(acc.tiles + 2 * n, a_down, b_low);
      }
      multiply<S, 2>(acc.tiles + 2 * n, a, b);
    }
  }
}

// Writes row v of the sums, scaled, to a row of `features` features.
template <class S>
__device__ __forceinline__ void store_row(const Features<S>& acc, int v, float scale, typename S::T* row,
                                          int features) {
  const int feature = 2 * lane_in_group(), left = features - feature;
  const float held = S::kSplit ? power_of_two(254 - acc.exponents[v]) : 1;
#pragma unroll
  for (int n = 0; n < S::kFeatures / 8; ++n) {
    if (8 * n >= left) break;
    const float x = acc.tiles[n][2 * v] * scale * held, y = acc.tiles[n][2 * v + 1] * scale * held;
    auto* to = row + feature + 8 * n;
    if constexpr (S::kSplit) {
      *reinterpret_cast<float2*>(to) = make_float2(x, y);
    } else {
      *reinterpret_cast<uint32_t*>(to) = pack<typename S::T>(x, y);
    }
  }
}

// ---- staging

// Where not valid, zeros instead.
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool valid) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(valid ? 16 : 0) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// A head's rows of features, as a block copies them to shared memory: a thread takes 16 bytes of every kAtOnce-th row.
template <class S>
class Rows {
 public:
  using T = typename S::T;
  __device__ __forceinline__ Rows(const Typed<T>& a, const void* data, int h)
      : from_(reinterpret_cast<const unsigned char*>(a.features(data, row(), h)) + piece() * 16),
        stride_(a.heads * a.head_dim * static_cast<int>(sizeof(T))),
        valid_(piece() * 16 < a.head_dim * static_cast<int>(sizeof(T))) {}

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

  // Makes halves, where products want them, of what this thread has copied; the whole warp comes.
  template <int kRows = kChunk>
  __device__ __forceinline__ static void split(unsigned char* rows) {
    if constexpr (S::kSplit) {
      constexpr int kMine = kRows / kAtOnce, kBatch = kMine < 8 ? kMine : 8;
      for (int k = 0; k < kMine; k += kBatch) split_rows<kBatch>(rows + (row() + k * kAtOnce) * S::kRowStride);
    }
  }

 private:
  static constexpr int kPieces = S::kRowBytes / 16, kAtOnce = kThreads / kPieces;
  __device__ __forceinline__ static int row() { return threadIdx.x / kPieces; }
  __device__ __forceinline__ static int piece() { return threadIdx.x % kPieces; }

  // kCount rows, kAtOnce apart, step by step, so that the latencies of a step overlap.
  template <int kCount>
  __device__ __forceinline__ static void split_rows(unsigned char* first) {
    float4 x[kCount];
    uint32_t largest[kCount];  // numbers without sign are ordered as their bits
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      x[k] = *reinterpret_cast<const float4*>(first + k * kAtOnce * S::kRowStride + 16 * piece());
    }
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      largest[k] = __float_as_uint(max(max(fabsf(x[k].x), fabsf(x[k].y)), max(fabsf(x[k].z), fabsf(x[k].w))));
    }
    if constexpr (kPieces == kWarp) {
#pragma unroll
      for (int k = 0; k < kCount; ++k) largest[k] = __reduce_max_sync(kAllLanes, largest[k]);
    } else {
#pragma unroll
      for (int offset = kPieces / 2; offset > 0; offset /= 2) {
#pragma unroll
        for (int k = 0; k < kCount; ++k) largest[k] = max(largest[k], __shfl_xor_sync(kAllLanes, largest[k], offset));
      }
    }
    __syncwarp();  // the rows have been read
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      unsigned char* row = first + k * kAtOnce * S::kRowStride;
      const int exponent = scaling_exponent<kHighBits>(__uint_as_float(largest[k]));
      const float scale = power_of_two(exponent);
      uint2 high, low;
      split_pair(x[k].x * scale, x[k].y * scale, high.x, low.x);
      split_pair(x[k].z * scale, x[k].w * scale, high.y, low.y);
      *reinterpret_cast<uint2*>(row + 8 * piece()) = high;
      *reinterpret_cast<uint2*>(row + S::kPartBytes + 8 * piece()) = low;
      if (piece() == 0) *reinterpret_cast<float*>(row + S::kRowBytes) = power_of_two(254 - exponent);
    }
  }

  __device__ __forceinline__ static void split_pair(float x, float y, uint32_t& high, uint32_t& low) {
    high = pack<__half>(x, y);
    const float2 rounded = __half22float2(reinterpret_cast<const __half2&>(high));
    low = pack<__half>((x - rounded.x) * kUp, (y - rounded.y) * kUp);
  }

  const unsigned char* from_;  // in node 0
  int stride_;                 // bytes from node to node
  bool valid_;
};

}  // namespace dfgnn::cuda::tile
