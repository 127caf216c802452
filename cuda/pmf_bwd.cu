// PMF backward: the gradient of every edge's logit is kept, so that it is made once. The rows write it along with the
// gradients of dst (gradient_rows.cuh), then those of src and value are two SpMMs by columns (gradient_columns.cuh).
// Heads that are longer than a fragment go the long way: an edge-parallel kernel writes the edges' gradients, and the
// rest is SpMMs.
#include <algorithm>

#include "edges.cuh"
#include "gradient_columns.cuh"
#include "gradient_rows.cuh"
#include "sddmm.cuh"
#include "shapes.cuh"
#include "spmm.cuh"

namespace dfgnn::cuda {
namespace {

template <class S>
bool goes_by_rows_and_columns(const Attention& a) {
  return a.head_dim <= S::kFeatures;
}

// What is kept of the edges, at the beginning of the workspace; and its bytes, a multiple of 16.
template <Score score, class A>
EdgeStore<A> edge_store(const Attention& a, void* workspace) {
  auto* pairs = static_cast<Pair<A>*>(workspace);
  return {pairs, score == Score::additive ? nullptr : reinterpret_cast<A*>(pairs + a.num_edges * a.heads)};
}
template <Score score, class S>
size_t edge_store_bytes(const Attention& a) {
  using A = typename S::A;
  const bool has_numbers = score != Score::additive && goes_by_rows_and_columns<S>(a);
  const size_t each = sizeof(Pair<A>) + (has_numbers ? sizeof(A) : 0);
  return (static_cast<size_t>(a.num_edges) * a.heads * each + 15) / 16 * 16;
}

// weights, operands: A [num_edges, heads], see EdgeGradient.
template <Score score, class S>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    edges_kernel(Typed<typename S::T> a, Gradients g, typename S::A* weights, typename S::A* operands, EdgePlan plan) {
  using A = typename S::A;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  __shared__ A dots[EdgePlan::kWarps][kWarp], dps[EdgePlan::kWarps][kWarp];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  EdgeBatch& batch = batches[warp];
  const Dropout dropout(a);
  const auto destination = [&](int t) { return batch.row[t]; };
  const auto source = [&](int t) { return batch.source[t]; };

  for_edge_batches(a, plan, batch, [&](int64_t first, int count) {
    for (int h = 0; h < a.heads; ++h) {
      if constexpr (score != Score::additive) {
        warp_dots<S, score>(a, a.dst, a.src, h, count, destination, source, [&](int t, A x) { dots[warp][t] = x; });
      }
      warp_dots<S>(a, g.grad_out, a.value, h, count, destination, source, [&](int t, A x) { dps[warp][t] = x; });
      __syncwarp();
      if (lane < count) {
        const int64_t e = first + lane, t = a.scalar(e, h);
        const int i = batch.row[lane];
        const A dot = score == Score::additive ? A(0) : dots[warp][lane];
        const auto s = logit<score>(a, dot, i, batch.source[lane], e, h);
        const auto d = edge_gradient(s, dps[warp][lane], a.at(g.lse, a.scalar(i, h)), a.at(g.delta, a.scalar(i, h)),
                                     dropout.factor(e, h));
        weights[t] = d.weight;
        operands[t] = d.operand;
        if (g.bias) static_cast<A*>(g.bias)[t] = d.ds;
        if (g.a_edge) static_cast<A*>(g.a_edge)[t] = d.operand;
      }
      __syncwarp();
    }
  });
}

template <Score score, class S>
cudaError_t launch_by_rows_and_columns(const Attention& a, const Gradients& g, void* workspace, cudaStream_t stream) {
  const auto store = edge_store<score, typename S::A>(a, workspace);
  void* scratch = static_cast<char*>(workspace) + edge_store_bytes<score, S>(a);
  const cudaError_t error = launch_rows<score, S>(a, g, scratch, store, stream);
  return error == cudaSuccess ? launch_columns<score, S>(a, g, scratch, store, stream) : error;
}

template <Score score, class S>
cudaError_t launch_by_edges(const Attention& a, const Gradients& g, void* workspace, cudaStream_t stream) {
  using T = typename S::T;
  using A = typename S::A;
  A *weights = static_cast<A*>(workspace), *operands = weights + a.num_edges * a.heads;
  cudaError_t error = launch_delta<S>(a, g, stream);
  if (error == cudaSuccess && a.num_edges > 0) {
    const EdgePlan plan = plan_edges(a.num_edges);
    edges_kernel<score, S><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(Typed<T>{a}, g, weights, operands, plan);
    error = cudaGetLastError();
  }
  constexpr Term term = score == Score::additive ? Term::weight : score == Score::additive_v2 ? Term::slope : Term::row;
  const A factor = score == Score::dot ? static_cast<A>(a.scale) : A(1);
  A* slots = reinterpret_cast<A*>(static_cast<char*>(workspace) + edge_store_bytes<score, S>(a));
  const Spmm<T> by_row{a.rowptr, a.col,   Index{}, a.num_dst, a.num_src, operands, a.src_scale,
                       a.src,    a.heads, a.dst,   factor,    g.dst,     false,    slots};
  const Spmm<T> by_column{a.colptr, a.row,   a.perm, a.num_src, a.num_dst, operands, a.dst_scale,
                          a.dst,    a.heads, a.src,  factor,    g.src,     false,    slots};
  const Spmm<T> of_value{a.colptr,   a.row,   a.perm,  a.num_src, a.num_dst, weights, nullptr,
                         g.grad_out, a.heads, nullptr, A(1),      g.value,   false,   slots};
  if (error == cudaSuccess) error = launch_spmm<term, S>(a, by_row, stream);
  if (error == cudaSuccess) error = launch_spmm<term, S>(a, by_column, stream);
  return error == cudaSuccess ? launch_spmm<Term::row, S>(a, of_value, stream) : error;
}

}  // namespace

size_t pmf_bwd_workspace(const Attention& a) {
  size_t bytes = 0;
  for_score_and_shape(a, [&]<Score score, class S>() {
    bytes = edge_store_bytes<score, S>(a);
    if (goes_by_rows_and_columns<S>(a)) {
      bytes += std::max(scratch_bytes<Side::rows, score, S>(a), scratch_bytes<Side::columns, score, S>(a));
    } else {
      const int64_t numbers = int64_t{a.heads} * a.head_dim;
      bytes += spmm_numbers(a.num_edges, numbers) * sizeof(typename S::A);
    }
    return cudaSuccess;
  });
  return bytes;
}

cudaError_t pmf_bwd(const Attention& given, const Gradients& g, void* workspace, cudaStream_t stream) {
  const Attention a = without_edges_to_nowhere(given);
  return for_score_and_shape(a, [&]<Score score, class S>() {
    if constexpr (S::kLoop) {  // all other shapes have room for a head
      if (!goes_by_rows_and_columns<S>(a)) return launch_by_edges<score, S>(a, g, workspace, stream);
    }
    return launch_by_rows_and_columns<score, S>(a, g, workspace, stream);
  });
}

}  // namespace dfgnn::cuda
