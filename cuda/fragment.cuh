// A row of features spread over the lanes of a warp, and sums over lanes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <type_traits>

namespace dfgnn::cuda {

constexpr int kWarp = 32;
constexpr unsigned kAllLanes = 0xffffffffu;

// How many blocks a multiprocessor should have room for; before 9.0, where code takes more registers, as may be, so
// that hot kernels do not spill.
constexpr int blocks_here(int blocks) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 1;
#else
  return blocks;
#endif
}

template <class T>
struct Accumulate {
  using type = float;
};
template <>
struct Accumulate<double> {
  using type = double;
};

__device__ __forceinline__ float to_accumulate(float x) { return x; }
__device__ __forceinline__ float to_accumulate(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_accumulate(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ __forceinline__ double to_accumulate(double x) { return x; }

// The i-th number of what was loaded as words.
template <class T>
__device__ __forceinline__ typename Accumulate<T>::type number_of(const void* words, int i) {
  if constexpr (std::is_same_v<T, __nv_bfloat16>) {  // the upper half of a float's bits: one instruction, not two
    const uint32_t word = static_cast<const uint32_t*>(words)[i / 2];
    return __uint_as_float(i % 2 == 0 ? word << 16 : word & 0xFFFF0000u);
  } else {
    return to_accumulate(static_cast<const T*>(words)[i]);
  }
}

template <class T>
__device__ __forceinline__ T from_accumulate(typename Accumulate<T>::type x) {
  if constexpr (sizeof(T) == 2) {
    if constexpr (std::is_same_v<T, __half>) return __float2half_rn(x);
    if constexpr (std::is_same_v<T, __nv_bfloat16>) return __float2bfloat16_rn(x);
  } else {
    return x;
  }
}

// How a head's features lie over the lanes of a warp. In an SDDMM, kLanes lanes share an edge, each with kSteps vectors
// of kVec features; kLanes is small so that a warp holds several edges and the sums over lanes are short. In an SpMM,
// where there is nothing to sum over lanes, as many lanes as possible share an edge (Wide).
template <class T_, int kVec_, int kLanes_, int kSteps_, bool kLoop_ = false, bool kExact_ = false>
struct Shape {
  using T = T_;
  using A = typename Accumulate<T>::type;
  static constexpr int kVec = kVec_, kLanes = kLanes_, kSteps = kSteps_;
  static constexpr bool kLoop = kLoop_;    // head_dim may exceed kFeatures: kernels go over chunks of kFeatures
  static constexpr bool kExact = kExact_;  // head_dim is kFeatures, so that no lane asks whether a feature is there
  static constexpr int kGroups = kWarp / kLanes;
  static constexpr int kFeatures = kVec * kLanes * kSteps;

  static constexpr int kWideLanes = kLanes * kSteps < kWarp ? kLanes * kSteps : kWarp;
  static constexpr int kWideSteps = kLanes * kSteps / kWideLanes;
  using Wide = Shape<T, kVec, kWideLanes, kWideSteps, kLoop, kExact>;
  using Exact = Shape<T, kVec, kLanes, kSteps, false, true>;
};

// One store to global memory: an assignment of what was just put together, compilers like to take apart again.
template <class T, class Vector>
__device__ __forceinline__ void store_vector(T* target, const Vector& vector) {
  if constexpr (sizeof(Vector) == 16) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(target)), "r"(vector.x),
                 "r"(vector.y), "r"(vector.z), "r"(vector.w)
                 : "memory");
  } else {
    *reinterpret_cast<Vector*>(target) = vector;
  }
}

// Numbers from memory that is aligned to all of them, or to 16 bytes; those of 4 bytes in as few loads as there can be.
template <int kCount, class N>
__device__ __forceinline__ void load_numbers(N (&numbers)[kCount], const N* from) {
  constexpr int kAtOnce = sizeof(N) != 4 ? 1 : kCount < 4 ? kCount : 4;
  using Some = std::conditional_t<kAtOnce == 4, uint4, std::conditional_t<kAtOnce == 2, uint2, N>>;
  static_assert(kCount % kAtOnce == 0);
#pragma unroll
  for (int u = 0; u < kCount; u += kAtOnce) {
    const Some some = *reinterpret_cast<const Some*>(from + u);
#pragma unroll
    for (int x = 0; x < kAtOnce; ++x) numbers[u + x] = reinterpret_cast<const N*>(&some)[x];
  }
}

