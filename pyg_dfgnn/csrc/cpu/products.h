// sddmm, spmm and edge_spmm_t as passes over rows (csrc/products.h). Part of kernels_<isa>.cpp only.
#pragma once

#include "gathers.h"
#include "numbers.h"
#include "shared.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

// Features that have `count` heads, or one that serves all: from the first of some heads on.
template <class T>
struct SharedRows {
  Rows<T> rows;
  int64_t step;  // from a head to the next

  DFGNN_INLINE SharedRows(const Args& args, auto heads, const void* data, int64_t count)
      : rows{as<T>(data), count * args.head_dim}, step(count == 1 ? 0 : args.head_dim) {
    rows.data += heads.first * step;
  }
};

// s[e][h] = <dst_i, src_j>, where one of the two has one head, or one row, for all.
template <class T, class A>
inline void shared_products(const Args& args, const Block& block, auto heads, A* s) {
  const int64_t D = args.head_dim, count = heads.count;
  SharedRows<T> dst(args, heads, args.dst, args.dst_heads);
  const SharedRows<T> src(args, heads, args.src, args.src_heads);
  if (args.one_dst) dst.rows.stride = 0;
  for_each_full_row(block, [&](int64_t i, int first, int last) {
    const T* own = dst.rows[i];
    const int64_t* source = block.source + first;
    const int n = last - first;
    A* numbers = s + first * count;
    if (src.step == 0) {
      shared_dots(own, dst.step, src.rows, source, n, heads.count, D, numbers);
      return;
    }
    for (int64_t h = 0; h < count; ++h) {
      dots<1, T, T, A>({own + h * dst.step}, from_feature(src.rows, h * src.step), source, n, D, {numbers + h}, count);
    }
  });
}

// out [E, H]: <dst_i, src_j>.
template <class T>
struct Sddmm {
  using A = typename Accumulator<T>::type;

  static int64_t state_size(const Args&) { return 0; }

  static void edges(const Args& args, const Block& block) {
    const bool apart = args.dst_heads == args.heads && args.src_heads == args.heads && !args.one_dst;
    prefetch_rows<T>(block, block.source, args.src, args.num_src, args.src_heads * args.head_dim);
    for_each_heads(args, [&](auto heads) {
      A s[kNumbersArray<A>];
      if (apart) {
        products<1, T, A>(args, block, heads, {args.dst}, args.src, {s});
      } else {
        shared_products<T>(args, block, heads, s);
      }
      write_numbers(args, block, heads, s, args.out);
    });
  }

