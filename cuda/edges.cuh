// Edge-parallel kernels: every warp takes a run of consecutive edges, whatever rows they belong to.
#pragma once

#include "logit.cuh"

namespace dfgnn::cuda {

struct EdgePlan {
  static constexpr int kThreads = 256;
  static constexpr int64_t kMaxEdges = 256;  // of a warp: enough that finding its first row is cheap beside them
  int64_t edges_per_warp;
  unsigned blocks;
};

inline EdgePlan plan_edges(int64_t num_edges) {
  constexpr int64_t kWarpsWanted = 8192;  // to fill the device where there are few edges
  constexpr int64_t kWarps = EdgePlan::kThreads / kWarp;
  int64_t edges = num_edges / kWarpsWanted;
  edges = edges < 16 ? 16 : (edges > EdgePlan::kMaxEdges ? EdgePlan::kMaxEdges : edges);
  return {edges, static_cast<unsigned>((num_edges + edges * kWarps - 1) / (edges * kWarps))};
}

// The run of this warp; empty past the last edge.
__device__ __forceinline__ Range warp_edges(const Attention& a, const EdgePlan& plan) {
  const int64_t num_edges = clamp_to(a.rowptr[a.num_dst], a.num_edges);
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * EdgePlan::kThreads + threadIdx.x) / kWarp;
  const int64_t begin = min(warp * plan.edges_per_warp, num_edges);
  return {begin, min(begin + plan.edges_per_warp, num_edges)};
}

// The row of edge e: the last that begins at or before it. The warp probes 32 rows at a time.
__device__ __forceinline__ int64_t warp_find_row(const Index& rowptr, int64_t num_rows, int64_t e) {
  int64_t low = 0, count = num_rows;
  while (count > 1) {
    const int64_t step = (count + kWarp - 1) / kWarp;
    const int64_t probe = low + (threadIdx.x % kWarp) * step;
    const unsigned before = __ballot_sync(kAllLanes, probe < low + count && rowptr[probe] <= e);
    const int64_t last = low + count;
    if (before != 0) low += (kWarp - 1 - __clz(before)) * step;
    count = min(step, last - low);
  }
  return low;
}

// Ends of rows, for a RowWalk.
struct RowEnds {
  Index rowptr;
  __device__ __forceinline__ int64_t operator[](int64_t r) const { return rowptr[r + 1]; }
};

}  // namespace dfgnn::cuda
