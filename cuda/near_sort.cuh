// The near way of a cooperative sort: edges of a node lie near each other in the list, as in batches of small graphs,
// or where the list is sorted. A chunk of the list then has few different nodes: its counts of them are kept, and where
// a node's edges of a chunk go is where the node's begin and the counts of the chunks before that have it too.
#pragma once

#include <cooperative_groups.h>

#include "key_counts.cuh"
#include "sort_arrays.cuh"

namespace dfgnn::cuda {

template <class K, class Source>
struct NearSort {
  using Chunk = NearChunk<K>;

  struct Shared {
    union {
      Chunk chunk;
      AtomicCount<K> counts[Chunk::kDigits];
    };
    union {
      typename BlockSums<K>::Storage sums;
      K ends[2][kSortWarps];
    };
  };

  const Source& source;
  const SortedEdges<K>& out;
  const SortArrays<K>& arrays;
  Shared& shared;
  const int64_t end = source.end();

  // Whether it went.
  __device__ bool run() const {
    const auto grid = cooperative_groups::this_grid();
    clear_counts(out);
    if (grid_thread() == 0) *arrays.far = *arrays.bad = 0;
    grid.sync();
    count_chunks();
    grid.sync();
    if (*arrays.far) return false;
    sum_counts(out, arrays.sums, shared.sums);
    if (blockIdx.x == 0) find_reach();
    grid.sync();
    write_pointers(out, arrays.sums, shared.sums);
    find_far_chunks();
    grid.sync();
    if (*arrays.far) return false;
    scatter_chunks();
    grid.sync();
    return !*arrays.bad;
  }

 private:
  static constexpr int kMaxChunksBefore = 128;  // that may have edges of a chunk's nodes

  // Keys of a chunk and, where they are wanted, the other ends that come with them; whether any is bad.
  template <bool kOthers>
  __device__ __forceinline__ bool load_chunk(int64_t first, K (&key)[Chunk::kItems], K (&other)[Chunk::kItems]) const {
    const int count = items_from<Chunk>(first, min(end, out.num_edges)),
              last = items_from<Chunk>(first, out.num_edges) - 1;
    typename Source::Loaded loaded[Chunk::kItems];
#pragma unroll
    for (int i = 0; i < Chunk::kItems; ++i) loaded[i] = source.load(first + min(Chunk::place(i), last));
    __syncthreads();  // so that all loads are under way before the first is waited for
    bool bad = false;
#pragma unroll
    for (int i = 0; i < Chunk::kItems; ++i) {
      const bool inside = Chunk::place(i) < count;
      bool bad_key = false, bad_other = false;
      key[i] = inside ? static_cast<K>(source.key(loaded[i], bad_key)) : K(-1);
      other[i] = static_cast<K>(source.loaded_other(loaded[i], bad_other));
      bad |= inside && (bad_key || (kOthers && bad_other));
    }
    return bad;
  }

  __device__ void count_chunks() const {
    const Share chunks = block_share(ceil_div(out.num_edges, Chunk::kChunk));
    AtomicCount<K>* counts = shared.counts;
    for (int64_t c = chunks.begin; c < chunks.end; ++c) {
      if (__syncthreads_or(threadIdx.x == 0 && *static_cast<volatile int*>(arrays.far))) return;
      K key[Chunk::kItems], unused[Chunk::kItems];
      const bool bad = load_chunk<false>(c * Chunk::kChunk, key, unused);
      K low = static_cast<K>(out.num_keys), high = -1;
#pragma unroll
      for (int i = 0; i < Chunk::kItems; ++i) {
        if (key[i] >= 0) low = min(low, key[i]);
        high = max(high, key[i]);
      }
      ends_of_block(low, high);
      const int width = high < 0 ? 0 : static_cast<int>(min(high - low + 1, static_cast<K>(Chunk::kDigits + 1)));
      if (__syncthreads_or(bad || width > Chunk::kDigits)) {
        if (threadIdx.x == 0) *arrays.far = 1;
        return;
      }
      for (int d = threadIdx.x; d < width; d += kGridThreads) counts[d] = 0;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < Chunk::kItems; ++i)
        count_digit(counts, key[i] < 0 ? kNoDigit : static_cast<int>(key[i] - low));
      __syncthreads();
      for (int d = threadIdx.x; d < width; d += kGridThreads) {
        arrays.counts[c * Chunk::kDigits + d] = static_cast<uint16_t>(counts[d]);
        if (counts[d] > 0) atomicAdd(reinterpret_cast<AtomicCount<K>*>(&out.pointers[low + d + 1]), counts[d]);
      }
      if (threadIdx.x == 0) {
        arrays.low[c] = low;
        arrays.high[c] = high;
      }
    }
  }

