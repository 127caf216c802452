// Vectors of A (float or double) as wide as the instruction set's registers, with loads from and stores to T.
// GCC's vector extensions, so that +, * and comparisons need no intrinsics; part of kernels_<isa>.cpp only.
#pragma once

#include <cstdint>
#include <cstring>
#include <utility>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define DFGNN_INLINE inline __attribute__((always_inline))

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

#if defined(__AVX512F__)
constexpr int kVectorBytes = 64;
#elif defined(__AVX2__)
constexpr int kVectorBytes = 32;
#else
constexpr int kVectorBytes = 16;
#endif

struct half {
  uint16_t bits;
};
struct bfloat16 {
  uint16_t bits;
};

template <class T>
struct Accumulator {
  using type = float;
};
template <>
struct Accumulator<double> {
  using type = double;
};

template <class A>
constexpr int lanes = kVectorBytes / int(sizeof(A));

typedef float FloatVector __attribute__((vector_size(kVectorBytes)));
typedef double DoubleVector __attribute__((vector_size(kVectorBytes)));
typedef int32_t IntVector __attribute__((vector_size(kVectorBytes)));
typedef uint32_t UintVector __attribute__((vector_size(kVectorBytes)));
typedef uint16_t HalfBits __attribute__((vector_size(kVectorBytes / 2)));

template <class A>
struct VectorOf {
  using type = FloatVector;
};
template <>
struct VectorOf<double> {
  using type = DoubleVector;
};
template <class A>
using Vector = typename VectorOf<A>::type;

template <class A>
DFGNN_INLINE Vector<A> broadcast(A x) {
  return Vector<A>{} + x;
}

template <class To, class From>
DFGNN_INLINE To bit_cast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

// ---- whole vectors ----

DFGNN_INLINE FloatVector load(const float* p) {
  FloatVector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}
DFGNN_INLINE DoubleVector load(const double* p) {
  DoubleVector v;
  std::memcpy(&v, p, sizeof v);
  return v;
}

DFGNN_INLINE UintVector widen(HalfBits bits) {  // GCC 12 splits the conversion into halves
#if defined(__AVX512F__)
  return bit_cast<UintVector>(_mm512_maskz_cvtepu16_epi32(0xffff, bit_cast<__m256i>(bits)));
#elif defined(__AVX2__)
  return bit_cast<UintVector>(_mm256_cvtepu16_epi32(bit_cast<__m128i>(bits)));
#else
  return __builtin_convertvector(bits, UintVector);
#endif
}

DFGNN_INLINE FloatVector widen_bfloat16(HalfBits bits) { return bit_cast<FloatVector>(widen(bits) << 16); }

DFGNN_INLINE FloatVector widen_half(HalfBits bits) {
#if defined(__AVX512F__)
  return bit_cast<FloatVector>(_mm512_maskz_cvtph_ps(0xffff, bit_cast<__m256i>(bits)));
#elif defined(__AVX2__)
  return bit_cast<FloatVector>(_mm256_cvtph_ps(bit_cast<__m128i>(bits)));
#else
  // The exponent and mantissa in float's place are the number times 2^-112; exponent 31 means infinity or NaN.
  const UintVector wide = widen(bits);
  const UintVector magnitude = (wide & 0x7fffu) << 13;
  const UintVector number = bit_cast<UintVector>(bit_cast<FloatVector>(magnitude) * 0x1p112f);
  const UintVector special = bit_cast<UintVector>(magnitude >= (0x7c00u << 13)) & (magnitude | 0x7f800000u);
  return bit_cast<FloatVector>(((wide & 0x8000u) << 16) | number | special);
#endif
}

DFGNN_INLINE FloatVector load(const bfloat16* p) {
  HalfBits bits;
  std::memcpy(&bits, p, sizeof bits);
  return widen_bfloat16(bits);
}
DFGNN_INLINE FloatVector load(const half* p) {
  HalfBits bits;
  std::memcpy(&bits, p, sizeof bits);
  return widen_half(bits);
}

DFGNN_INLINE void store(float* p, FloatVector v) { std::memcpy(p, &v, sizeof v); }
DFGNN_INLINE void store(double* p, DoubleVector v) { std::memcpy(p, &v, sizeof v); }

DFGNN_INLINE HalfBits narrow_bfloat16(FloatVector v) {
  const UintVector bits = bit_cast<UintVector>(v);
  const UintVector nearest_even = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const UintVector nan = bit_cast<UintVector>(v != v);
  return __builtin_convertvector((nan & 0x7fc0u) | (~nan & nearest_even), HalfBits);
}

