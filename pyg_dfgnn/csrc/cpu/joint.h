// Several heads of D features each, which divides the lanes, so that heads share a vector, or is two or four times as
// many: a row is read as it lies. Of other sizes of up to four vectors, D is minus the number of these, the last of
// which may be one in part. Part of kernels_<isa>.cpp only.
#pragma once

#include "rows.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Calls f(an integral_constant of D) for such a D above 0; whether it is one.
template <class A, class F>
DFGNN_INLINE bool with_joint_size(int64_t head_dim, F f) {
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

// Additive_v2's <att, leaky_relu(own + other)> in the place of <own, other>.
template <class A>
struct Leaky {
  const A* att;  // of all heads; null of the other
  A negative_slope;

  DFGNN_INLINE Leaky from(int64_t feature) const { return {att ? att + feature : nullptr, negative_slope}; }
};

template <bool LEAKY, class A>
DFGNN_INLINE Vector<A> term(const Leaky<A>& leaky, Vector<A> att, Vector<A> x, Vector<A> y) {
  if constexpr (LEAKY) {
    return leaky_term(att, x + y, leaky.negative_slope);
  } else {
    return x * y;
  }
}

// Calls f(an integral_constant of D) for any size of up to four vectors; whether it is one.
template <class A, class F>
DFGNN_INLINE bool with_any_size(int64_t head_dim, F f) {
  if (with_joint_size<A>(head_dim, f)) return true;
  const auto of = [&](auto vectors) __attribute__((always_inline)) {
    if (head_dim > vectors * lanes<A>) return false;
    f(std::integral_constant<int, -decltype(vectors)::value>());
    return true;
  };
  return of(std::integral_constant<int, 1>()) || of(std::integral_constant<int, 2>()) ||
         of(std::integral_constant<int, 3>()) || of(std::integral_constant<int, 4>());
}

// Vector k of K, of the last of which there are `rest` lanes where that is not 0.
template <int K, class T>
DFGNN_INLINE auto load_vector(const T* p, int k, int rest) {
  const T* from = p + k * lanes<typename Accumulator<T>::type>;
  return rest && k + 1 == K ? load(from, rest) : load(from);
}

// Numbers of n edges and G heads, of K vectors each, and `size` features: out[e * heads + g].
template <int K, int G, bool LEAKY, class Own, class T, class A>
DFGNN_INLINE void wide_dots(const Leaky<A>& leaky, const Own* own, Rows<T> rows, const int64_t* index, int n,
                            int64_t size, int rest, int64_t heads, A* out) {
  Vector<A> x[G][K], factor[G][K];
  for (int g = 0; g < G; ++g) {
    for (int k = 0; k < K; ++k) {
      x[g][k] = load_vector<K>(own + g * size, k, rest);
      if constexpr (LEAKY) factor[g][k] = load_vector<K>(leaky.att + g * size, k, rest);
    }
  }
  for (int e = 0; e < n; ++e) {
    const T* row = rows[index[e]];
    Vector<A> sums[G] = {};
    for (int g = 0; g < G; ++g) {
      for (int k = 0; k < K; ++k) {
        sums[g] += term<LEAKY>(leaky, factor[g][k], x[g][k], load_vector<K>(row + g * size, k, rest));
      }
    }
    write_sums(sums, out + e * heads);
  }
}

// Numbers of n edges and the heads of V vectors, or of the first `rest` lanes of one: out[e * heads + g].
template <int D, int V, bool LEAKY, class Own, class T, class A>
DFGNN_INLINE void small_dots(const Leaky<A>& leaky, const Own* own, Rows<T> rows, const int64_t* index, int n, int rest,
                             int64_t heads, A* out) {
  constexpr int L = lanes<A>, kCount = V * L / D;
  Vector<A> x[V], factor[V];
  for (int v = 0; v < V; ++v) {
    x[v] = load_column(own, v, rest);
    if constexpr (LEAKY) factor[v] = load_column(leaky.att, v, rest);
  }
  for (int e = 0; e < n; ++e) {
    const T* row = rows[index[e]];
    Vector<A> terms[V];
    for (int v = 0; v < V; ++v) terms[v] = term<LEAKY>(leaky, factor[v], x[v], load_column(row, v, rest));
    add_groups<D>(terms);
    if (rest) {
      store(out + e * heads, terms[0], rest / D);
    } else {
      std::memcpy(out + e * heads, terms, kCount * sizeof(A));
    }
  }
}

// out[e * heads + h]: numbers of n edges.
template <int D, bool LEAKY, class Own, class T, class A>
inline void joint_dots(const Leaky<A>& leaky, const Own* own, Rows<T> rows, const int64_t* index, int n, int64_t heads,
                       int64_t head_dim, A* out) {
  if constexpr (D < 0 || D > lanes<A>) {
    constexpr int K = D < 0 ? -D : D / lanes<A>;
    const int64_t size = D < 0 ? head_dim : D;
    const int rest = D < 0 ? int(size % lanes<A>) : 0;
    const auto some = [&](auto count, int64_t h) __attribute__((always_inline)) {
      wide_dots<K, decltype(count)::value, LEAKY>(leaky.from(h * size), own + h * size, from_feature(rows, h * size),
                                                  index, n, size, rest, heads, out + h);
    };
    // As many as registers hold the vectors of.
    constexpr int kFit = (kVectorBytes == 64 ? 16 : 8) / (K * (LEAKY ? 2 : 1));
    for_each_group<group_of(kFit)>(heads, some);
  } else {
    for_each_columns<A>(heads * D, [&](auto vectors, int64_t d, int rest) __attribute__((always_inline)) {
      small_dots<D, decltype(vectors)::value, LEAKY>(leaky.from(d), own + d, from_feature(rows, d), index, n, rest,
                                                     heads, out + d / D);
    });
  }
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

// joint_sums() of G heads, of K vectors each, and `size` features.
template <int K, int G, bool SLOPES, class T, class A>
DFGNN_INLINE void odd_sums(const A* number, const T* own, A negative_slope, Rows<T> rows, const int64_t* index, int n,
                           int64_t heads, int64_t size, bool add, A* sums) {
  constexpr int L = lanes<A>;
  const int rest = int(size % L);
  Vector<A> x[G][K], s[G][K] = {};
  if constexpr (SLOPES) {
    for (int g = 0; g < G; ++g) {
      for (int k = 0; k < K; ++k) x[g][k] = load_vector<K>(own + g * size, k, rest);
    }
  }
  for (int e = 0; e < n; ++e) {
    const T* row = rows[index[e]];
    for (int g = 0; g < G; ++g) {
      for (int k = 0; k < K; ++k) {
        const Vector<A> y = load_vector<K>(row + g * size, k, rest);
        if constexpr (SLOPES) {
          s[g][k] += number[e * heads + g] * slope(x[g][k] + y, negative_slope);
        } else {
          s[g][k] += number[e * heads + g] * y;
        }
      }
    }
  }
  for (int g = 0; g < G; ++g) {
    for (int k = 0; k < K; ++k) add_to(sums + g * size + k * L, s[g][k], k + 1 == K ? rest : 0, add);
  }
}

// sums (+)= sum_e number[e * heads + h] * rows[index[e]], or the same number times slope(own + rows[index[e]]); all
// heads.
template <int D, bool SLOPES, class T, class A>
inline void joint_sums(const A* number, const T* own, A negative_slope, Rows<T> rows, const int64_t* index, int n,
                       int64_t heads, int64_t head_dim, bool add, A* sums) {
  if constexpr (D < 0) {
    const auto some = [&](auto count, int64_t h) __attribute__((always_inline)) {
      const int64_t d = h * head_dim;
      odd_sums<-D, decltype(count)::value, SLOPES>(number + h, own + (SLOPES ? d : 0), negative_slope,
                                                   from_feature(rows, d), index, n, heads, head_dim, add, sums + d);
    };
    for_each_group<group_of((kVectorBytes == 64 ? 8 : 4) / -D)>(heads, some);
  } else {
    constexpr int L = lanes<A>;
    for_each_columns<A>(heads * D, [&](auto vectors, int64_t d, int rest) __attribute__((always_inline)) {
      constexpr int V = decltype(vectors)::value;
      Vector<A> x[V], s[V] = {};
      if constexpr (SLOPES) {
        for (int v = 0; v < V; ++v) x[v] = load_column(own + d, v, rest);
      }
      for (int e = 0; e < n; ++e) {
        const T* row = rows[index[e]] + d;
        const A* numbers = number + e * heads + d / D;
        for (int v = 0; v < V; ++v) {
          const Vector<A> y = load_column(row, v, rest);
          if constexpr (SLOPES) {
            s[v] += spread<D>(numbers, v) * slope(x[v] + y, negative_slope);
          } else {
            s[v] += spread<D>(numbers, v) * y;
          }
        }
      }
      for (int v = 0; v < V; ++v) add_to(sums + d + v * L, s[v], rest, add);
    });
  }
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
