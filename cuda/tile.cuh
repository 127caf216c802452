// Masked dense attention on tensor cores: what the tile kernels share, the matrices in shared memory and the sums in
// registers. A warp owns 16 rows of a window and goes over the tile's other side in chunks of 32 nodes.
//
// float32 keeps its accuracy as a sum of two numbers, high and low, of 22 bits together (Markidis et al. 2018; low
// times low is dropped): of TF32 in small heads (tile_tf32.cuh), else of halves. Halves have few exponents, so each row
// is first scaled by a power of two, which puts its largest number between 2^14 and 2^15; low parts in shared memory
// are held times 2^11, so that what is 2^28 times smaller than the largest of its row still has its 22 bits. Where TF32
// is allowed, which has as many bits as a half, there are high parts alone.
#pragma once

#include "async_copy.cuh"
#include "logit.cuh"
#include "mma.cuh"
#include "tile_geometry.h"
#include "warpgroup.cuh"

namespace dfgnn::cuda::tile {

constexpr int kThreads = 128, kWarps = kThreads / kWarp;
static_assert(kWindow == kWarps * kWarpRows);

// Rows of kHeads heads side by side, each padded with zeros, or of one of kParts parts of a head (tile_parts.cuh);
// kFeatures are those of all heads, or of a part.
template <class T_, int kFeatures_, bool kTf32 = false, int kHeads_ = 1, int kParts_ = 1>
struct Shape {
  using T = T_;
  static constexpr int kFeatures = kFeatures_, kHeads = kHeads_, kHeadFeatures = kFeatures / kHeads;
  static constexpr int kParts = kParts_, kWholeHead = kParts * kHeadFeatures;
  static_assert(kParts == 1 || kHeads == 1);
  // Whether numbers are multiplied as high and low parts; whether rows stay whole in shared memory until then
  // (tile_tf32.cuh), or become scaled halves there, which low parts follow.
  static constexpr bool kSplit = sizeof(T) == 4 && !kTf32;
  static constexpr bool kSmall = kFeatures == 32;
  static constexpr bool kWhole = sizeof(T) == 4 && kSmall, kScaled = sizeof(T) == 4 && !kWhole;
  using Factor = std::conditional_t<kScaled, __half, T>;  // of products
  static constexpr int kRowBytes = kFeatures * sizeof(T), kPartBytes = kFeatures * sizeof(Factor);
  static constexpr int kHeadBytes = kRowBytes / kHeads, kHeadPartBytes = kPartBytes / kHeads;
  // Matrices lie in shared memory in panels of that much of each row.
  static constexpr int kPanelBytes = kRowBytes < warpgroup::kPanelBytes ? kRowBytes : warpgroup::kPanelBytes;
  // Whether a head is so large that a backward block has room for one chunk of each matrix, and registers for one sum.
  static constexpr bool kLarge = kHeadFeatures > 128;
  // Whether a whole warpgroup can make a product together, and does.
  static constexpr bool kForWarpgroup = !kSmall && kPartBytes % warpgroup::kPanelBytes == 0;
  static constexpr bool kWarpgroup = kForWarpgroup && warpgroup::kHasWarpgroups;
};

// ---- a warp's rows (lane_group() and lane_in_group(): mma.cuh)

// The row of its warp, and of the window, that accumulator row v of this thread is.
__device__ __forceinline__ int warp_row(int v) { return 8 * v + lane_group(); }
__device__ __forceinline__ int window_row(int v) {
  return static_cast<int>(threadIdx.x / kWarp) * kWarpRows + warp_row(v);
}

// The chunk row of element c (0, 1) of accumulator tile j (0 .. 3).
__device__ __forceinline__ int chunk_row(int j, int c) { return 8 * j + 2 * lane_in_group() + c; }

// ---- powers of two

// 2^(exponent - 127)
__device__ __forceinline__ float power_of_two(int exponent) { return __int_as_float(exponent << 23); }
__device__ __forceinline__ int exponent_of(float x) { return __float_as_int(x) >> 23 & 255; }

// The power of two that brings a number of that magnitude to [2^kBits, 2^(kBits + 1)), as long as that and its inverse
// are numbers.
template <int kBits>
__device__ __forceinline__ float scaling_power(float magnitude) {
  constexpr uint32_t kSum = 2 * 127 + kBits, kExponent = 255u << 23;
  return __uint_as_float((kSum << 23) - max(__float_as_uint(magnitude) & kExponent, (kSum - 253) << 23));
}
__device__ __forceinline__ float inverse_of_power(float power) {
  return __uint_as_float((254u << 23) - __float_as_uint(power));
}

constexpr int kHighBits = 14, kLowBits = 11;  // of a row's largest number; what low parts are times
constexpr float kUp = 1 << kLowBits, kDown = 1 / kUp;

// ---- matrices in shared memory

constexpr int kMatrixAlignment = 8 * warpgroup::kPanelBytes;  // rows of a panel are swizzled by eights

// Shared memory, with its address, which all lanes of a warp agree on. Compilers make that anew for every use, of a
// register that takes long to read, but keep what a shuffle has made.
struct SharedBytes {
  unsigned char* bytes;
  uint32_t address;

