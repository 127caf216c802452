// A block's logits, its dropout mask, its exponentials. Part of kernels_<isa>.cpp only.
#pragma once

#include "gathers.h"
#include "messages.h"
#include "numbers.h"

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

// What dropout multiplies the numbers of a block by.
template <class A>
inline void keep_factors(const Args& args, const Block& block, auto heads, A* factor) {
  A of_head[kBlock];
  for (int h = 0; h < heads.count; ++h) {
    keep_factors(args, block.begin, block.n, heads.first + h, of_head);
    for (int e = 0; e < block.n; ++e) factor[e * heads.count + h] = of_head[e];
  }
}

constexpr bool is_dot(Logit logit) { return logit == Logit::dot || logit == Logit::message; }

// What a block of rows needs beside its sources; false where that is out of range.
template <Logit LOGIT, class T>
DFGNN_INLINE bool read_more(const Args& args, Block& block) {
  return LOGIT != Logit::message || Messages<T>::read(args, block);
}

// The rows that the logits and sums of a block gather.
template <Logit LOGIT, class T>
DFGNN_INLINE void prefetch_sources(const Args& args, const Block& block) {
  const int64_t size = args.heads * args.head_dim;
  if (LOGIT == Logit::message) Messages<T>::prefetch(args, block);
  if (is_dot(LOGIT)) prefetch_rows<T>(block, block.source, args.src, args.num_src, size);
  prefetch_rows<T>(block, block.source, args.value, args.num_src, size);
}

// What of a logit its gradient needs: <grad_out_i, value_j>, and the derivative of the additive score's leaky ReLU.
template <class A>
struct Derivatives {
  A value_dot[kNumbersArray<A>], slope[kNumbersArray<A>];
};

// s: the logits of the block's edges; with `derivatives` those too. room: of messages.
template <Logit LOGIT, class T, class A>
inline void logits(const Args& args, const Block& block, auto heads, A* s, Derivatives<A>* derivatives, A* room) {
  const int n = block.n * heads.count;
  if constexpr (LOGIT == Logit::additive) {
    gather_numbers(args, block, heads, block.source, args.src, s);
    update_by_nodes(args, block, heads, s, args.dst, [](auto y, auto x) { return x + y; });
    if (args.a_edge) add_numbers(args, block, heads, args.a_edge, s);
    const A negative_slope = A(args.negative_slope);
    if (derivatives) {
#pragma omp simd
      for (int k = 0; k < n; ++k) derivatives->slope[k] = s[k] > A(0) ? A(1) : negative_slope;
    }
#pragma omp simd
    for (int k = 0; k < n; ++k) s[k] *= s[k] > A(0) ? A(1) : negative_slope;
  } else if constexpr (LOGIT == Logit::additive_v2) {
    leaky_products<T>(args, block, heads, s);
  } else if (LOGIT == Logit::cosine && derivatives) {
    products<2, T>(args, block, heads, {args.dst, args.grad_out}, args.value, {s, derivatives->value_dot});
  } else {
    products<1, T>(args, block, heads, {args.dst}, args.src, {s});
  }
  if constexpr (LOGIT == Logit::cosine) {
    update_by_nodes(args, block, heads, s, args.dst_scale, [](auto number, auto scale) { return number * scale; });
    multiply_by_sources(args, block, heads, s, args.src_scale);
  } else {
    if (derivatives) products<1, T>(args, block, heads, {args.grad_out}, args.value, {derivatives->value_dot});
  }
  if constexpr (LOGIT == Logit::message) {
    Messages<T>::add_products(args, block, heads, args.dst, s, room);
    if (derivatives) Messages<T>::add_products(args, block, heads, args.grad_out, derivatives->value_dot, room);
  }
  if constexpr (is_dot(LOGIT)) {
    const A scale = A(args.scale);
#pragma omp simd
    for (int k = 0; k < n; ++k) s[k] *= scale;
  }
  if (args.bias) add_numbers(args, block, heads, args.bias, s);
}

// s[k] = exp(s[k]) for n numbers.
template <class A>
inline void exp_block(A* s, int n) {
  for (int k = 0; k < n; k += lanes<A>) store(s + k, exp(load(s + k)));
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
