// The sort of lists that may be short, one cooperative kernel that takes one of three ways:
//
// - Near: edges of a node lie near each other in the list, as in batches of small graphs, or where the list is sorted.
//   A chunk of the list then has few different nodes: its counts of them are kept, and where a node's edges of a chunk
//   go is where the node's begin and the counts of the chunks before that have it too.
// - Counted: keys have few items, and none has many. Each item draws a number of its key's, by an atomic operation, and
//   goes to that place behind where the key's begin; then those of a key are ranked.
// - Far: any list. A radix sort, least significant digit first, keys in a workspace, positions in the two arrays of the
//   caller's that are results still to be made.
//
// The device finds out which; all give the same bits.
#pragma once

#include <cooperative_groups.h>

#include "chunk_sort.cuh"
#include "short_keys.cuh"
#include "sorted_edges.cuh"

namespace dfgnn::cuda {

// Chunks of the near way are short, so that they have few different nodes, which may be many beside the edges.
template <class K>
using NearChunk = ChunkSort<K, 32 / sizeof(K), 1536>;
constexpr int kMaxChunksBefore = 128;  // that may have edges of a chunk's nodes

constexpr int64_t kFewEdges = 12;  // of a key in the mean, at the most, where the counted way is faster

constexpr int kDigitBits = 10;  // of a step of the far way
template <class K>
using FarChunk = ChunkSort<K, 64 / sizeof(K), 1 << kDigitBits>;

template <class K>
struct SortArrays {
  int *far, *bad;         // whether the near way is out of question, and whether an edge that it took turned out bad
  int* crowded;           // whether the counted way is
  K* sums;                // [blocks]
  K* totals;              // [digits]
  K* starts;              // [digits, blocks]
  K *low, *high, *reach;  // [near chunks]: least and largest key, and the largest until here
  K* keys[2];             // [capacity]
  uint16_t* counts;       // [near chunks, different nodes], in the place of the keys
};

// How many blocks a sort takes, at the most `most`.
template <class K>
int64_t sort_blocks(int64_t capacity, int64_t num_keys, int64_t most) {
  return grid_for(ceil_div(capacity, NearChunk<K>::kChunk) + ceil_div(num_keys, 4 * kGridThreads), most);
}

// For a sort of so many items by so many blocks.
template <class K>
SortArrays<K> place_sort_arrays(Workspace& places, int64_t capacity, int64_t blocks) {
  const int64_t chunks = ceil_div(capacity, NearChunk<K>::kChunk);
  SortArrays<K> arrays{};
  places.place(arrays.far, 1);
  places.place(arrays.bad, 1);
  places.place(arrays.crowded, 1);
  places.place(arrays.sums, blocks);
  places.place(arrays.totals, FarChunk<K>::kDigits);
  places.place(arrays.starts, FarChunk<K>::kDigits * blocks);
  places.place(arrays.low, chunks);
  places.place(arrays.high, chunks);
  places.place(arrays.reach, chunks);
  Workspace in_place_of_keys = places;
  places.place(arrays.keys[0], capacity);
  places.place(arrays.keys[1], capacity);
  in_place_of_keys.place(arrays.counts, chunks * NearChunk<K>::kDigits);
  if (in_place_of_keys.bytes() > places.bytes()) places = in_place_of_keys;
  return arrays;
}

template <class K, class Source>
class EdgeSort {
 public:
  using Near = NearChunk<K>;
  using Far = FarChunk<K>;
  using Count = std::conditional_t<sizeof(K) == 8, unsigned long long, int>;  // K, for atomic operations

  struct Shared {
    union {
      Near near;
      Far far;
      Count counts[Near::kDigits];
    };
    K next[Far::kDigits];
    union {
      typename BlockSums<K>::Storage sums;
      K ends[2][kSortWarps];
    };
  };
  static_assert(Far::kDigits <= Near::kDigits, "counts are of either");