  // The least and the largest of the block, for all threads.
  __device__ void ends_of_block(K& low, K& high) const {
    for (int lane = 16; lane > 0; lane /= 2) {
      low = min(low, __shfl_xor_sync(~0u, low, lane));
      high = max(high, __shfl_xor_sync(~0u, high, lane));
    }
    if (threadIdx.x % 32 == 0) {
      shared.ends[0][threadIdx.x / 32] = low;
      shared.ends[1][threadIdx.x / 32] = high;
    }
    __syncthreads();
    for (int warp = 0; warp < kSortWarps; ++warp) {
      low = min(low, shared.ends[0][warp]);
      high = max(high, shared.ends[1][warp]);
    }
  }

  __device__ void find_reach() const {
    constexpr int kEach = 8;
    const int64_t chunks = ceil_div(out.num_edges, Chunk::kChunk);
    K until = -1;
    for (int64_t first = 0; first < chunks; first += kEach * kGridThreads) {
      K reach[kEach], all;
      const int64_t c = first + kEach * threadIdx.x;
#pragma unroll
      for (int i = 0; i < kEach; ++i) reach[i] = c + i < chunks ? arrays.high[c + i] : K(-1);
      __syncthreads();
      typename BlockSums<K>::Scan(shared.sums).InclusiveScan(reach, reach, Larger(), all);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (c + i < chunks) arrays.reach[c + i] = max(reach[i], until);
      }
      until = max(until, all);
    }
  }

  __device__ void find_far_chunks() const {
    const int64_t chunks = ceil_div(out.num_edges, Chunk::kChunk);
    for (int64_t c = kMaxChunksBefore + 1 + grid_thread(); c < chunks; c += grid_threads()) {
      if (arrays.reach[c - kMaxChunksBefore - 1] >= arrays.low[c]) *arrays.far = 1;
    }
  }

  __device__ void scatter_chunks() const {
    const int64_t chunks = ceil_div(out.num_edges, Chunk::kChunk);
    const Share mine = block_share(chunks);
    bool bad = false;
    for (int64_t c = mine.end - 1; c >= mine.begin; --c) {  // the last is most likely in the cache still
      const K low = arrays.low[c], high = arrays.high[c];
      if (high < 0) continue;
      const int width = static_cast<int>(high - low) + 1;
      const int64_t first = c * Chunk::kChunk;
      K key[Chunk::kItems], other[Chunk::kItems];
      int item[Chunk::kItems];
      bad |= load_chunk<true>(first, key, other);
#pragma unroll
      for (int i = 0; i < Chunk::kItems; ++i) item[i] = key[i] < 0 ? kNoDigit : static_cast<int>(key[i] - low);
      shared.chunk.rank(item, width);
      const int count = shared.chunk.place_digits(width, [&](int d, K) { return start_of(c, low + d); });
      const int last = items_from<Chunk>(first, out.num_edges) - 1;
      auto cursor = source.cursor(first + Chunk::place(0) - threadIdx.x % 32);
#pragma unroll
      for (int i = 0; i < Chunk::kItems; ++i) {
        const int place = Chunk::place(i);
        other[i] = static_cast<K>(cursor.other(first + min(place, last), other[i]));
        shared.chunk.put(item[i], other[i], static_cast<K>(item[i] & 0xFFFF) << 16 | place);
      }
      shared.chunk.write(
          count, [](K, K second) { return static_cast<int>(second >> 16); },
          [&](K to, K other, K second) {
            out.other[to] = other;
            out.item[to] = static_cast<K>(first + (second & 0xFFFF));
          });
    }
    if (bad) *arrays.bad = 1;
  }

  // Where the edges of chunk c with that key go.
  __device__ K start_of(int64_t c, K key) const {
    K start = out.pointers[key];
    for (int64_t earlier = c - 1; earlier >= 0 && arrays.reach[earlier] >= arrays.low[c]; --earlier) {
      const K low = arrays.low[earlier];
      if (key >= low && key <= arrays.high[earlier]) start += arrays.counts[earlier * Chunk::kDigits + (key - low)];
    }
    return start;
  }
};

}  // namespace dfgnn::cuda
