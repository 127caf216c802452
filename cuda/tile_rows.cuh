// Rows of features on their way from global to shared memory.
#pragma once

#include "tile_norms.cuh"
#include "tile_parts.cuh"

namespace dfgnn::cuda::tile {

// Rows of features of a block's heads, the first being h, as it copies them to shared memory: a thread takes 16 bytes
// of every kAtOnce-th row.
template <class S>
class Rows {
 public:
  using T = typename S::T;
  Rows() = default;
  __device__ __forceinline__ Rows(const Typed<T>& a, const void* data, int h)
      : from_(reinterpret_cast<const unsigned char*>(part_of_row<S>(a, data, row(), h + head())) + byte_of_head()),
        stride_(a.heads * a.head_dim * static_cast<int>(sizeof(T))),
        valid_(byte_of_head() < features_of_part<S>(a) * static_cast<int>(sizeof(T)) && h + head() < a.heads) {}

  // Starts copying rows [first, first + kRows); those at and past `end` become zeros.
  template <int kRows>
  __device__ __forceinline__ void stage(const Matrix<S, kRows>& to, int first, int end) const {
    const unsigned char* from = from_ + static_cast<int64_t>(first) * stride_;
    const int left = valid_ ? end - first - row() : 0;
#pragma unroll
    for (int k = 0; k < kRows / kAtOnce; ++k) {
      copy_async(to.address + place<kRows>(piece(), k), from, k * kAtOnce < left);
      from += kAtOnce * static_cast<int64_t>(stride_);
    }
  }

  // Makes what this thread has copied fit for products after the next barrier; the whole warp comes. With Norms leaves
  // the rows' there.
  template <int kRows, class Norms = NoNorms>
  __device__ __forceinline__ static void prepare(const Matrix<S, kRows>& rows, const Norms& norms = {}) {
    constexpr int kMine = kRows / kAtOnce, kBatch = kMine < 8 ? kMine : 8;
    if constexpr (S::kScaled) {
      static_assert(kMine == kBatch || kBatch * kAtOnce % 8 == 0,
                    "rows of a batch are swizzled like those of the first");
      for (int k = 0; k < kMine; k += kBatch) {
        scale_rows<kRows, kBatch>(rows.bytes + k * kAtOnce * S::kPanelBytes, &rows.scale(row() + k * kAtOnce), k,
                                  norms);
      }
    } else if constexpr (Norms::kAreMade) {
      float squares[kMine];
#pragma unroll
      for (int k = 0; k < kMine; ++k) {
        const uint4 x = *reinterpret_cast<const uint4*>(rows.bytes + place<kRows>(piece(), k));
        squares[k] = 0;
#pragma unroll
        for (int v = 0; v < kNumbers; ++v) squares[k] += number_of<T>(&x, v) * number_of<T>(&x, v);
      }
      put_norms(squares, 0, norms);
    }
    if constexpr (S::kWarpgroup) warpgroup::publish();
  }

 private:
  static constexpr int kPieces = S::kRowBytes / 16, kAtOnce = kThreads / kPieces, kNumbers = 16 / sizeof(T);
  __device__ __forceinline__ static int row() { return threadIdx.x / kPieces; }
  __device__ __forceinline__ static int piece() { return threadIdx.x % kPieces; }
  __device__ __forceinline__ static int head() { return piece() * 16 / S::kHeadBytes; }
  __device__ __forceinline__ static int byte_of_head() { return piece() * 16 % S::kHeadBytes; }

  // Where a piece of this thread's k-th row is. (Its first row is less than kAtOnce, a power of two, so that swizzles
  // of the two parts of a row's number are that of their sum.)
  template <int kRows>
  __device__ __forceinline__ static int place(int piece, int k) {
    using M = Matrix<S, kRows>;
    return (M::place(row(), piece) ^ M::swizzle(k * kAtOnce) * 16) + k * kAtOnce * M::kRowStride;
  }

  // Of a thread's rows from the first on, kAtOnce apart, from squares of the pieces that it has.
  template <int kCount, class Norms>
  __device__ __forceinline__ static void put_norms(float (&squares)[kCount], int first, const Norms& norms) {
    constexpr int kLanes = S::kHeadBytes / 16, kTogether = kCount < kLanes ? kCount : kLanes;  // lanes of a head
#pragma unroll
    for (int k = 0; k < kCount; k += kTogether) {
      float some[kTogether];
#pragma unroll
      for (int u = 0; u < kTogether; ++u) some[u] = squares[k + u];
      const float sum = transposed_sum<kLanes>(some);
      const int own = static_cast<int>(threadIdx.x) % kLanes;
      if (own < kTogether) norms.put(head(), row() + (first + k + own) * kAtOnce, sum);
    }
  }

  // kCount rows of a matrix of kRows, kAtOnce apart, step by step, so that the latencies of a step overlap. They are
  // the thread's from `first` on.
  template <int kRows, int kCount, class Norms>
  __device__ __forceinline__ static void scale_rows(unsigned char* rows, float* scales, int first, const Norms& norms) {
    float4 x[kCount];
    uint32_t largest[kCount];  // numbers without sign are ordered as their bits
#pragma unroll
    for (int k = 0; k < kCount; ++k) x[k] = *reinterpret_cast<const float4*>(rows + place<kRows>(piece(), k));
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
    if constexpr (Norms::kAreMade) {
      float squares[kCount];
#pragma unroll
      for (int k = 0; k < kCount; ++k) {
        squares[k] = x[k].x * x[k].x + x[k].y * x[k].y + x[k].z * x[k].z + x[k].w * x[k].w;
      }
      put_norms(squares, first, norms);
    }
    __syncwarp();  // the rows have been read
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      const float scale = scaling_power<kHighBits>(__uint_as_float(largest[k]));
      uint2 high, low;
      split_pair(x[k].x * scale, x[k].y * scale, high.x, low.x);
      split_pair(x[k].z * scale, x[k].w * scale, high.y, low.y);
      const auto part = [&](int begin) {
        return reinterpret_cast<uint2*>(rows + place<kRows>(begin + piece() / 2, k)) + piece() % 2;
      };
      *part(0) = high;
      if constexpr (S::kSplit) *part(S::kPartBytes / 16) = low;
      if (piece() == 0) scales[k * kAtOnce] = inverse_of_power(scale);
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
