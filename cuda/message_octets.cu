// Attention over messages as message_attention.cu has it, of more features of edges than a head's lanes take beside
// nodes': what W^T makes of nodes is there before, W meets sums afterwards, and what is between is made by tensor
// cores, of eight edges of a row at a time (message_octets.cuh).
#include "edges.cuh"
#include "merge.cuh"
#include "message_attention.h"
#include "message_octets.cuh"

namespace dfgnn::cuda {
namespace {

// Warps a multiprocessor: as many as registers leave room for without spilling much.
template <class S, int kPieces, bool kBackward>
constexpr int octet_warps() {
  constexpr bool kMany = 2 * S::kSteps + kPieces > 4;
  return warps_here<S>(kMany ? 8 : kBackward ? 12 : 16);
}

// Numbers of a slot, for each head: the sum of rows and that of features, each with the softmax's maximum and sum.
__host__ __device__ int forward_numbers(const Attention& a, const MessageFeatures& edges) {
  return a.head_dim + edges.width + 4;
}

// Of a warp; kRows: one number of an edge and head, or two of the backward pass.
template <int kRows>
struct OctetShared {
  MessageBatch<float> batch;
  alignas(16) OctetNumbers dots[kRows], weights[kRows];
  alignas(16) float of_heads[kOctet];
};

// Of two neighbouring edges or heads.
__device__ __forceinline__ float2 pair_of(const float* numbers) {
  return reinterpret_cast<const float2*>(numbers)[lane_in_group()];
}
__device__ __forceinline__ void put_pair(float* numbers, const float (&x)[2]) {
  reinterpret_cast<float2*>(numbers)[lane_in_group()] = {x[0], x[1]};
}

// Of the lanes that have a head.
__device__ __forceinline__ float head_max(float x) { return lanes_max<4>(x); }
__device__ __forceinline__ float head_sum(float x) { return lanes_sum<4>(x); }

template <class S, int kPieces>
__global__ void __launch_bounds__(RowUnits::kThreads, (octet_warps<S, kPieces, false>()))
    forward_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ MessageFeatures edges,
                   const __grid_constant__ MessageOutputs results, int log_lanes, float* slots, RowUnits units) {
  using Features = FeatureOctet<typename S::T, kPieces>;
  using Nodes = NodeOctet<S>;
  __shared__ OctetShared<1> shared;
  const Nodes nodes(a, log_lanes);
  const Features features(edges, a.heads);
  const RowReader<S> keys = nodes.reader(a.src), values = nodes.reader(a.value);
  const Dropout dropout(a);
  const int g = lane_group(), c = lane_in_group(), numbers = forward_numbers(a, edges);
  const bool is_head = g < a.heads;
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& row, int64_t slot) {
    const typename Features::Factor projected[1] = {features.factor(edges.projected, i)};
    const Packed<S> query = nodes.row(a.dst, i);
    Fragment<S> total;
    total.zero();
    typename Features::Sums sums[1] = {};
    float m = -INFINITY, sum = 0;  // of head g; the sum of the lane's own edges
    for_message_batches(a, edges, shared.batch, row, [&](int64_t e, int count) {
#pragma unroll 1
      for (int base = 0; base < count; base += kOctet) {
        const MessageBatch<float>& batch = shared.batch;
        typename Nodes::Rows key, value;
        Nodes::load(key, keys, batch.node + base);
        const auto edge = features.factor(batch.features + base);
        Nodes::load(value, values, batch.node + base);
        const auto terms = features.terms(batch.features + base, count - base);
        nodes.put_dots(shared.dots[0], query, key);
        float of_features[1][2];
        Features::dots(projected, edge, of_features);
        __syncwarp();
        const float2 of_nodes = pair_of(shared.dots[0][g]), offset = pair_of(batch.offset + base);
        float logits[2] = {a.logit_scale * (of_nodes.x + of_features[0][0]) + offset.x,
                           a.logit_scale * (of_nodes.y + of_features[0][1]) + offset.y};
        if (!is_head) logits[0] = logits[1] = 0;
        const float largest = max(m, head_max(max(logits[0], logits[1]))), fade = exp_difference(m, largest);
        m = largest;
        sum *= fade;
        float weights[1][2];
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          const float p = exp_difference(logits[u], largest);
          sum += p;
          weights[0][u] = is_head ? p * dropout.factor(e + base + 2 * c + u, g) : 0;
        }
        put_pair(shared.weights[0][g], weights[0]);
        if (c == 0) shared.of_heads[g] = fade;
        __syncwarp();
        nodes.add(total, shared.weights[0], value, count - base, shared.of_heads);
        Features::add(sums, weights, terms, pair_of(shared.of_heads));
      }
    });

