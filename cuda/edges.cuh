// Edge-parallel kernels: every warp takes a run of consecutive edges, whatever rows they belong to.
#pragma once

#include "find_row.cuh"
#include "logit.cuh"

namespace dfgnn::cuda {

struct EdgePlan {
  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int64_t kMaxEdges = 256;  // of a warp: enough that finding its first row is cheap beside them
  int64_t edges_per_warp;
  unsigned blocks;
};

inline EdgePlan plan_edges(int64_t num_edges) {
  constexpr int64_t kWarpsWanted = 8192;  // to fill the device where there are few edges
  int64_t edges = num_edges / kWarpsWanted / kWarp * kWarp;
  edges = edges < kWarp ? kWarp : (edges > EdgePlan::kMaxEdges ? EdgePlan::kMaxEdges : edges);
  const int64_t edges_per_block = edges * EdgePlan::kWarps;
  return {edges, static_cast<unsigned>((num_edges + edges_per_block - 1) / edges_per_block)};
}

// Rows and sources of a warp's next edges, in shared memory; behind the last one a row that there is, and kNoNode.
struct alignas(16) EdgeBatch {
  int row[kWarp], source[kWarp];
};

// Calls batch_of(first, count) for the warp's run of edges, `count` at a time, their rows and sources in `batch`.
// Graph: Attention, or what else has a CSR by these names.
template <class Graph, class Batch>
__device__ __forceinline__ void for_edge_batches(const Graph& a, const EdgePlan& plan, EdgeBatch& batch,
                                                 const Batch& batch_of) {
  const int64_t num_edges = clamp_to(a.rowptr[a.num_dst], a.num_edges);
  const int64_t warp = (static_cast<int64_t>(blockIdx.x) * EdgePlan::kThreads + threadIdx.x) / kWarp;
  const int64_t run = min(warp * plan.edges_per_warp, num_edges), end = min(run + plan.edges_per_warp, num_edges);
  const int64_t begin = max(run, clamp_to(a.rowptr[0], num_edges));
  if (begin >= end) return;
  const int lane = threadIdx.x % kWarp;
  const auto load_source = [&](int64_t e) { return LoadedNode(a.col, min(e, end - 1)); };
  int64_t row = warp_find_row(a.rowptr, a.num_dst, begin);
  LoadedNode next_source = load_source(begin + lane);
  for (int64_t first = begin; first < end; first += kWarp) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kWarp), end - first));
    batch.row[lane] = static_cast<int>(lane < count ? find_row_from(a.rowptr, a.num_dst, row, first + lane) : row);
    batch.source[lane] = lane < count ? next_source.check(a.num_src) : kNoNode;
    next_source = load_source(first + kWarp + lane);
    __syncwarp();
    row = batch.row[count - 1];
    batch_of(first, count);
    __syncwarp();
  }
}

// Zeros in the place of results [E, heads] of entries that no row has: before the first one's begin and behind the last
// one's end. By a whole grid; of most graphs there are none.
template <class Graph, class A>
__device__ __forceinline__ void clear_no_edges(const Graph& a, A* results) {
  const int64_t end = clamp_to(a.rowptr[a.num_dst], a.num_edges), begin = clamp_to(a.rowptr[0], end);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 1
  for (int64_t i = thread; i < begin * a.heads; i += threads) results[i] = A(0);
#pragma unroll 1
  for (int64_t i = end * a.heads + thread; i < a.num_edges * a.heads; i += threads) results[i] = A(0);
}

// The same of results whose entries are `stride` numbers apart.
template <class Graph, class A>
__device__ __forceinline__ void clear_no_edges(const Graph& a, A* results, int stride) {
  const int64_t end = clamp_to(a.rowptr[a.num_dst], a.num_edges), begin = clamp_to(a.rowptr[0], end);
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * blockDim.x;
#pragma unroll 1
  for (int64_t n = thread; n < begin + a.num_edges - end; n += threads) {
    A* const of_entry = results + (n < begin ? n : n - begin + end) * stride;
    for (int h = 0; h < a.heads; ++h) of_entry[h] = A(0);
  }
}

}  // namespace dfgnn::cuda
