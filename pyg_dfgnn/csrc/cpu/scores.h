// A block of edges of one row: its sources, its logits, its dropout mask. Part of kernels_<isa>.cpp only.
#pragma once

#include "kernels.h"
#include "rows.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kNaN = __builtin_nanf("");

template <class A>
DFGNN_INLINE const A* as(const void* p) {
  return static_cast<const A*>(p);
}
template <class A>
DFGNN_INLINE A* as(void* p) {
  return static_cast<A*>(p);
}

DFGNN_INLINE int64_t index_at(const void* indices, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(indices)[i] : static_cast<const int32_t*>(indices)[i];
}

struct Range {
  int64_t begin, end;
};

// The entries of row i, whatever the pointer array holds: inside [0, num_edges], empty where it decreases.
DFGNN_INLINE Range row_range(const void* pointers, const Args& args, int64_t i) {
  const auto clamped = [&](int64_t p) { return p < 0 ? 0 : p > args.num_edges ? args.num_edges : p; };
  const int64_t begin = clamped(index_at(pointers, args.wide_index, i));
  const int64_t end = clamped(index_at(pointers, args.wide_index, i + 1));
  return {begin, end < begin ? begin : end};
}

// out[e] = indices[begin + e]; false where one is outside [0, bound).
DFGNN_INLINE bool read_indices(const void* indices, bool wide, int64_t begin, int n, int64_t bound, int64_t* out) {
  bool valid = true;
  const auto read = [&](auto* p) {
    for (int e = 0; e < n; ++e) {
      out[e] = p[begin + e];
      valid &= uint64_t(out[e]) < uint64_t(bound);
    }
  };
  wide ? read(static_cast<const int64_t*>(indices)) : read(static_cast<const int32_t*>(indices));
  return valid;
}

// Philox4x32-10 (Salmon et al., SC'11): the first word for counter (low32(e), high32(e), h, 0).
DFGNN_INLINE uint32_t random_word(uint64_t e, uint32_t h, uint32_t key0, uint32_t key1) {
  uint32_t c0 = uint32_t(e), c1 = uint32_t(e >> 32), c2 = h, c3 = 0;
  for (int round = 0; round < 10; ++round) {
    const uint64_t m0 = uint64_t(0xD2511F53u) * c0, m1 = uint64_t(0xCD9E8D57u) * c2;
    c0 = uint32_t(m1 >> 32) ^ c1 ^ key0;
    c1 = uint32_t(m1);
    c2 = uint32_t(m0 >> 32) ^ c3 ^ key1;
    c3 = uint32_t(m0);
    key0 += 0x9E3779B9u;
    key1 += 0xBB67AE85u;
  }
  return c0;
}

// What dropout multiplies the weights of edges begin .. begin + n by: 0, or 1 / (1 - p).
template <class A>
inline void keep_factors(const Args& args, int64_t begin, int n, int64_t h, A* factor) {
  const uint64_t threshold = args.keep_threshold;
  const A scale = A(args.keep_scale);
  const uint32_t key0 = args.key[0], key1 = args.key[1];
#pragma omp simd
  for (int e = 0; e < n; ++e) {
    factor[e] = random_word(uint64_t(begin + e), uint32_t(h), key0, key1) >= threshold ? scale : A(0);
  }
}

// What of a logit its gradient needs: <grad_out_i, value_j>, and the derivative of the additive score's leaky ReLU.
template <class A>
struct Derivatives {
  A value_dot[kBlock], slope[kBlock];
};

template <class A>
DFGNN_INLINE void add_per_edge(const A* terms, int64_t heads, int n, A* s) {
#pragma omp simd
  for (int e = 0; e < n; ++e) s[e] += terms[e * heads];
}

// s[e]: the logits of edges begin .. begin + n of row i, whose sources are source[0 .. n); with `derivatives` those
// too.
template <Logit LOGIT, class T, class A>
inline void logits(const Args& args, int64_t i, int64_t h, int64_t begin, int n, const int64_t* source, A* s,
                   Derivatives<A>* derivatives) {
  const int64_t H = args.heads, D = args.head_dim;
  const Rows<T> value = head_of<T>(args.value, h, H, D);
  const T* grad_out = derivatives ? head_of<T>(args.grad_out, h, H, D)[i] : nullptr;
  if constexpr (LOGIT == Logit::cosine) {
    const T* dst = head_of<T>(args.dst, h, H, D)[i];
    if (derivatives) {
      dots<2>({dst, grad_out}, value, source, n, D, {s, derivatives->value_dot});  // each row is read once
    } else {
      dots<1>({dst}, value, source, n, D, {s});
    }
    const A dst_scale = as<A>(args.dst_scale)[i * H + h];
    const A* src_scale = as<A>(args.src_scale) + h;
#pragma omp simd
    for (int e = 0; e < n; ++e) s[e] *= dst_scale * src_scale[source[e] * H];
  } else {
    if constexpr (LOGIT == Logit::dot) {
      dots<1>({head_of<T>(args.dst, h, H, D)[i]}, head_of<T>(args.src, h, H, D), source, n, D, {s});
      const A scale = A(args.scale);
#pragma omp simd
      for (int e = 0; e < n; ++e) s[e] *= scale;
    } else {
      const A dst = as<A>(args.dst)[i * H + h], negative_slope = A(args.negative_slope);
      const A* src = as<A>(args.src) + h;
#pragma omp simd
      for (int e = 0; e < n; ++e) s[e] = dst + src[source[e] * H];
      if (args.a_edge) add_per_edge(as<A>(args.a_edge) + begin * H + h, H, n, s);
      if (derivatives) {
#pragma omp simd
        for (int e = 0; e < n; ++e) derivatives->slope[e] = s[e] > A(0) ? A(1) : negative_slope;
      }
#pragma omp simd
      for (int e = 0; e < n; ++e) s[e] *= s[e] > A(0) ? A(1) : negative_slope;
    }
    if (derivatives) dots<1>({grad_out}, value, source, n, D, {derivatives->value_dot});
  }
  if (args.bias) add_per_edge(as<A>(args.bias) + begin * H + h, H, n, s);
}

// s[e] = exp(s[e] - shift) for n scores in an array of whole vectors; their sum.
template <class A>
inline A exp_block(A* s, int n, A shift) {
  constexpr int L = lanes<A>;
  for (int e = n; e % L; ++e) s[e] = -kInfinity;
  Vector<A> total = {};
  for (int e = 0; e < n; e += L) {
    const Vector<A> p = exp(load(s + e) - shift);
    store(s + e, p);
    total += p;
  }
  return sum(total);
}

template <class A>
inline A sum_block(A* s, int n) {
  constexpr int L = lanes<A>;
  for (int e = n; e % L; ++e) s[e] = A(0);
  Vector<A> total = {};
  for (int e = 0; e < n; e += L) total += load(s + e);
  return sum(total);
}

template <class A>
inline A max_block(A* s, int n) {
  constexpr int L = lanes<A>;
  for (int e = n; e % L; ++e) s[e] = -kInfinity;
  Vector<A> m = broadcast(A(-kInfinity));
  for (int e = 0; e < n; e += L) m = max(m, load(s + e));
  return max_lane(m);
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
