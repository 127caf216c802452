// Numbers of a block's edges and heads, and what rows and nodes have to do with them. Part of kernels_<isa>.cpp only.
#pragma once

#include "block.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

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

// s[e][h] = all[e][h] of A [E, H].
template <class A>
DFGNN_INLINE void read_numbers(const Args& args, const Block& block, auto heads, const void* all, A* s) {
  for_each_number(args, block, heads, [&](int k, int64_t at) { s[k] = as<A>(all)[at]; });
}

template <class A>
DFGNN_INLINE void write_numbers(const Args& args, const Block& block, auto heads, const A* s, void* all) {
  for_each_number(args, block, heads, [&](int k, int64_t at) { as<A>(all)[at] = s[k]; });
}

// s[e][h] = all[index[e]][h] of A [*, H].
template <class A>
DFGNN_INLINE void gather_numbers(const Args& args, const Block& block, auto heads, const int64_t* index,
                                 const void* all, A* s) {
  const int64_t H = args.heads;
  const A* first = as<A>(all) + heads.first;
  if (heads.count == 1) {
#pragma omp simd
    for (int e = 0; e < block.n; ++e) s[e] = first[index[e] * H];
    return;
  }
  const auto copy = [&](auto count) __attribute__((always_inline)) {  // of so many heads: one load and one store
    for (int e = 0; e < block.n; ++e) std::memcpy(s + e * count, first + index[e] * H, count * sizeof(A));
  };
  switch (heads.count) {
    case 2:
      return copy(std::integral_constant<int, 2>());
    case 4:
      return copy(std::integral_constant<int, 4>());
    case 8:
      return copy(std::integral_constant<int, 8>());
    default:
      for (int e = 0; e < block.n; ++e) {
        for (int h = 0; h < heads.count; ++h) s[e * heads.count + h] = first[index[e] * H + h];
      }
  }
}

// s[e][h] = f(s[e][h], row[r][h]), numbers of the block's rows; with numbers or vectors of them.
template <class A, class F>
DFGNN_INLINE void update_by_rows(const Block& block, int heads, A* s, const A* row, F f) {
  constexpr int L = lanes<A>;
  if (heads == 1) {
    for_each_edge(block, [&](int e, int r) __attribute__((always_inline)) { s[e] = f(s[e], row[r]); });
  } else if (L % heads == 0) {
    for_each_row(block, [&](int64_t i, int first, int last) {
      const Vector<A> x = repeat_first(load(row + (i - block.row) * heads), heads);
      for (int k = first * heads; k < last * heads; k += L) store_some(s + k, f(load(s + k), x), last * heads - k);
    });
  } else {
    for_each_row(block, [&](int64_t i, int first, int last) {
      for (int e = first; e < last; ++e) {
        for (int h = 0; h < heads; ++h) s[e * heads + h] = f(s[e * heads + h], row[(i - block.row) * heads + h]);
      }
    });
  }
}

// The same with scalars of the rows' nodes, A [N, H].
template <class A, class F>
DFGNN_INLINE void update_by_nodes(const Args& args, const Block& block, auto heads, A* s, const void* nodes, F f) {
  A row[kNumbersArray<A>];
  for_each_number_of_rows(args, block, heads, [&](int k, int64_t at) { row[k] = as<A>(nodes)[at]; });
  update_by_rows(block, heads.count, s, row, f);
}

// s[e][h] *= nodes[source of e][h], A [*, H].
template <class A>
DFGNN_INLINE void multiply_by_sources(const Args& args, const Block& block, auto heads, A* s, const void* nodes) {
  A factor[kNumbersArray<A>];
  gather_numbers(args, block, heads, block.source, nodes, factor);
#pragma omp simd
  for (int k = 0; k < block.n * heads.count; ++k) s[k] *= factor[k];
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

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
