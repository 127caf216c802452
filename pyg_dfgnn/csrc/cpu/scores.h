// A block's logits, its dropout mask, its exponentials. Part of kernels_<isa>.cpp only.
#pragma once

#include "narrow.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Philox2x32-7 (Salmon et al., SC'11), keyed by the seed's low half and counted by e / 4 and by h plus the seed's high
// half, all of 32 bits: two words for four edges, each for two, as it is and with its halves swapped.
DFGNN_INLINE uint32_t random_word(uint64_t e, uint32_t h, uint32_t seed_low, uint32_t seed_high) {
  uint32_t first = uint32_t(e >> 2), second = h + seed_high, key = seed_low;
  for (int round = 0; round < 7; ++round) {
    const uint64_t product = uint64_t(0xD256D193u) * first;
    first = uint32_t(product >> 32) ^ key ^ second;
    second = uint32_t(product);
    key += 0x9E3779B9u;
  }
  const uint32_t word = (e & 2) != 0 ? second : first;
  return (e & 1) != 0 ? word << 16 | word >> 16 : word;
}

// What dropout multiplies the weights of edges begin .. begin + n by: 0, or 1 / (1 - p).
template <class A>
inline void keep_factors(const Args& args, int64_t begin, int n, int64_t h, A* factor) {
  const uint64_t threshold = args.keep_threshold;
  const A scale = A(args.keep_scale);
  const uint32_t seed_low = args.seed[0], seed_high = args.seed[1];
#pragma omp simd
  for (int e = 0; e < n; ++e) {
    factor[e] = random_word(uint64_t(begin + e), uint32_t(h), seed_low, seed_high) >= threshold ? scale : A(0);
  }
}

