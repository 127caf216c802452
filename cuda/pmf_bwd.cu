// PMF backward: the gradient of every edge's logit is kept, so that it is made once. A pass over the rows writes it
// along with the gradients of dst, then those of src and value are two SpMMs by columns, in one kernel. Scores and head
// sizes that this does not take go the long way: an edge-parallel kernel writes the edges' gradients, and the rest is
// SpMMs.
#include <algorithm>

#include "edges.cuh"
#include "gradient_sides.cuh"
#include "spmm.cuh"

namespace dfgnn::cuda {
namespace {

// Rows on tensor cores, 16 edges at a time: their rows times the own row (sddmm.cuh), the gradient of an edge by a
// lane, and weighted sums of src's rows, which are read again, from the L1 cache (row_sum.cuh).
template <Score score, class S>
__device__ __forceinline__ void tensor_gradient_row(const Typed<typename S::T>& a, const Gradients& g, float* slots,
                                                    Pair<float>* pairs, unsigned* inexact, int i, const Range& edges,
                                                    int64_t slot, int h) {
  using Sum = TensorSum<S>;
  using Rows = OctetRows<S>;
  constexpr bool kAdditive = score == Score::additive, kShared = score == Score::cosine;
  constexpr bool kAhead = score == Score::dot;  // values of the next edges are fetched while these are worked on
  __shared__ typename Sum::Batch batch;
  const int place = Rows::place();
  const Dropout dropout(a);
  const typename Rows::Reader dst_row(a, a.dst, h, lane_in_octet()), src_row(a, a.src, h, lane_in_octet());
  const typename Rows::Reader grad_row(a, g.grad_out, h, lane_in_octet()), value_row(a, a.value, h, lane_in_octet());
  const typename Rows::Reader out_row(a, g.out, h, lane_in_octet());
  const typename Sum::Reader summed(a, a.src, h, Sum::lane());

  Sum grad;
  float grad_scalar = 0;
  const float lse = a.at(g.lse, a.scalar(i, h));
  float delta = lanes_sum<Rows::O::kLanes>(packed_dot<typename Rows::O>(grad_row(i), out_row(i)));
  if (g.grad_lse) delta -= a.at(g.grad_lse, a.scalar(i, h));
  const auto load_node = [&](int64_t e) {  // past the end, the last again
    return checked_node(a.col[min(e, edges.end - 1)], a.num_src);
  };
  int next_node = edges.size() > 0 ? load_node(edges.begin + place) : kNoNode;
  Rows values, sources;
  if (kAhead && edges.size() > 0) values.load(max(next_node, 0), value_row);
  for (int64_t first = edges.begin; first < edges.end; first += 16) {
    const int count = static_cast<int>(min(static_cast<int64_t>(16), edges.end - first));
    const int node = next_node, safe_node = max(node, 0);
    const int64_t e = min(first + place, edges.end - 1);
    next_node = load_node(first + place + 16);
    float dot = 0, dp = 0;
    if constexpr (kAdditive) values.load(safe_node, value_row);
    if constexpr (!kShared) dp = values.dot(grad_row(i));
    if constexpr (!kAdditive) sources.load(safe_node, src_row);
    if constexpr (kAhead) values.load(max(next_node, 0), value_row);
    if constexpr (!kAdditive) {
      if constexpr (kShared) dp = sources.dot(grad_row(i));
      dot = sources.dot(dst_row(i));
    }
    const auto d = edge_gradient<score>(a, dot, dp, lse, delta, dropout.factor(e, h), i, node, e, h);
    const bool live = place < count, is_first = !(lane_group() & 1);  // of the two lanes with this edge
    if constexpr (kAdditive) {
      if (live && is_first) grad_scalar += d.operand;
    } else {
      float weight = score == Score::dot ? d.operand * a.logit_scale : d.operand;
      if constexpr (kShared) weight *= a.at(a.src_scale, a.scalar(safe_node, h));
      weight = grad.fit(live ? weight : 0.f);
      __syncwarp();
      if (is_first) {
        batch.node[place] = safe_node;
        batch.put(place, weight);
      }
    }
    if (live && is_first) {
      pairs[a.scalar(e, h)] = {d.weight, d.operand};
      if (g.bias) static_cast<float*>(g.bias)[a.scalar(e, h)] = d.ds;
      if (g.a_edge) static_cast<float*>(g.a_edge)[a.scalar(e, h)] = d.operand;
    }
    __syncwarp();
    if constexpr (!kAdditive) {
      grad.load(batch, count, summed);
      grad.add(batch, count, summed);
    }
  }
  if (!grad.is_exact()) *inexact = 1;
  if constexpr (kAdditive) grad_scalar = lanes_sum<kWarp>(grad_scalar);
  store_gradients<Side::rows, score>(a, g, i, h, grad, grad, grad_scalar, threadIdx.x == 0, 1.f, slot, slots);
}

template <Score score, class S>
__global__ void __launch_bounds__(RowUnits::kThreads, 12)
    tensor_rows_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                       RowUnits units, float* slots, Pair<float>* pairs) {
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t slot) {
    tensor_gradient_row<score, S>(a, g, slots, pairs, units.inexact, i, edges, slot, blockIdx.y);
  });
}