  __device__ EdgeSort(const Source& source, const SortedEdges<K>& out, const SortArrays<K>& arrays, Shared& shared)
      : source_(source), out_(out), w_(arrays), s_(shared), end_(source.end()) {}

  __device__ void run() {
    const auto grid = cooperative_groups::this_grid();
    start();
    grid.sync();
    count_chunks();
    grid.sync();
    if (!*w_.far) {
      sum_counts();
      if (blockIdx.x == 0) find_reach();
      grid.sync();
      write_pointers();
      find_far_chunks();
      grid.sync();
    }
    if (!*w_.far) {
      scatter_chunks();
      grid.sync();
      if (!*w_.bad) return;
    }
    const bool has_few = out_.num_edges <= kFewEdges * out_.num_keys;
    if (!(has_few && place_all())) sort_all();
  }

 private:
  __device__ void clear_stats() {
    if (out_.stats && grid_thread() < 2) out_.stats[grid_thread()] = 0;
  }

  // pointers[i + 1]: the number of edges of key i, until they are added up.
  __device__ void clear_counts() {
    for (int64_t i = grid_thread(); i <= out_.num_keys; i += grid_threads()) {
      out_.pointers[i] = i > 0 && i <= out_.num_loops;
    }
    clear_stats();
  }

  __device__ void start() {
    clear_counts();
    if (grid_thread() == 0) *w_.far = *w_.bad = *w_.crowded = 0;
  }

  // How many items a chunk has that begins at `first`.
  template <class Chunk>
  static __device__ __forceinline__ int items_from(int64_t first, int64_t end) {
    return static_cast<int>(min(max(end - first, int64_t(0)), static_cast<int64_t>(Chunk::kChunk)));
  }

  // The near way

  // Keys of a chunk and, where they are wanted, the other ends that come with them; whether any is bad.
  template <bool kOthers>
  __device__ __forceinline__ bool load_chunk(int64_t first, K (&key)[Near::kItems], K (&other)[Near::kItems]) const {
    const int count = items_from<Near>(first, min(end_, out_.num_edges)),
              last = items_from<Near>(first, out_.num_edges) - 1;
    typename Source::Loaded loaded[Near::kItems];
#pragma unroll
    for (int i = 0; i < Near::kItems; ++i) loaded[i] = source_.load(first + min(Near::place(i), last));
    __syncthreads();  // so that all loads are under way before the first is waited for
    bool bad = false;
#pragma unroll
    for (int i = 0; i < Near::kItems; ++i) {
      const bool inside = Near::place(i) < count;
      bool bad_key = false, bad_other = false;
      key[i] = inside ? static_cast<K>(source_.key(loaded[i], bad_key)) : K(-1);
      other[i] = static_cast<K>(source_.loaded_other(loaded[i], bad_other));
      bad |= inside && (bad_key || (kOthers && bad_other));
    }
    return bad;
  }

  __device__ void count_chunks() {
    const Share chunks = block_share(ceil_div(out_.num_edges, Near::kChunk));
    Count* counts = s_.counts;
    for (int64_t c = chunks.begin; c < chunks.end; ++c) {
      if (__syncthreads_or(threadIdx.x == 0 && *static_cast<volatile int*>(w_.far))) return;
      K key[Near::kItems], unused[Near::kItems];
      const bool bad = load_chunk<false>(c * Near::kChunk, key, unused);
      K low = static_cast<K>(out_.num_keys), high = -1;
#pragma unroll
      for (int i = 0; i < Near::kItems; ++i) {
        if (key[i] >= 0) low = min(low, key[i]);
        high = max(high, key[i]);
      }
      ends_of_block(low, high);
      const int width = high < 0 ? 0 : static_cast<int>(min(high - low + 1, static_cast<K>(Near::kDigits + 1)));
      if (__syncthreads_or(bad || width > Near::kDigits)) {
        if (threadIdx.x == 0) *w_.far = 1;
        return;
      }
      for (int d = threadIdx.x; d < width; d += kGridThreads) counts[d] = 0;
      __syncthreads();
#pragma unroll
      for (int i = 0; i < Near::kItems; ++i)
        count_digit(counts, key[i] < 0 ? kNoDigit : static_cast<int>(key[i] - low));
      __syncthreads();
      for (int d = threadIdx.x; d < width; d += kGridThreads) {
        w_.counts[c * Near::kDigits + d] = static_cast<uint16_t>(counts[d]);
        if (counts[d] > 0) atomicAdd(reinterpret_cast<Count*>(&out_.pointers[low + d + 1]), counts[d]);
      }
      if (threadIdx.x == 0) {
        w_.low[c] = low;
        w_.high[c] = high;
      }
    }
  }

