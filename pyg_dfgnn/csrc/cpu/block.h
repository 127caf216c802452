// The edges that are worked on at a time: a block of one row's edges, or of several short rows.
// Part of kernels_<isa>.cpp only.
#pragma once

#include "kernels.h"
#include "rows.h"

namespace dfgnn::cpu::DFGNN_ISA {
namespace {

constexpr float kInfinity = __builtin_inff();
constexpr float kNaN = __builtin_nanf("");

template <class A>
DFGNN_INLINE const A* as(const void* p) {
  return static_cast<const A*>(p);
}
template <class A>
DFGNN_INLINE A* as(void* p) {
  return static_cast<A*>(p);
}

DFGNN_INLINE int64_t index_at(const void* indices, bool wide, int64_t i) {
  return wide ? static_cast<const int64_t*>(indices)[i] : static_cast<const int32_t*>(indices)[i];
}

struct Range {
  int64_t begin, end;
};

// The entries of row i, whatever the pointer array holds: inside [0, num_edges], empty where it decreases.
DFGNN_INLINE Range row_range(const void* pointers, const Args& args, int64_t i) {
  const auto clamped = [&](int64_t p) { return p < 0 ? 0 : p > args.num_edges ? args.num_edges : p; };
  const int64_t begin = clamped(index_at(pointers, args.wide_index, i));
  const int64_t end = clamped(index_at(pointers, args.wide_index, i + 1));
  return {begin, end < begin ? begin : end};
}

// out[e] = indices[begin + e]; false where one is outside [0, bound).
DFGNN_INLINE bool read_indices(const void* indices, bool wide, int64_t begin, int n, int64_t bound, int64_t* out) {
  bool valid = true;
  const auto read = [&](auto* p) {
    for (int e = 0; e < n; ++e) {
      out[e] = p[begin + e];
      valid &= uint64_t(out[e]) < uint64_t(bound);
    }
  };
  wide ? read(static_cast<const int64_t*>(indices)) : read(static_cast<const int32_t*>(indices));
  return valid;
}

// One of the two forms: rows are destinations and their entries sources (CSR), or the other way round (CSC), and then
// "row" means column and "source" destination below.
struct Form {
  const void *pointers, *indices;
  int64_t bound;  // of the indices
};
DFGNN_INLINE Form by_rows(const Args& args) { return {args.rowptr, args.col, args.num_src}; }
DFGNN_INLINE Form by_columns(const Args& args) { return {args.colptr, args.row, args.num_dst}; }

// The edges of a long row are taken kBlock at a time, or fewer where they have many heads. Rows of a few edges would
// leave most lanes of a vector empty and wait for the latency of every step (inner products, maximum, exp, sum) in
// turn, so as many as fit share a block.
constexpr int kShortRow = 16;
constexpr int kBlockRows = 64;

struct Block {
  int64_t row, begin;           // the first row and the position of its first edge here
  int rows, n;                  // and how many of both
  bool is_part;                 // of a long row
  int offset[kBlockRows + 1];   // row r's edges are offset[r] .. offset[r + 1] - 1
  int own[kBlock + kShortRow];  // the row of an edge, as a number in the block; not of a block of one row
  int64_t source[kBlock];
  int64_t feature[kBlock];  // where features of edges are, of messages only
};

// Heads that are worked on at a time, and their numbers: of each edge of a block, one after the other, so that number
// e * count + h is head h's of edge e. An array of them has a vector to spare.
struct Heads {
  int64_t first;
  int count;
};
struct OneHead {  // the only one, for which loops over heads are none
  static constexpr int64_t first = 0;
  static constexpr int count = 1;
};
constexpr int kHeads = 64;
constexpr int kNumbers = kHeads * kShortRow;
template <class A>
constexpr int kNumbersArray = kNumbers + lanes<A>;

// So many edges, and so many rows, have no more numbers than that.
DFGNN_INLINE int numbers_bound(const Args& args, int most) {
  const int fit = int(kNumbers / (args.heads < kHeads ? args.heads : kHeads));
  return fit < most ? fit : most;
}
DFGNN_INLINE int block_edges(const Args& args) { return numbers_bound(args, kBlock); }

// Calls f(heads) for all heads, kHeads at a time.
template <class F>
DFGNN_INLINE void for_each_heads(const Args& args, F f) {
  if (args.heads == 1) {
    f(OneHead());
    return;
  }
  for (int64_t h = 0; h < args.heads; h += kHeads) {
    f(Heads{h, args.heads - h < kHeads ? int(args.heads - h) : kHeads});
  }
}

// Calls f(i, first, last) for every row i of the block and its edges.
template <class F>
DFGNN_INLINE void for_each_row(const Block& block, F f) {
  for (int r = 0; r < block.rows; ++r) f(block.row + r, block.offset[r], block.offset[r + 1]);
}

// The same of the rows that have edges.
template <class F>
DFGNN_INLINE void for_each_full_row(const Block& block, F f) {
  for_each_row(block, [&](int64_t i, int first, int last) __attribute__((always_inline)) {
    if (first < last) f(i, first, last);
  });
}

// Calls f(e, r) for every edge of the block and its row, block.row + r.
template <class F>
DFGNN_INLINE void for_each_edge(const Block& block, F f) {
  const int n = block.n;
  if (block.rows == 1) {
#pragma omp simd
    for (int e = 0; e < n; ++e) f(e, 0);
  } else {
#pragma omp simd
    for (int e = 0; e < n; ++e) f(e, block.own[e]);
  }
}

DFGNN_INLINE bool read_sources(const Args& args, const Form& form, Block& block) {
  return read_indices(form.indices, args.wide_index, block.begin, block.n, form.bound, block.source);
}

// Asks for a row. (Not inlined, GCC takes it for a function without effects.)
DFGNN_INLINE void prefetch_row(const void* rows, int64_t row, int64_t bytes) {
  constexpr int kLine = 64;
  const char* from = static_cast<const char*>(rows) + row * bytes;
  for (int64_t b = 0; b < bytes; b += kLine) __builtin_prefetch(from + b);
}

// Asks for the rows of a block's edges, T [num_rows, size], unless the cache has them: head after head reads lines that
// lie anywhere. A long row's are many, and in a cache that is near enough without asking.
template <class T>
DFGNN_INLINE void prefetch_rows(const Block& block, const int64_t* index, const void* features, int64_t num_rows,
                                int64_t size) {
  const int64_t bytes = size * int64_t(sizeof(T));
  constexpr int64_t kMost = int64_t(1) << 19;  // more than that would push one another out of the cache
  if (bytes * num_rows <= int64_t(1) << (block.is_part ? 23 : 20) || bytes * block.n > kMost) return;
  for (int e = 0; e < block.n; ++e) prefetch_row(features, index[e], bytes);
}

// Edges from b on of the one row, no more than `most`; false where a source is out of range.
DFGNN_INLINE bool read_part(const Args& args, const Form& form, int most, int64_t row, int64_t b, int64_t end,
                            Block& block) {
  const int n = end - b < most ? int(end - b) : most;
  block.row = row;
  block.begin = b;
  block.rows = 1;
  block.is_part = true;
  block.n = block.offset[1] = n;
  block.offset[0] = 0;
  return read_sources(args, form, block);
}

// As many of the rows first, first + 1, .. before `last` as are short, follow on each other and fit; false where there
// is none or a source is out of range.
inline bool read_short_rows(const Args& args, const Form& form, int most, int64_t first, int64_t last, Block& block) {
  const int most_rows = numbers_bound(args, kBlockRows);
  int64_t next = row_range(form.pointers, args, first).begin;
  block.row = first;
  block.begin = next;
  block.rows = block.n = block.offset[0] = 0;
  block.is_part = false;
  for (int64_t i = first; i < last && block.rows < most_rows; ++i) {
    const Range range = row_range(form.pointers, args, i);
    const int64_t degree = range.end - range.begin;
    if (range.begin != next || degree > kShortRow || block.n + degree > most) break;
    for (int k = 0; k < kShortRow; ++k) block.own[block.n + k] = block.rows;
    block.n += int(degree);
    block.offset[++block.rows] = block.n;
    next = range.end;
  }
  return block.rows > 0 && read_sources(args, form, block);
}

// Calls short_rows(block) for rows begin .. end - 1 that share blocks, and row(i, begin, end) for others of up to
// kPieceEdges edges, those with sources out of range among them. read(block) reads what else a block needs; false where
// that is out of range.
template <class Read, class ShortRows, class Row>
DFGNN_INLINE void for_each_block(const Args& args, const Form& form, int most, int64_t begin, int64_t end, Read read,
                                 ShortRows short_rows, Row row) {
  Block block;
  for (int64_t i = begin; i < end;) {
    const auto read_until = [&](int64_t last) {
      return read_short_rows(args, form, most, i, last, block) && read(block);
    };
    // The row alone where a block has an invalid one, which then does not change how this one is computed.
    if (read_until(end) || (block.rows > 1 && read_until(i + 1))) {
      short_rows(block);
      i += block.rows;
      continue;
    }
    const Range range = row_range(form.pointers, args, i);
    if (range.end - range.begin <= kPieceEdges) row(i, range.begin, range.end);
    ++i;
  }
}

}  // namespace
}  // namespace dfgnn::cpu::DFGNN_ISA
