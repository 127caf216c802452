// What the passes do with the T [*, H, D] rows of a block's edges: inner products with them, weighted sums of them.
// Part of kernels_<isa>.cpp only.
#pragma once

#include <type_traits>

#include "lanes.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// The edges of a row are taken in blocks of at most this many: their scores fit in a few cache lines, and the rows that
// were read for the scores are still in the cache when they are read again.
constexpr int kBlock = 128;

// Some features of a T [N, H, D] tensor: row n begins at data + n * stride.
template <class T>
struct Rows {
  const T* data;
  int64_t stride;
  DFGNN_INLINE const T* operator[](int64_t n) const { return data + n * stride; }
};

template <class T>
DFGNN_INLINE Rows<T> from_feature(Rows<T> rows, int64_t feature) {
  return {rows.data + feature, rows.stride};
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

// As many things at a time as fit, of four, two or one.
constexpr int group_of(int fit) { return fit >= 4 ? 4 : fit >= 2 ? 2 : 1; }

// Calls f(an integral_constant of things, the first of them) for all, kGroup at a time and what is left one by one.
template <int kGroup, class N, class F>
DFGNN_INLINE void for_each_group(N count, F f) {
  N h = 0;
  for (; count - h >= kGroup; h += kGroup) f(std::integral_constant<int, kGroup>(), h);
  for (; h < count; ++h) f(std::integral_constant<int, 1>(), h);
}

template <class T>
DFGNN_INLINE auto load_column(const T* p, int v, int rest) {
  return rest ? load(p, rest) : load(p + v * lanes<typename Accumulator<T>::type>);
}

// out[x][e * stride] = <xs[x], rows[index[e]]> for X vectors and G edges at a time: X * G independent chains of
// additions.
template <int X, int G, class Own, class T, class A>
DFGNN_INLINE void dot_group(const Own* const (&xs)[X], Rows<T> rows, const int64_t* index, int64_t head_dim,
                            A* const (&out)[X], int64_t stride = 1) {
  constexpr int L = lanes<A>;
  const T* row[G];
  for (int g = 0; g < G; ++g) row[g] = rows[index[g]];
  Vector<A> sums[X][G] = {};
  int64_t d = 0;
  for (; d + L <= head_dim; d += L) {
    Vector<A> x[X];
    for (int i = 0; i < X; ++i) x[i] = load(xs[i] + d);
    for (int g = 0; g < G; ++g) {
      const Vector<A> y = load(row[g] + d);
      for (int i = 0; i < X; ++i) sums[i][g] += x[i] * y;
    }
  }
  if (const int rest = int(head_dim - d)) {
    Vector<A> x[X];
    for (int i = 0; i < X; ++i) x[i] = load(xs[i] + d, rest);
    for (int g = 0; g < G; ++g) {
      const Vector<A> y = load(row[g] + d, rest);
      for (int i = 0; i < X; ++i) sums[i][g] += x[i] * y;
    }
  }
  for (int i = 0; i < X; ++i) write_sums(sums[i], out[i], stride);
}

template <int X, class Own, class T, class A>
inline void dots(const Own* const (&xs)[X], Rows<T> rows, const int64_t* index, int n, int64_t head_dim,
                 A* const (&out)[X], int64_t stride = 1) {
  A* o[X];
  int e = 0;
  const auto group = [&](auto size) {
    constexpr int G = decltype(size)::value;
    for (int i = 0; i < X; ++i) o[i] = out[i] + e * stride;
    dot_group<X, G>(xs, rows, index + e, head_dim, o, stride);
    e += G;
  };
  while (n - e >= 4) group(std::integral_constant<int, 4>());
  if (n - e >= 2) group(std::integral_constant<int, 2>());
  if (n - e >= 1) group(std::integral_constant<int, 1>());
}

// sums (+)= v, of `rest` lanes where that is not 0. What follows is kept where sums are added to; otherwise it is yet
// to be written, and whole vectors are what the next load can take from the store.
template <class A>
DFGNN_INLINE void add_to(A* sums, Vector<A> v, int rest, bool add) {
  if (!add) {
    store(sums, v);
  } else if (rest) {
    store(sums, load(sums, rest) + v, rest);
  } else {
    store(sums, load(sums) + v);
  }
}

// sums[0 .. V * lanes) (+)= sum_e weight[e * stride] * rows[index[e]][0 .. V * lanes), or fewer columns: `rest` > 0 of
// the one vector. Few vectors would be few chains of additions, each waiting for the one before, so edges take turns in
// several.
template <int V, class T, class A>
DFGNN_INLINE void weighted_sum_columns(const A* weight, int64_t stride, Rows<T> rows, const int64_t* index, int n,
                                       int rest, bool add, A* sums) {
  constexpr int L = lanes<A>;
  constexpr int U = V >= 8 ? 1 : V == 4 ? 2 : 4;
  Vector<A> s[U][V] = {};
  const auto edge = [&](int e, Vector<A>(&into)[V]) __attribute__((always_inline)) {
    const T* row = rows[index[e]];
    for (int v = 0; v < V; ++v) into[v] += weight[e * stride] * load_column(row, v, rest);
  };
  int e = 0;
  for (; e + U <= n; e += U) {
    for (int u = 0; u < U; ++u) edge(e + u, s[u]);
  }
  for (; e < n; ++e) edge(e, s[0]);
  for (int v = 0; v < V; ++v) {
    for (int u = 1; u < U; ++u) s[0][v] += s[u][v];
    add_to(sums + v * L, s[0][v], rest, add);
  }
}

// sums (+)= sum_e weight[e * stride] * rows[index[e]]. A block's sum is made in registers from zero and then added, so
// that the rounding errors of a long row grow with its number of blocks, not of edges.
template <class T, class A>
inline void weighted_sum(const A* weight, int64_t stride, Rows<T> rows, const int64_t* index, int n, int64_t head_dim,
                         bool add, A* sums) {
  constexpr int L = lanes<A>;
  int64_t d = 0;
  const auto columns = [&](auto vectors) {
    constexpr int V = decltype(vectors)::value;
    weighted_sum_columns<V>(weight, stride, from_feature(rows, d), index, n, 0, add, sums + d);
    d += V * L;
  };
  while (head_dim - d >= 8 * L) columns(std::integral_constant<int, 8>());
  if (head_dim - d >= 4 * L) columns(std::integral_constant<int, 4>());
  if (head_dim - d >= 2 * L) columns(std::integral_constant<int, 2>());
  if (head_dim - d >= 1 * L) columns(std::integral_constant<int, 1>());
  if (const int rest = int(head_dim - d)) {
    weighted_sum_columns<1>(weight, stride, from_feature(rows, d), index, n, rest, add, sums + d);
  }
}

// What additive_v2 makes of the rows, with z = x + rows[index[e]] and leaky_relu(z) = slope(z) z.
template <class V, class A>
DFGNN_INLINE V slope(V z, A negative_slope) {
  return z > A(0) ? broadcast(A(1)) : broadcast(negative_slope);
}

template <class V, class A>
DFGNN_INLINE V leaky_term(V att, V z, A negative_slope) {
  return att * slope(z, negative_slope) * z;
}

template <int G, class T, class A>
DFGNN_INLINE void leaky_dot_group(const A* att, const T* x, A negative_slope, Rows<T> rows, const int64_t* index,
                                  int64_t head_dim, A* out, int64_t stride) {
  constexpr int L = lanes<A>;
  Vector<A> sums[G] = {};
  const auto columns = [&](const auto& load_columns) __attribute__((always_inline)) {
    const Vector<A> own = load_columns(x), factor = load_columns(att);
    for (int g = 0; g < G; ++g) {
      const Vector<A> z = own + load_columns(rows[index[g]]);
      sums[g] += leaky_term(factor, z, negative_slope);
    }
  };
  int64_t d = 0;
  for (; d + L <= head_dim; d += L) {
    columns([&](const auto* p) __attribute__((always_inline)) { return load(p + d); });
  }
  if (const int rest = int(head_dim - d)) {
    columns([&](const auto* p) __attribute__((always_inline)) { return load(p + d, rest); });
  }
  write_sums(sums, out, stride);
}

// out[e * stride] = <att, leaky_relu(z)>
template <class T, class A>
inline void leaky_dots(const A* att, const T* x, A negative_slope, Rows<T> rows, const int64_t* index, int n,
                       int64_t head_dim, A* out, int64_t stride) {
  const auto group = [&](auto size, int e) __attribute__((always_inline)) {
    leaky_dot_group<decltype(size)::value>(att, x, negative_slope, rows, index + e, head_dim, out + e * stride, stride);
  };
  int e = 0;
  for (; n - e >= 4; e += 4) group(std::integral_constant<int, 4>(), e);
  for (; e < n; ++e) group(std::integral_constant<int, 1>(), e);
}

template <int V, class T, class A>
DFGNN_INLINE void weighted_slopes_columns(const A* weight, int64_t stride, const T* x, A negative_slope, Rows<T> rows,
                                          const int64_t* index, int n, int rest, bool add, A* sums) {
  constexpr int L = lanes<A>;
  Vector<A> own[V], s[V] = {};
  for (int v = 0; v < V; ++v) own[v] = load_column(x, v, rest);
  for (int e = 0; e < n; ++e) {
    const T* row = rows[index[e]];
    for (int v = 0; v < V; ++v) s[v] += weight[e * stride] * slope(own[v] + load_column(row, v, rest), negative_slope);
  }
  for (int v = 0; v < V; ++v) add_to(sums + v * L, s[v], rest, add);
}

// sums (+)= sum_e weight[e * stride] * slope(z)
template <class T, class A>
inline void weighted_slopes(const A* weight, int64_t stride, const T* x, A negative_slope, Rows<T> rows,
                            const int64_t* index, int n, int64_t head_dim, bool add, A* sums) {
  for_each_columns<A>(head_dim, [&](auto vectors, int64_t d, int rest) {
    weighted_slopes_columns<decltype(vectors)::value>(weight, stride, x + d, negative_slope, from_feature(rows, d),
                                                      index, n, rest, add, sums + d);
  });
}

template <class A>
DFGNN_INLINE int64_t padded(int64_t head_dim) {
  return (head_dim + lanes<A> - 1) / lanes<A> * lanes<A>;
}

// row[0 .. head_dim) = factor * sums[0 .. head_dim)
template <class T, class A>
inline void write_row(T* row, const A* sums, A factor, int64_t head_dim) {
  constexpr int L = lanes<A>;
  int64_t d = 0;
  for (; d + L <= head_dim; d += L) store(row + d, load(sums + d) * factor);
  if (const int rest = int(head_dim - d)) store(row + d, load(sums + d) * factor, rest);
}

// The row's numbers, in `room` where they are of another type.
template <class T, class A>
inline const A* numbers_of(const T* row, int64_t size, A* room) {
  if constexpr (std::is_same_v<T, A>) {
    return row;
  } else {
    constexpr int L = lanes<A>;
    int64_t d = 0;
    for (; d + L <= size; d += L) store(room + d, load(row + d));
    if (const int rest = int(size - d)) store(room + d, load(row + d, rest), rest);
    return room;
  }
}

template <class T, class A>
inline void fill_row(T* row, int64_t head_dim, A x) {
  constexpr int L = lanes<A>;
  const Vector<A> all = broadcast(x);
  int64_t d = 0;
  for (; d + L <= head_dim; d += L) store(row + d, all);
  if (const int rest = int(head_dim - d)) store(row + d, all, rest);
}

template <class T>
inline void clear_row(T* row, int64_t head_dim) {
  fill_row(row, head_dim, typename Accumulator<T>::type(0));
}

// The first `size` numbers of the first of `count` states, which lie `stride` apart, become the states' sums, in their
// order.
template <class A>
inline void add_states(A* states, int64_t size, int64_t stride, int64_t count) {
  for (int64_t k = 1; k < count; ++k) {
    for (int64_t d = 0; d < size; ++d) states[d] += states[k * stride + d];
  }
}

template <class A>
inline void fill(A* begin, int64_t n, A x) {
  for (int64_t i = 0; i < n; ++i) begin[i] = x;
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