  static void piece(const Args& args, int64_t row, int64_t begin, int64_t end, void*) {
    const int most = block_edges(args);
    Block block;
    for (int64_t b = begin; b < end; b += most) {
      if (read_part(args, by_rows(args), most, row, b, end, block)) {
        edges(args, block);
        continue;
      }
      for (int64_t e = b, last = b + block.n; e < last; ++e) {  // a source is out of range: that edge is NaN
        if (read_part(args, by_rows(args), most, row, e, e + 1, block)) {
          edges(args, block);
        } else {
          fill(as<A>(args.out) + e * args.heads, args.heads, A(kNaN));
        }
      }
    }
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    for_each_block(
        args, by_rows(args), block_edges(args), begin, end, [](const Block&) { return true; },
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

  static int64_t state_size(const Args& args) { return args.out_heads * args.head_dim + lanes<A>; }
  static bool sums_heads(const Args& args) { return args.out_heads < args.heads; }
  static bool apart(const Args& args) { return args.src_heads == args.heads && !sums_heads(args); }

  // Where numbers of a block's entries are; false where one is nowhere.
  static bool read_positions(const Args& args, const Block& block, int64_t* position) {
    return !args.perm || read_indices(args.perm, args.wide_index, block.begin, block.n, args.num_edges, position);
  }

  static void read_weights(const Args& args, const Block& block, const int64_t* position, auto heads, A* weight) {
    if (args.perm) {
      gather_numbers(args, block, heads, position, args.weight, weight);
    } else {
      read_numbers(args, block, heads, args.weight, weight);
    }
  }

  static void prefetch(const Args& args, const Block& block) {
    prefetch_rows<T>(block, block.source, args.src, args.num_src, args.src_heads * args.head_dim);
  }

  // All heads' sums (+)= these of n entries of a row.
  static void add_sums(const Args& args, auto heads, const int64_t* source, int n, const A* weight, bool add, A* sums) {
    const int64_t D = args.head_dim;
    const SharedRows<T> src(args, heads, args.src, args.src_heads);
    if (sums_heads(args)) {
      for (int h = 0; h < heads.count; ++h) {
        weighted_sum(weight + h, heads.count, from_feature(src.rows, h * src.step), source, n, D,
                     add || heads.first + h > 0, sums);
      }
    } else if (apart(args)) {
      add_terms<T>(args, heads, {nullptr, args.src}, 0, source, n, weight, add, sums + heads.first * D);
    } else {
      shared_sums(weight, heads.count, src.rows, source, n, D, add, sums + heads.first * D);
    }
  }

  static void piece(const Args& args, int64_t row, int64_t begin, int64_t end, void* memory) {
    A* sums = as<A>(memory);
    if (begin >= end) fill(sums, state_size(args), A(0));
    Block block;
    int64_t position[kBlock];
    A weight[kNumbersArray<A>];
    const int most = block_edges(args);
    for (int64_t b = begin; b < end; b += most) {
      if (!read_part(args, by_rows(args), most, row, b, end, block) || !read_positions(args, block, position)) {
        fill(sums, state_size(args), A(kNaN));
        continue;
      }
      prefetch(args, block);
      for_each_heads(args, [&](auto heads) {
        read_weights(args, block, position, heads, weight);
        add_sums(args, heads, block.source, block.n, weight, b != begin, sums);
      });
    }
  }

  static void merge(const Args& args, int64_t row, void* memory, int64_t count) {
    const int64_t size = args.out_heads * args.head_dim;
    add_states(as<A>(memory), size, state_size(args), count);
    write_row(as<T>(args.out) + row * size, as<A>(memory), A(1), size);
  }

  static void short_rows(const Args& args, const Block& block, const int64_t* position, A* sums) {
    A weight[kNumbersArray<A>];
    prefetch(args, block);
    for_each_heads(args, [&](auto heads) {
      read_weights(args, block, position, heads, weight);
      if (apart(args)) {
        write_terms<T>(args, block, heads, {nullptr, args.src}, weight, A(1), nullptr, args.out, sums);
        return;
      }
      const int64_t size = args.out_heads * args.head_dim, first = sums_heads(args) ? 0 : heads.first * args.head_dim,
                    count = sums_heads(args) ? args.head_dim : heads.count * args.head_dim;
      for_each_row(block, [&](int64_t i, int begin, int end) {
        T* row = as<T>(args.out) + i * size + first;
        if (begin == end) {
          clear_row(row, count);
        } else {
          add_sums(args, heads, block.source + begin, end - begin, weight + begin * heads.count, false, sums);
          write_row(row, sums + first, A(1), count);
        }
      });
    });
  }

  static void rows(const Args& args, int64_t begin, int64_t end, void* memory) {
    int64_t position[kBlock];
    const auto one = [&](int64_t i, int64_t first, int64_t last) {
      piece(args, i, first, last, memory);
      merge(args, i, memory, 1);
    };
    if (sums_heads(args) && args.heads > kHeads) {  // a row's sum is of more heads than a block has
      for (int64_t i = begin; i < end; ++i) {
        const Range range = row_range(args.rowptr, args, i);
        if (range.end - range.begin <= kPieceEdges) one(i, range.begin, range.end);
      }
      return;
    }
    for_each_block(
        args, by_rows(args), block_edges(args), begin, end,
        [&](const Block& block) { return read_positions(args, block, position); },
        [&](const Block& block) { short_rows(args, block, position, as<A>(memory)); }, one);
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
