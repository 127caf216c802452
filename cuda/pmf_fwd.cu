// PMF forward: an SDDMM writes the logits, edge-parallel or, on tensor cores, by rows and pieces of rows that are as
// balanced; softmax and SpMM follow by rows.
#include "edges.cuh"
#include "sddmm.cuh"
#include "shapes.cuh"
#include "softmax_rows.cuh"

namespace dfgnn::cuda {
namespace {

template <Score score, class S>
__global__ void __launch_bounds__(EdgePlan::kThreads, sizeof(typename S::A) == 4 ? 4 : 1)
    logits_kernel(Typed<typename S::T> a, typename S::A* scores, EdgePlan plan) {
  using A = typename S::A;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  __shared__ A dots[EdgePlan::kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  EdgeBatch& batch = batches[warp];

  for_edge_batches(a, plan, batch, [&](int64_t first, int count) {
    for (int h = 0; h < a.heads; ++h) {
      if constexpr (score != Score::additive) {
        warp_dots<S, score>(
            a, a.dst, a.src, h, 0, count, [&](int t) { return batch.row[t]; }, [&](int t) { return batch.source[t]; },
            [&](int t, A dot) { dots[warp][t] = dot; });
        __syncwarp();
      }
      if (lane < count) {
        const A dot = score == Score::additive ? A(0) : dots[warp][lane];
        scores[a.scalar(first + lane, h)] =
            logit<score>(a, dot, batch.row[lane], batch.source[lane], first + lane, h).value;
      }
      __syncwarp();
    }
  });
}

// The same on tensor cores, by rows.
template <Score score, class S>
__global__ void __launch_bounds__(RowUnits::kThreads, 24)
    tensor_logits_kernel(Typed<typename S::T> a, float* scores, RowUnits units) {
  using Rows = OctetRows<S>;
  const int h = blockIdx.y, place = Rows::place();
  const typename Rows::Reader dst_row(a, a.dst, h, lane_in_octet()), src_row(a, a.src, h, lane_in_octet());
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t) {
    if (edges.size() == 0) return;
    const auto own = dst_row(i);
    const auto load = [&](int64_t e) { return checked_node(a.col[min(e, edges.end - 1)], a.num_src); };
    int next = load(edges.begin + place);
    for (int64_t e = edges.begin + place; e - place < edges.end; e += 16) {
      const int node = next;
      Rows rows;
      rows.load(max(node, 0), src_row);
      next = load(e + 16);
      const float dot = rows.dot(own);
      if (e < edges.end && !(lane_group() & 1)) scores[a.scalar(e, h)] = logit<score>(a, dot, i, node, e, h).value;
      __syncwarp();
    }
  });
}

}  // namespace

size_t pmf_fwd_workspace(const Attention& a) {
  const size_t number = a.type == Type::f64 ? sizeof(double) : sizeof(float);
  return forward_scratch_bytes(a, plan_forward(a)) + static_cast<size_t>(a.num_edges) * a.heads * number;
}

cudaError_t pmf_fwd(const Attention& a, const Outputs& outputs, void* workspace, cudaStream_t stream) {
  if (a.num_dst == 0) return cudaSuccess;
  const RowUnits units = plan_forward(a);
  return for_score_and_shape(a, [&]<Score score, class S>() {
    using T = typename S::T;
    using A = typename S::A;
    const Typed<T> typed{a};
    A* scores = static_cast<A*>(workspace);
    const UnitScratch<A> scratch(scores + a.num_edges * a.heads, a.heads);
    const bool on_tensor_cores = tensor_rows<S>(a.head_dim);
    bool has_logits = a.num_edges == 0;
    cudaError_t error = cudaSuccess;
    if constexpr (kTensorRows<S> && (score == Score::dot || score == Score::cosine)) {
      if (on_tensor_cores && !has_logits) {
        has_logits = true;
        const auto launch = [&](dim3 grid, const RowUnits& with, auto* kernel) {
          kernel<<<grid, RowUnits::kThreads, 0, stream>>>(typed, scores, with);
        };
        auto* kernel = tensor_logits_kernel<score, S>;
        const decltype(kernel) none = nullptr;
        error = launch_units(units, a, a.num_dst, a.heads, scratch.counters, stream, kernel, none, launch);
      }
    }
    if (!has_logits) {
      const EdgePlan plan = plan_edges(a.num_edges);
      logits_kernel<score, S><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(typed, scores, plan);
      error = cudaGetLastError();
    }
    if (error != cudaSuccess) return error;
    return launch_softmax_rows<true, S>(a, scores, outputs, units, scratch, stream);
  });
}

}  // namespace dfgnn::cuda
