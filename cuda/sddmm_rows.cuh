// SDDMM by rows, of all heads at once, where these lie side by side in rows of whole vectors: of a row of some length a
// warp holds the destination's own features.
#pragma once

#include "row_pass.cuh"
#include "sddmm_heads.cuh"

namespace dfgnn::cuda {

// Warps a multiprocessor.
template <class S, bool kTerms>
constexpr int sddmm_rows_warps() {
  return S::kSteps > 1 ? 1 : warps_here<S>(kTerms ? 24 : 28);
}

// S, lanes: as sddmm_heads_kernel has them.
template <class S, bool kTerms>
__global__ void __launch_bounds__(RowUnits::kThreads, (sddmm_rows_warps<S, kTerms>()))
    sddmm_rows_kernel(const __grid_constant__ Typed<typename S::T> graph, const typename S::T* a,
                      const typename S::T* b, const __grid_constant__ FeaturesOfEdges edges, typename S::A* result,
                      int lanes, RowUnits units) {
  using T = typename S::T;
  using A = typename S::A;
  using Terms = FeatureTerms<T, kTerms>;
  constexpr int kEdges = S::kSteps > 2 ? 2 : 4;
  __shared__ EdgeBatch batch;
  __shared__ int rows_of_features[kTerms ? kWarp : 1];
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x / S::kLanes;
  const Terms terms(edges, graph.heads, lane % lanes, rows_of_features);
  const int width = graph.heads * graph.head_dim;
  const unsigned row_bytes = width * sizeof(T);
  const int part = lanes / kEdges, own_edge = lane % lanes / part;
  const bool writes = lane % part == 0;

  clear_no_edges(graph, result);
  for_units(graph.rowptr, graph.num_dst, graph.num_edges, units, [&](int i, const Range& row, int64_t) {
    for (int f = 0; f < (S::kLoop ? width : 1); f += S::kFeatures) {
      const int left = width - f - lane * S::kVec;
      const T* y = b + f + lane * S::kVec;
      Packed<S> own;
      own.load(row_from(a + f + lane * S::kVec, i, row_bytes), 0, left);
      int heads[S::kSteps];
      typename Terms::Vector own_term[S::kSteps]{};
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
        heads[s] = (f + (s * S::kLanes + lane) * S::kVec) / graph.head_dim;
        own_term[s] = terms.of_node(i, min(heads[s], graph.heads - 1));
      }
      const auto load_source = [&](int64_t e) { return LoadedNode(graph.col, min(e, row.end - 1)); };
      LoadedNode next_source;
      if (row.size() > 0) next_source = load_source(row.begin + threadIdx.x);
#pragma unroll 1
      for (int64_t first = row.begin; first < row.end; first += kWarp) {
        const int count = static_cast<int>(min(int64_t{kWarp}, row.end - first));
        __syncwarp();
        batch.source[threadIdx.x] = threadIdx.x < count ? next_source.check(graph.num_src) : kNoNode;
        next_source = load_source(first + kWarp + threadIdx.x);
        __syncwarp();
        terms.begin(edges, first, count, batch);
        A* const results = result + graph.scalar(first, 0);
#pragma unroll 1
        for (int base = 0; base < count; base += kEdges * S::kGroups) {
          const int begin = base + group * kEdges;
          int sources[kEdges];
          load_numbers(sources, batch.source + begin);
          Packed<S> other[kEdges];
          typename Terms::Vector term[kEdges];
#pragma unroll
          for (int u = 0; u < kEdges; ++u) {
            other[u].load(row_from(y, max(sources[u], 0), row_bytes), 0, left);
            term[u] = terms.of_edge(begin + u);
          }
#pragma unroll
          for (int s = 0; s < S::kSteps; ++s) {
            A dots[kEdges];
#pragma unroll
            for (int u = 0; u < kEdges; ++u) {
              dots[u] = kTerms ? own_term[s].dot(term[u]) : A(0);
#pragma unroll
              for (int v = 0; v < S::kVec; ++v) dots[u] += own[s * S::kVec + v] * other[u][s * S::kVec + v];
            }
            const A sum = scattered_sum(dots, lane, lanes);
            const int t = begin + own_edge;
            if (!writes || t >= count || heads[s] >= graph.heads) continue;
            results[t * graph.heads + heads[s]] = batch.source[t] == kNoNode ? A(NAN) : sum;
          }
        }
      }
    }
  });
}

}  // namespace dfgnn::cuda
