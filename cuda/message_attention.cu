// Attention over messages by rows, a warp each. Forward: logits, an online softmax and both sums of an edge in one pass
// over the row's, and products with W of what is the row's own; nothing of an edge is stored. Backward: logits again
// and the gradients of weights, from which those of the destination's rows and of features are made and, for the sums
// by source, two numbers are stored for each edge and head.
#include "edges.cuh"
#include "merge.cuh"
#include "message_attention.h"
#include "message_lanes.cuh"

namespace dfgnn::cuda {
namespace {

template <class S, bool kBackward>
constexpr int message_warps() {
  return warps_here<S>(S::kSteps > 1 ? (kBackward ? 12 : 16) : kBackward ? 20 : 24);
}

// Numbers of a slot, for each head: the sum of rows, and the softmax's maximum and sum.
__host__ __device__ int forward_numbers(const Attention& a) { return a.head_dim + 2; }

template <class S>
__global__ void __launch_bounds__(RowUnits::kThreads, (message_warps<S, false>()))
    forward_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ MessageFeatures edges,
                   const MessageOutputs outputs, int log_lanes, typename S::A* slots, RowUnits units) {
  using A = typename S::A;
  using Lanes = MessageLanes<S>;
  __shared__ MessageBatch<A> batch;
  const Lanes of(a, edges, log_lanes, batch);
  const Dropout dropout(a);
  const int numbers = forward_numbers(a);
  const auto largest_of = [](A x, A y) { return max(x, y); };
  const auto sum_of = [](A x, A y) { return x + y; };
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& row, int64_t slot) {
    const auto query = of.own(a.dst, i);
    typename Lanes::Sum total;
    A m[S::kSteps], sum[S::kSteps];
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      m[s] = -INFINITY;
      sum[s] = A(0);
    }
    of.for_steps(row, [&](int64_t e, int count, const typename Lanes::Step& step) {
      const int t = step.first + of.own_edge();
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
        const A logit = of.logit(a.logit_scale * of.dots(query, step.keys, step.terms, s), t);
        const A largest = max(m[s], of.over_edges(logit, largest_of)), fade = exp_difference(m[s], largest);
        const A p = exp_difference(logit, largest), weight = p * dropout.factor(e + t, of.head[s]);
        m[s] = largest;
        sum[s] = sum[s] * fade + p;  // of the lane's own edges
        total.scale(s, fade);
#pragma unroll
        for (int u = 0; u < Lanes::kEdges; ++u) {
          const A of_edge = of.of_edge(weight, u);
          if (step.first + u < count) total.add(s, of_edge, step.values[u], step.terms[u]);
        }
      }
    });

    A factor[S::kSteps];
    A* const piece = slot == kWhole ? nullptr : slots + slot * a.heads * numbers;
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      const A row_max = of.over_groups(m[s], largest_of), share = exp_difference(m[s], row_max);
      sum[s] = of.over_groups(of.over_edges(sum[s], sum_of) * share, sum_of);
      total.scale(s, share);
      factor[s] = sum[s] == A(0) ? A(0) : A(1) / sum[s];
      if (!of.is_first_of_head(s)) continue;
      if (piece) {
        A* const softmax = piece + of.head[s] * numbers + a.head_dim;
        softmax[0] = row_max;
        softmax[1] = sum[s];
      } else {
        static_cast<A*>(outputs.lse)[a.scalar(i, of.head[s])] = row_max + log(sum[s]);
      }
    }
    of.add_product(total);
    piece ? of.store_piece(total.x, piece, numbers) : of.store(total.x, outputs.out, i, factor);
  });
}

