// SDDMM by runs of edges, of all heads at once, where these lie side by side in rows of whole vectors.
#pragma once

#include "edges.cuh"
#include "feature_terms.cuh"
#include "shared_sums.cuh"

namespace dfgnn::cuda {

// Shapes of rows of heads that have `lanes` >= 4 each, a power of two, and 8 together.
template <class S>
constexpr bool takes_heads = S::kVec > 1 && S::kLanes >= 8;

// Blocks a multiprocessor.
template <class S, bool kTerms>
constexpr int sddmm_blocks() {
  return blocks_here(S::kSteps > 1 ? 1 : kTerms ? 3 : 4);
}

// S: the shape of a row of all heads, of which `lanes` neighbouring lanes have a head each. A group of lanes takes
// kEdges consecutive edges at a time, whose rows are on their way together; that of a destination only once.
template <class S, bool kTerms>
__global__ void __launch_bounds__(EdgePlan::kThreads, (sddmm_blocks<S, kTerms>()))
    sddmm_heads_kernel(Typed<typename S::T> graph, const typename S::T* a, const typename S::T* b,
                       FeaturesOfEdges edges, typename S::A* result, int lanes, EdgePlan plan) {
  using T = typename S::T;
  using A = typename S::A;
  using Terms = FeatureTerms<T, kTerms>;
  constexpr int kEdges = S::kSteps > 2 ? 2 : 4;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  __shared__ int rows_of_features[kTerms ? EdgePlan::kWarps : 1][kWarp];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const Terms terms(edges, graph.heads, lane % lanes, rows_of_features[kTerms ? threadIdx.x / kWarp : 0]);
  const int width = graph.heads * graph.head_dim;
  const unsigned row_bytes = width * sizeof(T);
  const int part = lanes / kEdges, own_edge = lane % lanes / part;
  const bool writes = lane % part == 0;
  int first_heads[S::kSteps];
#pragma unroll
  for (int s = 0; s < S::kSteps; ++s) first_heads[s] = (s * S::kLanes + lane) * S::kVec / graph.head_dim;

  clear_no_edges(graph, result);
  Packed<S> own{};
  typename Terms::Vector own_term[S::kSteps]{};
  int own_row = kNoNode;
  for_edge_batches(graph, plan, batch, [&](int64_t first, int count) {
    terms.begin(edges, first, count, batch);
    for (int base = 0; base < count; base += kEdges * S::kGroups) {
      const int begin = base + group * kEdges;
      int rows[kEdges], sources[kEdges];
      load_numbers(rows, batch.row + begin);
      load_numbers(sources, batch.source + begin);
      for (int f = 0; f < (S::kLoop ? width : 1); f += S::kFeatures) {
        const T *x = a + f + lane * S::kVec, *y = b + f + lane * S::kVec;
        const int left = width - f - lane * S::kVec, heads_before = f / graph.head_dim;
        Packed<S> next[kEdges], other[kEdges];
        typename Terms::Vector next_term[kEdges][S::kSteps], term[kEdges];
        bool is_next[kEdges];
#pragma unroll
        for (int u = 0; u < kEdges; ++u) {
          is_next[u] = S::kLoop || rows[u] != (u > 0 ? rows[u - 1] : own_row);
          if (is_next[u]) next[u].load(row_from(x, rows[u], row_bytes), 0, left);
          other[u].load(row_from(y, max(sources[u], 0), row_bytes), 0, left);
          term[u] = terms.of_edge(begin + u);
#pragma unroll
          for (int s = 0; s < S::kSteps; ++s) {
            const int head = min(first_heads[s] + heads_before, graph.heads - 1);
            if (is_next[u]) next_term[u][s] = terms.of_node(rows[u], head);
          }
        }
        A dots[S::kSteps][kEdges];
#pragma unroll
        for (int u = 0; u < kEdges; ++u) {
          if (is_next[u]) own = next[u];
#pragma unroll
          for (int s = 0; s < S::kSteps; ++s) {
            if (is_next[u]) own_term[s] = next_term[u][s];
            A dot = kTerms ? own_term[s].dot(term[u]) : A(0);
#pragma unroll
            for (int v = 0; v < S::kVec; ++v) dot += own[s * S::kVec + v] * other[u][s * S::kVec + v];
            dots[s][u] = dot;
          }
        }
        const int t = begin + own_edge;
#pragma unroll
        for (int s = 0; s < S::kSteps; ++s) {
          const A sum = scattered_sum(dots[s], lane, lanes);
          const int head = first_heads[s] + heads_before;
          if (!writes || t >= count || head >= graph.heads) continue;
          result[graph.scalar(first + t, head)] = batch.source[t] == kNoNode ? A(NAN) : sum;
        }
      }
      own_row = rows[kEdges - 1];
    }
  });
}

}  // namespace dfgnn::cuda
