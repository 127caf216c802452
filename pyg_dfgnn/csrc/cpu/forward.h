// The forward pass: one sweep over a row's edges with an online softmax (Milakov and Gimelshein, 2018).
// Part of kernels_<isa>.cpp only.
#pragma once

#include "scores.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// State of a row: per head the maximum m of its logits, l = sum exp(s - m), and out[D] = sum exp(s - m) value.
template <Logit LOGIT, class T>
struct Forward {
  using A = typename Accumulator<T>::type;

  struct State {
    A *m, *l, *out;
    int64_t width;  // of one head's out
  };
  static State state_of(const Args& args, void* memory) {
    const int64_t width = padded<A>(args.head_dim);
    A* out = as<A>(memory);
    return {out + args.heads * width, out + args.heads * (width + 1), out, width};
  }
  static int64_t state_size(const Args& args) { return args.heads * (padded<A>(args.head_dim) + 2); }

  // Where all logits so far are -inf the maximum is too, and s - m would be NaN: they are shifted by 0 instead.
  static A shift_of(A m) { return m == -kInfinity ? A(0) : m; }

  static void piece(const Args& args, int64_t row, int64_t begin, int64_t end, void* memory) {
    const int64_t H = args.heads, D = args.head_dim;
    const State state = state_of(args, memory);
    fill(state.m, H, A(-kInfinity));
    fill(state.l, H, A(0));
    Block block;
    A weight[kBlock];
    for (int64_t b = begin; b < end; b += kBlock) {
      const bool first = b == begin;
      if (!read_part(args, by_rows(args), row, b, end, block)) {
        fill(state.l, H, A(kNaN));  // for good: what is added to NaN is NaN
        if (first) fill(state.out, H * state.width, A(0));
        continue;
      }
      prefetch_sources<LOGIT, T>(args, block);
      for (int64_t h = 0; h < H; ++h) {
        const int n = block.n;
        logits<LOGIT, T, A>(args, block, h, weight, nullptr);
        const A old_max = state.m[h], block_max = max_block(weight, n);
        const A m = block_max > old_max ? block_max : old_max, shift = shift_of(m);
        A* out = state.out + h * state.width;
        A decay = 1;
        if (m != old_max && !first) {
          decay = exp(old_max - shift);
          for (int64_t d = 0; d < state.width; ++d) out[d] *= decay;
        }
        state.m[h] = m;
        state.l[h] = state.l[h] * decay + exp_block(weight, n, shift);
        drop(args, block, h, weight);
        weighted_sum(weight, head_of<T>(args.value, h, H, D), block.source, n, D, !first, out);
      }
    }
  }

  static void drop(const Args& args, const Block& block, int64_t h, A* weight) {
    if (!args.dropout) return;
    A factor[kBlock];
    keep_factors(args, block.begin, block.n, h, factor);
    for (int e = 0; e < block.n; ++e) weight[e] *= factor[e];
  }

  static void finish(const Args& args, int64_t row, const State& state) {
    const int64_t H = args.heads, D = args.head_dim;
    T* out = as<T>(args.out) + row * H * D;
    A* lse = as<A>(args.lse) + row * H;
    for (int64_t h = 0; h < H; ++h) {
      A* sums = state.out + h * state.width;
      if (state.l[h] == A(0)) {  // no edges, or all logits -inf
        fill(sums, D, A(0));
        write_row(out + h * D, sums, A(1), D);
        lse[h] = -kInfinity;
      } else {
        write_row(out + h * D, sums, A(1) / state.l[h], D);
        lse[h] = state.m[h] + log(state.l[h]);
      }
    }
  }

  // All of a block's rows, one step after the other; `sums` is one head's out.
  static void short_rows(const Args& args, const Block& block, A* sums) {
    const int64_t H = args.heads, D = args.head_dim;
    A weight[kBlock], shift[kBlockRows], scale[kBlockRows];
    prefetch_sources<LOGIT, T>(args, block);
    for (int64_t h = 0; h < H; ++h) {
      A* lse = as<A>(args.lse) + block.row * H + h;
      T* out = as<T>(args.out) + h * D;
      logits<LOGIT, T, A>(args, block, h, weight, nullptr);
      for (int r = 0; r < block.rows; ++r) {
        A m = -kInfinity;
        for (int e = block.offset[r]; e < block.offset[r + 1]; ++e) m = weight[e] > m ? weight[e] : m;
        shift[r] = shift_of(m);
      }
      for_each_edge(block, [&](int e, int r) { weight[e] -= shift[r]; });
      exp_block(weight, block.n, A(0));
      for (int r = 0; r < block.rows; ++r) {
        A l = 0;
        for (int e = block.offset[r]; e < block.offset[r + 1]; ++e) l += weight[e];
        scale[r] = l == A(0) ? A(0) : A(1) / l;
        lse[r * H] = l == A(0) ? A(-kInfinity) : shift[r] + log(l);
      }
      drop(args, block, h, weight);
      const Rows<T> value = head_of<T>(args.value, h, H, D);
      write_sums_of_rows(block, weight, value, D, out, sums, [&](int r) { return scale[r]; });
      for_each_row(block,
                   [&](int64_t i, int first, int last) {  // 0 of values that are not finite, where all logits are -inf
                     if (first == last || scale[i - block.row] != A(0)) return;
                     fill(sums, D, A(0));
                     write_row(out + i * H * D, sums, A(1), D);
                   });
    }
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    const State state = state_of(args, memory);
    Block block;
    for (int64_t i = begin; i < end;) {
      if (read_short_rows(args, by_rows(args), i, end, block)) {
        short_rows(args, block, state.out);
        i += block.rows;
        continue;
      }
      const Range range = row_range(args.rowptr, args, i);
      if (range.end - range.begin <= kPieceEdges) {
        piece(args, i, range.begin, range.end, memory);
        finish(args, i, state);
      }
      ++i;
    }
  }

  static void merge(const Args& args, int64_t row, void* memory, int64_t count) {
    const State all = state_of(args, memory);
    for (int64_t k = 1; k < count; ++k) {
      const State one = state_of(args, as<A>(memory) + k * state_size(args));
      for (int64_t h = 0; h < args.heads; ++h) {
        const A m = one.m[h] > all.m[h] ? one.m[h] : all.m[h], shift = shift_of(m);
        const A decay_all = exp(all.m[h] - shift), decay_one = exp(one.m[h] - shift);
        all.m[h] = m;
        all.l[h] = all.l[h] * decay_all + one.l[h] * decay_one;
        A *out = all.out + h * all.width, *other = one.out + h * all.width;
        for (int64_t d = 0; d < all.width; ++d) out[d] = out[d] * decay_all + other[d] * decay_one;
      }
    }
    finish(args, row, all);
  }
};

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