    sum = head_sum(sum);
    float* const piece = slot == kWhole ? nullptr : slots + slot * a.heads * numbers;
    __syncwarp();
    if (c == 0) shared.of_heads[g] = piece ? 1 : sum == 0 ? 0 : 1 / sum;
    __syncwarp();
    if (c == 0 && is_head) {
      if (piece) {
        float* const of_head = piece + g * numbers + a.head_dim;
        of_head[0] = of_head[2 + edges.width] = m;
        of_head[1] = of_head[3 + edges.width] = sum;
      } else {
        static_cast<float*>(results.lse)[a.scalar(i, g)] = m + log(sum);
      }
    }
    if (piece) {
      nodes.store_piece(total, piece, numbers);
      features.store_piece(sums[0], piece, numbers, a.head_dim + 2);
    } else {
      float scale[S::kSteps];
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) scale[s] = shared.of_heads[nodes.head[s]];
      nodes.store(total, results.out, i, scale);
      features.store(sums[0], results.sums, i, pair_of(shared.of_heads));
    }
  });
}

template <class S, int kPieces>
__global__ void __launch_bounds__(RowUnits::kThreads, (octet_warps<S, kPieces, true>()))
    backward_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ MessageFeatures edges,
                    const __grid_constant__ MessageGradients results, int log_lanes, float* slots, RowUnits units) {
  using T = typename S::T;
  using Features = FeatureOctet<T, kPieces>;
  using Nodes = NodeOctet<S>;
  __shared__ OctetShared<2> shared;
  __shared__ typename Features::Rows projected[2];
  const Nodes nodes(a, log_lanes);
  const Features features(edges, a.heads);
  const RowReader<S> keys = nodes.reader(a.src), values = nodes.reader(a.value);
  const Dropout dropout(a);
  auto* const of_logits = static_cast<float*>(results.logits);
  auto* const of_weights = static_cast<float*>(results.weights);
  const int g = lane_group(), c = lane_in_group(), numbers = message_gradient_numbers(a, edges);
  const bool is_head = g < a.heads;
  clear_no_edges(a, of_logits);
  clear_no_edges(a, of_weights);
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& row, int64_t slot) {
    __syncwarp();
    features.copy_heads(projected[0], edges.projected, i);
    features.copy_heads(projected[1], results.projected, i);
    const Packed<S> query = nodes.row(a.dst, i), grad_out = nodes.row(results.grad_out, i);
    {
      const Packed<S> out = nodes.row(results.out, i);
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
        const float delta = nodes.dot(grad_out, out, s);
        if (nodes.is_first_of_head(s)) shared.of_heads[nodes.head[s]] = delta;
      }
    }
    wait_for_copies();
    __syncwarp();
    const float lse = is_head ? a.at(results.lse, a.scalar(i, g)) : 0, delta = is_head ? shared.of_heads[g] : 0;
    // A softmax of one logit is 1, whatever that is; products would leave their roundings.
    const bool is_only = slot == kWhole && row.size() == 1;
    Fragment<S> total;
    total.zero();
    typename Features::Sums sums[2] = {};
    for_message_batches(a, edges, shared.batch, row, [&](int64_t e, int count) {
#pragma unroll 1
      for (int base = 0; base < count; base += kOctet) {
        const MessageBatch<float>& batch = shared.batch;
        typename Nodes::Rows key;
        Nodes::load(key, keys, batch.node + base);
        {
          typename Nodes::Rows value;
          Nodes::load(value, values, batch.node + base);
          const auto edge = features.factor(batch.features + base);
          const auto terms = features.terms(batch.features + base, count - base);
          nodes.put_dots(shared.dots[0], query, key);
          nodes.put_dots(shared.dots[1], grad_out, value);
          float of_features[2][2];
          const typename Features::Factor heads[2] = {Features::factor(projected[0]), Features::factor(projected[1])};
          Features::dots(heads, edge, of_features);
          __syncwarp();
          const float2 x = pair_of(shared.dots[0][g]), dx = pair_of(shared.dots[1][g]),
                       offset = pair_of(batch.offset + base);
          const float logits[2] = {a.logit_scale * (x.x + of_features[0][0]) + offset.x,
                                   a.logit_scale * (x.y + of_features[0][1]) + offset.y};
          const float gradients[2] = {dx.x + of_features[1][0], dx.y + of_features[1][1]};
          float weights[2][2];
#pragma unroll
          for (int u = 0; u < 2; ++u) {
            const int t = base + 2 * c + u;
            const float kept = dropout.factor(e + t, g), p = exp_difference(logits[u], lse), dp = kept * gradients[u];
            const bool is_there = is_head && t < count;
            weights[0][u] = is_there ? a.logit_scale * p * (dp - (is_only ? dp : delta)) : 0;
            weights[1][u] = is_there ? p * kept : 0;
            if (is_there) {
              const int64_t at = a.scalar(e + t, g);
              of_logits[at] = weights[0][u];
              of_weights[at] = weights[1][u];
            }
          }
          put_pair(shared.weights[0][g], weights[0]);
          put_pair(shared.weights[1][g], weights[1]);
          Features::add(sums, weights, terms, {1, 1});
        }
        __syncwarp();
        nodes.add(total, shared.weights[0], key, count - base);
        if (!results.features) continue;
        T* to[2];
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          const int t = base + 2 * c + u;
          to[u] = batch.offset[t] == 0
                      ? static_cast<T*>(results.features) + static_cast<int64_t>(batch.features[t]) * edges.width
                      : nullptr;
        }
        features.store_gradients(shared.weights, projected, to);
      }
    });
    float* const piece = slot == kWhole ? nullptr : slots + slot * a.heads * numbers;
    if (piece) {
      nodes.store_piece(total, piece, numbers);
      features.store_piece(sums[0], piece, numbers, a.head_dim);
      features.store_piece(sums[1], piece, numbers, a.head_dim + edges.width);
    } else {
      float scale[S::kSteps];
#pragma unroll
      for (float& x : scale) x = 1;
      nodes.store(total, results.query, i, scale);
      features.store(sums[0], results.by_logits, i, {1, 1});
      if (results.by_weights) features.store(sums[1], results.by_weights, i, {1, 1});
    }
  });
}

