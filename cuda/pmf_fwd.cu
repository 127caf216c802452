// PMF forward: an SDDMM writes the logits, edge-parallel or, on tensor cores, by rows and pieces of rows that are as
// balanced; softmax and SpMM follow by rows.
#include "edges.cuh"
#include "forward_pieces.cuh"
#include "row_sum.cuh"
#include "sddmm.cuh"
#include "shapes.cuh"

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

// Softmax and SpMM of a row, or of a piece of one, by a warp: an online softmax over batches of edges (Milakov &
// Gimelshein 2018).
template <class S, class Sum>
__device__ __forceinline__ void softmax_row(const Typed<typename S::T>& a, const typename S::A* scores,
                                            const Outputs& outputs, typename S::A* slots, unsigned* inexact, int i,
                                            const Range& edges, int64_t slot, int h) {
  using A = typename S::A;
  __shared__ typename Sum::Batch batch;
  const int lane = threadIdx.x;
  const Dropout dropout(a);
  for (int f = 0; f < (S::kLoop ? a.head_dim : 1); f += S::kFeatures) {
    const typename Sum::Reader value_row(a, a.value, h, Sum::lane(), f);
    Sum out;
    A m = -INFINITY, sum = A(0), s = -INFINITY;
    int node = 0;
    const auto load = [&](int64_t first) {  // past the end, the last edge without weight
      const int64_t e = min(first + lane, edges.end - 1);
      node = checked_node(a.col[e], a.num_src);
      s = first + lane < edges.end ? scores[a.scalar(e, h)] : A(-INFINITY);
    };
    if (edges.size() > 0) load(edges.begin);
    for (int64_t first = edges.begin; first < edges.end; first += kWarp) {
      const int count = static_cast<int>(min(static_cast<int64_t>(kWarp), edges.end - first));
      __syncwarp();
      batch.node[lane] = max(node, 0);
      __syncwarp();
      out.load(batch, count, value_row);
      const A largest = warp_max(s);
      if (largest > m) {
        const A fade = exp_difference(m, largest);
        sum *= fade;
        out.scale(fade);
        m = largest;
      }
      const A p = exp_difference(s, m);
      sum += p;
      batch.put(lane, out.fit(p * dropout.factor(first + lane, h)));
      load(first + kWarp);
      __syncwarp();
      out.add(batch, count, value_row);
    }
    if (!out.is_exact()) *inexact = 1;
    sum = lanes_sum<kWarp>(sum);
    if (slot == kWhole) {
      out.store(a.features(outputs.out, i, h) + f, a.head_dim - f, sum == A(0) ? A(0) : A(1) / sum);
      if (lane == 0) static_cast<A*>(outputs.lse)[a.scalar(i, h)] = m + log(sum);
    } else {
      A* piece = slots + (slot * a.heads + h) * forward_slot_width(a);
      out.store_piece(piece + f, a.head_dim - f, A(1));
      if (lane == 0) {
        piece[a.head_dim] = m;
        piece[a.head_dim + 1] = sum;
      }
    }
  }
}

template <class S, class Sum>
__global__ void __launch_bounds__(RowUnits::kThreads, sizeof(typename S::A) == 8          ? 1
                                                      : std::is_same_v<Sum, VectorSum<S>> ? 24
                                                                                          : 28)
    softmax_rows_kernel(const __grid_constant__ Typed<typename S::T> a, const typename S::A* scores,
                        const __grid_constant__ Outputs outputs, RowUnits units, typename S::A* slots) {
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t slot) {
    softmax_row<S, Sum>(a, scores, outputs, slots, units.inexact, i, edges, slot, blockIdx.y);
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
    auto* by_vectors = softmax_rows_kernel<S, VectorSum<S>>;
    auto* softmax_rows = by_vectors;
    decltype(by_vectors) exact = nullptr;
    if constexpr (kTensorRows<S>) {
      if (on_tensor_cores) {
        softmax_rows = softmax_rows_kernel<S, TensorSum<S>>;
        exact = by_vectors;
      }
    }
    const auto launch = [&](dim3 grid, const RowUnits& with, auto* kernel) {
      kernel<<<grid, RowUnits::kThreads, 0, stream>>>(typed, scores, outputs, with, scratch.slots);
    };
    error = launch_units(units, a, a.num_dst, a.heads, scratch.counters, stream, softmax_rows, exact, launch);
    if (error != cudaSuccess) return error;
    return merge_outputs<T>(a, outputs, units, scratch.slots, stream);
  });
}

}  // namespace dfgnn::cuda
