// The edges of a tile in shared memory, as slices of an ELLPACK format (SELL-C-sigma, Kreutzer et al. 2014): rows are
// sorted by degree, a warp takes a slice of kGroups rows, kLanes lanes a row, and goes over the slice's edges, a batch
// of each row at a time. Then a warp's rows have (nearly) as many edges each, and what it reads is contiguous.
#pragma once

#include "logit.cuh"
#include "mma.cuh"
#include "resident_geometry.h"

namespace dfgnn::cuda::resident {

constexpr int kBuckets = kWarp;

struct Tile {
  int first, nodes;
};

// A group's row of a slice.
struct SliceRow {
  int node;   // of the tile
  bool live;  // else there is none, and node is another row's
};

template <class S>
class Slices {
 public:
  uint2* offsets = nullptr;  // [batches][kGroups] of two edges: where in a chunk the other node's row begins
  uint16_t* begins;          // [nodes + 1] of a row's edges among the tile's
  uint16_t* order;           // [slices][kGroups] rows, those of most edges first
  int64_t first_edge = 0;

  __device__ __forceinline__ Slices(const Tile& tile, unsigned char* memory)
      : begins(reinterpret_cast<uint16_t*>(memory)),
        order(begins + tile.nodes + 1),
        slices_(order + slots_of_nodes(tile.nodes)),
        tile_(tile) {}

  __device__ __forceinline__ int count() const { return (tile_.nodes + kGroups - 1) / kGroups; }
  __device__ __forceinline__ int begin(int slice) const { return slices_[slice]; }  // its first batch
  __device__ __forceinline__ int batches() const { return slices_[count()]; }
  __device__ __forceinline__ int edges() const { return begins[tile_.nodes]; }
  __device__ __forceinline__ int degree(int row) const { return begins[row + 1] - begins[row]; }

  __device__ __forceinline__ SliceRow row(int slice) const {
    const int place = slice * kGroups + lane_group();
    return {order[min(place, tile_.nodes - 1)], place < tile_.nodes};
  }

  // Number of a row's edge `e` among slots, the row being at `place` in the order.
  __device__ __forceinline__ int slot(int place, int e) const {
    return ((slices_[place / kGroups] + e / kBatch) * kGroups + place % kGroups) * kBatch + e % kBatch;
  }

