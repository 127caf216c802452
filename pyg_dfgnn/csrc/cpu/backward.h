// The backward passes. With p = exp(s - lse), w = dropout(p), dp = <grad_out_i, value_j>:
//   ds = p * (dropout(dp) - delta_i),   grad_value_j = sum_i w grad_out_i,
// and for dot and cosine grad_dst_i = sum_j ds src_j, grad_src_j = sum_i ds dst_i (with their scales), for additive the
// sums of ds' = ds * leaky_relu', which for additive_v2 is a vector. The pass over rows gathers src and value and
// leaves w and ds in [E, H]; the pass over columns gathers grad_out and dst. Both pull, so nothing is added to by two
// threads. Part of kernels_<isa>.cpp only.
#pragma once

#include "scores.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

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
    A p[kBlock], factor[kBlock];
    Derivatives<A> derivatives;
    logits<LOGIT, T, A>(args, block, h, p, &derivatives);
    for_each_row(block, [&](int64_t i, int first, int last) {
      const A lse = as<A>(args.lse)[i * H + h], shift = lse == -kInfinity ? A(0) : lse;  // -inf: all logits are, p is 0
#pragma omp simd
      for (int e = first; e < last; ++e) p[e] -= shift;
    });
    exp_block(p, n, A(0));
    A *weight = as<A>(args.weight) + at, *grad_score = as<A>(args.grad_score) + at;
    if (args.dropout) {
      keep_factors(args, block.begin, n, h, factor);
      for (int e = 0; e < n; ++e) derivatives.value_dot[e] *= factor[e];
      for (int e = 0; e < n; ++e) weight[e * H] = p[e] * factor[e];
    } else {
      for (int e = 0; e < n; ++e) weight[e * H] = p[e];
    }
    for_each_row(block, [&](int64_t i, int first, int last) {
      const A delta = as<A>(args.delta)[i * H + h];
#pragma omp simd
      for (int e = first; e < last; ++e) ds[e] = p[e] * (derivatives.value_dot[e] - delta);
      // The weight of a row's only edge is constant; value_dot and delta are rounded in different ways.
      const Range edges = row_range(args.rowptr, args, i);
      if (edges.end - edges.begin == 1) {
        const A grad_lse = args.grad_lse ? as<A>(args.grad_lse)[i * H + h] : A(0);
        ds[first] = p[first] * (grad_lse + A(0) * derivatives.value_dot[first]);
      }
    });
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
      if (!read_part(args, row, b, end, block)) {
        const auto spoil = [&](void* edges) { fill(as<A>(edges) + b * H, block.n * H, A(kNaN)); };
        spoil(args.weight);
        spoil(args.grad_score);
        if (args.grad_bias) spoil(args.grad_bias);
        fill(grad_dst, state_size(args), A(kNaN));
        continue;
      }
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
    const int64_t H = args.heads;
    A ds[kBlock];
    for (int64_t h = 0; h < H; ++h) {
      edges(args, block, h, ds);
      for_each_row(block, [&](int64_t i, int first, int last) {
        if constexpr (kVector) {
          add_terms(args, i, h, ds + first, block.source + first, last - first, false, grad_dst);
        } else {
          *grad_dst = 0;
          for (int e = first; e < last; ++e) *grad_dst += ds[e];
        }
        write(args, i, h, grad_dst);
      });
    }
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    Block block;
    for (int64_t i = begin; i < end;) {
      if (read_short_rows(args, i, end, block)) {
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

  static void piece(const Args& args, int64_t column, int64_t begin, int64_t end, void* memory) {
    const int64_t H = args.heads, D = args.head_dim;
    A *grad_value = as<A>(memory), *grad_src = grad_value + H * value_width(args);
    if (begin >= end) fill(grad_value, H * value_width(args), A(0));
    if (!kVector || begin >= end) fill(grad_src, H * src_width(args), A(0));
    const A *all_weights = as<A>(args.weight), *all_grad_scores = as<A>(args.grad_score);
    int64_t destination[kBlock], position[kBlock];
    A weight[kBlock], ds[kBlock];
    for (int64_t b = begin; b < end; b += kBlock) {
      const int n = end - b < kBlock ? int(end - b) : kBlock;
      const bool wide = args.wide_index;
      if (!read_indices(args.row, wide, b, n, args.num_dst, destination) ||
          !read_indices(args.perm, wide, b, n, args.num_edges, position)) {
        fill(grad_value, state_size(args), A(kNaN));
        continue;
      }
      for (int64_t h = 0; h < H; ++h) {
#pragma omp simd
        for (int e = 0; e < n; ++e) {
          weight[e] = all_weights[position[e] * H + h];
          ds[e] = all_grad_scores[position[e] * H + h];
        }
        if constexpr (LOGIT == Logit::cosine) {
          const A* dst_scale = as<A>(args.dst_scale) + h;
#pragma omp simd
          for (int e = 0; e < n; ++e) ds[e] *= dst_scale[destination[e] * H];
        }
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
    for (int64_t j = begin; j < end; ++j) {
      const Range range = row_range(args.colptr, args, j);
      if (range.end - range.begin > kPieceEdges) continue;
      piece(args, j, range.begin, range.end, memory);
      merge(args, j, memory, 1);
    }
  }
};

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
