// The backward passes. With p = exp(s - lse), w = dropout(p), dp = <grad_out_i, value_j>:
//   ds = p * (dropout(dp) - delta_i) where delta_i = <grad_out_i, out_i> - grad_lse_i,   grad_value_j = sum_i w
//   grad_out_i,
// and for dot and cosine grad_dst_i = sum_j ds src_j, grad_src_j = sum_i ds dst_i (with their scales), for additive the
// sums of ds' = ds * leaky_relu', which for additive_v2 is a vector. The pass over rows gathers src and value and
// leaves w and ds in [E, H]; the pass over columns gathers grad_out and dst. Both pull, so nothing is added to by two
// threads. Part of kernels_<isa>.cpp only.
#pragma once

#include "scores.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// The gradient of a logit's operand that a block's rows have, `own`, by the other one, with ds of BackwardDst::edges.
template <Logit LOGIT, class T, class A>
inline void write_operand_gradient(const Args& args, const Block& block, int64_t h, const A* ds, const void* own,
                                   const void* other, void* gradient, A* sums) {
  const int64_t H = args.heads, D = args.head_dim;
  if constexpr (LOGIT == Logit::additive) {
    for_each_row(block, [&](int64_t i, int first, int last) {
      A sum = 0;
      for (int e = first; e < last; ++e) sum += ds[e];
      as<A>(gradient)[i * H + h] = sum;
    });
  } else if constexpr (LOGIT == Logit::additive_v2) {
    write_slopes_of_rows(block, ds, head_of<T>(own, h, H, D), head_of<T>(other, h, H, D), A(args.negative_slope), D,
                         as<T>(gradient) + h * D, sums);
  } else {
    const A scale = LOGIT == Logit::dot ? A(args.scale) : A(1);
    write_sums_of_rows(block, ds, head_of<T>(other, h, H, D), D, as<T>(gradient) + h * D, sums,
                       [&](int) { return scale; });
  }
}

// State of a row: per head grad_dst, [D] or (additive) one number in [lanes].
template <Logit LOGIT, class T>
struct BackwardDst {
  using A = typename Accumulator<T>::type;
  static constexpr bool kVector = LOGIT != Logit::additive;

  static int64_t width(const Args& args) { return kVector ? padded<A>(args.head_dim) : 1; }
  static int64_t state_size(const Args& args) { return args.heads * width(args); }

  // One head of a block: writes weight, grad_score and grad_bias, and leaves in ds[e] what src_j is multiplied by in
  // the gradient of dst_i.
  static void edges(const Args& args, const Block& block, int64_t h, A* ds) {
    const int64_t H = args.heads, at = block.begin * H + h;
    const int n = block.n;
    const Rows<T> grad_out = head_of<T>(args.grad_out, h, H, args.head_dim);
    const Rows<T> out = head_of<T>(args.out, h, H, args.head_dim);
    A p[kBlock], factor[kBlock];
    Derivatives<A> derivatives;
    logits<LOGIT, T, A>(args, block, h, p, &derivatives);
    A shift[kBlockRows], delta[kBlockRows], by_edges[kBlockRows];
    for (int r = 0; r < block.rows; ++r) {
      const A lse = as<A>(args.lse)[(block.row + r) * H + h];
      shift[r] = lse == -kInfinity ? A(0) : lse;  // -inf: all logits are, p is 0
    }
    for_each_edge(block, [&](int e, int r) { p[e] -= shift[r]; });
    exp_block(p, n, A(0));
    A *weight = as<A>(args.weight) + at, *grad_score = as<A>(args.grad_score) + at;
    if (args.dropout) {
      keep_factors(args, block.begin, n, h, factor);
      for (int e = 0; e < n; ++e) derivatives.value_dot[e] *= factor[e];
      for (int e = 0; e < n; ++e) weight[e * H] = p[e] * factor[e];
    } else {
      for (int e = 0; e < n; ++e) weight[e * H] = p[e];
    }
    for_each_full_row(block, [&](int64_t i, int first, int) {
      const int r = int(i - block.row);
      const Range edges = row_range(args.rowptr, args, i);
      // The weight of a row's only edge is constant; value_dot and <grad_out_i, out_i> are rounded in different ways.
      const bool is_only = edges.end - edges.begin == 1;
      by_edges[r] = is_only ? A(0) : A(1);
      delta[r] = 0;
      if (!is_only) dots<1>({grad_out[i]}, out, &i, 1, args.head_dim, {&delta[r]});
      if (args.grad_lse) delta[r] -= as<A>(args.grad_lse)[i * H + h];
    });
    for_each_edge(block, [&](int e, int r) { ds[e] = p[e] * (by_edges[r] * derivatives.value_dot[e] - delta[r]); });
    if (args.grad_bias) {
      A* grad_bias = as<A>(args.grad_bias) + at;
      for (int e = 0; e < n; ++e) grad_bias[e * H] = ds[e];
    }
    if constexpr (LOGIT == Logit::additive) {
#pragma omp simd
      for (int e = 0; e < n; ++e) ds[e] *= derivatives.slope[e];
    }
    for (int e = 0; e < n; ++e) grad_score[e * H] = ds[e];
    if constexpr (LOGIT == Logit::cosine) {
      const A* src_scale = as<A>(args.src_scale) + h;
#pragma omp simd
      for (int e = 0; e < n; ++e) ds[e] *= src_scale[block.source[e] * H];
    }
  }