  // The least and the largest of the block, for all threads.
  __device__ void ends_of_block(K& low, K& high) {
    for (int lane = 16; lane > 0; lane /= 2) {
      low = min(low, __shfl_xor_sync(~0u, low, lane));
      high = max(high, __shfl_xor_sync(~0u, high, lane));
    }
    if (threadIdx.x % 32 == 0) {
      s_.ends[0][threadIdx.x / 32] = low;
      s_.ends[1][threadIdx.x / 32] = high;
    }
    __syncthreads();
    for (int warp = 0; warp < kSortWarps; ++warp) {
      low = min(low, s_.ends[0][warp]);
      high = max(high, s_.ends[1][warp]);
    }
  }

  __device__ void sum_counts() {
    const Share mine = block_share(out_.num_keys);
    K total = 0, largest = 0;
    for (int64_t i = mine.begin + threadIdx.x; i < mine.end; i += kGridThreads) {
      const K count = out_.pointers[i + 1];
      total += count;
      largest = max(largest, count);
    }
    total = BlockSums<K>(s_.sums).total(total);
    if (threadIdx.x == 0) w_.sums[blockIdx.x] = total;
    raise_max_degree(out_, largest);
  }

  __device__ void find_reach() {
    constexpr int kEach = 8;
    const int64_t chunks = ceil_div(out_.num_edges, Near::kChunk);
    K until = -1;
    for (int64_t first = 0; first < chunks; first += kEach * kGridThreads) {
      K reach[kEach], all;
      const int64_t c = first + kEach * threadIdx.x;
#pragma unroll
      for (int i = 0; i < kEach; ++i) reach[i] = c + i < chunks ? w_.high[c + i] : K(-1);
      __syncthreads();
      typename BlockSums<K>::Scan(s_.sums).InclusiveScan(reach, reach, Larger(), all);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        if (c + i < chunks) w_.reach[c + i] = max(reach[i], until);
      }
      until = max(until, all);
    }
  }

  // From counts to where edges begin; and all entries that no edge of the list has.
  __device__ void write_pointers() {
    BlockSums<K> sums(s_.sums);
    K before = sums.total(w_.sums, blockIdx.x);
    const K total = sums.total(w_.sums, gridDim.x);
    const Share mine = block_share(out_.num_keys);
    for (int64_t first = mine.begin; first < mine.end; first += kGridThreads) {
      const int64_t i = first + threadIdx.x;
      const K count = i < mine.end ? out_.pointers[i + 1] : 0, end = sums.exclusive(count, before) + count;
      if (i >= mine.end) continue;
      out_.pointers[i + 1] = end;
      if (i < out_.num_loops) {
        out_.other[end - 1] = static_cast<K>(i);
        out_.item[end - 1] = static_cast<K>(out_.num_edges + i);
      }
    }
    clear_behind(out_, total);
  }

  __device__ void find_far_chunks() {
    const int64_t chunks = ceil_div(out_.num_edges, Near::kChunk);
    for (int64_t c = kMaxChunksBefore + 1 + grid_thread(); c < chunks; c += grid_threads()) {
      if (w_.reach[c - kMaxChunksBefore - 1] >= w_.low[c]) *w_.far = 1;
    }
  }