  __device__ __forceinline__ static SharedBytes of(unsigned char* memory) {
    return {memory, __shfl_sync(kAllLanes, shared_address(memory), 0)};
  }
  __device__ __forceinline__ SharedBytes operator+(int more) const { return {bytes + more, address + more}; }
};

// Rows of features, at a multiple of kMatrixAlignment where wgmma may read them. So that no reader meets a bank
// conflict, pieces of 16 bytes change places as wgmma has it (warpgroup.cuh), or, where S::kSmall, rows lie 16 bytes
// apart, with addresses that are simpler.
template <class S, int kRows>
struct Matrix : SharedBytes {
  static constexpr int kRowStride = S::kPanelBytes + (S::kSmall ? 16 : 0), kPanelStride = kRows * kRowStride;
  static constexpr int kScalesBegin = S::kRowBytes / S::kPanelBytes * kPanelStride;
  static constexpr int kBytes = kScalesBegin + (S::kScaled ? kMatrixAlignment : 0);
  static_assert((S::kSmall || kScalesBegin % kMatrixAlignment == 0) && kRows * sizeof(float) <= kMatrixAlignment);

  // Where a piece of a row is.
  __device__ __forceinline__ static int place(int row, int piece) {
    constexpr int kPieces = S::kPanelBytes / 16;
    return piece / kPieces * kPanelStride + row * kRowStride + (piece % kPieces ^ swizzle(row)) * 16;
  }
  __device__ __forceinline__ static int swizzle(int row) {
    if constexpr (S::kSmall) return 0;
    return row * S::kPanelBytes / warpgroup::kPanelBytes % (S::kPanelBytes / 16);
  }

  // Where kScaled: what a row's numbers are to be multiplied by.
  __device__ __forceinline__ float& scale(int row) const { return reinterpret_cast<float*>(bytes + kScalesBegin)[row]; }
  // Of chunk rows (j, 0) and (j, 1).
  __device__ __forceinline__ float2 scales(int j) const {
    return *reinterpret_cast<const float2*>(&scale(chunk_row(j, 0)));
  }
};
template <class S>
using Chunk = Matrix<S, kChunk>;
template <class S>
using WindowRows = Matrix<S, kWindow>;

// The numbers that were 16 bytes of a row.
template <class S>
struct Piece {
  static constexpr int kNumbers = 16 / sizeof(typename S::T);
  float x[kNumbers];

  __device__ __forceinline__ Piece(const WindowRows<S>& rows, int row, int piece) {
    using Vector = std::conditional_t<S::kScaled, uint2, uint4>;
    const auto vector = [&](int i) {
      constexpr int kVectors = 16 / sizeof(Vector);
      return reinterpret_cast<const Vector*>(rows.bytes + rows.place(row, i / kVectors))[i % kVectors];
    };
    const Vector high = vector(piece);
#pragma unroll
    for (int i = 0; i < kNumbers; ++i) x[i] = number(high, i);
    if constexpr (S::kScaled && S::kSplit) {
      const Vector low = vector(S::kFeatures / kNumbers + piece);
#pragma unroll
      for (int i = 0; i < kNumbers; ++i) {
        if (!isinf(x[i])) x[i] += number(low, i) * kDown;
      }
    }
    if constexpr (S::kScaled) {
#pragma unroll
      for (float& number : x) number *= rows.scale(row);
    }
  }

 private:
  template <class Vector>
  __device__ __forceinline__ static float number(const Vector& vector, int i) {
    return number_of<typename S::Factor>(&vector, i);
  }
};

// ---- sums in registers

// Logits of a warp's rows, by tiles of 8 columns, of which a thread has rows v = 0 and 1, two columns each:
// [tile][2 v + column].
using Logits = float[kChunk / 8][4];

// Sums of a head's features, the same way. kScaled: of rows that are held times powers of two, so that halves do for
// the weights of any size that are multiplied for them.
template <class S, bool kScaled = S::kScaled>
struct Features {
  float tiles[S::kHeadFeatures / 8][4] = {};
  int exponents[2] = {253, 253};  // where kScaled: row v is held times power_of_two(exponents[v])

  // What the numbers held of row v are to be multiplied by.
  __device__ __forceinline__ float unit(int v) const { return kScaled ? power_of_two(254 - exponents[v]) : 1; }

  // 0 where all of row v is finite, else NaN: a node that is no neighbour may hold an infinity, which its weight of
  // zero made NaN.
  __device__ __forceinline__ float nan_if_infinite(int v) const {
    float sum = 0;
#pragma unroll
    for (const auto& tile : tiles) {
#pragma unroll
      for (int c = 0; c < 2; ++c) sum += tile[2 * v + c] * 0.0f;
    }
    return sum;
  }

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
      if constexpr (kScaled) {
        const int up = by[v] == 0 ? 253 - exponents[v] : min(127 - exponent_of(by[v]), 253 - exponents[v]);
        if (by[v] > 0) held_by[v] *= power_of_two(127 + up);
        exponents[v] += up;
      }
    }
    scale(held_by);
  }
};

// Writes the pair of features that a lane has of each row's n-th tile.
template <class S>
__device__ __forceinline__ void store_row_pair(typename S::T* row, int features, int n, const float2& pair) {
  const int feature = 8 * n + 2 * lane_in_group();
  if (feature >= features) return;
  if constexpr (sizeof(typename S::T) == 4) {
    *reinterpret_cast<float2*>(row + feature) = pair;
  } else {
    *reinterpret_cast<uint32_t*>(row + feature) = pack<typename S::T>(pair.x, pair.y);
  }
}

// Writes row v of the sums, scaled, to a row of `features` features.
template <class S, bool kScaled>
__device__ __forceinline__ void store_row(const Features<S, kScaled>& acc, int v, float scale, typename S::T* row,
                                          int features) {
  const float unit = acc.unit(v);
#pragma unroll
  for (int n = 0; n < S::kHeadFeatures / 8; ++n) {
    store_row_pair<S>(row, features, n, {acc.tiles[n][2 * v] * scale * unit, acc.tiles[n][2 * v + 1] * scale * unit});
  }
}

}  // namespace dfgnn::cuda::tile
