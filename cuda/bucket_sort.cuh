// Rows of lists in any order whose edges join near nodes, as those of batches of small graphs do: edges are dealt to
// buckets of neighbouring destinations, as they come; then a block puts those of a bucket in order by a matrix of bits.
#pragma once

#include <cooperative_groups.h>

#include "chunk_sort.cuh"
#include "edge_lists.cuh"
#include "tile_search.cuh"
#include "tile_transpose.cuh"

namespace dfgnn::cuda {

// Rows ascend by source, but for a self-loop that was put in, which is the last. All threads of the grid come to each
// step, and meet between them.
template <class Coo>
class BucketSort {
  static constexpr int kMaxBuckets = 2048, kOfThread = kMaxBuckets / kGridThreads;
  static constexpr int kLeastBits = 6, kMostBits = 11;            // of a node's number in its bucket
  static constexpr int kFurthest = TileTranspose::kMaxNodes - 1;  // of nodes that an edge may join: no tile is wider
  static constexpr int kChunk = 6144;                             // edges that a block deals at a time
  static constexpr int kAtOnce = 8;                               // loads of a thread that are under way at a time

  // Of rows that a block puts in order at a time: words of bits, and of each two how many bits are before them.
  static constexpr int kPart = 128, kLeastPart = 32;
  static __host__ __device__ constexpr int most_words(int rows) { return (rows + 2 * kFurthest) / 32 + 2; }
  static constexpr int kMaxPairs = (most_words(kPart) + 1) / 2;

 public:
  // Zeros at first, but for edges.
  struct Arrays {
    int *counts, *dealt, *dropped;  // [kMaxBuckets], edges: of its nodes, dealt already, and left out of these
    int* ordered;                   // buckets that blocks have taken after their first ones
    int *far, *twice;               // whether an edge joins nodes too far apart, or is there twice
    uint64_t* edges;                // [num_edges]
  };

  struct Shared {
    int begin[kMaxBuckets];  // of a bucket's edges
    union {
      int shift[kMaxBuckets];      // from an edge's place in the sorted chunk to its place in the bucket
      int row_begin[kMaxBuckets];  // of a bucket's first row
    };
    union {
      struct {
        alignas(16) int next[kMaxBuckets];  // where a bucket's next edge goes; counts before that
        uint64_t edges[kChunk];
      } chunk;
      struct {
        int begin[kPart];                             // of a row, from the part's first
        uint16_t before[kPart][kMaxPairs];            // bits
        alignas(16) unsigned char memory[50 * 1024];  // bits, and results
      } part;
    };
    typename BlockSums<int>::Storage sums;
  };
  static_assert(sizeof(Shared) <= 75 * 1024, "a multiprocessor with 228 KiB has three blocks");
  static_assert(kPart * most_words(kPart) * sizeof(uint32_t) <= sizeof(Shared::part.memory));

  static Arrays place(Workspace& zeros) {
    Arrays arrays{};
    for (int** counts : {&arrays.counts, &arrays.dealt, &arrays.dropped}) zeros.place(*counts, kMaxBuckets);
    for (int** number : {&arrays.ordered, &arrays.far, &arrays.twice}) zeros.place(*number, 1);
    return arrays;
  }

  static __host__ __device__ __forceinline__ bool takes(int64_t num_nodes) {
    return num_nodes <= int64_t{kMaxBuckets} << kMostBits;
  }

  // Whether no tile has an edge between these.
  static __device__ __forceinline__ bool is_far(int64_t src, int64_t dst) {
    return static_cast<uint64_t>(src) - static_cast<uint64_t>(dst) + kFurthest > 2 * kFurthest;
  }

  // rows: results, whose stats are zero. search: is told what edges join.
  __device__ BucketSort(const Coo& coo, const SortedEdges<int>& rows, const Arrays& arrays, TileSearch& search,
                        Shared& shared)
      : coo_(coo),
        rows_(rows),
        w_(arrays),
        search_(search),
        s_(shared),
        num_edges_(static_cast<int>(rows.num_edges)),
        num_nodes_(static_cast<int>(rows.num_keys)) {
    while (num_buckets() > kMaxBuckets) ++bits_;
  }

