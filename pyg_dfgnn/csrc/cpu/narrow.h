// One head of few features: edges, not features, take the lanes of a vector. Part of kernels_<isa>.cpp only.
#pragma once

#include <type_traits>

#include "block.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Features that are read one at a time, as wide as what they are computed in.
template <class T, class Heads>
constexpr bool may_be_narrow = std::is_same_v<T, typename Accumulator<T>::type> && std::is_same_v<Heads, OneHead>;
DFGNN_INLINE bool is_narrow(int64_t head_dim) { return head_dim <= 3; }

// out[e] = <own, other> of the rows of the edge's two ends.
template <class A>
inline void narrow_dots(const Block& block, Rows<A> own, Rows<A> other, int64_t head_dim, A* out) {
  const A *x = own[block.row], *y = other.data;
  const auto product = [&](int e, int r, int64_t d) __attribute__((always_inline)) {
    return x[r * own.stride + d] * y[block.source[e] * other.stride + d];
  };
  for_each_edge(block, [&](int e, int r) __attribute__((always_inline)) { out[e] = product(e, r, 0); });
  for (int64_t d = 1; d < head_dim; ++d) {
    for_each_edge(block, [&](int e, int r) __attribute__((always_inline)) { out[e] += product(e, r, d); });
  }
}

// Calls visit(e, z) for a vector's edges from e on, with z = own + other, feature d of both ends. The edges beyond the
// last one have any z.
template <class A, class Visit>
DFGNN_INLINE void for_each_sum(const Block& block, Rows<A> own, Rows<A> other, int64_t d, Visit visit) {
  A z[kBlock];
  const A *x = own[block.row] + d, *y = other.data + d;
  for_each_edge(block, [&](int e, int r) __attribute__((always_inline)) {
    z[e] = x[r * own.stride] + y[block.source[e] * other.stride];
  });
  for (int e = 0; e < block.n; e += lanes<A>) visit(e, load(z + e));
}

// out[e] = <att, leaky_relu(own + other)>, out an array of whole vectors.
template <class A>
inline void narrow_leaky_dots(const Block& block, const A* att, A negative_slope, Rows<A> own, Rows<A> other,
                              int64_t head_dim, A* out) {
  for (int64_t d = 0; d < head_dim; ++d) {
    for_each_sum(block, own, other, d, [&](int e, Vector<A> z) __attribute__((always_inline)) {
      const Vector<A> term = leaky_term(broadcast(att[d]), z, negative_slope);
      store(out + e, d == 0 ? term : load(out + e) + term);
    });
  }
}

// out[i] = the sums over the edges of row i = block.row + r of what write_terms(d, terms) makes for each feature, by
// factor[r], 0 where that is, or, without factors, by scale.
template <class A, class WriteTerms>
DFGNN_INLINE void narrow_sums(const Block& block, A* out, int64_t head_dim, WriteTerms write_terms, A scale,
                              const A* factor) {
  A terms[kBlock];
  for (int64_t d = 0; d < head_dim; ++d) {
    write_terms(d, terms);
    for_each_row(block, [&](int64_t i, int first, int last) {
      A sum = 0;
      for (int e = first; e < last; ++e) sum += terms[e];
      const A f = factor ? factor[i - block.row] : scale;
      out[i * head_dim + d] = factor && f == A(0) ? A(0) : sum * f;
    });
  }
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
