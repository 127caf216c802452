// What passes over rows of messages share: a warp's next edges, and rows of nodes of all heads at once. A node's
// numbers lie over the lanes of a group, those of a head over as many neighbouring ones.
#pragma once

#include <bit>

#include "message_attention.h"
#include "row_pass.cuh"
#include "shapes.cuh"
#include "shared_sums.cuh"

namespace dfgnn::cuda {

// A warp's next edges; behind the last one that again.
template <class A>
struct MessageBatch {
  alignas(16) int node[kWarp];
  alignas(16) int features[kWarp];  // rows
  A offset[kWarp];  // of logits: 0, NaN where a node or features are not there, -inf behind the last one
};

// Calls visit(e, count) with the batch of a row's `count` edges from the e-th on, one after the other.
template <class T, class A, class Visit>
__device__ __forceinline__ void for_message_batches(const Typed<T>& a, const MessageFeatures& edges,
                                                    MessageBatch<A>& batch, const Range& row, const Visit& visit) {
  const int t = threadIdx.x;
  int node = 0, features = 0;
  const auto load = [&](int64_t e) {
    e = min(e, row.end - 1);
    node = checked_node(a.col[e], a.num_src);
    features = checked_node(edges.eid[e], edges.rows);
  };
  if (row.size() > 0) load(row.begin + t);
#pragma unroll 1
  for (int64_t e = row.begin; e < row.end; e += kWarp) {
    const int count = static_cast<int>(min(int64_t{kWarp}, row.end - e));
    __syncwarp();
    batch.node[t] = max(node, 0);
    batch.features[t] = max(features, 0);
    batch.offset[t] = t >= count ? -INFINITY : (node | features) == kNoNode ? A(NAN) : A(0);
    if (e + kWarp < row.end) load(e + kWarp + t);
    __syncwarp();
    visit(e, count);
  }
}

// For rows of so many numbers.
template <class T>
__device__ __forceinline__ Typed<T> in_one_head(Typed<T> a, int numbers) {
  a.head_dim = numbers;
  a.heads = 1;
  return a;
}

// S: the shape of a row of all heads.
template <class S>
class MessageRows {
 public:
  using T = typename S::T;
  using A = typename S::A;

  int head[S::kSteps];  // of the lane's vectors; the last again where there is none:
  bool live[S::kSteps];

  // log_lanes: of a head's.
  __device__ __forceinline__ MessageRows(const Typed<T>& a, int log_lanes) : a_(a), log_lanes_(log_lanes) {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      const int h = (s * S::kLanes + lane()) >> log_lanes;
      live[s] = h < a.heads;
      head[s] = min(h, a.heads - 1);
    }
  }

  // Of the lane's shares of rows of x; of that of row i.
  __device__ __forceinline__ RowReader<S> reader(const void* x) const {
    return RowReader<S>(in_one_head(a_, width()), x, 0, lane());
  }
  __device__ __forceinline__ Packed<S> row(const void* x, int i) const { return reader(x)(i); }

  // Whether it is the first lane of all that have the head of step s.
  __device__ __forceinline__ bool is_first_of_head(int s) const {
    return live[s] && threadIdx.x < S::kLanes && lane_of_head() == 0;
  }

  // <x, y> of a head of step s, in all of its lanes.
  __device__ __forceinline__ A dot(const Packed<S>& x, const Packed<S>& y, int s) const {
    A sum = A(0);
#pragma unroll
    for (int v = 0; v < S::kVec; ++v) sum += x[s * S::kVec + v] * y[s * S::kVec + v];
    return lanes_sum(sum, 1 << log_lanes_);
  }

