// What a block makes of the rows of features that its edges gather: inner products with them, and weighted sums of
// them. Part of kernels_<isa>.cpp only.
#pragma once

#include "joint.h"
#include "narrow.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// The rows of T [N, H, D], from the first of `heads` on.
template <class T>
DFGNN_INLINE Rows<T> rows_of(const Args& args, auto heads, const void* features) {
  return {as<T>(features) + heads.first * args.head_dim, args.heads * args.head_dim};
}

// Calls f(an integral_constant of D) where there are several heads of as many features as joint.h takes; whether it
// does.
template <class A, class F>
DFGNN_INLINE bool with_joint(auto heads, int64_t head_dim, F f) {
  if constexpr (std::is_same_v<decltype(heads), OneHead>) {
    return false;
  } else {
    return with_any_size<A>(head_dim, f);
  }
}

// out[x][e][h] = <own[x], rows[source[e]]>: X rows of one's own, n edges.
template <int X, class Own, class T, class A>
DFGNN_INLINE void row_products(int64_t D, auto heads, const Own* const (&own)[X], Rows<T> rows, const int64_t* source,
                               int n, A* const (&out)[X]) {
  const int64_t count = heads.count;
  const auto joint = [&](auto size) {
    for (int x = 0; x < X; ++x) {
      joint_dots<decltype(size)::value, false>(Leaky<A>{}, own[x], rows, source, n, count, D, out[x]);
    }
  };
  if (with_joint<A>(heads, D, joint)) return;
  for (int h = 0; h < count; ++h) {
    const Own* x[X];
    A* numbers[X];
    for (int k = 0; k < X; ++k) {
      x[k] = own[k] + h * D;
      numbers[k] = out[k] + h;
    }
    dots<X>(x, from_feature(rows, h * D), source, n, D, numbers, count);
  }
}

// out[x][e][h] = <own[x], other> of an edge's two ends, each T [*, H, D], for X of one's own.
template <int X, class T, class A>
inline void products(const Args& args, const Block& block, auto heads, const void* const (&own)[X], const void* other,
                     A* const (&out)[X]) {
  const Rows<T> rows = rows_of<T>(args, heads, other);
  Rows<T> owns[X];
  for (int x = 0; x < X; ++x) owns[x] = rows_of<T>(args, heads, own[x]);
  if constexpr (may_be_narrow<T, decltype(heads)>) {
    if (is_narrow(args.head_dim)) {
      for (int x = 0; x < X; ++x) narrow_dots(block, owns[x], rows, args.head_dim, out[x]);
      return;
    }
  }
  for_each_full_row(block, [&](int64_t i, int first, int last) {
    const T* x[X];
    A* numbers[X];
    for (int k = 0; k < X; ++k) {
      x[k] = owns[k][i];
      numbers[k] = out[k] + first * heads.count;
    }
    row_products<X, T, T>(args.head_dim, heads, x, rows, block.source + first, last - first, numbers);
  });
}

// out[e][h] = <att, leaky_relu(dst_i + src_j)>
template <class T, class A>
inline void leaky_products(const Args& args, const Block& block, auto heads, A* out) {
  const int64_t D = args.head_dim, count = heads.count;
  const Rows<T> own = rows_of<T>(args, heads, args.dst), rows = rows_of<T>(args, heads, args.src);
  const Leaky<A> leaky = {as<A>(args.att) + heads.first * D, A(args.negative_slope)};
  if constexpr (may_be_narrow<T, decltype(heads)>) {
    if (is_narrow(D)) {
      narrow_leaky_dots(block, leaky.att, leaky.negative_slope, own, rows, D, out);
      return;
    }
  }
  const auto joint = [&](auto size) {
    for_each_full_row(block, [&](int64_t i, int first, int last) {
      joint_dots<decltype(size)::value, true>(leaky, own[i], rows, block.source + first, last - first, count, D,
                                              out + first * count);
    });
  };
  if (with_joint<A>(heads, D, joint)) return;
  for (int h = 0; h < count; ++h) {
    for_each_full_row(block, [&](int64_t i, int first, int last) {
      leaky_dots(leaky.att + h * D, own[i] + h * D, leaky.negative_slope, from_feature(rows, h * D),
                 block.source + first, last - first, D, out + first * count + h, count);
    });
  }
}

