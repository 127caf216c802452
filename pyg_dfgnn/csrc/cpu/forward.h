// The forward pass: one sweep over a row's edges with an online softmax (Milakov and Gimelshein, 2018).
// Part of kernels_<isa>.cpp only.
#pragma once

#include "scores.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// State of a row: out[H][D] = sum exp(s - m) value, and per head the maximum m of its logits and l = sum exp(s - m); of
// messages sums[H][F] = sum exp(s - m) f, and room for what else is made of a row.
template <Logit LOGIT, class T>
struct Forward {
  using A = typename Accumulator<T>::type;
  static constexpr bool kMessage = LOGIT == Logit::message;

  struct State {
    A *out, *m, *l, *sums, *room;
  };
  static State state_of(const Args& args, void* memory) {
    A *out = as<A>(memory), *m = out + args.heads * args.head_dim + lanes<A>, *l = m + args.heads;
    A* sums = l + args.heads + lanes<A>;
    return {out, m, l, sums, sums + Messages<T>::sums_size(args)};
  }
  static int64_t state_size(const Args& args) {
    const int64_t size = args.heads * (args.head_dim + 2) + 2 * lanes<A>;  // a vector to spare behind out, and behind l
    return kMessage ? size + Messages<T>::sums_size(args) + Messages<T>::room(args) : size;
  }

  // Where all logits so far are -inf the maximum is too, and s - m would be NaN: they are shifted by 0 instead.
  static A shift_of(A m) { return m == -kInfinity ? A(0) : m; }

  // Numbers of a block's rows.
  struct RowNumbers {
    A m[kNumbersArray<A>], shift[kNumbersArray<A>], l[kNumbersArray<A>];
  };

  // exp(s - shift) of the block's logits, with the maximum so far where there is one, and their sums.
  static void exponentials(const Args& args, const Block& block, auto heads, const A* old_max, A* weight,
                           RowNumbers& rows, A* room) {
    const int count = heads.count;
    logits<LOGIT, T, A>(args, block, heads, weight, nullptr, room);
    max_of_rows(block, count, weight, rows.m);
    for (int k = 0; k < block.rows * count; ++k) {
      if (old_max && old_max[k] > rows.m[k]) rows.m[k] = old_max[k];
      rows.shift[k] = shift_of(rows.m[k]);
    }
    update_by_rows(block, count, weight, rows.shift, [](auto s, auto shift) { return s - shift; });
    exp_block(weight, block.n * count);
    sum_rows(block, count, weight, rows.l);
    if (args.dropout) {
      A factor[kNumbersArray<A>];
      keep_factors(args, block, heads, factor);
#pragma omp simd
      for (int k = 0; k < block.n * count; ++k) weight[k] *= factor[k];
    }
  }

  static void piece(const Args& args, int64_t row, int64_t begin, int64_t end, void* memory) {
    const int64_t H = args.heads, D = args.head_dim;
    const State state = state_of(args, memory);
    fill(state.m, H, A(-kInfinity));
    fill(state.l, H, A(0));
    Block block;
    A weight[kNumbersArray<A>];
    RowNumbers numbers;
    const int most = block_edges(args);
    for (int64_t b = begin; b < end; b += most) {
      const bool is_first = b == begin;
      if (!read_part(args, by_rows(args), most, row, b, end, block) || !read_more<LOGIT, T>(args, block)) {
        fill(state.l, H, A(kNaN));  // for good: what is added to NaN is NaN
        if (is_first) fill(state.out, H * D, A(0));
        if (kMessage && is_first) fill(state.sums, H * args.edge_dim, A(0));
        continue;
      }
      prefetch_sources<LOGIT, T>(args, block);
      for_each_heads(args, [&](auto heads) {
        A *m = state.m + heads.first, *l = state.l + heads.first, *out = state.out + heads.first * D;
        A* sums = state.sums + heads.first * args.edge_dim;
        exponentials(args, block, heads, m, weight, numbers, state.room);
        for (int h = 0; h < heads.count; ++h) {
          A decay = 1;
          if (m[h] != numbers.m[h] && !is_first) {
            decay = exp(m[h] - numbers.shift[h]);
            for (int64_t d = 0; d < D; ++d) out[h * D + d] *= decay;
            if constexpr (kMessage) {
              for (int64_t f = 0; f < args.edge_dim; ++f) sums[h * args.edge_dim + f] *= decay;
            }
          }
          m[h] = numbers.m[h];
          l[h] = l[h] * decay + numbers.l[h];
        }
        add_terms<T>(args, heads, {nullptr, args.value}, row, block.source, block.n, weight, !is_first, out);
        if constexpr (kMessage) Messages<T>::add_sums(args, heads, block.feature, block.n, weight, !is_first, sums);
      });
    }
  }

