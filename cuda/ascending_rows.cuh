// From loose rows, whose edges are in the order of the list, to rows that ascend by source, but for a self-loop that
// was put in, which stays the last: before there are columns, where no row is long, or as the last step to both forms.
// Columns that were made of loose rows ascend as they are.
#pragma once

#include <cooperative_groups.h>

#include "edge_lists.cuh"
#include "edge_sort.cuh"

namespace dfgnn::cuda {

template <class K>
struct AscendingRowsTask {
  SortedEdges<K> rows;                     // loose, and ascending in the end
  SortedEdges<K> columns;                  // of these rows, whatever they are
  K* spare[2]{};                           // [capacity]
  unsigned long long* descents = nullptr;  // zero at first
};

// From `loose` to `rows`, whose pointers are the same, where no row is long; by the whole grid.
template <class K>
__device__ void order_short_rows(const SortedEdges<K>& loose, const SortedEdges<K>& rows) {
  const auto copy = [&](K p, K place) {
    rows.other[place] = loose.other[p];
    rows.item[place] = loose.item[p];
  };
  ShortKeys<K>::rank(rows, loose.other, copy);
  for (int64_t i = grid_thread(); i < rows.num_loops; i += grid_threads()) {
    const K last = rows.pointers[i + 1] - 1;
    copy(last, last);
  }
  clear_behind(rows, rows.pointers[rows.num_keys]);
}

// Columns, by destination; instead of the source of an edge, which would be searched for, its position.
template <class K>
struct ColumnEdges : CsrEdges<K> {
  struct Cursor {
    __device__ __forceinline__ int64_t other(int64_t e, int64_t) const { return e; }
  };
  __device__ __forceinline__ int64_t other(int64_t e) const { return e; }
  __device__ __forceinline__ Cursor cursor(int64_t) const { return {}; }
};

// All threads of the grid come to each step, and meet between them.
template <class K>
class AscendingRows {
  using Sort = EdgeSort<K, ColumnEdges<K>>;

 public:
  using Shared = typename Sort::Shared;

  __device__ AscendingRows(const AscendingRowsTask<K>& task, const SortArrays<K>& sort, Shared& shared)
      : t_(task), sort_(sort), s_(shared) {}

  // Counts edges that have a smaller source than the one before in their row, self-loops that were put in aside: all
  // edges, without those that begin a row and those self-loops.
  __device__ void check() {
    const K *other = t_.rows.other, *pointers = t_.rows.pointers;
    const auto descends = [&](int64_t e) -> int { return other[e] < other[e - 1]; };
    int count = 0;
    for (int64_t e = 1 + grid_thread(); e < pointers[t_.rows.num_keys]; e += grid_threads()) count += descends(e);
    for (int64_t i = grid_thread(); i < t_.rows.num_keys; i += grid_threads()) {
      const int64_t begin = pointers[i], last = pointers[i + 1] - 1;
      if (last < begin) continue;
      if (begin > 0) count -= descends(begin);
      if (i < t_.rows.num_loops && last > begin) count -= descends(last);
    }
    count = lanes_sum<kWarp>(count);
    if (threadIdx.x % kWarp == 0 && count != 0) atomicAdd(t_.descents, static_cast<unsigned long long>(int64_t{count}));
  }

  // Once there are columns.
  __device__ void run() {
    if (*t_.descents == 0) return;
    const auto grid = cooperative_groups::this_grid();
    const ColumnEdges<K> edges{{t_.columns.pointers, t_.columns.other, t_.columns.num_keys, t_.rows.num_keys}};
    SortedEdges<K> sorted = t_.rows;
    sorted.num_edges = t_.rows.capacity(), sorted.num_loops = 0;
    sorted.other = t_.spare[0], sorted.item = t_.spare[1];
    sorted.stats = nullptr;
    Sort(edges, sorted, sort_, s_).run();
    grid.sync();
    SortedEdges<K> loose = t_.rows;
    loose.other = sort_.keys[0], loose.item = sort_.keys[1];  // which the sort needs no more
    copy_edges(t_.rows, loose);
    grid.sync();
    put(loose, sorted.item);
  }

 private:
  // in_columns: positions there of rows that ascend, self-loops that were put in among the other edges.
  __device__ void put(const SortedEdges<K>& loose, const K* in_columns) const {
    const int64_t count = t_.rows.pointers[t_.rows.num_keys];
    for (int64_t p = grid_thread(); p < t_.rows.capacity(); p += grid_threads()) {
      if (p >= count) {
        t_.rows.other[p] = t_.rows.item[p] = 0;
        continue;
      }
      const K in_column = in_columns[p], i = t_.columns.other[in_column], before = t_.columns.item[in_column];
      const K j = loose.other[before];
      int64_t place = p;
      if (i < loose.num_loops) place = i == j ? t_.rows.pointers[i + 1] - 1 : p - (j > i);
      t_.rows.other[place] = j;
      t_.rows.item[place] = loose.item[before];
      t_.columns.item[in_column] = static_cast<K>(place);
    }
  }

  const AscendingRowsTask<K>& t_;
  const SortArrays<K>& sort_;
  Shared& s_;
};

}  // namespace dfgnn::cuda
