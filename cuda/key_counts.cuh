// From how many edges keys have to where they begin, in pointers, by the whole grid.
#pragma once

#include "sorted_edges.cuh"

namespace dfgnn::cuda {

template <class K>
using AtomicCount = std::conditional_t<sizeof(K) == 8, unsigned long long, int>;  // K, for atomic operations

// pointers[i + 1]: the number of edges of key i, until they are added up. Those of self-loops are there.
template <class K>
__device__ void clear_counts(const SortedEdges<K>& out) {
  for (int64_t i = grid_thread(); i <= out.num_keys; i += grid_threads()) {
    out.pointers[i] = i > 0 && i <= out.num_loops;
  }
  clear_stats(out);
}

// Adds up the block's share of them into block_sums, [blocks].
template <class K>
__device__ void sum_counts(const SortedEdges<K>& out, K* block_sums, typename BlockSums<K>::Storage& storage) {
  const Share mine = block_share(out.num_keys);
  K total = 0, largest = 0;
  for (int64_t i = mine.begin + threadIdx.x; i < mine.end; i += kGridThreads) {
    const K count = out.pointers[i + 1];
    total += count;
    largest = max(largest, count);
  }
  total = BlockSums<K>(storage).total(total);
  if (threadIdx.x == 0) block_sums[blockIdx.x] = total;
  raise_max_degree(out, largest);
}

// After sum_counts() of all blocks: from counts to where edges begin; and all entries that no edge of the list has.
template <class K>
__device__ void write_pointers(const SortedEdges<K>& out, const K* block_sums,
                               typename BlockSums<K>::Storage& storage) {
  BlockSums<K> sums(storage);
  K before = sums.total(block_sums, blockIdx.x);
  const K total = sums.total(block_sums, gridDim.x);
  const Share mine = block_share(out.num_keys);
  for (int64_t first = mine.begin; first < mine.end; first += kGridThreads) {
    const int64_t i = first + threadIdx.x;
    const K count = i < mine.end ? out.pointers[i + 1] : 0, end = sums.exclusive(count, before) + count;
    if (i >= mine.end) continue;
    out.pointers[i + 1] = end;
    if (i < out.num_loops) {
      out.other[end - 1] = static_cast<K>(i);
      out.item[end - 1] = static_cast<K>(out.num_edges + i);
    }
  }
  clear_behind(out, total);
}

}  // namespace dfgnn::cuda