  static void finish(const Args& args, int64_t row, const State& state) {
    const int64_t H = args.heads, D = args.head_dim;
    A* lse = as<A>(args.lse) + row * H;
    for (int64_t h = 0; h < H; ++h) {
      if (state.l[h] == A(0)) {  // no edges, or all logits -inf: out is 0
        lse[h] = -kInfinity;
      } else {
        lse[h] = state.m[h] + log(state.l[h]);
        state.l[h] = A(1) / state.l[h];
      }
    }
    for_each_heads(args, [&](auto heads) {
      const int64_t first = heads.first * D;
      if constexpr (kMessage) {
        Messages<T>::add_projected(args, heads, state.sums + heads.first * args.edge_dim, state.out + first);
      }
      write_heads(args, heads, as<T>(args.out) + row * H * D + first, state.out + first, state.l + heads.first);
    });
  }

  // All of a block's rows, one step after the other; `state` is room for that of a row.
  static void short_rows(const Args& args, const Block& block, const State& state) {
    A weight[kNumbersArray<A>], scale[kNumbersArray<A>];
    RowNumbers numbers;
    prefetch_sources<LOGIT, T>(args, block);
    for_each_heads(args, [&](auto heads) {
      const int count = heads.count;
      exponentials(args, block, heads, nullptr, weight, numbers, state.room);
      for (int k = 0; k < block.rows * count; ++k) {  // without edges, or all logits -inf: 0
        scale[k] = numbers.l[k] == A(0) ? A(0) : A(1) / numbers.l[k];
      }
      for_each_number_of_rows(args, block, heads, [&](int k, int64_t at) {
        as<A>(args.lse)[at] = numbers.l[k] == A(0) ? A(-kInfinity) : numbers.shift[k] + log(numbers.l[k]);
      });
      if constexpr (kMessage) {
        write_messages(args, block, heads, weight, scale, state);
      } else {
        write_terms<T>(args, block, heads, {nullptr, args.value}, weight, A(1), scale, args.out, state.out);
      }
    });
  }

  // out[i] = the sum of the messages of the edges of row i = block.row + r by scale[r][h].
  static void write_messages(const Args& args, const Block& block, auto heads, const A* weight, const A* scale,
                             const State& state) {
    const int64_t D = args.head_dim;
    for_each_row(block, [&](int64_t i, int first, int last) {
      T* row = as<T>(args.out) + (i * args.heads + heads.first) * D;
      if (first == last) {
        clear_row(row, heads.count * D);
        return;
      }
      const A* numbers = weight + first * heads.count;
      add_terms<T>(args, heads, {nullptr, args.value}, i, block.source + first, last - first, numbers, false,
                   state.out);
      Messages<T>::add_sums(args, heads, block.feature + first, last - first, numbers, false, state.sums);
      Messages<T>::add_projected(args, heads, state.sums, state.out);
      write_heads(args, heads, row, state.out, scale + (i - block.row) * heads.count);
    });
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    const State state = state_of(args, memory);
    for_each_block(
        args, by_rows(args), block_edges(args), begin, end,
        [&](Block& block) { return read_more<LOGIT, T>(args, block); },
        [&](const Block& block) { short_rows(args, block, state); },
        [&](int64_t i, int64_t first, int64_t last) {
          piece(args, i, first, last, memory);
          finish(args, i, state);
        });
  }

  static void merge(const Args& args, int64_t row, void* memory, int64_t count) {
    const int64_t D = args.head_dim;
    const State all = state_of(args, memory);
    for (int64_t k = 1; k < count; ++k) {
      const State one = state_of(args, as<A>(memory) + k * state_size(args));
      for (int64_t h = 0; h < args.heads; ++h) {
        const A m = one.m[h] > all.m[h] ? one.m[h] : all.m[h], shift = shift_of(m);
        const A decay_all = exp(all.m[h] - shift), decay_one = exp(one.m[h] - shift);
        all.m[h] = m;
        all.l[h] = all.l[h] * decay_all + one.l[h] * decay_one;
        const auto add = [&](A* to, const A* from, int64_t size) {
          for (int64_t d = 0; d < size; ++d) to[d] = to[d] * decay_all + from[d] * decay_one;
        };
        add(all.out + h * D, one.out + h * D, D);
        if constexpr (kMessage) add(all.sums + h * args.edge_dim, one.sums + h * args.edge_dim, args.edge_dim);
      }
    }
    finish(args, row, all);
  }
};

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