  // Fetches what copy() reads of a list to the L2 cache.
  __device__ __forceinline__ void fetch(const Index& list) const {
    const int apart = 32 / (list.wide ? 8 : 4);
    for (int e = threadIdx.x * apart; e < edges(); e += S::kThreads * apart) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(list.from(first_edge + e).data));
    }
  }

  // Copies what lists have of the tile's edges, less `first`, to shared memory; kNone where that is not below `end`.
  // All are on their way at a time.
  static constexpr int kNone = UINT16_MAX;
  struct List {
    const Index& entries;
    int64_t first;
    int end;
    uint16_t* to;
  };
  template <int kLists>
  __device__ __forceinline__ void copy(const List (&lists)[kLists]) const {
    constexpr int kAtOnce = 8;
    const int count = edges();
    for (int begin = threadIdx.x; begin < count; begin += kAtOnce * S::kThreads) {
      int64_t x[kLists][kAtOnce];
#pragma unroll
      for (int l = 0; l < kLists; ++l) load_apart(lists[l].entries.from(first_edge + begin), count - begin, x[l]);
#pragma unroll
      for (int l = 0; l < kLists; ++l) {
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          const uint64_t entry = x[l][u] - lists[l].first;
          const bool fits = entry < static_cast<uint64_t>(lists[l].end);
          const int e = begin + u * S::kThreads;
          if (e < count) lists[l].to[e] = static_cast<uint16_t>(fits ? entry : kNone);
        }
      }
    }
  }

  // Calls visit(place, offsets) for a slice's batches, two at a time as long as there are two: `place` is that of the
  // group in the first, kGroups before that in the next; `offsets` are theirs.
  template <class Visit>
  __device__ __forceinline__ void for_steps(int slice, const Visit& visit) const {
    const auto step = [&]<int kBatches>(int b) {
      const int place = b * kGroups + lane_group();
      uint2 own[kBatches];
#pragma unroll
      for (int x = 0; x < kBatches; ++x) own[x] = offsets[place + x * kGroups];
      visit(place, own);
    };
    const int end = begin(slice + 1);
    int b = begin(slice);
#pragma unroll 1
    for (; b + 1 < end; b += 2) step.template operator()<2>(b);
    if (b < end) step.template operator()<1>(b);
  }

  // Calls visit(place, row) for all places of slices, a thread each; the row is -1 where there is none.
  template <class Visit>
  __device__ __forceinline__ void for_places(const Visit& visit) const {
    for (int place = threadIdx.x; place < count() * kGroups; place += S::kThreads) {
      visit(place, place < tile_.nodes ? static_cast<int>(order[place]) : -1);
    }
  }

  // Calls visit(batch, edge, left) for the batches of a row: their number among those of all slices, their first edge's
  // among the tile's, and how many edges the row has from there on.
  template <class Visit>
  __device__ __forceinline__ void for_batches(int place, int row, const Visit& visit) const {
    const int size = row < 0 ? 0 : degree(row), first = row < 0 ? 0 : begins[row];
    const int begin = slices_[place / kGroups], batches = slices_[place / kGroups + 1] - begin;
    for (int b = 0; b < batches; ++b) {
      visit((begin + b) * kGroups + place % kGroups, first + b * kBatch, size - b * kBatch);
    }
  }

  // The same for the row of a lane's group, in that slice; its lanes share the batches.
  template <class Visit>
  __device__ __forceinline__ void for_shared_batches(int slice, const SliceRow& row, const Visit& visit) const {
    const int size = row.live ? degree(row.node) : 0, first = begins[row.node];
    const int begin = slices_[slice], batches = slices_[slice + 1] - begin;
#pragma unroll 1
    for (int b = lane_in_group(); b < batches; b += kLanes) {
      visit((begin + b) * kGroups + lane_group(), first + b * kBatch, size - b * kBatch);
    }
  }

  // The other node of an edge, of the tile.
  __device__ __forceinline__ int node(int slot) const {
    return reinterpret_cast<const int*>(offsets)[slot] / kRowBytes;
  }

  // The offset of a node of the tile, or, of kNone, that of zeros.
  __device__ __forceinline__ unsigned offset_of(int node) const {
    return static_cast<unsigned>(min(node, tile_.nodes)) * kRowBytes;
  }

  // All offsets, from the edges' other nodes. A barrier must follow. False where an edge leaves the tile.
  __device__ __forceinline__ bool fill(const uint16_t* others) const {
    bool stay = true;
    for_places([&](int place, int row) {
      for_batches(place, row, [&](int batch, int first, int left) {
        const int a = left > 0 ? others[first] : kNone, b = left > 1 ? others[first + 1] : kNone;
        stay &= (left <= 0 || a != kNone) && (left <= 1 || b != kNone);
        offsets[batch] = {offset_of(a), offset_of(b)};
      });
    });
    return stay;
  }

  // ---- steps of sort_rows()

  // Where a thread's rows begin and end in a compressed form, `row` being the first.
  struct Bounds {
    static constexpr int kRows = 2;
    int64_t begins[kRows], ends[kRows];
  };
  __device__ __forceinline__ Bounds load_bounds(const Index& ptr, int row) const {
    Bounds bounds;
    load_apart(ptr.from(tile_.first + row), tile_.nodes - row, bounds.begins);
    load_apart(ptr.from(tile_.first + row + 1), tile_.nodes - row, bounds.ends);
    return bounds;
  }

  // Where rows begin, and how many there are of each bucket; `bounds` are those of the thread's first rows. False where
  // numbers do not fit.
  __device__ __forceinline__ bool count_rows(const Index& ptr, Bounds bounds, int64_t num_edges, unsigned* counts) {
    first_edge = clamp_to(ptr[tile_.first], num_edges);
    bool fit = true;
    for (int row = threadIdx.x; row - lane() < tile_.nodes; row += Bounds::kRows * S::kThreads) {
      if (row >= Bounds::kRows * S::kThreads) bounds = load_bounds(ptr, row);
#pragma unroll
      for (int u = 0; u < Bounds::kRows; ++u) {
        const int i = row + u * S::kThreads;
        const int64_t begin = bounds.begins[u] - first_edge, end = bounds.ends[u] - first_edge;
        const bool is_row = i < tile_.nodes;
        const bool fits = begin >= 0 && begin <= end && end <= UINT16_MAX && first_edge + end <= num_edges;
        if (is_row) begins[i] = static_cast<uint16_t>(begin);
        if (i + 1 == tile_.nodes) begins[i + 1] = static_cast<uint16_t>(end);
        add_one(counts, !is_row ? kBuckets : fits ? bucket(static_cast<int>(end - begin)) : 0);
        fit &= fits || !is_row;
      }
    }
    return fit;
  }

  // `ranks`: of the first row of each bucket. In any order within a bucket, which no result depends on, as its rows
  // have as many batches each; but in bucket 0, whose rows have kBuckets - 1 and more, in a certain one.
  __device__ __forceinline__ void order_rows(unsigned* ranks) const {
    for (int row = threadIdx.x; row - lane() < tile_.nodes; row += S::kThreads) {
      const int own = row < tile_.nodes ? bucket(degree(row)) : kBuckets;
      unsigned rank = add_one(ranks, own == 0 ? kBuckets : own);
      if (own == 0) rank = rank_by_degree(row);
      if (row < tile_.nodes) order[rank] = static_cast<uint16_t>(row);
    }
  }

  // By one warp. False where there are too many batches.
  __device__ __forceinline__ bool cut_slices() const {
    int begin = 0;
    for (int first = 0; first < count(); first += kWarp) {
      const int t = first + lane(), width = t < count() ? batches_of(degree(order[t * kGroups])) : 0;
      const int sum = sum_to_lane(width);
      if (t < count()) slices_[t] = static_cast<uint16_t>(begin + sum - width);
      begin += __shfl_sync(kAllLanes, sum, kWarp - 1);
    }
    if (lane() == 0) slices_[count()] = static_cast<uint16_t>(begin);
    return begin <= UINT16_MAX;
  }

 private:
  __device__ __forceinline__ static int lane() { return threadIdx.x % kWarp; }

  // For each lane, what the counter had before, those of lanes before that have the same one included; kBuckets is
  // none. Of a few counters each has many lanes: one of them adds for all.
  __device__ __forceinline__ static unsigned add_one(unsigned* counters, int own) {
    const unsigned same = __match_any_sync(kAllLanes, own);
    const int leader = __ffs(static_cast<int>(same)) - 1;
    unsigned before = 0;
    if (lane() == leader && own < kBuckets) before = atomicAdd(counters + own, static_cast<unsigned>(__popc(same)));
    return __shfl_sync(kAllLanes, before, leader) + __popc(same & ((1u << lane()) - 1));
  }

  // How many rows come before that one, those of more edges first.
  __device__ __forceinline__ unsigned rank_by_degree(int row) const {
    const int own = degree(row);
    unsigned rank = 0;
    for (int other = 0; other < tile_.nodes; ++other) {
      const int size = degree(other);
      rank += size > own || (size == own && other < row);
    }
    return rank;
  }

  // x[u] = list[u * kThreads] where that is below `count`, all at a time.
  template <int kCount>
  __device__ __forceinline__ static void load_apart(const Index& list, int count, int64_t (&x)[kCount]) {
    const auto load = [&](auto* data) {
#pragma unroll
      for (int u = 0; u < kCount; ++u) x[u] = u * S::kThreads < count ? __ldg(data + u * S::kThreads) : 0;
    };
    list.typed(load);
  }

  __device__ __forceinline__ static int bucket(int edges) { return max(kBuckets - 1 - batches_of(edges), 0); }

  uint16_t* slices_;  // [slices + 1] their first batches
  Tile tile_;
};