// Rounds, a row each, that have so many vectors a lane; at least one, and no more than a group has lanes.
template <class S>
__host__ __device__ constexpr int rounds_of_vectors(int vectors) {
  const int rounds = vectors / S::kSteps;
  return rounds < 1 ? 1 : rounds < S::kLanes ? rounds : S::kLanes;
}

// One lane's share of a row as it lies in memory: vectors lane, lane + kLanes, ... of kVec features each. What is
// loaded ahead waits in this form, which takes half the registers of numbers where T is 16 bits wide.
template <class S>
struct Packed {
  using T = typename S::T;
  static constexpr int kBytes = S::kVec * sizeof(T);
  using Vector =
      std::conditional_t<kBytes == 16, uint4,
                         std::conditional_t<S::kVec == 1, T, std::conditional_t<kBytes == 8, uint2, uint32_t>>>;
  static_assert(S::kVec * sizeof(T) == sizeof(Vector));
  Vector steps[S::kSteps];

  // features: how many the row has left from `row` on; those past it read as 0.
  __device__ __forceinline__ void load(const T* row, int lane, int features) {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      const int f = (s * S::kLanes + lane) * S::kVec;
      if (S::kExact || f < features) {
        steps[s] = *reinterpret_cast<const Vector*>(row + f);
      } else {
        steps[s] = Vector{};
      }
    }
  }

  __device__ __forceinline__ typename S::A operator[](int i) const {
    if constexpr (S::kVec == 1) return to_accumulate(steps[i]);
    if constexpr (S::kVec > 1) return number_of<T>(steps, i);
  }

  template <class Other>
  __device__ __forceinline__ typename S::A dot(const Other& other) const {
    typename S::A sum = 0;
#pragma unroll
    for (int i = 0; i < S::kSteps * S::kVec; ++i) sum += (*this)[i] * other[i];
    return sum;
  }
};

// A lane's share of a row that is of the accumulation type already.
template <class S>
struct NumberFragment {
  using A = typename S::A;
  A x[S::kSteps * S::kVec];

  __device__ __forceinline__ A operator[](int i) const { return x[i]; }

  __device__ __forceinline__ void load(const A* row, int lane, int features) {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      const int f = (s * S::kLanes + lane) * S::kVec;
#pragma unroll
      for (int v = 0; v < S::kVec; ++v) x[s * S::kVec + v] = S::kExact || f < features ? __ldg(row + f + v) : A(0);
    }
  }
};

// The same as numbers.
template <class S>
struct Fragment {
  using T = typename S::T;
  using A = typename S::A;
  static constexpr int kSize = S::kSteps * S::kVec;
  A x[kSize];

  __device__ __forceinline__ A operator[](int i) const { return x[i]; }

  __device__ __forceinline__ void zero() {
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[i] = A(0);
  }

  __device__ __forceinline__ void load(const T* row, int lane, int features) {
    Packed<S> packed;
    packed.load(row, lane, features);
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[i] = packed[i];
  }

  // Stores steps [first, first + count) of the row, of which x holds the first `count`.
  template <int kCount>
  __device__ __forceinline__ void store(T* row, int lane, int features, int first, A factor = A(1)) const {
#pragma unroll
    for (int s = 0; s < kCount; ++s) {
      const int f = ((first + s) * S::kLanes + lane) * S::kVec;
      if (!S::kExact && f >= features) continue;
      typename Packed<S>::Vector vector;
#pragma unroll
      for (int v = 0; v < S::kVec; ++v) {
        reinterpret_cast<T*>(&vector)[v] = from_accumulate<T>(x[s * S::kVec + v] * factor);
      }
      store_vector(row + f, vector);
    }
  }

