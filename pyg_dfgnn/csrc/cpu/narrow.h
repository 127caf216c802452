// Heads of few features: edges, not features, take the lanes of a vector. Part of kernels_<isa>.cpp only.
#pragma once

#include <type_traits>

#include "block.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Features that are read one at a time, as wide as what they are computed in.
template <class T>
DFGNN_INLINE bool is_narrow(int64_t head_dim) {
  return std::is_same_v<T, typename Accumulator<T>::type> && head_dim <= 3;
}

// out[e] = <own, other> of the rows of the edge's two ends.
template <class A>
inline void narrow_dots(const Block& block, Rows<A> own, Rows<A> other, int64_t head_dim, A* out) {
  for (int64_t d = 0; d < head_dim; ++d) {
    const A *x = own[block.row] + d, *y = other.data + d;
    for_each_edge(block, [&](int e, int r) __attribute__((always_inline)) {
      const A term = x[r * own.stride] * y[block.source[e] * other.stride];
      out[e] = d == 0 ? term : out[e] + term;
    });
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
      const Vector<A> term = att[d] * slope(z, negative_slope) * z;
      store(out + e, d == 0 ? term : load(out + e) + term);
    });
  }
}

// out[i] = factor(r) * the sums over the edges of row i = block.row + r of what write_terms(d, terms) makes for each
// feature; rows of out are `stride` apart.
template <class A, class WriteTerms, class Factor>
DFGNN_INLINE void narrow_sums(const Block& block, A* out, int64_t stride, int64_t head_dim, WriteTerms write_terms,
                              Factor factor) {
  A terms[kBlock];
  for (int64_t d = 0; d < head_dim; ++d) {
    write_terms(d, terms);
    for_each_row(block, [&](int64_t i, int first, int last) {
      A sum = 0;
      for (int e = first; e < last; ++e) sum += terms[e];
      out[i * stride + d] = sum * factor(int(i - block.row));
    });
  }
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