// Calls launch.operator()<S, kPieces>() with the shape of a row of all heads.
template <class Launch>
cudaError_t for_octet_shape(const Attention& a, const MessageFeatures& edges, const Launch& launch) {
  return for_message_shape(a, [&]<class S>() {
    if constexpr (sizeof(typename S::T) == 8 || (S::kVec == 2 && S::kSteps > 1)) {
      return cudaErrorInvalidValue;  // heads of 8 are too many then
    } else {
      switch (edges.pieces) {
        case 1:
          return launch.template operator()<S, 1>();
        case 2:
          return launch.template operator()<S, 2>();
        default:
          return launch.template operator()<S, 4>();
      }
    }
  });
}

// Adds up what pieces have left, of so many numbers a head, from number `at` on.
template <class T, bool kSoftmax>
Merge<T, kSoftmax> merge_of(const Attention& a, const RowPass& pass, const float* slots, int numbers, int at,
                            int features, void* to) {
  Merge<T, kSoftmax> task{a.rowptr, a.num_dst, a.num_edges, pass.units(), a.heads, slots + at, numbers, features};
  task.rows[task.results++] = static_cast<T*>(to);
  return task;
}

}  // namespace

size_t message_octets_fwd_scratch(const Attention& a, const MessageFeatures& edges) {
  return message_scratch(a, forward_numbers(a, edges));
}

size_t message_octets_bwd_scratch(const Attention& a, const MessageFeatures& edges) {
  return message_scratch(a, message_gradient_numbers(a, edges));
}

cudaError_t message_octets_fwd(const Attention& a, const MessageFeatures& edges, const MessageOutputs& outputs,
                               void* scratch, cudaStream_t stream) {
  return for_octet_shape(a, edges, [&]<class S, int kPieces>() {
    using T = typename S::T;
    const int numbers = forward_numbers(a, edges);
    const auto merge = [&](const RowPass& pass, float* slots) {
      auto rows = merge_of<T, true>(a, pass, slots, numbers, 0, a.head_dim, outputs.out);
      rows.number = static_cast<float*>(outputs.lse);
      const cudaError_t error = launch_merge(rows, stream);
      if (error != cudaSuccess) return error;
      return launch_merge(merge_of<T, true>(a, pass, slots, numbers, a.head_dim + 2, edges.width, outputs.sums),
                          stream);
    };
    return launch_messages<S>(a, edges, outputs, numbers, forward_kernel<S, kPieces>, scratch, stream, merge);
  });
}

cudaError_t message_octets_bwd(const Attention& a, const MessageFeatures& edges, const MessageGradients& g,
                               void* scratch, cudaStream_t stream) {
  return for_octet_shape(a, edges, [&]<class S, int kPieces>() {
    using T = typename S::T;
    const int numbers = message_gradient_numbers(a, edges);
    const auto merge = [&](const RowPass& pass, float* slots) {
      const cudaError_t error =
          launch_merge(merge_of<T, false>(a, pass, slots, numbers, 0, a.head_dim, g.query), stream);
      if (error != cudaSuccess) return error;
      auto terms = merge_of<T, false>(a, pass, slots, numbers, a.head_dim, edges.width, g.by_logits);
      if (g.by_weights) terms.rows[terms.results++] = static_cast<T*>(g.by_weights);
      return launch_merge(terms, stream);
    };
    return launch_messages<S>(a, edges, g, numbers, backward_kernel<S, kPieces>, scratch, stream, merge);
  });
}

}  // namespace dfgnn::cuda
