// What features f of edges add to a row's dot products and sums, where messages are x_j + W f_e
// (csrc/message_attention.cpp): <W^T own_i, f_e> and W (sum of number_e f_e). Part of kernels_<isa>.cpp only.
#pragma once

#include "block.h"
#include "shared.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

template <int V, int G, class A>
DFGNN_INLINE void times_matrix_columns(const A* x, const A* matrix, int64_t rows, int64_t columns, int rest, bool add,
                                       A* y) {
  constexpr int U = V * G == 1 ? 4 : 1;  // chains of additions
  Vector<A> s[U][G][V] = {};
  const auto row = [&](int64_t r, Vector<A>(&into)[G][V]) __attribute__((always_inline)) {
    for (int g = 0; g < G; ++g) {
      for (int v = 0; v < V; ++v) {
        into[g][v] += x[g * rows + r] * load_column(matrix + (g * rows + r) * columns, v, rest);
      }
    }
  };
  int64_t r = 0;
  for (; r + U <= rows; r += U) {
    for (int u = 0; u < U; ++u) row(r + u, s[u]);
  }
  for (; r < rows; ++r) row(r, s[0]);
  for (int g = 0; g < G; ++g) {
    for (int v = 0; v < V; ++v) {
      for (int u = 1; u < U; ++u) s[0][g][v] += s[u][g][v];
      add_exactly(y + g * columns + v * lanes<A>, s[0][g][v], rest, add);
    }
  }
}

// y [heads, columns] (+)= x [heads, rows] times a matrix [heads, rows, columns], head by head.
template <class A>
inline void times_matrix(const A* x, const A* matrix, int heads, int64_t rows, int64_t columns, bool add, A* y) {
  for_each_columns<A>(columns, [&](auto vectors, int64_t c, int rest) {
    constexpr int V = decltype(vectors)::value;
    for_each_group<kSharedGroup<V>>(heads, [&](auto group, int h) __attribute__((always_inline)) {
      times_matrix_columns<V, decltype(group)::value>(x + h * rows, matrix + h * rows * columns + c, rows, columns,
                                                      rest, add, y + h * columns + c);
    });
  });
}

template <class T>
struct Messages {
  using A = typename Accumulator<T>::type;

  static Rows<T> features(const Args& args) { return {as<T>(args.features), args.edge_dim}; }

  // Of the features of a block's edges; false where one has none.
  static bool read(const Args& args, Block& block) {
    return read_indices(args.eid, args.wide_index, block.begin, block.n, args.num_features, block.feature);
  }
  static DFGNN_INLINE void prefetch(const Args& args, const Block& block) {
    prefetch_rows<T>(block, block.feature, args.features, args.num_features, args.edge_dim);
  }

  static int64_t sums_size(const Args& args) { return args.heads * args.edge_dim; }
  // With a vector to spare, which the last row's writing reads.
  static int64_t room(const Args& args) {
    return 2 * sums_size(args) + args.heads * args.head_dim + args.edge_dim + lanes<A>;
  }

  // projected [heads, F] = W_h^T own_i[h]; own: T [num_dst, H, D].
  static void project(const Args& args, auto heads, const void* own, int64_t i, A* room, A* projected) {
    const int64_t D = args.head_dim, F = args.edge_dim;
    const T* row = as<T>(own) + (i * args.heads + heads.first) * D;
    times_matrix(numbers_of(row, heads.count * D, room), as<A>(args.projection) + heads.first * D * F, heads.count, D,
                 F, false, projected);
  }

  // s[e][h] += <W_h^T own_i, f_e>
  static void add_products(const Args& args, const Block& block, auto heads, const void* own, A* s, A* room) {
    const int64_t F = args.edge_dim;
    A products[kNumbersArray<A>], *projected = room + args.heads * args.head_dim;
    for_each_full_row(block, [&](int64_t i, int first, int last) {
      project(args, heads, own, i, room, projected);
      shared_dots(projected, F, features(args), block.feature + first, last - first, heads.count, F,
                  products + first * heads.count);
    });
#pragma omp simd
    for (int k = 0; k < block.n * heads.count; ++k) s[k] += products[k];
  }

  // sums [heads, F] (+)= the sum of number[e][h] f_e over n edges.
  static void add_sums(const Args& args, auto heads, const int64_t* feature, int n, const A* number, bool add,
                       A* sums) {
    shared_sums(number, heads.count, features(args), feature, n, args.edge_dim, add, sums);
  }

  // Of n edges of row i, which have all heads: the gradients of their features, the sum over the heads of ds W_h^T q_i
  // and weight W_h^T grad_out_i.
  static void write_gradients(const Args& args, int64_t i, const int64_t* feature, int n, const A* ds, const A* weight,
                              A* room) {
    const int64_t F = args.edge_dim;
    const Heads heads{0, int(args.heads)};
    A *by_ds = room + args.heads * args.head_dim, *by_weight = by_ds + sums_size(args);
    A* gradient = by_weight + sums_size(args);
    project(args, heads, args.dst, i, room, by_ds);
    project(args, heads, args.grad_out, i, room, by_weight);
    for (int e = 0; e < n; ++e) {
      times_matrix(ds + e * args.heads, by_ds, 1, args.heads, F, false, gradient);
      times_matrix(weight + e * args.heads, by_weight, 1, args.heads, F, true, gradient);
      write_row(as<T>(args.grad_features) + feature[e] * F, gradient, A(1), F);
    }
  }

  // NaN of those of a block that has an edge out of range, of the rest of its edges.
  static void spoil_gradients(const Args& args, const Block& block) {
    if (!args.grad_features) return;
    for (int64_t e = block.begin, end = e + block.n; e < end; ++e) {
      int64_t feature;
      if (!read_indices(args.eid, args.wide_index, e, 1, args.num_features, &feature)) continue;
      fill_row(as<T>(args.grad_features) + feature * args.edge_dim, args.edge_dim, A(kNaN));
    }
  }

  // out [heads, D] += W_h sums[h]
  static void add_projected(const Args& args, auto heads, const A* sums, A* out) {
    const int64_t D = args.head_dim, F = args.edge_dim;
    times_matrix(sums, as<A>(args.transposed_projection) + heads.first * D * F, heads.count, F, D, true, out);
  }
};

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
