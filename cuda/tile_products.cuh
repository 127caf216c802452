// Products of the tile kernels on tensor cores, of a head of a chunk with a window's rows in shared memory or with
// weights in registers; for each warp
//   product_nt: acc[16 x 32] (+)= A[16 x F] * chunk[32 x F]^T (logits, gradients of probabilities)
//   product_nn: acc[16 x F] += P[16 x 32] * chunk[32 x F]     (outputs and gradients of features)
// P stays in the registers that product_nt left it in (FlashAttention-2, Dao 2023). Where S::kWarpgroup the warps of
// the block, or of its part (tile_parts.cuh), make them together, so that all must come, and those of 16-bit numbers
// are under way from start_ to finish(). Those of scaled ones have ended when start_ returns: their registers and
// shared memory are wanted for scaling what comes next.
#pragma once

#include "tile_tf32.cuh"

namespace dfgnn::cuda::tile {

static_assert(kWarps == 4, "a block, or its part, is a warpgroup");

// ---- factors

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

// A lane's addresses for load_matrices in a row of a matrix, of the first or the second half of 32 bytes.
template <class S, int kRows>
class LaneRow {
 public:
  __device__ __forceinline__ LaneRow(const Matrix<S, kRows>& matrix, int row, int half)
      : row_(matrix.address + row * matrix.kRowStride), piece_((half ^ matrix.swizzle(row)) * 16) {}

  // byte: where these begin in the row; down: so many rows further, a multiple of 8.
  __device__ __forceinline__ uint32_t at(int byte, int down = 0) const {
    using M = Matrix<S, kRows>;
    const int in_panel = byte % S::kPanelBytes;
    return row_ + down * M::kRowStride + byte / S::kPanelBytes * M::kPanelStride +
           (S::kSmall ? in_panel + piece_ : in_panel ^ piece_);
  }

 private:
  const uint32_t row_;
  const int piece_;
};

// For a whole warpgroup, from 32 bytes of a matrix's rows on, or, with `down`, from a row that is a multiple of 8.
template <class S, int kRows>
class Factors {
 public:
  __device__ __forceinline__ explicit Factors(const Matrix<S, kRows>& matrix)
      : all_(warpgroup::descriptor(matrix.bytes, kRows)) {}
  __device__ __forceinline__ uint64_t at(int byte, int down = 0) const {
    return all_ +
           (down * S::kPanelBytes + byte / S::kPanelBytes * Matrix<S, kRows>::kPanelStride + byte % S::kPanelBytes) /
               16;
  }

 private:
  const uint64_t all_;
};

// d += a * b for kTiles tiles.
template <class S, int kTiles>
__device__ __forceinline__ void multiply(float (*d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2 * kTiles]) {
#pragma unroll
  for (int j = 0; j < kTiles; ++j) mma_half<typename S::Factor>(d[j], a, b[2 * j], b[2 * j + 1]);
}

// ---- A * chunk^T

constexpr int kStepBytes = 32;  // of a row, in an mma

// kAdds: acc is added to. low: what the high parts of one factor have with the low ones of the other, times 2^kLowBits.
template <class S, bool kAdds>
__device__ __forceinline__ void warp_nt(Logits& acc, Logits& low, const WindowRows<S>& window, const Chunk<S>& chunk,
                                        int head) {
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const LaneRow a_row(window, warp * kWarpRows + lane % 16, lane / 16);
  const LaneRow b_row(chunk, lane / 16 * 8 + lane % 8, lane / 8 % 2);
#pragma unroll
  for (int x = 0; x < 16; ++x) {
    low[x / 4][x % 4] = 0;
    if (!kAdds) acc[x / 4][x % 4] = 0;
  }
#pragma unroll 4
  for (int step = 0; step < S::kHeadPartBytes; step += kStepBytes) {
    const int byte = head * S::kHeadPartBytes + step;
    uint32_t a[4], b[8];
    load_matrices(a, a_row.at(byte));
    load_matrices(b, b_row.at(byte));
    load_matrices(b + 4, b_row.at(byte, 16));
    if constexpr (S::kWhole) {
      multiply_whole<S::kSplit, 4>(acc, a, b);
    } else {
      if constexpr (S::kSplit) {
        uint32_t a_low[4], b_low[8];
        load_matrices(a_low, a_row.at(byte + S::kPartBytes));
        load_matrices(b_low, b_row.at(byte + S::kPartBytes));
        load_matrices(b_low + 4, b_row.at(byte + S::kPartBytes, 16));
        multiply<S, 4>(low, a_low, b);
        multiply<S, 4>(low, a, b_low);
      }
      multiply<S, 4>(acc, a, b);
    }
  }
}

template <class S, bool kAdds>
__device__ __forceinline__ void warpgroup_nt(Logits& acc, Logits& low, const WindowRows<S>& window,
                                             const Chunk<S>& chunk) {
  using T = typename S::Factor;
  const Factors a(window);
  const Factors b(chunk);
  warpgroup::begin();
#pragma unroll
  for (int byte = 0; byte < S::kPartBytes; byte += kStepBytes) {
    const bool adds = byte > 0;  // low
    if constexpr (S::kSplit) {
      warpgroup::multiply_nt<T>(low, a.at(byte + S::kPartBytes), b.at(byte), adds);
      warpgroup::multiply_nt<T>(low, a.at(byte), b.at(byte + S::kPartBytes), true);
    }
    warpgroup::multiply_nt<T>(acc, a.at(byte), b.at(byte), kAdds || adds);
  }
  warpgroup::commit();
}

// Where a window's rows are held in scaled halves: what products with this thread's rows are multiplied by, a row's
// term and its scale. That comes before the scales of chunks, which are as they may be, and so must not be too large:
// rows for which it is become NaN, and go edge by edge.
template <class S>
struct RowFactors {
  float by[2];

