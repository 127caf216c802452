// The last step to both forms of a list in any order: rows with their edges as they came, to rows that ascend by
// source, but for a self-loop that was put in, which stays the last. Columns, which are made of the former, ascend as
// they are.
#pragma once

#include <cooperative_groups.h>

#include "edge_lists.cuh"
#include "edge_sort.cuh"

namespace dfgnn::cuda {

template <class K>
struct RowOrderTask {
  SortedEdges<K> loose;     // the rows that there are
  SortedEdges<K> rows;      // results; pointers are those of `loose`
  SortedEdges<K> columns;   // of the loose rows, and in the end of `rows`
  K* spare[2]{};            // [capacity]
  int* descends = nullptr;  // zero at first
};

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
class RowOrder {
  using Sort = EdgeSort<K, ColumnEdges<K>>;

 public:
  using Shared = typename Sort::Shared;

  __device__ RowOrder(const RowOrderTask<K>& task, const SortArrays<K>& sort, Shared& shared)
      : t_(task), sort_(sort), s_(shared) {}

  // Whether edges of a row descend, as if there were no self-loops that were put in.
  __device__ void check() {
    constexpr int kLanes = 8;  // of a row
    bool descends = false;
    for (int64_t i = grid_thread() / kLanes; i < t_.loose.num_keys; i += grid_threads() / kLanes) {
      const int64_t end = t_.loose.pointers[i + 1] - (i < t_.loose.num_loops);
      for (int64_t e = t_.loose.pointers[i] + 1 + threadIdx.x % kLanes; e < end; e += kLanes) {
        descends |= t_.loose.other[e] < t_.loose.other[e - 1];
      }
    }
    if (__syncthreads_or(descends) && threadIdx.x == 0) *t_.descends = 1;
  }

  // Once there are columns.
  __device__ void run() {
    if (!*t_.descends) return copy_edges(t_.loose, t_.rows);
    const ColumnEdges<K> edges{{t_.columns.pointers, t_.columns.other, t_.columns.num_keys, t_.rows.num_keys}};
    const SortedEdges<K> sorted{t_.rows.capacity(), 0,           t_.rows.num_keys, t_.rows.pointers,
                                t_.spare[0],        t_.spare[1], nullptr};
    Sort(edges, sorted, sort_, s_).run();
    cooperative_groups::this_grid().sync();
    put(sorted.item);
  }

 private:
  // in_columns: positions there of rows that ascend, self-loops that were put in among the other edges.
  __device__ void put(const K* in_columns) {
    const int64_t count = t_.rows.pointers[t_.rows.num_keys];
    for (int64_t p = grid_thread(); p < t_.rows.capacity(); p += grid_threads()) {
      if (p >= count) {
        t_.rows.other[p] = t_.rows.item[p] = 0;
        continue;
      }
      const K in_column = in_columns[p], i = t_.columns.other[in_column], before = t_.columns.item[in_column];
      const K j = t_.loose.other[before];
      int64_t place = p;
      if (i < t_.loose.num_loops) place = i == j ? t_.rows.pointers[i + 1] - 1 : p - (j > i);
      t_.rows.other[place] = j;
      t_.rows.item[place] = t_.loose.item[before];
      t_.columns.item[in_column] = static_cast<K>(place);
    }
  }

  const RowOrderTask<K>& t_;
  const SortArrays<K>& sort_;
  Shared& s_;
};

}  // namespace dfgnn::cuda