  template <class Other>
  __device__ __forceinline__ A dot(const Other& other) const {
    A sum = A(0);
#pragma unroll
    for (int i = 0; i < kSize; ++i) sum += x[i] * other[i];
    return sum;
  }

  template <class Other>
  __device__ __forceinline__ void add(A weight, const Other& other) {
#pragma unroll
    for (int i = 0; i < kSize; ++i) x[i] += weight * other[i];
  }
};

// 1 / max(|x|, eps), as torch.nn.functional.normalize has it, from the sum of a row's squares.
template <class A>
__device__ __forceinline__ A reciprocal_norm_of(A squares, double eps) {
  return A(1) / max(sqrt(squares), static_cast<A>(eps));
}

// Sum over `kLanes` neighbouring lanes, to all of them.
template <int kLanes, class A>
__device__ __forceinline__ A lanes_sum(A x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(kAllLanes, x, offset);
  return x;
}

// The same where the number of lanes, a power of two, is known at run time.
template <class A>
__device__ __forceinline__ A lanes_sum(A x, int lanes) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    if (offset < lanes) x += __shfl_xor_sync(kAllLanes, x, offset);
  }
  return x;
}

template <int kLanes, class A>
__device__ __forceinline__ A lanes_max(A x) {
#pragma unroll
  for (int offset = kLanes / 2; offset > 0; offset /= 2) x = max(x, __shfl_xor_sync(kAllLanes, x, offset));
  return x;
}

template <class A>
__device__ __forceinline__ A warp_max(A x) {
  return lanes_max<kWarp>(x);
}

// Sums over lanes up to this one.
template <class N>
__device__ __forceinline__ N sum_to_lane(N x) {
#pragma unroll
  for (int l = 1; l < kWarp; l *= 2) {
    const N below = __shfl_up_sync(kAllLanes, x, l);
    if (threadIdx.x % kWarp >= l) x += below;
  }
  return x;
}

// Adds up the groups' fragments of a warp. Where a fragment has several steps, each exchange halves what a lane holds
// (a reduce-scatter): 12 shuffles instead of 32 for 4 groups of 16 values, and the store that follows uses all lanes.
// Afterwards the lane holds, in x[0 .. kCount * kVec), steps [first, first + kCount) of the sum. `apart`: lanes from
// one group to the next, more than kLanes where heads lie side by side (warp_heads.cuh).
template <class S>
struct GroupSum {
  static constexpr int kCount = S::kSteps >= S::kGroups ? S::kSteps / S::kGroups : 1;
  int first = 0;
  bool writes = true;  // false where another group holds the same sum

  __device__ __forceinline__ explicit GroupSum(Fragment<S>& fragment, int apart = S::kLanes) {
    reduce<kWarp / 2, S::kSteps>(fragment, threadIdx.x % kWarp, apart);
  }

 private:
  template <int kOffset, int kHeld>
  __device__ __forceinline__ void reduce(Fragment<S>& fragment, int lane, int apart) {
    if constexpr (kOffset >= S::kLanes) {
      if (kOffset < apart) return;
      const bool upper = lane & kOffset;
      if constexpr (kHeld >= 2) {
        constexpr int kHalf = kHeld / 2 * S::kVec;
#pragma unroll
        for (int i = 0; i < kHalf; ++i) {
          const auto sent = upper ? fragment.x[i] : fragment.x[i + kHalf];
          const auto kept = upper ? fragment.x[i + kHalf] : fragment.x[i];
          fragment.x[i] = kept + __shfl_xor_sync(kAllLanes, sent, kOffset);
        }
        first += upper ? kHeld / 2 : 0;
        reduce<kOffset / 2, kHeld / 2>(fragment, lane, apart);
      } else {
#pragma unroll
        for (int i = 0; i < S::kVec; ++i) fragment.x[i] += __shfl_xor_sync(kAllLanes, fragment.x[i], kOffset);
        writes = writes && !upper;
        reduce<kOffset / 2, kHeld>(fragment, lane, apart);
      }
    }
  }
};

}  // namespace dfgnn::cuda
