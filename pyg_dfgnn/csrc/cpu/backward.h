// The backward passes. With p = exp(s - lse), w = dropout(p), dp = <grad_out_i, value_j>:
//   delta_i = <grad_out_i, out_i> - grad_lse_i,   ds = p * (dropout(dp) - delta_i),
//   grad_value_j = sum_i w grad_out_i,
// and for dot and cosine grad_dst_i = sum_j ds src_j, grad_src_j = sum_i ds dst_i (with their scales), for additive the
// sums of ds' = ds * leaky_relu', which for additive_v2 is a vector. The pass over rows gathers src and value and
// leaves w and ds in [E, H]; the pass over columns gathers grad_out and dst. Both pull, so nothing is added to by two
// threads. Part of kernels_<isa>.cpp only.
#pragma once

#include "scores.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// The gradient of a logit's operand that a block's rows have, `own`, by the other one, with ds of BackwardDst::edges.
template <Logit LOGIT, class T>
struct OperandGradient {
  using A = typename Accumulator<T>::type;
  static constexpr bool kVector = LOGIT != Logit::additive;  // [D] a head, or one number

  static int64_t width(const Args& args) { return kVector ? args.head_dim : 1; }

  static Terms terms(const void* own, const void* other) {
    return {LOGIT == Logit::additive_v2 ? own : nullptr, other};
  }
  static A scale(const Args& args) { return LOGIT == Logit::dot ? A(args.scale) : A(1); }

  // Of a block of one row, all heads' sums (+)= its terms.
  static void add(const Args& args, const Block& block, auto heads, A* ds, const void* own, const void* other, bool add,
                  A* sums) {
    sums += heads.first * width(args);
    if constexpr (kVector) {
      add_terms<T>(args, heads, terms(own, other), block.row, block.source, block.n, ds, add, sums);
    } else {
      A of_block[kHeads] = {};
      sum_rows(block, heads.count, ds, of_block);
      for (int h = 0; h < heads.count; ++h) sums[h] = add ? sums[h] + of_block[h] : of_block[h];
    }
  }

  // A row's sums.
  static void finish(const Args& args, int64_t row, const A* sums, void* gradient) {
    const int64_t H = args.heads, at = row * H * width(args);
    if constexpr (kVector) {
      write_row(as<T>(gradient) + at, sums, scale(args), H * width(args));
    } else {
      for (int64_t h = 0; h < H; ++h) as<A>(gradient)[at + h] = sums[h];
    }
  }

  // Of all the block's rows; `sums` is room for those of one.
  static void write(const Args& args, const Block& block, auto heads, A* ds, const void* own, const void* other,
                    void* gradient, A* sums) {
    if constexpr (kVector) {
      write_terms<T>(args, block, heads, terms(own, other), ds, scale(args), nullptr, gradient, sums);
    } else {
      A of_rows[kNumbersArray<A>];
      sum_rows(block, heads.count, ds, of_rows);
      for_each_number_of_rows(args, block, heads, [&](int k, int64_t at) { as<A>(gradient)[at] = of_rows[k]; });
    }
  }
};

// State of a row: grad_dst, [H, D] or (additive) [H]; of messages sums of features by ds and by weights, [H, F] each,
// and room for what else is made of a row.
template <Logit LOGIT, class T>
struct BackwardDst {
  using A = typename Accumulator<T>::type;
  using Gradient = OperandGradient<LOGIT, T>;

  static constexpr bool kMessage = LOGIT == Logit::message;

  struct State {
    A *grad_dst, *by_ds, *by_weight, *room;
  };
  static State state_of(const Args& args, void* memory) {
    A *grad_dst = as<A>(memory), *by_ds = grad_dst + args.heads * Gradient::width(args) + lanes<A>;
    A* by_weight = by_ds + Messages<T>::sums_size(args);
    return {grad_dst, by_ds, by_weight, by_weight + Messages<T>::sums_size(args)};
  }
  static int64_t state_size(const Args& args) {
    const int64_t size = args.heads * Gradient::width(args) + lanes<A>;
    return kMessage ? size + 2 * Messages<T>::sums_size(args) + Messages<T>::room(args) : size;
  }