  // grad_dst (+)= the terms of n edges of row i.
  static void add_terms(const Args& args, int64_t i, int64_t h, const A* ds, const int64_t* source, int n, bool add,
                        A* grad_dst) {
    const int64_t H = args.heads, D = args.head_dim;
    const Rows<T> src = head_of<T>(args.src, h, H, D);
    if constexpr (LOGIT == Logit::additive_v2) {
      const T* dst = head_of<T>(args.dst, h, H, D)[i];
      weighted_slopes(ds, dst, A(args.negative_slope), src, source, n, D, add, grad_dst);
    } else {
      weighted_sum(ds, src, source, n, D, add, grad_dst);
    }
  }

  static void piece(const Args& args, int64_t row, int64_t begin, int64_t end, void* memory) {
    const int64_t H = args.heads;
    A* grad_dst = as<A>(memory);
    if (!kVector || begin >= end) fill(grad_dst, state_size(args), A(0));
    Block block;
    A ds[kBlock];
    for (int64_t b = begin; b < end; b += kBlock) {
      if (!read_part(args, by_rows(args), row, b, end, block)) {
        const auto spoil = [&](void* edges) { fill(as<A>(edges) + b * H, block.n * H, A(kNaN)); };
        spoil(args.weight);
        spoil(args.grad_score);
        if (args.grad_bias) spoil(args.grad_bias);
        fill(grad_dst, state_size(args), A(kNaN));
        continue;
      }
      prefetch_sources<LOGIT, T>(args, block);
      for (int64_t h = 0; h < H; ++h) {
        edges(args, block, h, ds);
        if constexpr (kVector) {
          add_terms(args, row, h, ds, block.source, block.n, b != begin, grad_dst + h * width(args));
        } else {
          grad_dst[h] += sum_block(ds, block.n);
        }
      }
    }
  }

  static void write(const Args& args, int64_t row, int64_t h, const A* grad_dst) {
    const int64_t at = row * args.heads + h;
    if constexpr (kVector) {
      const A scale = LOGIT == Logit::dot ? A(args.scale) : A(1);
      write_row(as<T>(args.grad_dst) + at * args.head_dim, grad_dst, scale, args.head_dim);
    } else {
      as<A>(args.grad_dst)[at] = *grad_dst;
    }
  }

  static void merge(const Args& args, int64_t row, void* memory, int64_t count) {
    const int64_t size = state_size(args);
    A* grad_dst = as<A>(memory);
    for (int64_t k = 1; k < count; ++k) {
      for (int64_t d = 0; d < size; ++d) grad_dst[d] += grad_dst[k * size + d];
    }
    for (int64_t h = 0; h < args.heads; ++h) write(args, row, h, grad_dst + h * width(args));
  }

  static void short_rows(const Args& args, const Block& block, A* grad_dst) {
    A ds[kBlock];
    prefetch_sources<LOGIT, T>(args, block);
    for (int64_t h = 0; h < args.heads; ++h) {
      edges(args, block, h, ds);
      write_operand_gradient<LOGIT, T>(args, block, h, ds, args.dst, args.src, args.grad_dst, grad_dst);
    }
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    Block block;
    for (int64_t i = begin; i < end;) {
      if (read_short_rows(args, by_rows(args), i, end, block)) {
        short_rows(args, block, as<A>(memory));
        i += block.rows;
        continue;
      }
      const Range range = row_range(args.rowptr, args, i);
      if (range.end - range.begin <= kPieceEdges) {
        piece(args, i, range.begin, range.end, memory);
        merge(args, i, memory, 1);
      }
      ++i;
    }
  }
};

// State of a column: per head grad_value [D], then per head grad_src, [D] or (additive) one number.
template <Logit LOGIT, class T>
struct BackwardSrc {
  using A = typename Accumulator<T>::type;
  static constexpr bool kVector = LOGIT != Logit::additive;

  static int64_t value_width(const Args& args) { return padded<A>(args.head_dim); }
  static int64_t src_width(const Args& args) { return kVector ? padded<A>(args.head_dim) : 1; }
  static int64_t state_size(const Args& args) { return args.heads * (value_width(args) + src_width(args)); }

  static DFGNN_INLINE void prefetch_destinations(const Args& args, const Block& block) {
    prefetch_rows<T>(args, block, args.grad_out, args.num_dst);
    if (kVector) prefetch_rows<T>(args, block, args.dst, args.num_dst);
  }