// Gradients of src and value of column j, or of a piece of it, from the pairs that the rows left.
template <Score score, class S, class Sum>
__device__ __forceinline__ void column_from_pairs(const Typed<typename S::T>& a, const Gradients& g,
                                                  typename S::A* slots, const Pair<typename S::A>* pairs,
                                                  unsigned* inexact, int j, const Range& entries, int64_t slot, int h) {
  using A = typename S::A;
  constexpr bool kAdditive = score == Score::additive;
  __shared__ typename Sum::Batch batch, value_batch;
  const int lane = threadIdx.x;
  const typename Sum::Reader dst_row(a, a.dst, h, Sum::lane()), grad_row(a, g.grad_out, h, Sum::lane());
  Sum grad, grad_value;
  A grad_scalar = A(0);
  int node = 0;
  int64_t position = 0;
  const auto load = [&](int64_t entry) {  // past the end, the last again
    entry = min(entry, entries.end - 1);
    node = checked_node(a.row[entry], a.num_dst);
    position = clamp_to(a.perm[entry], a.num_edges - 1);
  };
  if (entries.size() > 0) load(entries.begin + lane);
  for (int64_t first = entries.begin; first < entries.end; first += kWarp) {
    const int count = static_cast<int>(min(static_cast<int64_t>(kWarp), entries.end - first));
    Pair<A> pair{A(0), A(0)};
    if (lane < count && node != kNoNode) pair = pairs[a.scalar(position, h)];
    __syncwarp();
    value_batch.node[lane] = batch.node[lane] = max(node, 0);
    __syncwarp();
    grad_value.load(value_batch, count, grad_row);
    value_batch.put(lane, grad_value.fit(pair.weight));
    if constexpr (kAdditive) {
      grad_scalar += pair.operand;
    } else {
      const A scale = score == Score::cosine ? a.at(a.dst_scale, a.scalar(max(node, 0), h)) : a.logit_scale;
      batch.put(lane, grad.fit(pair.operand * scale));
    }
    load(first + kWarp + lane);
    __syncwarp();
    grad_value.add(value_batch, count, grad_row);
    if constexpr (!kAdditive) {
      grad.load(batch, count, dst_row);
      grad.add(batch, count, dst_row);
    }
  }
  if (!grad.is_exact() || !grad_value.is_exact()) *inexact = 1;
  if constexpr (kAdditive) grad_scalar = lanes_sum<kWarp>(grad_scalar);
  store_gradients<Side::columns, score>(a, g, j, h, grad, grad_value, grad_scalar, threadIdx.x == 0, A(1), slot, slots);
}

template <Score score, class S, class Sum>
__global__ void __launch_bounds__(RowUnits::kThreads, sizeof(typename S::A) == 8          ? 1
                                                      : std::is_same_v<Sum, VectorSum<S>> ? 24
                                                                                          : 18)
    columns_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g, RowUnits units,
                   typename S::A* slots, Pair<typename S::A>* pairs) {
  for_units(a.colptr, a.num_src, a.num_edges, units, [&](int j, const Range& entries, int64_t slot) {
    column_from_pairs<score, S, Sum>(a, g, slots, pairs, units.inexact, j, entries, slot, blockIdx.y);
  });
}

// Scores and head sizes that go by rows and columns.
template <Score score, class S>
bool goes_by_rows_and_columns(const Attention& a) {
  return score != Score::additive_v2 && a.head_dim <= S::kFeatures;
}