  // Once the window is prepared.
  __device__ __forceinline__ RowFactors(const WindowRows<S>& window, float term_0, float term_1) {
    constexpr float kLimit = 0x1p90f;  // products of halves are below 2^38
    if constexpr (S::kScaled) {
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        const float factor = window.scale(window_row(v)) * (v == 0 ? term_0 : term_1);
        by[v] = fabsf(factor) < kLimit ? factor : NAN;
      }
    }
  }
};

// Of factors held in scaled halves.
template <class S>
__device__ __forceinline__ void unscale(Logits& acc, const Logits& low, const RowFactors<S>& rows,
                                        const Chunk<S>& chunk) {
#pragma unroll
  for (int j = 0; j < kChunk / 8; ++j) {
    const float2 scales = chunk.scales(j);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      if constexpr (S::kSplit) acc[j][x] += low[j][x] * kDown;
      acc[j][x] *= rows.by[x / 2];
      acc[j][x] *= x % 2 == 0 ? scales.x : scales.y;
    }
  }
}

template <class S, bool kAdds = false>
__device__ __forceinline__ void start_product_nt(Logits& acc, const WindowRows<S>& window, const RowFactors<S>& rows,
                                                 const Chunk<S>& chunk, int head) {
  static_assert(!(S::kScaled && kAdds), "sums are scaled");
  Logits low;
  if constexpr (S::kWarpgroup) {
    warpgroup_nt<S, kAdds>(acc, low, window, chunk);
    if constexpr (S::kScaled) {
      warpgroup::wait();
      warpgroup::keep(acc);
      if constexpr (S::kSplit) warpgroup::keep(low);
    }
  } else {
    warp_nt<S, kAdds>(acc, low, window, chunk, head);
  }
  if constexpr (S::kScaled) unscale<S>(acc, low, rows, chunk);
}

// ---- P * chunk

// Weights times the scales of a chunk's rows, where these are held scaled, and times what acc holds a row times, which
// is lowered where they would outgrow it.
template <class S>
__device__ __forceinline__ void scale_weights(Logits& p, Features<S, true>& acc, const Chunk<S>& chunk) {
  constexpr float kLimit = 1 << (kHighBits + 1);
  constexpr int kBits = 11;  // of a row's largest weight, so that it may grow
  float largest[2] = {0, 0};
#pragma unroll
  for (int j = 0; j < kChunk / 8; ++j) {
    const float2 scales = S::kScaled ? chunk.scales(j) : float2{1, 1};
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      p[j][x] *= x % 2 == 0 ? scales.x : scales.y;
      largest[x / 2] = max(largest[x / 2], fabsf(p[j][x]));
    }
  }
  bool outgrows = false;
#pragma unroll
  for (int v = 0; v < 2; ++v) outgrows |= largest[v] * power_of_two(acc.exponents[v]) >= kLimit;
  if (__any_sync(kAllLanes, outgrows)) {
    float by[2];
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const int to = min(acc.exponents[v], exponent_of(scaling_power<kBits>(lanes_max<4>(largest[v]))));
      by[v] = power_of_two(max(127 + to - acc.exponents[v], 0));
      acc.exponents[v] = to;
    }
    acc.scale(by);
  }
#pragma unroll
  for (int x = 0; x < 16; ++x) p[x / 4][x % 4] *= power_of_two(acc.exponents[x % 4 / 2]);
}

// P as a factor, times what acc will hold its rows times.
template <class S>
struct PackedWeights {
  uint32_t high[2][4], low[2][4], down[2][4];  // down: high / 2^kLowBits