  __device__ void scatter_chunks() {
    const int64_t chunks = ceil_div(out_.num_edges, Near::kChunk);
    const Share mine = block_share(chunks);
    bool bad = false;
    for (int64_t c = mine.end - 1; c >= mine.begin; --c) {  // the last is most likely in the cache still
      const K low = w_.low[c], high = w_.high[c];
      if (high < 0) continue;
      const int width = static_cast<int>(high - low) + 1;
      const int64_t first = c * Near::kChunk;
      K key[Near::kItems], other[Near::kItems];
      int item[Near::kItems];
      bad |= load_chunk<true>(first, key, other);
#pragma unroll
      for (int i = 0; i < Near::kItems; ++i) item[i] = key[i] < 0 ? kNoDigit : static_cast<int>(key[i] - low);
      s_.near.rank(item, width);
      const int count = s_.near.place_digits(width, [&](int d, K) { return start_of(c, low + d); });
      const int last = items_from<Near>(first, out_.num_edges) - 1;
      auto cursor = source_.cursor(first + Near::place(0) - threadIdx.x % 32);
#pragma unroll
      for (int i = 0; i < Near::kItems; ++i) {
        const int place = Near::place(i);
        other[i] = static_cast<K>(cursor.other(first + min(place, last), other[i]));
        s_.near.put(item[i], other[i], static_cast<K>(item[i] & 0xFFFF) << 16 | place);
      }
      s_.near.write(
          count, [](K, K second) { return static_cast<int>(second >> 16); },
          [&](K to, K other, K second) {
            out_.other[to] = other;
            out_.item[to] = static_cast<K>(first + (second & 0xFFFF));
          });
    }
    if (bad) *w_.bad = 1;
  }

  // Where the edges of chunk c with that key go.
  __device__ K start_of(int64_t c, K key) {
    K start = out_.pointers[key];
    for (int64_t earlier = c - 1; earlier >= 0 && w_.reach[earlier] >= w_.low[c]; --earlier) {
      const K low = w_.low[earlier];
      if (key >= low && key <= w_.high[earlier]) start += w_.counts[earlier * Near::kDigits + (key - low)];
    }
    return start;
  }

  // The counted way; not inlined, like the far one, as the near way needs fewer registers.

  // Whether it went.
  __device__ __noinline__ bool place_all() {
    const auto grid = cooperative_groups::this_grid();
    K *numbers = w_.keys[0], *items = w_.keys[1];  // the former of each item among its key's, in any order
    clear_counts();
    grid.sync();
    const int64_t num_bad = draw_numbers(numbers);
    grid.sync();
    if (*w_.crowded) return false;
    add_bad(out_, num_bad);
    sum_counts();
    grid.sync();
    write_pointers();
    grid.sync();
    for_keys([&](int64_t e, K key) { items[out_.pointers[key] + numbers[e]] = static_cast<K>(e); });
    grid.sync();
    ShortKeys<K>::rank(out_, items, [&](K p, K place) {
      const K item = items[p];
      out_.item[place] = item;
      out_.other[place] = static_cast<K>(source_.other(item));
    });
    return true;
  }

  // Returns how many edges are bad.
  __device__ int64_t draw_numbers(K* numbers) {
    return for_keys([&](int64_t e, K key) {
      const Count number = atomicAdd(reinterpret_cast<Count*>(&out_.pointers[key + 1]), Count(1));
      const K before = static_cast<K>(number) - (key < out_.num_loops);  // self-loops are counted, and come last
      numbers[e] = before;
      if (before >= ShortKeys<K>::kMost) *static_cast<volatile int*>(w_.crowded) = 1;
    });
  }