  // Where a block's edges are in CSR order; false where one is nowhere.
  static bool read_positions(const Args& args, const Block& block, int64_t* position) {
    return read_indices(args.perm, args.wide_index, block.begin, block.n, args.num_edges, position);
  }

  // One head's weights of a block's edges, and what dst_i is multiplied by in the gradient of src_j.
  static void read_numbers(const Args& args, const Block& block, const int64_t* position, int64_t h, A* weight, A* ds) {
    const int64_t H = args.heads;
    const A *weights = as<A>(args.weight) + h, *grad_scores = as<A>(args.grad_score) + h;
#pragma omp simd
    for (int e = 0; e < block.n; ++e) {
      weight[e] = weights[position[e] * H];
      ds[e] = grad_scores[position[e] * H];
    }
    if constexpr (LOGIT == Logit::cosine) {
      const A* dst_scale = as<A>(args.dst_scale) + h;
#pragma omp simd
      for (int e = 0; e < block.n; ++e) ds[e] *= dst_scale[block.source[e] * H];
    }
  }

  static void piece(const Args& args, int64_t column, int64_t begin, int64_t end, void* memory) {
    const int64_t H = args.heads, D = args.head_dim;
    A *grad_value = as<A>(memory), *grad_src = grad_value + H * value_width(args);
    if (begin >= end) fill(grad_value, H * value_width(args), A(0));
    if (!kVector || begin >= end) fill(grad_src, H * src_width(args), A(0));
    Block block;
    int64_t position[kBlock];
    A weight[kBlock], ds[kBlock];
    for (int64_t b = begin; b < end; b += kBlock) {
      if (!read_part(args, by_columns(args), column, b, end, block) || !read_positions(args, block, position)) {
        fill(grad_value, state_size(args), A(kNaN));
        continue;
      }
      prefetch_destinations(args, block);
      const int n = block.n;
      const int64_t* destination = block.source;
      for (int64_t h = 0; h < H; ++h) {
        read_numbers(args, block, position, h, weight, ds);
        weighted_sum(weight, head_of<T>(args.grad_out, h, H, D), destination, n, D, b != begin,
                     grad_value + h * value_width(args));
        if constexpr (LOGIT == Logit::additive_v2) {
          const T* src = head_of<T>(args.src, h, H, D)[column];
          weighted_slopes(ds, src, A(args.negative_slope), head_of<T>(args.dst, h, H, D), destination, n, D, b != begin,
                          grad_src + h * src_width(args));
        } else if constexpr (kVector) {
          weighted_sum(ds, head_of<T>(args.dst, h, H, D), destination, n, D, b != begin,
                       grad_src + h * src_width(args));
        } else {
          grad_src[h] += sum_block(ds, n);
        }
      }
    }
  }

  static void short_columns(const Args& args, const Block& block, const int64_t* position, A* sums) {
    const int64_t H = args.heads, D = args.head_dim;
    A weight[kBlock], ds[kBlock];
    prefetch_destinations(args, block);
    for (int64_t h = 0; h < H; ++h) {
      read_numbers(args, block, position, h, weight, ds);
      write_sums_of_rows(block, weight, head_of<T>(args.grad_out, h, H, D), D, as<T>(args.grad_value) + h * D, sums,
                         [](int) { return A(1); });
      write_operand_gradient<LOGIT, T>(args, block, h, ds, args.src, args.dst, args.grad_src, sums);
    }
  }

  static void merge(const Args& args, int64_t column, void* memory, int64_t count) {
    const int64_t H = args.heads, D = args.head_dim, size = state_size(args);
    A *grad_value = as<A>(memory), *grad_src = grad_value + H * value_width(args);
    for (int64_t k = 1; k < count; ++k) {
      for (int64_t d = 0; d < size; ++d) grad_value[d] += grad_value[k * size + d];
    }
    for (int64_t h = 0; h < H; ++h) {
      write_row(as<T>(args.grad_value) + (column * H + h) * D, grad_value + h * value_width(args), A(1), D);
      if constexpr (kVector) {
        const A scale = LOGIT == Logit::dot ? A(args.scale) : A(1);
        write_row(as<T>(args.grad_src) + (column * H + h) * D, grad_src + h * src_width(args), scale, D);
      } else {
        as<A>(args.grad_src)[column * H + h] = grad_src[h];
      }
    }
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    Block block;
    int64_t position[kBlock];
    for (int64_t j = begin; j < end;) {
      if (read_short_rows(args, by_columns(args), j, end, block) && read_positions(args, block, position)) {
        short_columns(args, block, position, as<A>(memory));
        j += block.rows;
        continue;
      }
      const Range range = row_range(args.colptr, args, j);
      if (range.end - range.begin <= kPieceEdges) {
        piece(args, j, range.begin, range.end, memory);
        merge(args, j, memory, 1);
      }
      ++j;
    }
  }
};

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