  // acc: what their product with a chunk will be added to.
  template <bool kScaled>
  __device__ __forceinline__ void set(const Logits& weights, Features<S, kScaled>& acc, const Chunk<S>& chunk) {
    Logits p;
#pragma unroll
    for (int x = 0; x < 16; ++x) p[x / 4][x % 4] = weights[x / 4][x % 4];
    if constexpr (kScaled) scale_weights<S>(p, acc, chunk);
#pragma unroll
    for (int x = 0; x < 8; ++x) {
      const int k = x / 4, i = x % 4;
      const float left = p[x / 2][x % 2 * 2], right = p[x / 2][x % 2 * 2 + 1];
      high[k][i] = pack<typename S::Factor>(left, right);
      if constexpr (S::kSplit) {
        const auto& halves = reinterpret_cast<const __half2&>(high[k][i]);
        const float2 rounded = __half22float2(halves);
        low[k][i] = pack<__half>(left - rounded.x, right - rounded.y);
        const __half2 lowered = __hmul2(halves, __float2half2_rn(kDown));
        down[k][i] = reinterpret_cast<const uint32_t&>(lowered);
      }
    }
  }
};

template <class S>
using Weights = std::conditional_t<S::kWhole, WholeWeights<S>, PackedWeights<S>>;

template <class S, bool kScaled>
__device__ __forceinline__ void warp_nn(Features<S, kScaled>& acc, const PackedWeights<S>& p, const Chunk<S>& chunk,
                                        int head) {
  const int lane = threadIdx.x % kWarp;
  const LaneRow row(chunk, lane % 16, lane / 16);
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int n = 0; n < S::kHeadFeatures / 16; ++n) {
      const int byte = head * S::kHeadPartBytes + 32 * n;
      uint32_t b[4];
      load_matrices<true>(b, row.at(byte, 16 * k));
      if constexpr (S::kSplit) {
        uint32_t b_low[4];
        load_matrices<true>(b_low, row.at(byte + S::kPartBytes, 16 * k));
        multiply<S, 2>(acc.tiles + 2 * n, p.low[k], b);
        multiply<S, 2>(acc.tiles + 2 * n, p.down[k], b_low);
      }
      multiply<S, 2>(acc.tiles + 2 * n, p.high[k], b);
    }
  }
}

template <class S, bool kScaled>
__device__ __forceinline__ void warpgroup_nn(Features<S, kScaled>& acc, const PackedWeights<S>& p,
                                             const Chunk<S>& chunk) {
  using T = typename S::Factor;
  const Factors b(chunk);
  warpgroup::keep(acc.tiles);
  warpgroup::begin();
  constexpr int kTiles = S::kHeadFeatures / 8, kTogether = kTiles < 16 ? kTiles : 16;
#pragma unroll
  for (int k = 0; k < 2; ++k) {
#pragma unroll
    for (int n = 0; n < kTiles; n += kTogether) {
      auto& tiles = reinterpret_cast<float (&)[kTogether][4]>(acc.tiles[n]);
      const int byte = n * 8 * static_cast<int>(sizeof(T));
      if constexpr (S::kSplit) {
        warpgroup::multiply_nn<T>(tiles, p.low[k], b.at(byte, 16 * k));
        warpgroup::multiply_nn<T>(tiles, p.down[k], b.at(byte + S::kPartBytes, 16 * k));
      }
      warpgroup::multiply_nn<T>(tiles, p.high[k], b.at(byte, 16 * k));
    }
  }
  warpgroup::commit();
}

// p: set for acc and the chunk.
template <class S, bool kScaled>
__device__ __forceinline__ void start_product_nn(Features<S, kScaled>& acc, const Weights<S>& p, const Chunk<S>& chunk,
                                                 int head) {
  if constexpr (S::kWarpgroup) {
    warpgroup_nn<S>(acc, p, chunk);
    if constexpr (S::kScaled) {
      warpgroup::wait();
      warpgroup::keep(acc.tiles);
    }
  } else if constexpr (S::kWhole) {
    whole_nn<S>(acc, p, chunk, head);
  } else {
    warp_nn<S>(acc, p, chunk, head);
  }
}

// ---- the end of a product

__device__ __forceinline__ void keep(Logits& acc) { warpgroup::keep(acc); }
template <class S, bool kScaled>
__device__ __forceinline__ void keep(Features<S, kScaled>& acc) {
  warpgroup::keep(acc.tiles);
}
template <class S>
__device__ __forceinline__ void keep(const PackedWeights<S>& p) {
  for (const auto& a : p.high) warpgroup::keep(a);
}

// Ends the products under way. Operands: all their sums and weights, which nothing may touch before.
template <class S, class... Operands>
__device__ __forceinline__ void finish(Operands&... operands) {
  if constexpr (S::kWarpgroup && !S::kScaled) {
    warpgroup::wait();
    (keep(operands), ...);
  }
}

}  // namespace dfgnn::cuda::tile