  // Returns false if it cannot: where an edge joins nodes too far apart, or is there twice, or a bucket has more edges
  // than its nodes could have. rows have been written then if `twice` is set.
  __device__ bool run() {
    const auto grid = cooperative_groups::this_grid();
    if (num_edges_ == 0 || !takes(num_nodes_) || !seems_near()) return false;
    search_.start();
    count();
    grid.sync();
    bool is_crowded = false;
    set_begins(s_.begin, [&](int b) {
      is_crowded |= w_.counts[b] > TileTranspose::kMaxNodes << bits_;
      return w_.counts[b];
    });
    if (__syncthreads_or(is_crowded)) return false;
    deal();
    grid.sync();
    if (*w_.far) return false;
    const int total = set_begins(s_.row_begin, [&](int b) {
      return w_.counts[b] - w_.dropped[b] + loops_before((b + 1) << bits_) - loops_before(b << bits_);
    });
    order_all();
    raise_max_degree(rows_, largest_);
    if (grid_thread() == 0) rows_.pointers[0] = 0;
    clear_behind(rows_, total);
    grid.sync();
    return !*w_.twice;
  }

 private:
  // An edge as one number: its destination, its source as seen from there, and its place in the list.
  static constexpr int kStepBits = 11, kItemBits = 24;
  static constexpr uint32_t kNoStep = (1 << kStepBits) - 1;  // of one that is left out
  static_assert(2 * kFurthest < kNoStep && kLongList <= 1 << kItemBits);
  static __device__ __forceinline__ uint32_t step_to(int64_t src, int64_t dst) {
    return static_cast<uint32_t>(src - dst + kFurthest) & kNoStep;
  }
  static __device__ __forceinline__ uint64_t packed(int64_t dst, uint32_t step, int item) {
    return static_cast<uint64_t>(dst) << (kStepBits + kItemBits) | static_cast<uint64_t>(step) << kItemBits | item;
  }
  static __device__ __forceinline__ int dst_of(uint64_t edge) {
    return static_cast<int>(edge >> (kStepBits + kItemBits));
  }
  static __device__ __forceinline__ uint32_t step_of(uint64_t edge) {
    return static_cast<uint32_t>(edge >> kItemBits) & kNoStep;
  }
  static __device__ __forceinline__ int item_of(uint64_t edge) {
    return static_cast<int>(edge) & ((1 << kItemBits) - 1);
  }

  // Of edges in a row.
  struct Part {
    int begin, end;
  };
  __device__ __forceinline__ Part part_of_list() const {  // the block's
    const Share mine = block_share(num_edges_);
    return {static_cast<int>(mine.begin), static_cast<int>(mine.end)};
  }

  __device__ __forceinline__ int num_buckets() const { return ((num_nodes_ - 1) >> bits_) + 1; }
  __device__ __forceinline__ int loops_before(int node) const { return min(node, static_cast<int>(rows_.num_loops)); }

  // Of some edges, the same of each block: of most graphs that are no batches this ends it.
  __device__ bool seems_near() const {
    const auto edge = coo_.load(static_cast<int64_t>(num_edges_) * threadIdx.x / kGridThreads);
    return !__syncthreads_or(is_far(edge.src, edge.dst));
  }

  __device__ __forceinline__ int bucket_of(int64_t dst) const {
    return in_range(dst, num_nodes_) ? static_cast<int>(dst) >> bits_ : kNoDigit;
  }

  __device__ void count() {
    int* counts = s_.begin;
    const Part mine = part_of_list();
    count_part(mine.begin, mine.end, counts);
    for (int b = threadIdx.x; b < kMaxBuckets; b += kGridThreads) {
      if (counts[b] > 0) atomicAdd(w_.counts + b, counts[b]);
    }
  }

