// GAT's scores of nodes, <att, x> of each head, and the way back (csrc/node_scores.cpp). Part of kernels_<isa>.cpp
// only.
#pragma once

#include "gathers.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Of one head of few features, whose nodes take the lanes: scores[n] and, back, grad_x and sums [K, D].
template <class A>
inline void narrow_scores(const A* x, int64_t head_dim, const A* att, int64_t nodes, A* scores) {
#pragma omp simd
  for (int64_t n = 0; n < nodes; ++n) scores[n] = x[n * head_dim] * att[0];
  for (int64_t d = 1; d < head_dim; ++d) {
#pragma omp simd
    for (int64_t n = 0; n < nodes; ++n) scores[n] += x[n * head_dim + d] * att[d];
  }
}
template <class A>
inline void narrow_gradients(const A* x, int64_t head_dim, const A* att, const A* grad, int64_t nodes, bool add,
                             A* grad_x, A* sums) {
  for (int64_t d = 0; d < head_dim; ++d) {
    A sum = 0;
#pragma omp simd reduction(+ : sum)
    for (int64_t n = 0; n < nodes; ++n) {
      A& to = grad_x[n * head_dim + d];
      to = add ? to + grad[n] * att[d] : grad[n] * att[d];
      sum += grad[n] * x[n * head_dim + d];
    }
    sums[d] = sum;
  }
}

// scores [n, H] of nodes begin .. end - 1, of one or two vectors att.
template <class T>
void node_scores(const NodeArgs& nodes, int64_t begin, int64_t end) {
  using A = typename Accumulator<T>::type;
  const int64_t H = nodes.heads;
  const Rows<T> rows{as<T>(nodes.x), H * nodes.head_dim};
  if constexpr (may_be_narrow<T, OneHead>) {
    if (H == 1 && is_narrow(nodes.head_dim)) {
      for (int k = 0; k < 2 && nodes.att[k]; ++k) {
        narrow_scores(rows[begin], nodes.head_dim, as<A>(nodes.att[k]), end - begin, as<A>(nodes.scores[k]) + begin);
      }
      return;
    }
  }
  int64_t index[kBlock];
  for (int64_t first = begin; first < end; first += kBlock) {
    const int n = end - first < kBlock ? int(end - first) : kBlock;
    for (int k = 0; k < n; ++k) index[k] = first + k;
    const auto of_heads = [&](auto heads) {
      A* scores = as<A>(nodes.scores[0]) + first * H;
      if (nodes.att[1]) {
        row_products<2, A, T, A>(nodes.head_dim, heads, {as<A>(nodes.att[0]), as<A>(nodes.att[1])}, rows, index, n,
                                 {scores, as<A>(nodes.scores[1]) + first * H});
      } else {
        row_products<1, A, T, A>(nodes.head_dim, heads, {as<A>(nodes.att[0])}, rows, index, n, {scores});
      }
    };
    H == 1 ? of_heads(OneHead()) : of_heads(Heads{0, int(H)});
  }
}

// Of nodes begin .. end - 1: grad_x = the sum of grad[k] att[k] over the K vectors, and sums [K, H, D] of grad[k] x.
template <class T, int K>
struct NodeGradients {
  using A = typename Accumulator<T>::type;

  // A row's columns: load(p) and store(p, v) of them, and factor(k), grad[k] for each.
  template <class Load, class Store, class Factor>
  DFGNN_INLINE static void columns(const NodeArgs& nodes, int64_t row, int64_t c, A* sums, const Load& load_columns,
                                   const Store& store_columns, const Factor& factor) {
    const int64_t size = nodes.heads * nodes.head_dim;
    const Vector<A> x = load_columns(as<T>(nodes.x) + row * size + c);
    Vector<A> grad_x = {};
    for (int k = 0; k < K; ++k) {
      const Vector<A> g = factor(k);
      A* sum = sums + k * size + c;
      grad_x += g * load_columns(as<A>(nodes.att[k]) + c);
      store_columns(sum, load_columns(sum) + g * x);
    }
    store_columns(as<T>(nodes.grad_x) + row * size + c, grad_x);
  }

  template <class Factor>
  DFGNN_INLINE static void row_of(const NodeArgs& nodes, int64_t row, int64_t begin, int64_t end, A* sums,
                                  const Factor& factor) {
    int64_t c = begin;
    for (; c + lanes<A> <= end; c += lanes<A>) {
      columns(
          nodes, row, c, sums, [](const auto* p) __attribute__((always_inline)) { return load(p); },
          [](auto* p, Vector<A> v) __attribute__((always_inline)) { store(p, v); },
          [&](int k) __attribute__((always_inline)) { return factor(k, c); });
    }
    if (const int rest = int(end - c)) {
      columns(
          nodes, row, c, sums, [=](const auto* p) __attribute__((always_inline)) { return load(p, rest); },
          [=](auto* p, Vector<A> v) __attribute__((always_inline)) { store(p, v, rest); },
          [&](int k) __attribute__((always_inline)) { return factor(k, c); });
    }
  }

  static void run(const NodeArgs& nodes, int64_t begin, int64_t end, A* sums) {
    const int64_t H = nodes.heads, D = nodes.head_dim;
    if constexpr (may_be_narrow<T, OneHead>) {
      if (H == 1 && is_narrow(D)) {
        for (int k = 0; k < K; ++k) {
          narrow_gradients(as<A>(nodes.x) + begin * D, D, as<A>(nodes.att[k]), as<A>(nodes.grad[k]) + begin,
                           end - begin, k > 0, as<A>(nodes.grad_x) + begin * D, sums + k * D);
        }
        return;
      }
    }
    fill(sums, K * H * D, A(0));
    // Heads that share vectors: numbers of some nodes, with a vector to spare behind them.
    const auto joint = [&](auto size) {
      A grad[K][kNumbersArray<A>];
      const int64_t most = kNumbers / H;
      for (int64_t first = begin; first < end; first += most) {
        const int64_t n = end - first < most ? end - first : most;
        for (int k = 0; k < K; ++k) std::memcpy(grad[k], as<A>(nodes.grad[k]) + first * H, n * H * sizeof(A));
        for (int64_t r = 0; r < n; ++r) {
          row_of(nodes, first + r, 0, H * D, sums, [&](int k, int64_t c) __attribute__((always_inline)) {
            return spread<decltype(size)::value>(grad[k] + r * H + c / decltype(size)::value, 0);
          });
        }
      }
    };
    if (H > 1 && H <= kHeads && with_joint_size<A>(D, joint)) return;
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t h = 0; h < H; ++h) {
        row_of(nodes, row, h * D, (h + 1) * D, sums, [&](int k, int64_t) __attribute__((always_inline)) {
          return broadcast(as<A>(nodes.grad[k])[row * H + h]);
        });
      }
    }
  }
};

template <class T>
void node_gradients(const NodeArgs& nodes, int64_t begin, int64_t end, void* sums) {
  using A = typename Accumulator<T>::type;
  if (nodes.att[1]) {
    NodeGradients<T, 2>::run(nodes, begin, end, as<A>(sums));
  } else {
    NodeGradients<T, 1>::run(nodes, begin, end, as<A>(sums));
  }
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
