// The counted way of a cooperative sort: keys have few items, and none has many. Each item draws a number of its key's,
// by an atomic operation, and goes to that place behind where the key's begin; then those of a key are ranked.
#pragma once

#include <cooperative_groups.h>

#include "key_counts.cuh"
#include "short_keys.cuh"
#include "sort_arrays.cuh"

namespace dfgnn::cuda {

// Not inlined, like the far way, as the near way needs fewer registers.
template <class K, class Source>
struct CountedSort {
  const Source& source;
  const SortedEdges<K>& out;
  const SortArrays<K>& arrays;
  typename BlockSums<K>::Storage& sums;
  const int64_t end = source.end();

  // Whether it went.
  __device__ __noinline__ bool run() const {
    const auto grid = cooperative_groups::this_grid();
    K *numbers = arrays.keys[0], *items = arrays.keys[1];  // the former of each item among its key's, in any order
    if (grid_thread() == 0) *arrays.crowded = 0;
    clear_counts(out);
    grid.sync();
    const int64_t num_bad = draw_numbers(numbers);
    grid.sync();
    if (*arrays.crowded) return false;
    add_bad(out, num_bad);
    sum_counts(out, arrays.sums, sums);
    grid.sync();
    write_pointers(out, arrays.sums, sums);
    grid.sync();
    for_keys([&](int64_t e, K key) { items[out.pointers[key] + numbers[e]] = static_cast<K>(e); });
    grid.sync();
    ShortKeys<K>::rank(out, items, [&](K p, K place) {
      const K item = items[p];
      out.item[place] = item;
      out.other[place] = static_cast<K>(source.other(item));
    });
    return true;
  }

 private:
  // Returns how many edges are bad.
  __device__ int64_t draw_numbers(K* numbers) const {
    return for_keys([&](int64_t e, K key) {
      const auto number = atomicAdd(reinterpret_cast<AtomicCount<K>*>(&out.pointers[key + 1]), AtomicCount<K>(1));
      const K before = static_cast<K>(number) - (key < out.num_loops);  // self-loops are counted, and come last
      numbers[e] = before;
      if (before >= ShortKeys<K>::kMost) *static_cast<volatile int*>(arrays.crowded) = 1;
    });
  }

  // Calls visit(e, key) for all edges that have one, or for some where it turns out that there is a crowd. Returns how
  // many are bad.
  template <class Visit>
  __device__ __forceinline__ int64_t for_keys(const Visit& visit) const {
    constexpr int kEach = 4;
    int64_t num_bad = 0;
    for (int64_t first = grid_thread(); first < out.num_edges; first += kEach * grid_threads()) {
      const int crowded = *static_cast<volatile int*>(arrays.crowded);
      typename Source::Loaded loaded[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) loaded[i] = source.load(min(first + i * grid_threads(), out.num_edges - 1));
      if (crowded) break;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int64_t e = first + i * grid_threads();
        if (e >= out.num_edges) break;
        bool bad = false;
        const K key = full_sort_key(source, out, end, e, loaded[i], bad);
        num_bad += bad;
        if (key < out.num_keys) visit(e, key);
      }
    }
    return num_bad;
  }
};

}  // namespace dfgnn::cuda
