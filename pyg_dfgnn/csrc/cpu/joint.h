// Several heads of D features each, which divides the lanes, so that heads share a vector, or is two or four times as
// many: a row is read as it lies. Part of kernels_<isa>.cpp only.
#pragma once

#include "rows.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Calls f(an integral_constant of D) where heads are of such D features; whether they are.
template <class A, class F>
DFGNN_INLINE bool with_joint_heads(int64_t heads, int64_t head_dim, F f) {
  if (heads == 1) return false;
  const auto of = [&](auto size) __attribute__((always_inline)) {
    if constexpr (decltype(size)::value <= 4 * lanes<A>) {
      if (head_dim == size) {
        f(size);
        return true;
      }
    }
    return false;
  };
  return of(std::integral_constant<int, 1>()) || of(std::integral_constant<int, 2>()) ||
         of(std::integral_constant<int, 4>()) || of(std::integral_constant<int, 8>()) ||
         of(std::integral_constant<int, 16>()) || of(std::integral_constant<int, 32>()) ||
         of(std::integral_constant<int, 64>());
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

template <bool LEAKY, class A>
DFGNN_INLINE Vector<A> term(const Product<A>& product, Vector<A> att, Vector<A> x, Vector<A> y) {
  if constexpr (LEAKY) {
    const Vector<A> z = x + y;
    return att * slope(z, product.negative_slope) * z;
  } else {
    return x * y;
  }
}

// Numbers of n edges and G heads, of whole vectors each: out[e * heads + g].
template <int D, int G, bool LEAKY, class T, class A>
DFGNN_INLINE void wide_dots(const Product<A>& product, const A* att, const T* own, Rows<T> rows, const int64_t* index,
                            int n, int64_t heads, A* out) {
  constexpr int L = lanes<A>, K = D / L;
  Vector<A> x[G][K], factor[G][K];
  for (int g = 0; g < G; ++g) {
    for (int k = 0; k < K; ++k) {
      x[g][k] = load(own + g * D + k * L);
      if constexpr (LEAKY) factor[g][k] = load(att + g * D + k * L);
    }
  }
  for (int e = 0; e < n; ++e) {
    const T* row = rows[index[e]];
    Vector<A> sums[G] = {};
    for (int g = 0; g < G; ++g) {
      for (int k = 0; k < K; ++k) {
        sums[g] += term<LEAKY>(product, factor[g][k], x[g][k], load(row + g * D + k * L));
      }
    }
    write_sums(sums, out + e * heads);
  }
}

// Numbers of n edges and the heads of V vectors, or of the first `rest` lanes of one: out[e * heads + g].
template <int D, int V, bool LEAKY, class T, class A>
DFGNN_INLINE void shared_dots(const Product<A>& product, const A* att, const T* own, Rows<T> rows, const int64_t* index,
                              int n, int rest, int64_t heads, A* out) {
  constexpr int L = lanes<A>, kCount = V * L / D;
  Vector<A> x[V], factor[V];
  for (int v = 0; v < V; ++v) {
    x[v] = load_column(own, v, rest);
    if constexpr (LEAKY) factor[v] = load_column(att, v, rest);
  }
  for (int e = 0; e < n; ++e) {
    const T* row = rows[index[e]];
    Vector<A> terms[V];
    for (int v = 0; v < V; ++v) terms[v] = term<LEAKY>(product, factor[v], x[v], load_column(row, v, rest));
    add_groups<D>(terms);
    if (rest) {
      store(out + e * heads, terms[0], rest / D);
    } else {
      std::memcpy(out + e * heads, terms, kCount * sizeof(A));
    }
  }
}

// out[e * heads + h]: numbers of n edges.
template <int D, class T, class A>
inline void joint_dots(const Product<A>& product, const T* own, Rows<T> rows, const int64_t* index, int n,
                       int64_t heads, A* out) {
  const auto of_kind = [&](auto is_leaky) __attribute__((always_inline)) {
    constexpr bool kLeaky = decltype(is_leaky)::value;
    if constexpr (D > lanes<A>) {
      const auto some = [&](auto count, int64_t h) __attribute__((always_inline)) {
        wide_dots<D, decltype(count)::value, kLeaky>(product, kLeaky ? product.att + h * D : nullptr, own + h * D,
                                                     Rows<T>{rows.data + h * D, rows.stride}, index, n, heads, out + h);
      };
      int64_t h = 0;
      for (; heads - h >= 4; h += 4) some(std::integral_constant<int, 4>(), h);
      for (; h < heads; ++h) some(std::integral_constant<int, 1>(), h);
    } else {
      for_each_columns<A>(heads * D, [&](auto vectors, int64_t d, int rest) __attribute__((always_inline)) {
        shared_dots<D, decltype(vectors)::value, kLeaky>(product, kLeaky ? product.att + d : nullptr, own + d,
                                                         Rows<T>{rows.data + d, rows.stride}, index, n, rest, heads,
                                                         out + d / D);
      });
    }
  };
  product.att ? of_kind(std::true_type()) : of_kind(std::false_type());
}

// Vector v of heads' numbers, D lanes for each.
template <int D, class A>
DFGNN_INLINE Vector<A> spread(const A* numbers, int v) {
  if constexpr (D >= lanes<A>) {
    return broadcast(numbers[v * lanes<A> / D]);
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