template <class S>
__global__ void __launch_bounds__(RowUnits::kThreads, (message_warps<S, true>()))
    backward_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ MessageFeatures edges,
                    const __grid_constant__ MessageGradients g, int log_lanes, typename S::A* slots, RowUnits units) {
  using A = typename S::A;
  using Lanes = MessageLanes<S>;
  constexpr int kEdges = Lanes::kEdges, kTerm = Lanes::kTerm;
  __shared__ MessageBatch<A> batch;
  const Lanes of(a, edges, log_lanes, batch);
  const Dropout dropout(a);
  A *const logits = static_cast<A*>(g.logits), *const weights = static_cast<A*>(g.weights);
  clear_no_edges(a, logits);
  clear_no_edges(a, weights);
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& row, int64_t slot) {
    const auto query = of.own(a.dst, i), grad_out = of.own(g.grad_out, i);
    A lse[S::kSteps], delta[S::kSteps], one[S::kSteps];
    {
      const auto out = of.row(g.out, i);
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
        lse[s] = a.at(g.lse, a.scalar(i, of.head[s]));
        delta[s] = of.dot(grad_out.x, out, s);
        one[s] = A(1);
      }
    }
    // A softmax of one logit is 1, whatever that is; products would leave their roundings.
    const bool is_only = slot == kWhole && row.size() == 1;
    typename Lanes::Sum total;
    typename Lanes::TermSum weighted;
    of.for_steps(row, [&](int64_t e, int count, const typename Lanes::Step& step) {
      const int t = step.first + of.own_edge();
      A terms[kEdges * kTerm] = {};
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
        const A logit = of.logit(a.logit_scale * of.dots(query, step.keys, step.terms, s), t);
        const A kept = dropout.factor(e + t, of.head[s]);
        const A dp = kept * of.dots(grad_out, step.values, step.terms, s);
        const A p = exp_difference(logit, lse[s]), weight = p * kept;
        const A ds = a.logit_scale * p * (dp - (is_only ? dp : delta[s]));
        if (of.is_first_of_edge(s) && t < count) {
          const int64_t at = a.scalar(e + t, of.head[s]);
          logits[at] = ds;
          weights[at] = weight;
        }
#pragma unroll
        for (int u = 0; u < kEdges; ++u) {
          const A ds_of_edge = of.of_edge(ds, u), weight_of_edge = of.of_edge(weight, u);
          if (step.first + u < count) {
            total.add(s, ds_of_edge, step.keys[u], step.terms[u]);
            weighted.add(s, weight_of_edge, step.terms[u]);
          }
          if (!g.features || !of.live[s]) continue;
#pragma unroll
          for (int v = 0; v < kTerm; ++v) {
            terms[u * kTerm + v] += ds_of_edge * query.terms[s][v] + weight_of_edge * grad_out.terms[s][v];
          }
        }
      }
      if (g.features) of.store_features(g.features, step.first, count, terms);
    });
    const int numbers = message_gradient_numbers(a, edges);
    A* const piece = slot == kWhole ? nullptr : slots + slot * a.heads * numbers;
    if (g.by_logits) {
      typename Lanes::TermSum by_logits = total;
      if (piece) {
        of.store_terms_piece(by_logits, piece, numbers, a.head_dim);
        of.store_terms_piece(weighted, piece, numbers, a.head_dim + edges.width);
      } else {
        of.store_terms(by_logits, g.by_logits, i);
        of.store_terms(weighted, g.by_weights, i);
      }
    }
    of.add_product(total);
    piece ? of.store_piece(total.x, piece, numbers) : of.store(total.x, g.query, i, one);
  });
}

}  // namespace

size_t message_attention_fwd_scratch(const Attention& a, const MessageFeatures& edges) {
  return edges.pieces > 0 ? message_octets_fwd_scratch(a, edges) : message_scratch(a, forward_numbers(a));
}

size_t message_attention_bwd_scratch(const Attention& a, const MessageFeatures& edges) {
  return edges.pieces > 0 ? message_octets_bwd_scratch(a, edges)
                          : message_scratch(a, message_gradient_numbers(a, edges));
}

cudaError_t message_attention_fwd(const Attention& a, const MessageFeatures& edges, const MessageOutputs& outputs,
                                  void* scratch, cudaStream_t stream) {
  if (a.num_dst == 0) return cudaSuccess;
  if (edges.pieces > 0) return message_octets_fwd(a, edges, outputs, scratch, stream);
  return for_message_shape(a, [&]<class S>() {
    using T = typename S::T;
    const int numbers = forward_numbers(a);
    const auto merge = [&](const RowPass& pass, auto* slots) {
      Merge<T, true> task{a.rowptr, a.num_dst, a.num_edges, pass.units(), a.heads, slots, numbers, a.head_dim};
      task.number = static_cast<typename S::A*>(outputs.lse);
      task.rows[task.results++] = static_cast<T*>(outputs.out);
      return launch_merge(task, stream);
    };
    return launch_messages<S>(a, edges, outputs, numbers, forward_kernel<S>, scratch, stream, merge);
  });
}

cudaError_t message_attention_bwd(const Attention& a, const MessageFeatures& edges, const MessageGradients& g,
                                  void* scratch, cudaStream_t stream) {
  if (a.num_dst == 0) return cudaSuccess;
  if (edges.pieces > 0) return message_octets_bwd(a, edges, g, scratch, stream);
  return for_message_shape(a, [&]<class S>() {
    using T = typename S::T;
    const int numbers = message_gradient_numbers(a, edges);
    const auto merge = [&](const RowPass& pass, auto* slots) {
      Merge<T, false> rows{a.rowptr, a.num_dst, a.num_edges, pass.units(), a.heads, slots, numbers, a.head_dim};
      rows.rows[rows.results++] = static_cast<T*>(g.query);
      const cudaError_t error = launch_merge(rows, stream);
      if (error != cudaSuccess || !g.by_logits) return error;
      Merge<T, false> terms = rows;
      terms.slots += a.head_dim;
      terms.features = edges.width;
      terms.rows[0] = static_cast<T*>(g.by_logits);
      terms.rows[terms.results++] = static_cast<T*>(g.by_weights);
      return launch_merge(terms, stream);
    };
    return launch_messages<S>(a, edges, g, numbers, backward_kernel<S>, scratch, stream, merge);
  });
}

}  // namespace dfgnn::cuda