  // Calls visit(e, key) for all edges that have one, or for some where it turns out that there is a crowd. Returns how
  // many are bad.
  template <class Visit>
  __device__ __forceinline__ int64_t for_keys(const Visit& visit) {
    constexpr int kEach = 4;
    int64_t num_bad = 0;
    for (int64_t first = grid_thread(); first < out_.num_edges; first += kEach * grid_threads()) {
      const int crowded = *static_cast<volatile int*>(w_.crowded);
      typename Source::Loaded loaded[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) loaded[i] = source_.load(min(first + i * grid_threads(), out_.num_edges - 1));
      if (crowded) break;
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int64_t e = first + i * grid_threads();
        if (e >= out_.num_edges) break;
        bool bad = false;
        const K key = full_sort_key(source_, out_, end_, e, loaded[i], bad);
        num_bad += bad;
        if (key < out_.num_keys) visit(e, key);
      }
    }
    return num_bad;
  }

  // The far way

  __device__ __noinline__ void sort_all() {
    const auto grid = cooperative_groups::this_grid();
    const int bits = out_.key_bits(), passes = static_cast<int>(ceil_div(bits, kDigitBits));
    const int bits_each = static_cast<int>(ceil_div(bits, passes));
    K* values[2] = {out_.other, out_.item};
    int64_t num_bad = 0;
    clear_stats();
    for (int pass = 0; pass < passes; ++pass) {
      const int shift = pass * bits_each, width = 1 << bits_each;
      const auto digit_of = [&](K key) { return key < 0 ? kNoDigit : static_cast<int>(key >> shift) & (width - 1); };
      const K* keys = pass > 0 ? w_.keys[(pass - 1) % 2] : nullptr;
      num_bad += count_digits(keys, digit_of, width);
      grid.sync();
      scan_digits(width);
      grid.sync();
      scatter_digits(keys, values[(pass + 1) % 2], w_.keys[pass % 2], values[pass % 2], digit_of, width);
      grid.sync();
    }
    add_bad(out_, num_bad);
    write_sorted<4>(source_, out_, w_.keys[(passes - 1) % 2], values[(passes - 1) % 2]);
  }

  // Keys of a chunk: num_keys for what is no edge, -1 past the end. Returns how many edges are bad.
  __device__ __forceinline__ int load_far(const K* keys, int64_t first, K (&key)[Far::kItems]) const {
    const int count = items_from<Far>(first, out_.capacity()), last = count - 1;
    int num_bad = 0;
    if (keys) {
#pragma unroll
      for (int i = 0; i < Far::kItems; ++i) key[i] = keys[first + min(Far::place(i), last)];
    } else {
      typename Source::Loaded loaded[Far::kItems];
#pragma unroll
      for (int i = 0; i < Far::kItems; ++i) loaded[i] = source_.load(min(first + Far::place(i), out_.num_edges - 1));
#pragma unroll
      for (int i = 0; i < Far::kItems; ++i) {
        bool bad = false;
        key[i] = full_sort_key(source_, out_, end_, first + Far::place(i), loaded[i], bad);
        num_bad += bad;
      }
    }
#pragma unroll
    for (int i = 0; i < Far::kItems; ++i) {
      if (Far::place(i) >= count) key[i] = -1;
    }
    return num_bad;
  }

  template <class DigitOf>
  __device__ int64_t count_digits(const K* keys, const DigitOf& digit_of, int width) {
    const Share chunks = block_share(ceil_div(out_.capacity(), Far::kChunk));
    int64_t num_bad = 0;
    Count* counts = s_.counts;
    __syncthreads();
    for (int d = threadIdx.x; d < width; d += kGridThreads) counts[d] = 0;
    __syncthreads();
    for (int64_t c = chunks.begin; c < chunks.end; ++c) {
      K key[Far::kItems];
      num_bad += load_far(keys, c * Far::kChunk, key);
#pragma unroll
      for (int i = 0; i < Far::kItems; ++i) count_digit(counts, digit_of(key[i]));
    }
    __syncthreads();
    for (int d = threadIdx.x; d < width; d += kGridThreads) {
      w_.starts[static_cast<int64_t>(d) * gridDim.x + blockIdx.x] = static_cast<K>(counts[d]);
    }
    return num_bad;
  }

  // From how many items of a digit the blocks have to how many blocks before have.
  __device__ void scan_digits(int width) {
    BlockSums<K> sums(s_.sums);
    for (int d = blockIdx.x; d < width; d += gridDim.x) {
      K* counts = w_.starts + static_cast<int64_t>(d) * gridDim.x;
      K before = 0;
      for (int64_t first = 0; first < gridDim.x; first += kGridThreads) {
        const int64_t b = first + threadIdx.x;
        const K start = sums.exclusive(b < gridDim.x ? counts[b] : 0, before);
        if (b < gridDim.x) counts[b] = start;
      }
      if (threadIdx.x == 0) w_.totals[d] = before;
    }
  }

  template <class DigitOf>
  __device__ void scatter_digits(const K* keys, const K* values, K* sorted_keys, K* sorted_values,
                                 const DigitOf& digit_of, int width) {
    K before = 0;
    for (int first = 0; first < width; first += kGridThreads) {
      const int d = first + threadIdx.x;
      const K start = BlockSums<K>(s_.sums).exclusive(d < width ? w_.totals[d] : 0, before);
      if (d < width) s_.next[d] = start + w_.starts[static_cast<int64_t>(d) * gridDim.x + blockIdx.x];
    }
    const Share chunks = block_share(ceil_div(out_.capacity(), Far::kChunk));
    for (int64_t c = chunks.begin; c < chunks.end; ++c) {
      const int64_t first = c * Far::kChunk;
      K key[Far::kItems], value[Far::kItems];
      int item[Far::kItems];
      load_far(keys, first, key);
      const int last = items_from<Far>(first, out_.capacity()) - 1;
#pragma unroll
      for (int i = 0; i < Far::kItems; ++i) {
        const int64_t e = first + min(Far::place(i), last);
        value[i] = keys ? values[e] : static_cast<K>(e);
        item[i] = digit_of(key[i]);
      }
      s_.far.rank(item, width);
      const int count = s_.far.place_digits(width, [&](int d, K count) {
        const K start = s_.next[d];
        s_.next[d] = start + count;
        return start;
      });
#pragma unroll
      for (int i = 0; i < Far::kItems; ++i) s_.far.put(item[i], key[i], value[i]);
      s_.far.write(
          count, [&](K key, K) { return digit_of(key); },
          [&](K to, K key, K value) {
            sorted_keys[to] = key;
            sorted_values[to] = value;
          });
    }
  }

  const Source& source_;
  const SortedEdges<K>& out_;
  const SortArrays<K>& w_;
  Shared& s_;
  const int64_t end_;
};