  // Writes weight, grad_score and grad_bias, and leaves in ds what src_j is multiplied by in the gradient of dst_i.
  static void edges(const Args& args, const Block& block, auto heads, A* ds, A* room) {
    const int count = heads.count, n = block.n * count;
    A p[kNumbersArray<A>], shift[kNumbersArray<A>], delta[kNumbersArray<A>];
    Derivatives<A> derivatives;
    logits<LOGIT, T, A>(args, block, heads, p, &derivatives, room);
    for_each_number_of_rows(args, block, heads, [&](int k, int64_t at) {
      const A lse = as<A>(args.lse)[at];
      shift[k] = lse == -kInfinity ? A(0) : lse;  // -inf: all logits are, p is 0
    });
    update_by_rows(block, count, p, shift, [](auto s, auto row) { return s - row; });
    exp_block(p, n);
    A* value_dot = derivatives.value_dot;
    if (args.dropout) {
      A factor[kNumbersArray<A>];
      keep_factors(args, block, heads, factor);
#pragma omp simd
      for (int k = 0; k < n; ++k) value_dot[k] *= factor[k];
#pragma omp simd
      for (int k = 0; k < n; ++k) factor[k] *= p[k];
      write_numbers(args, block, heads, factor, args.weight);
    } else {
      write_numbers(args, block, heads, p, args.weight);
    }
    const Rows<T> out = rows_of<T>(args, heads, args.out), grad_out = rows_of<T>(args, heads, args.grad_out);
    for_each_full_row(block, [&](int64_t i, int, int) {
      row_products<1, T, T, A>(args.head_dim, heads, {grad_out[i]}, out, &i, 1, {delta + (i - block.row) * count});
    });
    if (args.grad_lse) {
      for_each_number_of_rows(args, block, heads, [&](int k, int64_t at) { delta[k] -= as<A>(args.grad_lse)[at]; });
    }
    update_by_rows(block, count, value_dot, delta, [](auto dot, auto row) { return dot - row; });
    for_each_full_row(block, [&](int64_t i, int first, int last) {
      if (last - first > 1) return;
      const Range edges = row_range(args.rowptr, args, i);
      if (edges.end - edges.begin > 1) return;
      // The weight of a row's only edge is constant; value_dot and <grad_out_i, out_i> are rounded in different ways.
      for (int h = 0; h < count; ++h) {
        A& dot = value_dot[first * count + h];
        dot = (args.grad_lse ? as<A>(args.grad_lse)[i * args.heads + heads.first + h] : A(0)) + A(0) * dot;
      }
    });
#pragma omp simd
    for (int k = 0; k < n; ++k) ds[k] = p[k] * value_dot[k];
    if constexpr (kMessage) {  // of the product, not of the logit
#pragma omp simd
      for (int k = 0; k < n; ++k) ds[k] *= A(args.scale);
    }
    if (args.grad_bias) write_numbers(args, block, heads, ds, args.grad_bias);
    if constexpr (LOGIT == Logit::additive) {
#pragma omp simd
      for (int k = 0; k < n; ++k) ds[k] *= derivatives.slope[k];
    }
    write_numbers(args, block, heads, ds, args.grad_score);
    if constexpr (LOGIT == Logit::cosine) {
      multiply_by_sources(args, block, heads, ds, args.src_scale);
    }
  }

  static void piece(const Args& args, int64_t row, int64_t begin, int64_t end, void* memory) {
    const int64_t H = args.heads;
    const State state = state_of(args, memory);
    if (begin >= end) fill(state.grad_dst, state_size(args), A(0));
    Block block;
    A ds[kNumbersArray<A>];
    const int most = block_edges(args);
    for (int64_t b = begin; b < end; b += most) {
      if (!read_part(args, by_rows(args), most, row, b, end, block) || !read_more<LOGIT, T>(args, block)) {
        const auto spoil = [&](void* edges) { fill(as<A>(edges) + b * H, block.n * H, A(kNaN)); };
        spoil(args.weight);
        spoil(args.grad_score);
        if (args.grad_bias) spoil(args.grad_bias);
        if constexpr (kMessage) Messages<T>::spoil_gradients(args, block);
        fill(state.grad_dst, state_size(args), A(kNaN));
        continue;
      }
      prefetch_sources<LOGIT, T>(args, block);
      for_each_heads(args, [&](auto heads) {
        edges(args, block, heads, ds, state.room);
        Gradient::add(args, block, heads, ds, args.dst, args.src, b != begin, state.grad_dst);
        if constexpr (kMessage) {
          A weight[kNumbersArray<A>];
          read_numbers(args, block, heads, args.weight, weight);
          add_features(args, block, heads, row, 0, block.n, ds, weight, b != begin, state);
        }
      });
    }
  }

