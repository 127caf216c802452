// Rows that all heads of an edge share, as features of edges are. Part of kernels_<isa>.cpp only.
#pragma once

#include <type_traits>

#include "rows.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// numbers[e * heads + g] = <own_g, rows[source[e]]> of G heads, whose own rows lie `step` apart.
template <int G, class Own, class T, class A>
DFGNN_INLINE void shared_dots_of(const Own* own, int64_t step, Rows<T> rows, const int64_t* source, int n,
                                 int64_t heads, int64_t head_dim, A* numbers) {
  constexpr int L = lanes<A>;
  for (int e = 0; e < n; ++e) {
    const T* row = rows[source[e]];
    Vector<A> sums[G] = {};
    int64_t d = 0;
    for (; d + L <= head_dim; d += L) {
      const Vector<A> y = load(row + d);
      for (int g = 0; g < G; ++g) sums[g] += load(own + g * step + d) * y;
    }
    if (const int rest = int(head_dim - d)) {
      const Vector<A> y = load(row + d, rest);
      for (int g = 0; g < G; ++g) sums[g] += load(own + g * step + d, rest) * y;
    }
    write_sums(sums, numbers + e * heads);
  }
}

// numbers[e][h] = <own_h, rows[source[e]]> of n edges.
template <class Own, class T, class A>
inline void shared_dots(const Own* own, int64_t step, Rows<T> rows, const int64_t* source, int n, int heads,
                        int64_t head_dim, A* numbers) {
  if constexpr (std::is_same_v<Own, A> && std::is_same_v<T, A>) {
    if (head_dim == 1 && step == 1) {
      for (int e = 0; e < n; ++e) {
        const A x = *rows[source[e]];
#pragma omp simd
        for (int h = 0; h < heads; ++h) numbers[e * heads + h] = own[h] * x;
      }
      return;
    }
  }
  int h = 0;
  const auto some = [&](auto group) __attribute__((always_inline)) {
    constexpr int G = decltype(group)::value;
    for (; h + G <= heads; h += G) {
      shared_dots_of<G>(own + h * step, step, rows, source, n, heads, head_dim, numbers + h);
    }
  };
  some(std::integral_constant<int, 8>());
  some(std::integral_constant<int, 4>());
  for (; h < heads; ++h) dots<1, Own, T, A>({own + h * step}, rows, source, n, head_dim, {numbers + h}, heads);
}

// to (+)= v, or the first `rest` lanes where that is not 0; what follows is another head's.
template <class A>
DFGNN_INLINE void add_exactly(A* to, Vector<A> v, int rest, bool add) {
  if (rest) {
    store(to, add ? load(to, rest) + v : v, rest);
  } else {
    store(to, add ? load(to) + v : v);
  }
}

template <int V, int G, class T, class A>
DFGNN_INLINE void shared_sums_columns(const A* number, int heads, Rows<T> rows, const int64_t* source, int n, int rest,
                                      int64_t head_dim, bool add, A* sums) {
  Vector<A> s[G][V] = {};
  for (int e = 0; e < n; ++e) {
    const T* row = rows[source[e]];
    for (int v = 0; v < V; ++v) {
      const Vector<A> x = load_column(row, v, rest);
      for (int g = 0; g < G; ++g) s[g][v] += number[e * heads + g] * x;
    }
  }
  for (int g = 0; g < G; ++g) {
    for (int v = 0; v < V; ++v) add_exactly(sums + g * head_dim + v * lanes<A>, s[g][v], rest, add);
  }
}

// Heads at a time where columns are of V vectors.
template <int V>
constexpr int kSharedGroup = V == 1 ? 4 : 2;

// sums [heads, head_dim] (+)= the sum of number[e][h] * rows[source[e]] over n edges.
template <class T, class A>
inline void shared_sums(const A* number, int heads, Rows<T> rows, const int64_t* source, int n, int64_t head_dim,
                        bool add, A* sums) {
  for_each_columns<A>(head_dim, [&](auto vectors, int64_t d, int rest) {
    constexpr int V = decltype(vectors)::value;
    for_each_group<kSharedGroup<V>>(heads, [&](auto group, int h) __attribute__((always_inline)) {
      shared_sums_columns<V, decltype(group)::value>(number + h, heads, from_feature(rows, d), source, n, rest,
                                                     head_dim, add, sums + h * head_dim + d);
    });
  });
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