DFGNN_INLINE HalfBits narrow_half(FloatVector v) {
#if defined(__AVX512F__)
  return bit_cast<HalfBits>(_mm512_maskz_cvtps_ph(0xffff, bit_cast<__m512>(v), _MM_FROUND_TO_NEAREST_INT));
#elif defined(__AVX2__)
  return bit_cast<HalfBits>(_mm256_cvtps_ph(bit_cast<__m256>(v), _MM_FROUND_TO_NEAREST_INT));
#else
  const UintVector bits = bit_cast<UintVector>(v);
  const UintVector magnitude = bits & 0x7fffffffu;
  // Normal numbers: rebias the exponent by -112 and round the 13 lost bits to nearest even.
  const UintVector normal = (magnitude - (112u << 23) + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // Below 2^-14: adding 0.5 makes the float adder round at half's last subnormal bit, 2^-24.
  const UintVector subnormal = bit_cast<UintVector>(bit_cast<FloatVector>(magnitude) + 0.5f) - 0x3f000000u;
  const UintVector small = bit_cast<UintVector>(magnitude < 0x38800000u);
  const UintVector large = bit_cast<UintVector>(magnitude >= 0x477ff000u);  // rounds to 65536 or more
  const UintVector nan = bit_cast<UintVector>(magnitude > 0x7f800000u);
  const UintVector finite = (small & subnormal) | (~small & normal);
  const UintVector result = (large & (0x7c00u | (nan & 0x0200u))) | (~large & finite);
  return __builtin_convertvector(result | ((bits >> 16) & 0x8000u), HalfBits);
#endif
}

DFGNN_INLINE void store(bfloat16* p, FloatVector v) {
  const HalfBits bits = narrow_bfloat16(v);
  std::memcpy(p, &bits, sizeof bits);
}
DFGNN_INLINE void store(half* p, FloatVector v) {
  const HalfBits bits = narrow_half(v);
  std::memcpy(p, &bits, sizeof bits);
}

// ---- the first n lanes, 0 < n < lanes: nothing beyond p[n - 1] is touched, the other lanes are 0 ----

template <class T>
DFGNN_INLINE auto load(const T* p, int n) {
  T padded[lanes<typename Accumulator<T>::type>] = {};
  for (int i = 0; i < n; ++i) padded[i] = p[i];
  return load(padded);
}

template <class T, class V>
DFGNN_INLINE void store(T* p, V v, int n) {
  T padded[lanes<typename Accumulator<T>::type>];
  store(padded, v);
  for (int i = 0; i < n; ++i) p[i] = padded[i];
}

#if defined(__AVX512F__)
DFGNN_INLINE FloatVector load(const float* p, int n) {
  return bit_cast<FloatVector>(_mm512_maskz_loadu_ps(__mmask16((1u << n) - 1u), p));
}
DFGNN_INLINE FloatVector load(const bfloat16* p, int n) {
  return widen_bfloat16(bit_cast<HalfBits>(_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1u), p)));
}
DFGNN_INLINE FloatVector load(const half* p, int n) {
  return widen_half(bit_cast<HalfBits>(_mm256_maskz_loadu_epi16(__mmask16((1u << n) - 1u), p)));
}
DFGNN_INLINE void store(float* p, FloatVector v, int n) {
  _mm512_mask_storeu_ps(p, __mmask16((1u << n) - 1u), bit_cast<__m512>(v));
}
#elif defined(__AVX2__)
DFGNN_INLINE FloatVector load(const float* p, int n) {
  const IntVector lane = {0, 1, 2, 3, 4, 5, 6, 7};
  return bit_cast<FloatVector>(_mm256_maskload_ps(p, bit_cast<__m256i>(lane < n)));
}
DFGNN_INLINE void store(float* p, FloatVector v, int n) {
  const IntVector lane = {0, 1, 2, 3, 4, 5, 6, 7};
  _mm256_maskstore_ps(p, bit_cast<__m256i>(lane < n), bit_cast<__m256>(v));
}
#endif

template <class T, class V>
DFGNN_INLINE void store_some(T* p, V v, int n) {  // all lanes where n is as many or more
  n < lanes<typename Accumulator<T>::type> ? store(p, v, n) : store(p, v);
}

// ---- across lanes ----

// Lanes I of x, which the lanes of y follow.
template <size_t... I, class V>
DFGNN_INLINE V pick(V x, V y) {
#if __has_builtin(__builtin_shufflevector)
  return __builtin_shufflevector(x, y, I...);
#else
  typedef decltype(x > y) Mask;
  return __builtin_shuffle(x, y, Mask{I...});
#endif
}
template <class V>
constexpr auto all_lanes = std::make_index_sequence<sizeof(V) / sizeof(V{}[0])>();

// Lanes 2i + ODD of x, then those of y.
template <int ODD, class V, size_t... I>
DFGNN_INLINE V every_other(V x, V y, std::index_sequence<I...>) {
  return pick<(2 * I + ODD)...>(x, y);
}