// Sorts the rows of each side and cuts them into slices. By all threads; ends with a barrier. False where numbers do
// not fit. Calls meanwhile() once it waits for memory.
template <class S, int kSides, class Meanwhile>
__device__ __forceinline__ bool sort_rows(Slices<S> (&sides)[kSides], const Index* (&ptrs)[kSides], int64_t num_edges,
                                          const Meanwhile& meanwhile) {
  static_assert(kSides <= S::kWarps);
  __shared__ unsigned ranks[kSides][kBuckets];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  typename Slices<S>::Bounds bounds[kSides];
#pragma unroll
  for (int s = 0; s < kSides; ++s) bounds[s] = sides[s].load_bounds(*ptrs[s], threadIdx.x);
  meanwhile();
  if (warp < kSides) ranks[warp][lane] = 0;
  __syncthreads();
  bool fits = true;
#pragma unroll
  for (int s = 0; s < kSides; ++s) fits &= sides[s].count_rows(*ptrs[s], bounds[s], num_edges, ranks[s]);
  if (!__syncthreads_and(fits)) return false;
  if (warp < kSides) {
    const unsigned own = ranks[warp][lane];
    ranks[warp][lane] = sum_to_lane(own) - own;
  }
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kSides; ++s) sides[s].order_rows(ranks[s]);
  __syncthreads();
#pragma unroll
  for (int s = 0; s < kSides; ++s) {
    if (warp == s) fits = sides[s].cut_slices();
  }
  return __syncthreads_and(fits);
}

}  // namespace dfgnn::cuda::resident
