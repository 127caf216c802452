// Numbers of a block's edges and heads, and what rows and nodes have to do with them. Part of kernels_<isa>.cpp only.
#pragma once

#include "block.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// s[e][h] = f(s[e][h], own[r][h], other[source of e][h]), rows of own and other being so far apart; with numbers or
// vectors of them.
template <class A, class F>
DFGNN_INLINE void update(const Block& block, int heads, A* s, const A* own, int64_t own_stride, const A* other,
                         int64_t other_stride, F f) {
  if (heads == 1) {
    for_each_edge(block, [&](int e, int r) __attribute__((always_inline)) {
      s[e] = f(s[e], own[r * own_stride], other[block.source[e] * other_stride]);
    });
    return;
  }
  for (int h = 0; h < heads; h += lanes<A>) {
    for (int e = 0; e < block.n; ++e) {
      const int r = block.rows == 1 ? 0 : block.own[e], n = heads - h;
      A* number = s + e * heads + h;
      const Vector<A> x = load_some(own + r * own_stride + h, n);
      store_some(number, f(load(number), x, load_some(other + block.source[e] * other_stride + h, n)), n);
    }
  }
}

// The same with scalars of the nodes, A [N_dst, H] and A [N_src, H] where rows are destinations.
template <class A, class F>
DFGNN_INLINE void update_by_ends(const Args& args, const Block& block, auto heads, A* s, const void* own,
                                 const void* other, F f) {
  update(block, heads.count, s, as<A>(own) + block.row * args.heads + heads.first, args.heads,
         as<A>(other) + heads.first, args.heads, f);
}

// s[e][h] = f(s[e][h], row[r][h]), numbers of the block's rows.
template <class A, class F>
DFGNN_INLINE void update_by_rows(const Block& block, int heads, A* s, const A* row, F f) {
  update(block, heads, s, row, heads, row, 0, [&](auto number, auto x, auto) { return f(number, x); });
}

// result[r][h] = op of the row's numbers, in their order but for those of a long row, of which a vector takes as many
// as it holds.
template <class A, class Op>
DFGNN_INLINE void reduce_rows(const Block& block, int heads, A* s, A identity, Op op, A* result) {
  constexpr int L = lanes<A>;
  if (block.is_part && L % heads == 0) {
    const int n = block.n * heads;
    for (int k = n; k % L; ++k) s[k] = identity;
    Vector<A> all = broadcast(identity);
    for (int k = 0; k < n; k += L) all = op(all, load(s + k));
    store_some(result, fold<L / 2>(all, heads, op), heads);
  } else if (heads == 1) {
    for_each_row(block, [&](int64_t i, int first, int last) {
      A all = identity;
      for (int e = first; e < last; ++e) all = op(all, s[e]);
      result[i - block.row] = all;
    });
  } else {
    for_each_row(block, [&](int64_t i, int first, int last) {
      for (int h = 0; h < heads; h += L) {
        Vector<A> all = broadcast(identity);
        for (int e = first; e < last; ++e) all = op(all, load(s + e * heads + h));
        store_some(result + (i - block.row) * heads + h, all, heads - h);
      }
    });
  }
}

template <class A>
DFGNN_INLINE void sum_rows(const Block& block, int heads, A* s, A* result) {
  reduce_rows(block, heads, s, A(0), [](auto a, auto b) { return a + b; }, result);
}

template <class A>
DFGNN_INLINE void max_of_rows(const Block& block, int heads, A* s, A* result) {  // NaN is passed over
  reduce_rows(block, heads, s, A(-kInfinity), [](auto a, auto b) { return b > a ? b : a; }, result);
}

// Calls f(k, at) for every number k of the block and where it is in A [E, H].
template <class F>
DFGNN_INLINE void for_each_number(const Args& args, const Block& block, auto heads, F f) {
  const int64_t first = block.begin * args.heads + heads.first;
  if (heads.count == args.heads) {
#pragma omp simd
    for (int k = 0; k < block.n * heads.count; ++k) f(k, first + k);
  } else {
    for (int e = 0; e < block.n; ++e) {
#pragma omp simd
      for (int h = 0; h < heads.count; ++h) f(e * heads.count + h, first + e * args.heads + h);
    }
  }
}

// The same of the numbers of rows, A [N, H].
template <class F>
DFGNN_INLINE void for_each_number_of_rows(const Args& args, const Block& block, auto heads, F f) {
  const int64_t first = block.row * args.heads + heads.first;
  if (heads.count == args.heads) {
    for (int k = 0; k < block.rows * heads.count; ++k) f(k, first + k);
  } else {
    for (int r = 0; r < block.rows; ++r) {
      for (int h = 0; h < heads.count; ++h) f(r * heads.count + h, first + r * args.heads + h);
    }
  }
}

template <class A>
DFGNN_INLINE void add_numbers(const Args& args, const Block& block, auto heads, const void* terms, A* s) {
  for_each_number(args, block, heads, [&](int k, int64_t at) { s[k] += as<A>(terms)[at]; });
}

template <class A>
DFGNN_INLINE void write_numbers(const Args& args, const Block& block, auto heads, const A* s, void* all) {
  for_each_number(args, block, heads, [&](int k, int64_t at) { as<A>(all)[at] = s[k]; });
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