  // Of messages, what edges first .. last - 1 of the block, which are of row i, add to sums of features, and the
  // gradients of their features.
  static void add_features(const Args& args, const Block& block, auto heads, int64_t i, int first, int last,
                           const A* ds, const A* weight, bool add, const State& state) {
    const int64_t *feature = block.feature + first, sums = heads.first * args.edge_dim;
    const int n = last - first;
    const A *row_ds = ds + first * heads.count, *row_weight = weight + first * heads.count;
    Messages<T>::add_sums(args, heads, feature, n, row_ds, add, state.by_ds + sums);
    if (args.weight_sums) Messages<T>::add_sums(args, heads, feature, n, row_weight, add, state.by_weight + sums);
    if (args.grad_features) Messages<T>::write_gradients(args, i, feature, n, row_ds, row_weight, state.room);
  }

  // All that messages' row i has, or, of a block, some heads of it.
  static void finish_messages(const Args& args, auto heads, int64_t i, const State& state) {
    const int64_t D = args.head_dim, F = args.edge_dim, first = i * args.heads + heads.first;
    Messages<T>::add_projected(args, heads, state.by_ds + heads.first * F, state.grad_dst + heads.first * D);
    write_row(as<T>(args.grad_dst) + first * D, state.grad_dst + heads.first * D, A(1), heads.count * D);
    const auto write = [&](void* sums, const A* from) {
      if (sums) write_row(as<A>(sums) + first * F, from + heads.first * F, A(1), heads.count * F);
    };
    write(args.grad_sums, state.by_ds);
    write(args.weight_sums, state.by_weight);
  }

  static void merge(const Args& args, int64_t row, void* memory, int64_t count) {
    const State state = state_of(args, memory);
    const int64_t size = state_size(args);
    add_states(state.grad_dst, kMessage ? state.room - state.grad_dst : size, size, count);
    if constexpr (kMessage) {
      for_each_heads(args, [&](auto heads) { finish_messages(args, heads, row, state); });
    } else {
      Gradient::finish(args, row, state.grad_dst, args.grad_dst);
    }
  }

  static void short_messages(const Args& args, const Block& block, auto heads, const A* ds, const State& state) {
    const int64_t D = args.head_dim, F = args.edge_dim;
    A weight[kNumbersArray<A>];
    read_numbers(args, block, heads, args.weight, weight);
    for_each_row(block, [&](int64_t i, int first, int last) {
      if (first == last) {
        const int64_t head = i * args.heads + heads.first;
        clear_row(as<T>(args.grad_dst) + head * D, heads.count * D);
        for (void* sums : {args.grad_sums, args.weight_sums}) {
          if (sums) clear_row(as<A>(sums) + head * F, heads.count * F);
        }
        return;
      }
      A* grad_dst = state.grad_dst + heads.first * D;
      add_terms<T>(args, heads, {nullptr, args.src}, i, block.source + first, last - first, ds + first * heads.count,
                   false, grad_dst);
      add_features(args, block, heads, i, first, last, ds, weight, false, state);
      finish_messages(args, heads, i, state);
    });
  }

  static void short_rows(const Args& args, const Block& block, const State& state) {
    A ds[kNumbersArray<A>];
    prefetch_sources<LOGIT, T>(args, block);
    for_each_heads(args, [&](auto heads) {
      edges(args, block, heads, ds, state.room);
      if constexpr (kMessage) {
        short_messages(args, block, heads, ds, state);
      } else {
        Gradient::write(args, block, heads, ds, args.dst, args.src, args.grad_dst, state.grad_dst);
      }
    });
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    for_each_block(
        args, by_rows(args), block_edges(args), begin, end,
        [&](Block& block) { return read_more<LOGIT, T>(args, block); },
        [&](const Block& block) { short_rows(args, block, state_of(args, memory)); },
        [&](int64_t i, int64_t first, int64_t last) {
          piece(args, i, first, last, memory);
          merge(args, i, memory, 1);
        });
  }
};

