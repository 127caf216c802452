// The far way of a cooperative sort, of any list: a radix sort, least significant digit first, keys in a workspace,
// positions in the two arrays of the caller's that are results still to be made.
#pragma once

#include <cooperative_groups.h>

#include "key_counts.cuh"
#include "sort_arrays.cuh"

namespace dfgnn::cuda {

template <class K, class Source>
struct FarSort {
  using Chunk = FarChunk<K>;

  struct Shared {
    union {
      Chunk chunk;
      AtomicCount<K> counts[Chunk::kDigits];
    };
    K next[Chunk::kDigits];
    typename BlockSums<K>::Storage sums;
  };

  const Source& source;
  const SortedEdges<K>& out;
  const SortArrays<K>& arrays;
  Shared& shared;
  const int64_t end = source.end();

  __device__ __noinline__ void run() const {
    const auto grid = cooperative_groups::this_grid();
    const int bits = out.key_bits(), passes = static_cast<int>(ceil_div(bits, kDigitBits));
    const int bits_each = static_cast<int>(ceil_div(bits, passes));
    K* values[2] = {out.other, out.item};
    int64_t num_bad = 0;
    clear_stats(out);
    for (int pass = 0; pass < passes; ++pass) {
      const int shift = pass * bits_each, width = 1 << bits_each;
      const auto digit_of = [&](K key) { return key < 0 ? kNoDigit : static_cast<int>(key >> shift) & (width - 1); };
      const K* keys = pass > 0 ? arrays.keys[(pass - 1) % 2] : nullptr;
      num_bad += count_digits(keys, digit_of, width);
      grid.sync();
      scan_digits(width);
      grid.sync();
      scatter_digits(keys, values[(pass + 1) % 2], arrays.keys[pass % 2], values[pass % 2], digit_of, width);
      grid.sync();
    }
    add_bad(out, num_bad);
    write_sorted<4>(source, out, arrays.keys[(passes - 1) % 2], values[(passes - 1) % 2]);
  }

 private:
  // Keys of a chunk: num_keys for what is no edge, -1 past the end. Returns how many edges are bad.
  __device__ __forceinline__ int load_chunk(const K* keys, int64_t first, K (&key)[Chunk::kItems]) const {
    const int count = items_from<Chunk>(first, out.capacity()), last = count - 1;
    int num_bad = 0;
    if (keys) {
#pragma unroll
      for (int i = 0; i < Chunk::kItems; ++i) key[i] = keys[first + min(Chunk::place(i), last)];
    } else {
      typename Source::Loaded loaded[Chunk::kItems];
#pragma unroll
      for (int i = 0; i < Chunk::kItems; ++i) loaded[i] = source.load(min(first + Chunk::place(i), out.num_edges - 1));
#pragma unroll
      for (int i = 0; i < Chunk::kItems; ++i) {
        bool bad = false;
        key[i] = full_sort_key(source, out, end, first + Chunk::place(i), loaded[i], bad);
        num_bad += bad;
      }
    }
#pragma unroll
    for (int i = 0; i < Chunk::kItems; ++i) {
      if (Chunk::place(i) >= count) key[i] = -1;
    }
    return num_bad;
  }

  template <class DigitOf>
  __device__ int64_t count_digits(const K* keys, const DigitOf& digit_of, int width) const {
    const Share chunks = block_share(ceil_div(out.capacity(), Chunk::kChunk));
    int64_t num_bad = 0;
    AtomicCount<K>* counts = shared.counts;
    __syncthreads();
    for (int d = threadIdx.x; d < width; d += kGridThreads) counts[d] = 0;
    __syncthreads();
    for (int64_t c = chunks.begin; c < chunks.end; ++c) {
      K key[Chunk::kItems];
      num_bad += load_chunk(keys, c * Chunk::kChunk, key);
#pragma unroll
      for (int i = 0; i < Chunk::kItems; ++i) count_digit(counts, digit_of(key[i]));
    }
    __syncthreads();
    for (int d = threadIdx.x; d < width; d += kGridThreads) {
      arrays.starts[static_cast<int64_t>(d) * gridDim.x + blockIdx.x] = static_cast<K>(counts[d]);
    }
    return num_bad;
  }

  // From how many items of a digit the blocks have to how many blocks before have.
  __device__ void scan_digits(int width) const {
    BlockSums<K> sums(shared.sums);
    for (int d = blockIdx.x; d < width; d += gridDim.x) {
      K* counts = arrays.starts + static_cast<int64_t>(d) * gridDim.x;
      K before = 0;
      for (int64_t first = 0; first < gridDim.x; first += kGridThreads) {
        const int64_t b = first + threadIdx.x;
        const K start = sums.exclusive(b < gridDim.x ? counts[b] : 0, before);
        if (b < gridDim.x) counts[b] = start;
      }
      if (threadIdx.x == 0) arrays.totals[d] = before;
    }
  }

  template <class DigitOf>
  __device__ void scatter_digits(const K* keys, const K* values, K* sorted_keys, K* sorted_values,
                                 const DigitOf& digit_of, int width) const {
    K before = 0;
    for (int first = 0; first < width; first += kGridThreads) {
      const int d = first + threadIdx.x;
      const K start = BlockSums<K>(shared.sums).exclusive(d < width ? arrays.totals[d] : 0, before);
      if (d < width) shared.next[d] = start + arrays.starts[static_cast<int64_t>(d) * gridDim.x + blockIdx.x];
    }
    const Share chunks = block_share(ceil_div(out.capacity(), Chunk::kChunk));
    for (int64_t c = chunks.begin; c < chunks.end; ++c) {
      const int64_t first = c * Chunk::kChunk;
      K key[Chunk::kItems], value[Chunk::kItems];
      int item[Chunk::kItems];
      load_chunk(keys, first, key);
      const int last = items_from<Chunk>(first, out.capacity()) - 1;
#pragma unroll
      for (int i = 0; i < Chunk::kItems; ++i) {
        const int64_t e = first + min(Chunk::place(i), last);
        value[i] = keys ? values[e] : static_cast<K>(e);
        item[i] = digit_of(key[i]);
      }
      shared.chunk.rank(item, width);
      const int count = shared.chunk.place_digits(width, [&](int d, K count) {
        const K start = shared.next[d];
        shared.next[d] = start + count;
        return start;
      });
#pragma unroll
      for (int i = 0; i < Chunk::kItems; ++i) shared.chunk.put(item[i], key[i], value[i]);
      shared.chunk.write(
          count, [&](K key, K) { return digit_of(key); },
          [&](K to, K key, K value) {
            sorted_keys[to] = key;
            sorted_values[to] = value;
          });
    }
  }
};

}  // namespace dfgnn::cuda
