// Heads of D features each, which divides the lanes: several share a vector. Part of kernels_<isa>.cpp only.
#pragma once

#include "rows.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Calls f(an integral_constant of D) where heads of D features share vectors; whether they do.
template <class A, class F>
DFGNN_INLINE bool with_joint_heads(int64_t heads, int64_t head_dim, F f) {
  if (heads == 1) return false;
  const auto of = [&](auto size) __attribute__((always_inline)) {
    if constexpr (decltype(size)::value <= lanes<A>) {
      if (head_dim == size) {
        f(size);
        return true;
      }
    }
    return false;
  };
  return of(std::integral_constant<int, 1>()) || of(std::integral_constant<int, 2>()) ||
         of(std::integral_constant<int, 4>()) || of(std::integral_constant<int, 8>()) ||
         of(std::integral_constant<int, 16>());
}

// Calls f(an integral_constant of vectors, d, rest) for the features from d on of as many vectors, or of rest > 0
// lanes of one, until there are `size`.
template <class A, class F>
DFGNN_INLINE void for_each_columns(int64_t size, F f) {
  constexpr int L = lanes<A>;
  int64_t d = 0;
  for (; size - d >= 4 * L; d += 4 * L) f(std::integral_constant<int, 4>(), d, 0);
  for (; size - d >= 1 * L; d += 1 * L) f(std::integral_constant<int, 1>(), d, 0);
  if (const int rest = int(size - d)) f(std::integral_constant<int, 1>(), d, rest);
}

template <class T>
DFGNN_INLINE auto load_column(const T* p, int v, int rest) {
  return rest ? load(p, rest) : load(p + v * lanes<typename Accumulator<T>::type>);
}

// What makes numbers of a row's features: <own, other>, or, where there is att, <att, leaky_relu(own + other)>.
template <class A>
struct Product {
  const A* att;  // of all heads, or null
  A negative_slope;
};

// out[e * heads + h]: numbers of n edges.
template <int D, class T, class A>
inline void joint_dots(const Product<A>& product, const T* own, Rows<T> rows, const int64_t* index, int n,
                       int64_t heads, A* out) {
  constexpr int L = lanes<A>;
  const auto columns = [&](auto vectors, int64_t d, int rest, auto is_leaky) __attribute__((always_inline)) {
    constexpr int V = decltype(vectors)::value, kSums = V < D ? 1 : V / D;
    const int count = (rest ? rest : V * L) / D;
    Vector<A> x[V], att[V];
    for (int v = 0; v < V; ++v) x[v] = load_column(own + d, v, rest);
    if constexpr (is_leaky) {
      for (int v = 0; v < V; ++v) att[v] = load_column(product.att + d, v, rest);
    }
    for (int e = 0; e < n; ++e) {
      const T* row = rows[index[e]] + d;
      Vector<A> term[V];
      for (int v = 0; v < V; ++v) {
        const Vector<A> y = load_column(row, v, rest);
        if constexpr (is_leaky) {
          const Vector<A> z = x[v] + y;
          term[v] = att[v] * slope(z, product.negative_slope) * z;
        } else {
          term[v] = x[v] * y;
        }
      }
      add_groups<D>(term);
      for (int k = 0; k < kSums; ++k) store_some(out + e * heads + d / D + k * L, term[k], count - k * L);
    }
  };
  for_each_columns<A>(heads * D, [&](auto vectors, int64_t d, int rest) __attribute__((always_inline)) {
    if (product.att) {
      columns(vectors, d, rest, std::true_type());
    } else {
      columns(vectors, d, rest, std::false_type());
    }
  });
}

// Number v * lanes / D of one edge on, D lanes for each.
template <int D, class A>
DFGNN_INLINE Vector<A> spread(const A* numbers, int v) {
  if constexpr (D == lanes<A>) {
    return broadcast(numbers[v]);
  } else {
    return repeat_lanes<D>(load(numbers + v * (lanes<A> / D)));
  }
}

// sums (+)= sum_e number[e * heads + h] * rows[index[e]], or, where there is a row of one's own, the same number times
// slope(own + rows[index[e]]); all heads.
template <int D, class T, class A>
inline void joint_sums(const A* number, const T* own, A negative_slope, Rows<T> rows, const int64_t* index, int n,
                       int64_t heads, bool add, A* sums) {
  constexpr int L = lanes<A>;
  const auto columns = [&](auto vectors, int64_t d, int rest, auto of_slopes) __attribute__((always_inline)) {
    constexpr int V = decltype(vectors)::value;
    Vector<A> x[V], s[V] = {};
    if constexpr (of_slopes) {
      for (int v = 0; v < V; ++v) x[v] = load_column(own + d, v, rest);
    }
    for (int e = 0; e < n; ++e) {
      const T* row = rows[index[e]] + d;
      const A* numbers = number + e * heads + d / D;
      for (int v = 0; v < V; ++v) {
        const Vector<A> y = load_column(row, v, rest);
        if constexpr (of_slopes) {
          s[v] += spread<D>(numbers, v) * slope(x[v] + y, negative_slope);
        } else {
          s[v] += spread<D>(numbers, v) * y;
        }
      }
    }
    for (int v = 0; v < V; ++v) add_to(sums + d + v * L, s[v], rest, add);
  };
  for_each_columns<A>(heads * D, [&](auto vectors, int64_t d, int rest) __attribute__((always_inline)) {
    if (own) {
      columns(vectors, d, rest, std::true_type());
    } else {
      columns(vectors, d, rest, std::false_type());
    }
  });
}

// row = factor[h] * sums, all heads; 0 where the factor is.
template <int D, class T, class A>
inline void joint_write(T* row, const A* sums, const A* factor, int64_t heads) {
  for_each_columns<A>(heads * D, [&](auto vectors, int64_t d, int rest) __attribute__((always_inline)) {
    for (int v = 0; v < decltype(vectors)::value; ++v) {
      const Vector<A> factors = spread<D>(factor + d / D, v);
      const Vector<A> product = factors == A(0) ? Vector<A>{} : load_column(sums + d, v, rest) * factors;
      rest ? store(row + d, product, rest) : store(row + d + v * lanes<A>, product);
    }
  });
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