  // What groups have of one number each, combined.
  template <class Combine>
  __device__ __forceinline__ A over_groups(A x, const Combine& combine) const {
#pragma unroll
    for (int apart = S::kLanes; apart < kWarp; apart *= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, apart));
    return x;
  }

  // Stores a sum of rows, times a factor for each step's head, as that of node i, T [nodes, heads, head_dim]; and of a
  // piece, in a slot, of which each head has so many numbers. Groups' sums are added first.
  __device__ __forceinline__ void store(Fragment<S>& sum, void* x, int i, const A (&factor)[S::kSteps]) const {
    add_groups(sum.x);
    if (threadIdx.x >= S::kLanes) return;
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) scale(sum, s, factor[s]);
    sum.template store<S::kSteps>(static_cast<T*>(x) + static_cast<int64_t>(i) * width(), lane(), width(), 0);
  }
  __device__ __forceinline__ void store_piece(Fragment<S>& sum, A* slot, int numbers) const {
    add_groups(sum.x);
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      if (threadIdx.x >= S::kLanes || !live[s]) continue;
      A* const to = slot + head[s] * numbers + lane_of_head() * S::kVec;
#pragma unroll
      for (int v = 0; v < S::kVec; ++v) to[v] = sum.x[s * S::kVec + v];
    }
  }

  __device__ __forceinline__ static void scale(Fragment<S>& sum, int s, A factor) {
#pragma unroll
    for (int v = 0; v < S::kVec; ++v) sum.x[s * S::kVec + v] *= factor;
  }

 protected:
  template <int kCount>
  __device__ __forceinline__ void add_groups(A (&x)[kCount]) const {
#pragma unroll
    for (A& y : x) y = over_groups(y, [](A a, A b) { return a + b; });
  }

  __device__ __forceinline__ static int lane() { return threadIdx.x % S::kLanes; }
  __device__ __forceinline__ int lane_of_head() const { return lane() & ((1 << log_lanes_) - 1); }
  __device__ __forceinline__ int width() const { return a_.heads * a_.head_dim; }

  const Typed<T>& a_;
  const int log_lanes_;
};

// Calls launch.operator()<S>() with the shape of a row of all heads, of so many numbers of a head a lane.
template <class T, int kVec, class Launch>
cudaError_t for_message_lanes(const Attention& a, const Launch& launch) {
  switch (message_row_lanes(a.heads * (a.head_dim / kVec))) {
    case 8:
      return launch.template operator()<Shape<T, kVec, 8, 1>>();
    case 16:
      return launch.template operator()<Shape<T, kVec, 16, 1>>();
    case 32:
      return launch.template operator()<Shape<T, kVec, 32, 1>>();
    default:
      return launch.template operator()<Shape<T, kVec, 32, 2>>();
  }
}
template <class Launch>
cudaError_t for_message_shape(const Attention& a, const Launch& launch) {
  return for_type(a.type, [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      if (message_vector(sizeof(T), a.head_dim) == 4) return for_message_lanes<T, 4>(a, launch);
    }
    return for_message_lanes<T, 2>(a, launch);
  });
}

// Numbers that a piece leaves of gradients, for each head: a sum of rows and two of features.
__host__ __device__ inline int message_gradient_numbers(const Attention& a, const MessageFeatures& edges) {
  return a.head_dim + 2 * edges.width;
}

// A pass over rows of which pieces leave so many numbers a head in slots, and the bytes of its scratch.
inline RowPass message_pass(const Attention& a, int numbers) {
  return {a.rowptr, a.num_dst, a.num_edges, int64_t{a.heads} * numbers};
}
inline size_t message_scratch(const Attention& a, int numbers) {
  const RowPass pass = message_pass(a, numbers);
  return a.type == Type::f64 ? pass.bytes<double>() : pass.bytes<float>();
}

// Makes it by the kernel, whose arguments behind the features are `results`; then merge(pass, slots).
template <class S, class Results, class Merge>
cudaError_t launch_messages(const Attention& a, const MessageFeatures& edges, const Results& results, int numbers,
                            auto* kernel, void* scratch, cudaStream_t stream, const Merge& merge) {
  const RowPass pass = message_pass(a, numbers);
  auto* const slots = pass.template slots<typename S::A>(scratch);
  const int log_lanes = std::countr_zero(static_cast<unsigned>(a.head_dim / S::kVec));
  const auto with_units = [&](dim3 grid, const RowUnits& units, auto* chosen) {
    chosen<<<grid, units.block(), 0, stream>>>(Typed<typename S::T>{a}, edges, results, log_lanes, slots, units);
  };
  const cudaError_t error = pass.launch(scratch, stream, kernel, nullptr, with_units);
  return error == cudaSuccess ? merge(pass, slots) : error;
}

}  // namespace dfgnn::cuda