  // The i-th of a thread's items from `first` on.
  static __device__ __forceinline__ int item(int first, int i) {
    return first + i * kGridThreads + static_cast<int>(threadIdx.x);
  }

  // Sums of what buckets before have; returns that of all.
  template <class Of>
  __device__ int set_begins(int* begins, const Of& of) {
    int counts[kOfThread], all;
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) counts[i] = of(kOfThread * static_cast<int>(threadIdx.x) + i);
    __syncthreads();
    typename BlockSums<int>::Scan(s_.sums).ExclusiveSum(counts, counts, all);
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) begins[kOfThread * threadIdx.x + i] = counts[i];
    __syncthreads();
    return all;
  }

  // Edges to their buckets, in any order within those, chunk by chunk, so that neighbours are written side by side.
  __device__ void deal() {
    const Part mine = part_of_list();
    int num_bad = 0;
    for (int first = mine.begin; first < mine.end; first += kChunk) {
      if (__syncthreads_or(threadIdx.x == 0 && *static_cast<volatile int*>(w_.far))) break;
      const int end = min(first + kChunk, mine.end);
      count_part(first, end, s_.chunk.next);
      const int count = start_chunk();
      num_bad += put_chunk(first, end);
      __syncthreads();
      for (int i = threadIdx.x; i < count; i += kGridThreads) {
        const uint64_t edge = s_.chunk.edges[i];
        w_.edges[s_.shift[dst_of(edge) >> bits_] + i] = edge;
      }
    }
    add_bad(rows_, num_bad);
  }

  // How many edges buckets have of the list's part [first, end), to counts in shared memory.
  __device__ __forceinline__ void count_part(int first, int end, int* counts) const {
    for (int b = threadIdx.x; b < kMaxBuckets; b += kGridThreads) counts[b] = 0;
    __syncthreads();
#pragma unroll 1
    for (; first < end; first += kAtOnce * kGridThreads) {
      int64_t dst[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) dst[i] = coo_.dst[min(item(first, i), end - 1)];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        count_digit(counts, item(first, i) < end ? bucket_of(dst[i]) : kNoDigit);
      }
    }
    __syncthreads();
  }

  // From counts to where a bucket's edges begin in the sorted chunk, and from there to where they go. Returns how many
  // there are.
  __device__ __forceinline__ int start_chunk() {
    int* const next = s_.chunk.next;
    const int all = set_begins(next, [&](int b) { return next[b]; });
    int dealt[kOfThread];
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int b = i * kGridThreads + static_cast<int>(threadIdx.x);
      const int count = (b + 1 < kMaxBuckets ? next[b + 1] : all) - next[b];
      dealt[i] = count > 0 ? atomicAdd(w_.dealt + b, count) : 0;
    }
