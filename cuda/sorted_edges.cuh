// Edges sorted by a node, stably: what is sorted, what comes of it, and the steps that all sorts share.
#pragma once

#include "cooperative.cuh"

namespace dfgnn::cuda {

template <class K>
struct SortedEdges {
  int64_t num_edges;  // of the list
  int64_t num_loops;  // behind them, the i-th with key i
  int64_t num_keys;
  K* pointers;      // [num_keys + 1]
  K *other, *item;  // [num_edges + num_loops]: an edge's other end and its position in the list; 0 where none is left
  int64_t* stats;   // null or [2]: most edges of a key, edges out of range

  __host__ __device__ int64_t capacity() const { return num_edges + num_loops; }

  // Of num_keys, which stands for what is left out, and of all keys.
  __host__ __device__ int key_bits() const {
    int bits = 1;
    while (num_keys >> bits > 0) ++bits;
    return bits;
  }
};

// Source: what is sorted. Edges at or past end() are left out.
// - load(e): what the list says of edge e, without a branch, so that many loads are under way at a time.
// - key(loaded, bad): the edge's key, or -1 where it is left out. It may look at one end alone; sets bad where an end
//   that it looked at is out of range. full_key: the same of both ends.
// - loaded_other(loaded, bad): the other end, where that was loaded.
// - cursor(e).other(e, loaded): the other end for a warp, with edges that ascend from e on, from lane to lane and from
//   call to call, those that are left out among them; `loaded` is loaded_other's.
// - other(e): the other end of an item, a self-loop or not.

// The key of item e, an edge of which that was loaded or a self-loop; num_keys where it is left out. Sets bad where an
// end is out of range.
template <class K, class Source>
__device__ __forceinline__ K full_sort_key(const Source& source, const SortedEdges<K>& out, int64_t end, int64_t e,
                                           const typename Source::Loaded& loaded, bool& bad) {
  const bool is_loop = e >= out.num_edges;
  int64_t key = source.full_key(loaded, bad);
  if (is_loop) key = e - out.num_edges;
  bad &= !is_loop;
  return static_cast<K>(key < 0 || e >= end ? out.num_keys : key);
}

template <class K>
__device__ void copy_edges(const SortedEdges<K>& from, const SortedEdges<K>& to) {
  for (int64_t p = grid_thread(); p < from.capacity(); p += grid_threads()) {
    to.other[p] = from.other[p];
    to.item[p] = from.item[p];
  }
}

// Entries that no edge has, behind the `count` that have one.
template <class K>
__device__ void clear_behind(const SortedEdges<K>& out, int64_t count) {
  for (int64_t p = count + grid_thread(); p < out.capacity(); p += grid_threads()) out.other[p] = out.item[p] = 0;
}

// First of `count` sorted keys that is not below `key`.
template <class K>
__device__ int64_t lower_bound(const K* keys, int64_t count, K key) {
  int64_t low = 0;
  while (count > 0) {
    const int64_t half = count / 2;
    if (keys[low + half] < key) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

// The same in steps that depend on the result alone: few where that is small.
template <class K>
__device__ int64_t count_below(const K* keys, int64_t count, K key) {
  int64_t reach = 1;
  while (reach < count && keys[reach - 1] < key) reach *= 2;
  return lower_bound(keys, min(reach, count), key);
}

template <class K>
__device__ void clear_stats(const SortedEdges<K>& out) {
  if (out.stats && grid_thread() < 2) out.stats[grid_thread()] = 0;
}

// All threads of a block must come.
template <class K>
__device__ void raise_max_degree(const SortedEdges<K>& out, int64_t degree) {
  if (!out.stats) return;
  __shared__ unsigned long long largest;
  __syncthreads();
  if (threadIdx.x == 0) largest = 0;
  __syncthreads();
  if (degree > 0) atomicMax(&largest, static_cast<unsigned long long>(degree));
  __syncthreads();
  if (threadIdx.x == 0 && largest > 0) atomicMax(reinterpret_cast<unsigned long long*>(out.stats), largest);
}

template <class K>
__device__ __forceinline__ void add_bad(const SortedEdges<K>& out, int64_t count) {
  if (!out.stats || count == 0) return;
  atomicAdd(reinterpret_cast<unsigned long long*>(out.stats + 1), static_cast<unsigned long long>(count));
}

// The results from sorted keys and their items, by the whole grid; stats are zero before. `items` is out.other or
// out.item. kEach: edges of a thread that are under way at a time, each of which waits for an end anywhere in the list.
template <int kEach, class K, class Source>
__device__ void write_sorted(const Source& source, const SortedEdges<K>& out, const K* keys, const K* items) {
  int64_t largest = 0;
  for (int64_t i = grid_thread(); i <= out.num_keys; i += grid_threads()) {
    const int64_t begin = lower_bound(keys, out.capacity(), static_cast<K>(i));
    out.pointers[i] = static_cast<K>(begin);
    if (!out.stats || i == out.num_keys) continue;
    largest = max(largest, count_below(keys + begin, out.capacity() - begin, static_cast<K>(i + 1)));
  }
  raise_max_degree(out, largest);
  for (int64_t first = grid_thread(); first < out.capacity(); first += kEach * grid_threads()) {
    K item[kEach], other[kEach];
    bool is_edge[kEach];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t p = first + i * grid_threads();
      is_edge[i] = p < out.capacity() && keys[p] < static_cast<K>(out.num_keys);
      item[i] = is_edge[i] ? items[p] : K(0);
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) other[i] = is_edge[i] ? static_cast<K>(source.other(item[i])) : K(0);
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int64_t p = first + i * grid_threads();
      if (p >= out.capacity()) break;
      out.other[p] = other[i];
      out.item[p] = item[i];
    }
  }
}

}  // namespace dfgnn::cuda