// What a sum is of: number * other, or, with one's own features, number * slope(own + other), additive_v2's.
struct Terms {
  const void *own, *other;  // T [*, H, D]; own may be null
};

// sums [heads, D] (+)= the terms of n edges of row i, with these sources and numbers.
template <class T, class A>
DFGNN_INLINE void add_terms(const Args& args, auto heads, Terms terms, int64_t i, const int64_t* source, int n,
                            const A* number, bool add, A* sums) {
  const int64_t D = args.head_dim, count = heads.count;
  const A negative_slope = A(args.negative_slope);
  const Rows<T> rows = rows_of<T>(args, heads, terms.other);
  const T* own = terms.own ? rows_of<T>(args, heads, terms.own)[i] : nullptr;
  const auto joint = [&](auto size) {
    constexpr int kSize = decltype(size)::value;
    if (own) {
      joint_sums<kSize, true>(number, own, negative_slope, rows, source, n, count, D, add, sums);
    } else {
      joint_sums<kSize, false>(number, own, negative_slope, rows, source, n, count, D, add, sums);
    }
  };
  if (with_joint<A>(heads, D, joint)) return;
  for (int h = 0; h < count; ++h) {
    if (own) {
      weighted_slopes(number + h, count, own + h * D, negative_slope, from_feature(rows, h * D), source, n, D, add,
                      sums + h * D);
    } else {
      weighted_sum(number + h, count, from_feature(rows, h * D), source, n, D, add, sums + h * D);
    }
  }
}

// row [heads, D] = factor[h] * sums; 0 where the factor is.
template <class T, class A>
DFGNN_INLINE void write_heads(const Args& args, auto heads, T* row, const A* sums, const A* factor) {
  const int64_t D = args.head_dim;
  const auto joint = [&](auto size) { joint_write<decltype(size)::value>(row, sums, factor, heads.count); };
  if (heads.count > 1 && with_joint_size<A>(D, joint)) return;
  for (int h = 0; h < heads.count; ++h) {
    factor[h] == A(0) ? clear_row(row + h * D, D) : write_row(row + h * D, sums + h * D, factor[h], D);
  }
}

// out[i], T [*, H, D], = the sum of the terms of the edges of row i = block.row + r by factor[r][h], 0 where that
// is, or, without factors, by scale. `sums` is room for those of a row.
template <class T, class A>
inline void write_terms(const Args& args, const Block& block, auto heads, Terms terms, const A* number, A scale,
                        std::type_identity_t<const A*> factor, void* out, A* sums) {
  const int64_t D = args.head_dim;
  const Rows<T> rows = rows_of<T>(args, heads, terms.other);
  if constexpr (may_be_narrow<T, decltype(heads)>) {
    if (is_narrow(D)) {
      const auto write = [&](int64_t d, A* of_edges) __attribute__((always_inline)) {
        if (terms.own) {
          const auto visit = [&](int e, Vector<A> z) __attribute__((always_inline)) {
            store(of_edges + e, load(number + e) * slope(z, A(args.negative_slope)));
          };
          for_each_sum(block, rows_of<T>(args, heads, terms.own), rows, d, visit);
        } else {
          for_each_edge(block, [&](int e, int) __attribute__((always_inline)) {
            of_edges[e] = number[e] * rows.data[block.source[e] * rows.stride + d];
          });
        }
      };
      narrow_sums(block, as<A>(out), D, write, scale, factor);
      return;
    }
  }
  T* first_row = as<T>(out) + heads.first * D;
  for_each_row(block, [&](int64_t i, int first, int last) {
    T* row = first_row + i * rows.stride;
    if (first == last) {
      clear_row(row, heads.count * D);
      return;
    }
    add_terms<T>(args, heads, terms, i, block.source + first, last - first, number + first * heads.count, false, sums);
    if (factor) {
      write_heads(args, heads, row, sums, factor + (i - block.row) * heads.count);
    } else {
      write_row(row, sums, scale, heads.count * D);
    }
  });
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