#pragma unroll
    for (int i = 0; i < kOfThread; ++i) {
      const int b = i * kGridThreads + static_cast<int>(threadIdx.x);
      s_.shift[b] = s_.begin[b] + dealt[i] - next[b];
    }
    __syncthreads();
    return all;
  }

  // Returns how many of this thread's edges are bad.
  __device__ __forceinline__ int put_chunk(int first, int end) {
    int num_bad = 0;
    bool far = false;
#pragma unroll 1
    for (; first < end; first += kAtOnce * kGridThreads) {
      typename Coo::Loaded loaded[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) loaded[i] = coo_.load_once(min(item(first, i), end - 1));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int e = item(first, i);
        bool bad = false;
        const bool is_edge = coo_.full_key(loaded[i], bad) >= 0;
        const int bucket = e < end ? bucket_of(loaded[i].dst) : kNoDigit;
        const int place = count_digit<true>(s_.chunk.next, bucket);
        num_bad += e < end && bad;
        if (bucket == kNoDigit) continue;
        if (!is_edge) atomicAdd(w_.dropped + bucket, 1);
        far |= is_edge && is_far(loaded[i].src, loaded[i].dst);
        s_.chunk.edges[place] = packed(loaded[i].dst, is_edge ? step_to(loaded[i].src, loaded[i].dst) : kNoStep, e);
      }
    }
    if (far) *w_.far = 1;
    return num_bad;
  }

  // Blocks take the buckets as they come.
  __device__ void order_all() {
    __shared__ int next;
    for (int bucket = static_cast<int>(blockIdx.x); bucket < num_buckets(); bucket = next) {
      int taken = 0;
      if (threadIdx.x == 0) taken = *static_cast<volatile int*>(w_.twice) ? num_buckets() : atomicAdd(w_.ordered, 1);
      order(bucket);
      if (threadIdx.x == 0) next = static_cast<int>(gridDim.x) + taken;
      __syncthreads();
    }
  }

  // The rows of a bucket.
  __device__ void order(int bucket) {
    const Part edges{s_.begin[bucket], s_.begin[bucket] + w_.counts[bucket]};
    const int end = min((bucket + 1) << bits_, num_nodes_);
    int rows = min(kPart, 1 << bits_), row_begin = s_.row_begin[bucket];
    const auto has_room = [&](int rows) {  // if these rows have their share of the edges
      const int64_t results = (static_cast<int64_t>(edges.end - edges.begin) * rows >> bits_) + rows;
      return sizeof(uint32_t) * (rows * most_words(rows) + 2 * results) <= sizeof(s_.part.memory);
    };
    while (rows > kLeastPart && !has_room(rows)) rows /= 2;
    for (int first = bucket << bits_; first < end; first += rows) {
      const int count = order_part(edges, first, min(rows, end - first), row_begin);
      if (count == kTwice) {
        if (threadIdx.x == 0) *w_.twice = 1;
        return;
      }
      row_begin += count;
    }
  }

  // Calls visit(row, source, item) for the edges of rows [first, first + nodes), rows counted from there.
  template <class Visit>
  __device__ __forceinline__ void for_edges(const Part& edges, int first, int nodes, const Visit& visit) const {
    for (int begin = edges.begin; begin < edges.end; begin += kAtOnce * kGridThreads) {
      uint64_t edge[kAtOnce];
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) edge[i] = __ldcg(w_.edges + min(item(begin, i), edges.end - 1));
#pragma unroll
      for (int i = 0; i < kAtOnce; ++i) {
        const int dst = dst_of(edge[i]), row = dst - first;
        const uint32_t step = step_of(edge[i]);
        if (item(begin, i) < edges.end && row >= 0 && row < nodes && step != kNoStep) {
          visit(row, dst + static_cast<int>(step) - kFurthest, item_of(edge[i]));
        }
      }
    }
  }

  static constexpr int kTwice = -1;

  // The rows [first, first + nodes), which begin at row_begin. Returns how many edges they have, or kTwice, and nothing
  // is done, if one of these is there twice.
  __device__ int order_part(const Part& edges, int first, int nodes, int row_begin) {
    auto& s = s_.part;
    const int first_src = max(first - kFurthest, 0) / 32 * 32;
    const int words = (min(first + nodes - 1 + kFurthest, num_nodes_ - 1) - first_src) / 32 + 1, stride = words | 1;
    auto* const bits = reinterpret_cast<uint32_t*>(s.memory);
    auto* const results = bits + nodes * stride;
    for (int x = threadIdx.x; x < nodes * stride; x += kGridThreads) bits[x] = 0;
    __syncthreads();
    bool twice = false;
    for_edges(edges, first, nodes, [&](int row, int src, int) {
      const unsigned j = src - first_src, bit = 1u << j % 32;
      twice |= (atomicOr(bits + row * stride + j / 32, bit) & bit) != 0;
    });
    if (__syncthreads_or(twice)) return kTwice;
    sum_words(bits, words, stride, first, nodes, first_src);
    __syncthreads();
    int count = 0;
    {
      const int i = threadIdx.x, degree = i < nodes ? s.begin[i] : 0;
      const int begin = BlockSums<int>(s_.sums).exclusive(degree, count);
      if (i < nodes) {
        s.begin[i] = begin;
        rows_.pointers[first + i + 1] = row_begin + begin + degree;
        largest_ = max(largest_, degree);
      }
    }
    __syncthreads();
    const bool has_room = reinterpret_cast<unsigned char*>(results + 2 * count) <= s.memory + sizeof(s.memory);
    const auto write = [&](int place, int src, int item) {
      rows_.other[row_begin + place] = src;
      rows_.item[row_begin + place] = item;
    };
    const auto put = [&](int place, int src, int item) {
      if (!has_room) return write(place, src, item);
      results[place] = src;
      results[count + place] = item;
    };
    for_edges(edges, first, nodes, [&](int row, int src, int item) {
      const unsigned j = src - first_src, word = j / 32;
      const uint32_t* at = bits + row * stride + word;
      const uint32_t left = word % 2 == 1 ? at[-1] : 0, right = *at & ((1u << j % 32) - 1);
      put(s.begin[row] + s.before[row][word / 2] + __popc(left) + __popc(right), src, item);
    });
    if (threadIdx.x < nodes && first + threadIdx.x < rows_.num_loops) {
      const int i = threadIdx.x;
      put((i + 1 < nodes ? s.begin[i + 1] : count) - 1, first + i, num_edges_ + first + i);
    }
    __syncthreads();
    if (has_room) {
      for (int place = threadIdx.x; place < count; place += kGridThreads) {
        write(place, static_cast<int>(results[place]), static_cast<int>(results[count + place]));
      }
      __syncthreads();
    }
    return count;
  }

  // Of each row: its degree, how many bits are before pairs of words, and how far it reaches.
  __device__ __forceinline__ void sum_words(const uint32_t* bits, int words, int stride, int first, int nodes,
                                            int first_src) {
    constexpr int kLanes = 4, kPairs = (kMaxPairs + kLanes - 1) / kLanes;  // of a row, and of a lane
    const int lane = threadIdx.x % kLanes;
    for (int base = 0; base < nodes; base += kGridThreads / kLanes) {
      const int i = base + threadIdx.x / kLanes, first_word = 2 * kPairs * lane;
      const uint32_t* row = bits + min(i, nodes - 1) * stride;
      int of_pair[kPairs], least = num_nodes_, most = -1, sum = 0;
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        const int at = first_word + 2 * k;
        const uint64_t left = at < words ? row[at] : 0, right = at + 1 < words ? row[at + 1] : 0;
        const uint64_t pair = right << 32 | left;
        of_pair[k] = __popcll(pair);
        sum += of_pair[k];
        if (pair != 0) {
          least = min(least, 32 * at + __ffsll(static_cast<long long>(pair)) - 1);
          most = 32 * at + 63 - __clzll(static_cast<long long>(pair));
        }
      }
      int until = sum;
#pragma unroll
      for (int l = 1; l < kLanes; l *= 2) {
        const int before = __shfl_up_sync(~0u, until, l);
        if (lane >= l) until += before;
        least = min(least, __shfl_xor_sync(~0u, least, l));
        most = max(most, __shfl_xor_sync(~0u, most, l));
      }
      if (i >= nodes) continue;
      int before = until - sum;
#pragma unroll
      for (int k = 0; k < kPairs; ++k) {
        if (kPairs * lane + k < kMaxPairs) s_.part.before[i][kPairs * lane + k] = static_cast<uint16_t>(before);
        before += of_pair[k];
      }
      if (lane == kLanes - 1) s_.part.begin[i] = until + (first + i < rows_.num_loops);
      if (lane == 0 && most >= 0) search_.add(min(first_src + least, first + i), max(first_src + most, first + i));
    }
  }

  const Coo& coo_;
  const SortedEdges<int>& rows_;
  const Arrays& w_;
  TileSearch& search_;
  Shared& s_;
  const int num_edges_, num_nodes_;
  int bits_ = kLeastBits;  // a bucket has 2^bits_ nodes
  int largest_ = 0;        // degree that this thread has seen
};

}  // namespace dfgnn::cuda
