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

// Sums over lanes up to this one.
template <class N>
__device__ __forceinline__ N sum_to_lane(N x) {
#pragma unroll
  for (int l = 1; l < kWarp; l *= 2) {
    const N below = __shfl_up_sync(kAllLanes, x, l);
    if (threadIdx.x % kWarp >= l) x += below;
  }
  return x;
}

template <class S>
class Slices {
 public:
  uint4* offsets = nullptr;  // [batches][kGroups] of four edges: where in a chunk the other node's row begins
  uint16_t* begins;          // [nodes + 1] of a row's edges among the tile's
  uint16_t* order;           // [slices][kGroups] rows, those of most edges first
  int64_t first_edge;

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

  // Sorts the rows and cuts them into slices. By all threads; ends with a barrier. False where numbers do not fit.
  __device__ __forceinline__ bool sort(const Index& ptr, int64_t num_edges) {
    __shared__ unsigned rank[kBuckets];
    const int thread = threadIdx.x, nodes = tile_.nodes;
    if (thread < kBuckets) rank[thread] = 0;
    first_edge = clamp_to(ptr[tile_.first], num_edges);
    bool fits = true;
    for (int i = thread; i <= nodes; i += S::kThreads) {
      const int64_t begin = ptr[tile_.first + i] - first_edge;
      fits &= begin >= 0 && begin <= UINT16_MAX && first_edge + begin <= num_edges;
      begins[i] = static_cast<uint16_t>(begin);
    }
    if (!__syncthreads_and(fits)) return false;
    const auto batches_of = [&](int row) { return (max(degree(row), 0) + kBatch - 1) / kBatch; };
    const auto bucket = [&](int row) { return max(kBuckets - 1 - batches_of(row), 0); };
    for (int i = thread; i < nodes; i += S::kThreads) {
      fits &= degree(i) >= 0;
      atomicAdd(rank + bucket(i), 1u);
    }
    if (!__syncthreads_and(fits)) return false;
    if (thread < kWarp) {
      const unsigned own = rank[thread];
      rank[thread] = sum_to_lane(own) - own;
    }
    __syncthreads();
    // In any order within a bucket, which no result depends on.
    for (int i = thread; i < nodes; i += S::kThreads) order[atomicAdd(rank + bucket(i), 1u)] = static_cast<uint16_t>(i);
    __syncthreads();
    bool few = true;
    if (thread < kWarp) {
      int begin = 0;
      for (int t = thread; t - thread < count(); t += kWarp) {
        int width = 0;
        for (int r = 0; r < kGroups; ++r) {
          const int place = t * kGroups + r;
          if (place < nodes) width = max(width, batches_of(order[place]));
        }
        const int sum = sum_to_lane(width);
        if (t < count()) slices_[t] = static_cast<uint16_t>(begin + sum - width);
        begin += __shfl_sync(kAllLanes, sum, kWarp - 1);
      }
      few = begin <= UINT16_MAX;
      if (thread == 0) slices_[count()] = static_cast<uint16_t>(begin);
    }
    return __syncthreads_and(few);
  }

  // Fetches what fill() reads to the L2 cache.
  __device__ __forceinline__ void fetch(const Index& other) const {
    const int apart = 32 / (other.wide ? 8 : 4);
    for (int e = threadIdx.x * apart; e < edges(); e += S::kThreads * apart) {
      asm volatile("prefetch.global.L2 [%0];" ::"l"(other.from(first_edge + e).data));
    }
  }

  // Calls visit(slot, row, position) for all slots, `position` being the edge's in the compressed form, -1 for none. A
  // group of lanes takes a row.
  template <class Visit>
  __device__ __forceinline__ void for_slots(const Visit& visit) const {
    for (int place = threadIdx.x / kLanes; place < count() * kGroups; place += S::kThreads / kLanes) {
      const int t = place / kGroups, row = place < tile_.nodes ? order[place] : 0;
      const int size = place < tile_.nodes ? degree(row) : 0, width = begin(t + 1) - begin(t);
      for (int e = lane_in_group(); e < width * kBatch; e += kLanes) {
        visit(slot(place, e), row, e < size ? first_edge + begins[row] + e : -1);
      }
    }
  }

  // The other node of an edge, of the tile.
  __device__ __forceinline__ int node(int slot) const {
    return reinterpret_cast<const int*>(offsets)[slot] / kRowBytes;
  }

  // Sets an edge's offset, or, of none (node -1), that of zeros. Returns whether the node is in the tile.
  __device__ __forceinline__ bool set_offset(int slot, int node) const {
    const bool is_inside = static_cast<unsigned>(node) < static_cast<unsigned>(tile_.nodes);
    reinterpret_cast<int*>(offsets)[slot] = (is_inside ? node : tile_.nodes) * kRowBytes;
    return is_inside;
  }

  // All offsets. A barrier must follow. False where an edge leaves the tile.
  __device__ __forceinline__ bool fill(const Index& other) const {
    bool stay = true;
    for_slots([&](int slot, int, int64_t position) {
      const int64_t node = position < 0 ? -1 : other[position] - tile_.first;
      const bool is_int = node == static_cast<int>(node);
      if (!set_offset(slot, is_int ? static_cast<int>(node) : -1)) stay &= position < 0;
    });
    return stay;
  }

 private:
  uint16_t* slices_;  // [slices + 1] their first batches
  Tile tile_;
};

}  // namespace dfgnn::cuda::resident