template <Score score, class S>
cudaError_t launch_rows_and_columns(const Attention& a, const Gradients& g, void* workspace, cudaStream_t stream) {
  using T = typename S::T;
  using A = typename S::A;
  auto* pairs = static_cast<Pair<A>*>(workspace);
  void* scratch = pairs + a.num_edges * a.heads;
  const auto launch = [&](dim3 grid, const RowUnits& units, A* slots, auto* kernel) {
    kernel<<<grid, RowUnits::kThreads, 0, stream>>>(Typed<T>{a}, g, units, slots, pairs);
  };
  auto *rows_by_vectors = gradients_kernel<Side::rows, score, S>, *rows = rows_by_vectors;
  auto *columns_by_vectors = columns_kernel<score, S, VectorSum<S>>, *columns = columns_by_vectors;
  unsigned row_blocks = head_blocks<S>(a.heads);
  decltype(rows) exact_rows = nullptr;
  decltype(columns) exact_columns = nullptr;
  if constexpr (kTensorRows<S>) {
    if (tensor_rows<S>(a.head_dim)) {
      rows = tensor_rows_kernel<score, S>;
      columns = columns_kernel<score, S, TensorSum<S>>;
      exact_rows = rows_by_vectors;
      exact_columns = columns_by_vectors;
      row_blocks = a.heads;
    }
  }
  const cudaError_t error =
      launch_side<Side::rows, score, S>(a, g, scratch, stream, row_blocks, rows, exact_rows, launch);
  if (error != cudaSuccess) return error;
  return launch_side<Side::columns, score, S>(a, g, scratch, stream, a.heads, columns, exact_columns, launch);
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
        warp_dots<S, score>(a, a.dst, a.src, h, 0, count, destination, source, [&](int t, A x) { dots[warp][t] = x; });
      }
      warp_dots<S>(a, g.grad_out, a.value, h, 0, count, destination, source, [&](int t, A x) { dps[warp][t] = x; });
      __syncwarp();
      if (lane < count) {
        const int64_t e = first + lane, t = a.scalar(e, h);
        const int i = batch.row[lane];
        const A dot = score == Score::additive ? A(0) : dots[warp][lane];
        const auto d =
            edge_gradient<score>(a, dot, dps[warp][lane], a.at(g.lse, a.scalar(i, h)), a.at(g.delta, a.scalar(i, h)),
                                 dropout.factor(e, h), i, batch.source[lane], e, h);
        weights[t] = d.weight;
        operands[t] = d.operand;
        if (g.bias) static_cast<A*>(g.bias)[t] = d.ds;
        if (g.a_edge) static_cast<A*>(g.a_edge)[t] = d.operand;
      }
      __syncwarp();
    }
  });
}

}  // namespace

size_t pmf_bwd_workspace(const Attention& a) {
  size_t bytes = 0;
  for_score_and_shape(a, [&]<Score score, class S>() {
    bytes = static_cast<size_t>(a.num_edges) * a.heads * sizeof(Pair<typename S::A>);
    if (goes_by_rows_and_columns<score, S>(a)) {
      bytes += std::max(scratch_bytes<Side::rows, score, S>(a), scratch_bytes<Side::columns, score, S>(a));
    }
    return cudaSuccess;
  });
  return bytes;
}

cudaError_t pmf_bwd(const Attention& given, const Gradients& g, void* workspace, cudaStream_t stream) {
  const Attention a = without_edges_to_nowhere(given);
  bool done = false;
  cudaError_t error = for_score_and_shape(a, [&]<Score score, class S>() {
    using A = typename S::A;
    if constexpr (score != Score::additive_v2) {
      if (goes_by_rows_and_columns<score, S>(a)) {
        done = true;
        return launch_rows_and_columns<score, S>(a, g, workspace, stream);
      }
    }
    const cudaError_t delta_error = launch_delta<S>(a, g, stream);
    if (delta_error != cudaSuccess || a.num_edges == 0) return delta_error;
    const EdgePlan plan = plan_edges(a.num_edges);
    A* weights = static_cast<A*>(workspace);
    edges_kernel<score, S><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(Typed<typename S::T>{a}, g, weights,
                                                                           weights + a.num_edges * a.heads, plan);
    return cudaGetLastError();
  });
  if (error != cudaSuccess || done) return error;

  return for_type_and_shape(a.type, a.head_dim, [&]<class S>() {
    using T = typename S::T;
    using A = typename S::A;
    const A* weights = static_cast<const A*>(workspace);
    const A* operands = weights + a.num_edges * a.heads;
    const A factor = a.score == Score::dot ? static_cast<A>(a.scale) : A(1);
    const Term term = a.score == Score::additive      ? Term::weight
                      : a.score == Score::additive_v2 ? Term::slope
                                                      : Term::row;
    const Spmm<T> by_row{a.rowptr, a.col,   Index{}, a.num_dst, a.num_src, operands, a.src_scale,
                         a.src,    a.heads, a.dst,   factor,    term,      g.dst};
    const Spmm<T> by_column{a.colptr, a.row,   a.perm, a.num_src, a.num_dst, operands, a.dst_scale,
                            a.dst,    a.heads, a.src,  factor,    term,      g.src};
    const Spmm<T> of_value{a.colptr,   a.row,   a.perm,  a.num_src, a.num_dst, weights, nullptr,
                           g.grad_out, a.heads, nullptr, A(1),      Term::row, g.value};
    for (const auto& pass : {by_row, by_column, of_value}) {
      const cudaError_t pass_error = launch_spmm<S>(a, pass, stream);
      if (pass_error != cudaSuccess) return pass_error;
    }
    return cudaSuccess;
  });
}

}  // namespace dfgnn::cuda