// The rows that the logits and sums of a block gather.
template <Logit LOGIT, class T>
DFGNN_INLINE void prefetch_sources(const Args& args, const Block& block) {
  if (LOGIT == Logit::dot) prefetch_rows<T>(args, block, args.src, args.num_src);
  prefetch_rows<T>(args, block, args.value, args.num_src);
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

// s[e]: the logits of the block's edges; with `derivatives` those too.
template <Logit LOGIT, class T, class A>
inline void logits(const Args& args, const Block& block, int64_t h, A* s, Derivatives<A>* derivatives) {
  const int64_t H = args.heads, D = args.head_dim;
  const int n = block.n;
  const int64_t* source = block.source;
  const Rows<T> src = head_of<T>(args.src, h, H, D), value = head_of<T>(args.value, h, H, D);
  const Rows<T> dst = head_of<T>(args.dst, h, H, D), grad_out = head_of<T>(args.grad_out, h, H, D);
  const bool narrow = is_narrow<T>(D);
  if constexpr (LOGIT == Logit::additive) {
    const A *a_dst = as<A>(args.dst) + block.row * H + h, *a_src = as<A>(args.src) + h;
    for_each_edge(block, [&](int e, int r) { s[e] = a_dst[r * H] + a_src[source[e] * H]; });
  }
  if constexpr (std::is_same_v<T, A>) {
    if (narrow && LOGIT == Logit::additive_v2) {
      narrow_leaky_dots(block, as<A>(args.att) + h * D, A(args.negative_slope), dst, src, D, s);
    } else if (narrow && LOGIT != Logit::additive) {
      narrow_dots(block, dst, src, D, s);
    }
    if (narrow && derivatives) narrow_dots(block, grad_out, value, D, derivatives->value_dot);
  }
  if (!narrow && (LOGIT != Logit::additive || derivatives)) {
    for_each_full_row(block, [&](int64_t i, int first, int last) __attribute__((always_inline)) {
      A* value_dot = derivatives ? derivatives->value_dot + first : nullptr;
      if (LOGIT == Logit::cosine && derivatives) {  // rows are read once
        dots<2>({dst[i], grad_out[i]}, value, source + first, last - first, D, {s + first, value_dot});
        return;
      }
      if constexpr (LOGIT == Logit::additive_v2) {
        const A* att = as<A>(args.att) + h * D;
        leaky_dots(att, dst[i], A(args.negative_slope), src, source + first, last - first, D, s + first);
      } else if (LOGIT != Logit::additive) {
        dots<1>({dst[i]}, src, source + first, last - first, D, {s + first});
      }
      if (derivatives) dots<1>({grad_out[i]}, value, source + first, last - first, D, {value_dot});
    });
  }
  if constexpr (LOGIT == Logit::dot) {
    const A scale = A(args.scale);
#pragma omp simd
    for (int e = 0; e < n; ++e) s[e] *= scale;
  } else if constexpr (LOGIT == Logit::cosine) {
    const A *dst_scale = as<A>(args.dst_scale) + block.row * H + h, *src_scale = as<A>(args.src_scale) + h;
    for_each_edge(block, [&](int e, int r) { s[e] = s[e] * dst_scale[r * H] * src_scale[source[e] * H]; });
  } else if constexpr (LOGIT == Logit::additive) {
    const A negative_slope = A(args.negative_slope);
    if (args.a_edge) add_per_edge(as<A>(args.a_edge) + block.begin * H + h, H, n, s);
    if (derivatives) {
#pragma omp simd
      for (int e = 0; e < n; ++e) derivatives->slope[e] = s[e] > A(0) ? A(1) : negative_slope;
    }
#pragma omp simd
    for (int e = 0; e < n; ++e) s[e] *= s[e] > A(0) ? A(1) : negative_slope;
  }
  if (args.bias) add_per_edge(as<A>(args.bias) + block.begin * H + h, H, n, s);
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

// out[i] = factor(r) * the sum over the edges of row i = block.row + r of weight[e] * rows[source[e]]; rows of out are
// as far apart as those of `rows`. `sums` holds whole vectors of a head.
template <class T, class A, class Factor>
inline void write_sums_of_rows(const Block& block, const A* weight, Rows<T> rows, int64_t head_dim, T* out, A* sums,
                               Factor factor) {
  if constexpr (std::is_same_v<T, A>) {
    if (is_narrow<T>(head_dim)) {
      const auto write_terms = [&](int64_t d, A* terms) __attribute__((always_inline)) {
        for_each_edge(block, [&](int e, int) __attribute__((always_inline)) {
          terms[e] = weight[e] * rows.data[block.source[e] * rows.stride + d];
        });
      };
      narrow_sums(block, out, rows.stride, head_dim, write_terms, factor);
      return;
    }
  }
  for_each_row(block, [&](int64_t i, int first, int last) {
    if (first == last) {
      clear_row(out + i * rows.stride, head_dim);
      return;
    }
    weighted_sum(weight + first, rows, block.source + first, last - first, head_dim, false, sums);
    write_row(out + i * rows.stride, sums, factor(int(i - block.row)), head_dim);
  });
}

// The same of weight[e] * slope(own[i] + rows[source[e]]), additive_v2's.
template <class T, class A>
inline void write_slopes_of_rows(const Block& block, const A* weight, Rows<T> own, Rows<T> rows, A negative_slope,
                                 int64_t head_dim, T* out, A* sums) {
  if constexpr (std::is_same_v<T, A>) {
    if (is_narrow<T>(head_dim)) {
      const auto write_terms = [&](int64_t d, A* terms) __attribute__((always_inline)) {
        for_each_sum(block, own, rows, d, [&](int e, Vector<A> z) __attribute__((always_inline)) {
          store(terms + e, load(weight + e) * slope(z, negative_slope));
        });
      };
      narrow_sums(block, out, rows.stride, head_dim, write_terms, [](int) { return A(1); });
      return;
    }
  }
  for_each_row(block, [&](int64_t i, int first, int last) {
    if (first == last) {
      clear_row(out + i * rows.stride, head_dim);
      return;
    }
    weighted_slopes(weight + first, own[i], negative_slope, rows, block.source + first, last - first, head_dim, false,
                    sums);
    write_row(out + i * rows.stride, sums, A(1), head_dim);
  });
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