// The sums of neighbouring lanes: of x in the lower half, of y in the upper one.
template <class V>
DFGNN_INLINE V add_pairs(V x, V y) {
  return every_other<0>(x, y, all_lanes<V>) + every_other<1>(x, y, all_lanes<V>);
}

// The sums of D neighbouring lanes each, one after the other: of n vectors, in the first n / D or the only one.
template <int D, int N, class V>
DFGNN_INLINE void add_groups(V (&v)[N]) {
  int n = N;
  for (int size = D; size > 1; size /= 2) {
    if (n == 1) {
      v[0] = add_pairs(v[0], v[0]);
    } else {
      n /= 2;
      for (int i = 0; i < n; ++i) v[i] = add_pairs(v[2 * i], v[2 * i + 1]);
    }
  }
}

// out[g * stride] = the sum of v[g]'s lanes.
template <int G, class V, class A>
DFGNN_INLINE void write_sums(const V (&v)[G], A* out, int64_t stride = 1) {
  constexpr int L = lanes<A>;
  static_assert((G & (G - 1)) == 0);
  V sums[G];
  for (int g = 0; g < G; ++g) sums[g] = v[g];
  add_groups<L>(sums);
  if (stride == 1) {
    std::memcpy(out, sums, G * sizeof(A));
  } else {
    for (int g = 0; g < G; ++g) out[g * stride] = sums[g / L][g % L];
  }
}

// op of the lanes l, l + size, l + 2 size, .. in lane l < size, where size is a power of two and at most 2 SIZE.
template <int SIZE, class V, class Op, size_t... I>
DFGNN_INLINE V fold_once(V v, Op op, std::index_sequence<I...>) {
  return op(v, pick<((I + SIZE) % sizeof...(I))...>(v, v));
}
template <int SIZE, class V, class Op>
DFGNN_INLINE V fold(V v, int size, Op op) {
  if constexpr (SIZE > 0) {
    if (SIZE >= size) return fold<SIZE / 2>(fold_once<SIZE>(v, op, all_lanes<V>), size, op);
  }
  return v;
}

// Lane l % n of v, where n is a power of two.
template <class V>
DFGNN_INLINE V repeat_first(V v, int n) {
  decltype(v > v) lane;
  for (int l = 0; l < int(sizeof(V) / sizeof(v[0])); ++l) lane[l] = l & (n - 1);
#if __has_builtin(__builtin_shuffle)
  return __builtin_shuffle(v, lane);
#else
  V repeated;
  for (int l = 0; l < int(sizeof(V) / sizeof(v[0])); ++l) repeated[l] = v[lane[l]];
  return repeated;
#endif
}

// Lane l / D of v, D lanes for each.
template <int D, class V, size_t... I>
DFGNN_INLINE V repeat_lanes(V v, std::index_sequence<I...>) {
  return pick<(I / D)...>(v, v);
}
template <int D, class V>
DFGNN_INLINE V repeat_lanes(V v) {
  return repeat_lanes<D>(v, all_lanes<V>);
}

// ---- exp ----

// e^x within 1 ulp or so; NaN for NaN, 0 for -inf and wherever the result is below 2^-125. With n = round(x / ln 2) and
// r = x - n ln 2 (ln 2 in two parts, the first with trailing zeros so that n times it is exact), e^x = 2^n e^r; e^r for
// |r| <= ln 2 / 2 is Cephes' polynomial.
DFGNN_INLINE FloatVector exp(FloatVector x) {
  const FloatVector bounded = x > 89.0f ? broadcast(89.0f) : (x < -87.0f ? broadcast(-87.0f) : x);
  const FloatVector shifted = bounded * 1.44269504088896341f + 0x1.8p23f;  // the integer lands in the low mantissa bits
  const FloatVector n = shifted - 0x1.8p23f;
  const FloatVector r = (bounded - n * 0.693359375f) + n * 2.12194440e-4f;
  FloatVector p = broadcast(1.9875691500e-4f);
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = (p * r) * r + r + 1.0f;
  // Twice 2^(n - 1): n may be 128 where the result still fits.
  const UintVector exponent = (bit_cast<UintVector>(shifted) + (126u - 0x4b400000u)) << 23;
  const FloatVector result = p * bit_cast<FloatVector>(exponent) * 2.0f;
  return x < -86.5f ? FloatVector{} : result;
}

DFGNN_INLINE DoubleVector exp(DoubleVector x) {
  for (int i = 0; i < lanes<double>; ++i) x[i] = __builtin_exp(x[i]);
  return x;
}

DFGNN_INLINE float exp(float x) { return exp(broadcast(x))[0]; }
DFGNN_INLINE double exp(double x) { return __builtin_exp(x); }
DFGNN_INLINE float log(float x) { return __builtin_logf(x); }
DFGNN_INLINE double log(double x) { return __builtin_log(x); }

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