template <class K, class Source>
__global__ void __launch_bounds__(kGridThreads, 3)
    edge_sort_kernel(const __grid_constant__ Source source, const __grid_constant__ SortedEdges<K> out,
                     const __grid_constant__ SortArrays<K> arrays) {
  extern __shared__ __align__(16) char shared[];
  using Sort = EdgeSort<K, Source>;
  Sort(source, out, arrays, *reinterpret_cast<typename Sort::Shared*>(shared)).run();
}

// Call with workspace null for its size.
template <class K, class Source>
cudaError_t cooperative_sort(const Source& source, const SortedEdges<K>& out, void* workspace, size_t& workspace_bytes,
                             cudaStream_t stream) {
  using Sort = EdgeSort<K, Source>;
  const auto kernel = edge_sort_kernel<K, Source>;
  constexpr int shared_bytes = sizeof(typename Sort::Shared);
  int64_t blocks = 0;
  const cudaError_t error = max_grid(kernel, shared_bytes, blocks);
  if (error != cudaSuccess) return error;
  blocks = sort_blocks<K>(out.capacity(), out.num_keys, blocks);
  Workspace places(workspace);
  const auto arrays = place_sort_arrays<K>(places, out.capacity(), blocks);
  if (workspace == nullptr) {
    workspace_bytes = places.bytes();
    return cudaSuccess;
  }
  return launch_cooperative(kernel, blocks, shared_bytes, stream, source, out, arrays);
}

}  // namespace dfgnn::cuda
