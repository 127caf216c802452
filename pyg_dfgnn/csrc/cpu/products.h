// sddmm, spmm and edge_spmm_t as passes over rows (csrc/products.h). Part of kernels_<isa>.cpp only.
#pragma once

#include "block.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Head h of features with `heads` heads, where one serves all.
template <class T>
DFGNN_INLINE Rows<T> shared_head_of(const void* data, int64_t h, int64_t heads, int64_t head_dim) {
  return {as<T>(data) + (heads == 1 ? 0 : h) * head_dim, heads * head_dim};
}

// out [E, H]: <dst_i, src_j>.
template <class T>
struct Sddmm {
  using A = typename Accumulator<T>::type;

  static int64_t state_size(const Args&) { return 0; }

  static void edges(const Args& args, const Block& block) {
    const int64_t H = args.heads, D = args.head_dim;
    A s[kBlock];
    for (int64_t h = 0; h < H; ++h) {
      const Rows<T> dst = shared_head_of<T>(args.dst, h, args.dst_heads, D);
      const Rows<T> src = shared_head_of<T>(args.src, h, args.src_heads, D);
      for_each_row(block, [&](int64_t i, int first, int last) {
        dots<1>({dst[args.one_dst ? 0 : i]}, src, block.source + first, last - first, D, {s + first});
      });
      A* out = as<A>(args.out) + block.begin * H + h;
      for (int e = 0; e < block.n; ++e) out[e * H] = s[e];
    }
  }

  static void piece(const Args& args, int64_t row, int64_t begin, int64_t end, void*) {
    Block block;
    for (int64_t b = begin; b < end; b += kBlock) {
      if (read_part(args, by_rows(args), kBlock, row, b, end, block)) {
        edges(args, block);
        continue;
      }
      for (int64_t e = b, last = b + block.n; e < last; ++e) {  // a source is out of range: that edge is NaN
        if (read_part(args, by_rows(args), kBlock, row, e, e + 1, block)) {
          edges(args, block);
        } else {
          fill(as<A>(args.out) + e * args.heads, args.heads, A(kNaN));
        }
      }
    }
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    for_each_block(
        args, by_rows(args), kBlock, begin, end, [](const Block&) { return true; },
        [&](const Block& block) { edges(args, block); },
        [&](int64_t i, int64_t first, int64_t last) { piece(args, i, first, last, memory); });
  }

  static void merge(const Args&, int64_t, void*, int64_t) {}
};

// out [N, H or 1, D]: the sum over a row's entries of weight * src, and over the heads where out has one for all.
// State: out.
template <class T>
struct Spmm {
  using A = typename Accumulator<T>::type;

  static int64_t state_size(const Args& args) { return args.out_heads * padded<A>(args.head_dim); }

  static void piece(const Args& args, int64_t, int64_t begin, int64_t end, void* memory) {
    const int64_t H = args.heads, D = args.head_dim;
    A* out = as<A>(memory);
    if (begin >= end) fill(out, state_size(args), A(0));
    const A* weights = as<A>(args.weight);
    int64_t node[kBlock], position[kBlock];
    A weight[kBlock];
    for (int64_t b = begin; b < end; b += kBlock) {
      const int n = end - b < kBlock ? int(end - b) : kBlock;
      bool valid = read_indices(args.col, args.wide_index, b, n, args.num_src, node);
      if (args.perm) {
        valid &= read_indices(args.perm, args.wide_index, b, n, args.num_edges, position);
      } else {
        for (int e = 0; e < n; ++e) position[e] = b + e;
      }
      if (!valid) {
        fill(out, state_size(args), A(kNaN));
        continue;
      }
      for (int64_t h = 0; h < H; ++h) {
        for (int e = 0; e < n; ++e) weight[e] = weights[position[e] * H + h];
        const int64_t out_head = args.out_heads == 1 ? 0 : h;
        weighted_sum(weight, 1, shared_head_of<T>(args.src, h, args.src_heads, D), node, n, D,
                     b != begin || h != out_head, out + out_head * padded<A>(D));
      }
    }
  }

  static void merge(const Args& args, int64_t row, void* memory, int64_t count) {
    const int64_t H = args.out_heads, D = args.head_dim;
    A* out = as<A>(memory);
    add_states(out, state_size(args), count);
    for (int64_t h = 0; h < H; ++h) {
      write_row(as<T>(args.out) + (row * H + h) * D, out + h * padded<A>(D), A(1), D);
    }
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    for (int64_t i = begin; i < end; ++i) {
      const Range range = row_range(args.rowptr, args, i);
      if (range.end - range.begin > kPieceEdges) continue;
      piece(args, i, range.begin, range.end, memory);
      merge(args, i, memory, 1);
    }
  }
};

// out [num_src, D], the row `col` of an edge: the sum over the heads of weight * dst_i.
template <class T>
struct EdgeSpmmT {
  using A = typename Accumulator<T>::type;

  static int64_t state_size(const Args& args) { return padded<A>(args.head_dim); }

  static void piece(const Args& args, int64_t row, int64_t begin, int64_t end, void* memory) {
    const int64_t H = args.heads, D = args.head_dim;
    A* sum = as<A>(memory);
    const A* weights = as<A>(args.weight);
    const Rows<T> own = {as<T>(args.dst) + (args.one_dst ? 0 : row) * H * D, D};
    int64_t head[kBlock];
    for (int64_t e = begin; e < end; ++e) {
      int64_t target;
      if (!read_indices(args.col, args.wide_index, e, 1, args.num_src, &target)) continue;
      for (int64_t first = 0; first < H; first += kBlock) {
        const int n = H - first < kBlock ? int(H - first) : kBlock;
        for (int h = 0; h < n; ++h) head[h] = first + h;
        weighted_sum(weights + e * H + first, 1, own, head, n, D, first > 0, sum);
      }
      write_row(as<T>(args.out) + target * D, sum, A(1), D);
    }
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    for (int64_t i = begin; i < end; ++i) {
      const Range range = row_range(args.rowptr, args, i);
      if (range.end - range.begin <= kPieceEdges) piece(args, i, range.begin, range.end, memory);
    }
  }

  static void merge(const Args&, int64_t, void*, int64_t) {}
};

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