// State of a column: grad_value [H, D], then grad_src, [H, D] or (additive) [H].
template <Logit LOGIT, class T>
struct BackwardSrc {
  using A = typename Accumulator<T>::type;
  using Gradient = OperandGradient<LOGIT, T>;

  static int64_t value_size(const Args& args) { return args.heads * args.head_dim; }
  static int64_t state_size(const Args& args) {
    return value_size(args) + args.heads * Gradient::width(args) + 2 * lanes<A>;  // a vector to spare behind each
  }
  static A* src_of(const Args& args, A* grad_value) { return grad_value + value_size(args) + lanes<A>; }

  static DFGNN_INLINE void prefetch_destinations(const Args& args, const Block& block) {
    prefetch_rows<T>(block, block.source, args.grad_out, args.num_dst, value_size(args));
    if (Gradient::kVector) prefetch_rows<T>(block, block.source, args.dst, args.num_dst, value_size(args));
  }

  // Where a block's edges are in CSR order; false where one is nowhere.
  static bool read_positions(const Args& args, const Block& block, int64_t* position) {
    return read_indices(args.perm, args.wide_index, block.begin, block.n, args.num_edges, position);
  }

  // The weights of a block's edges, and what dst_i is multiplied by in the gradient of src_j.
  static void read_numbers(const Args& args, const Block& block, const int64_t* position, auto heads, A* weight,
                           A* ds) {
    gather_numbers(args, block, heads, position, args.weight, weight);
    gather_numbers(args, block, heads, position, args.grad_score, ds);
    if constexpr (LOGIT == Logit::cosine) {
      multiply_by_sources(args, block, heads, ds, args.dst_scale);
    }
  }

  static void piece(const Args& args, int64_t column, int64_t begin, int64_t end, void* memory) {
    const int64_t D = args.head_dim;
    A *grad_value = as<A>(memory), *grad_src = src_of(args, grad_value);
    if (begin >= end) fill(grad_value, state_size(args), A(0));
    Block block;
    int64_t position[kBlock];
    A weight[kNumbersArray<A>], ds[kNumbersArray<A>];
    const int most = block_edges(args);
    for (int64_t b = begin; b < end; b += most) {
      if (!read_part(args, by_columns(args), most, column, b, end, block) || !read_positions(args, block, position)) {
        fill(grad_value, state_size(args), A(kNaN));
        continue;
      }
      prefetch_destinations(args, block);
      for_each_heads(args, [&](auto heads) {
        read_numbers(args, block, position, heads, weight, ds);
        add_terms<T>(args, heads, {nullptr, args.grad_out}, column, block.source, block.n, weight, b != begin,
                     grad_value + heads.first * D);
        Gradient::add(args, block, heads, ds, args.src, args.dst, b != begin, grad_src);
      });
    }
  }

  static void merge(const Args& args, int64_t column, void* memory, int64_t count) {
    A *grad_value = as<A>(memory), *grad_src = src_of(args, grad_value);
    add_states(grad_value, state_size(args), state_size(args), count);
    write_row(as<T>(args.grad_value) + column * value_size(args), grad_value, A(1), value_size(args));
    Gradient::finish(args, column, grad_src, args.grad_src);
  }

  static void short_columns(const Args& args, const Block& block, const int64_t* position, A* sums) {
    A weight[kNumbersArray<A>], ds[kNumbersArray<A>];
    prefetch_destinations(args, block);
    for_each_heads(args, [&](auto heads) {
      read_numbers(args, block, position, heads, weight, ds);
      write_terms<T>(args, block, heads, {nullptr, args.grad_out}, weight, A(1), nullptr, args.grad_value, sums);
      Gradient::write(args, block, heads, ds, args.src, args.dst, args.grad_src, sums);
    });
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    int64_t position[kBlock];
    for_each_block(
        args, by_columns(args), block_edges(args), begin, end,
        [&](const Block& block) { return read_positions(args, block, position); },
        [&](const Block& block) { short_columns(args, block, position, as<A>(memory)); },
        [&](int64_t j, int64_t first, int64_t last) {
          piece(args, j, first, last, memory);
          merge(args, j, memory, 1);
        });
  }
};

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
