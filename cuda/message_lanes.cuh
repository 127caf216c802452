// How a warp goes over a row's messages, of all heads at once: a node's numbers lie over the lanes of a group, those of
// a head over as many neighbouring ones, and beside them what W makes of them or the edge's features, as if these were
// more of the head's numbers. Groups take kEdges consecutive edges at a time.
#pragma once

#include "message_attention.h"
#include "row_pass.cuh"
#include "sddmm_heads.cuh"
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

template <class S>
class MessageLanes {
 public:
  using T = typename S::T;
  using A = typename S::A;
  using TermShape = Shape<T, message_term(sizeof(T)), 1, 1>;
  using Term = Packed<TermShape>;
  static constexpr int kEdges = S::kSteps > 1 ? 2 : 4, kTerm = TermShape::kVec;
  static constexpr int kChunks = 4;  // lanes' features that W makes at a time: as many lanes as a head has at the least

  // The lane's share of a node's row, and of what W^T makes of it.
  struct Own {
    Packed<S> x;
    A terms[S::kSteps][kTerm];
  };

  // Of a group's next edges, of which `first` is the batch's number of the first: rows of their sources, and features.
  struct Step {
    int first;
    Packed<S> keys[kEdges], values[kEdges];
    Term terms[kEdges];
  };

  // A weighted sum of features of edges; and one of rows, too.
  struct TermSum {
    A terms[S::kSteps][kTerm] = {};

    __device__ __forceinline__ void add(int s, A weight, const Term& term) {
#pragma unroll
      for (int v = 0; v < kTerm; ++v) terms[s][v] += weight * term[v];
    }
  };
  struct Sum : TermSum {
    Fragment<S> x;

    __device__ __forceinline__ Sum() { x.zero(); }

    __device__ __forceinline__ void scale(int s, A factor) {
#pragma unroll
      for (int v = 0; v < S::kVec; ++v) x.x[s * S::kVec + v] *= factor;
#pragma unroll
      for (A& y : this->terms[s]) y *= factor;
    }
    // Of the lane's head of step s.
    __device__ __forceinline__ void add(int s, A weight, const Packed<S>& row, const Term& term) {
#pragma unroll
      for (int v = 0; v < S::kVec; ++v) x.x[s * S::kVec + v] += weight * row[s * S::kVec + v];
      TermSum::add(s, weight, term);
    }
  };

  int head[S::kSteps];  // of the lane's vectors; the last again where there is none:
  bool live[S::kSteps];

  // log_lanes: of message_lanes().
  __device__ __forceinline__ MessageLanes(const Typed<T>& a, const MessageFeatures& edges, int log_lanes,
                                          MessageBatch<A>& batch)
      : a_(a),
        edges_(edges),
        batch_(batch),
        log_lanes_(log_lanes),
        keys_(in_one_head(a, a.heads * a.head_dim), a.src, 0, lane()),
        values_(in_one_head(a, a.heads * a.head_dim), a.value, 0, lane()),
        features_(in_one_head(a, edges.width), edges.features, 0, lane_of_head()) {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      const int h = (s * S::kLanes + lane()) >> log_lanes;
      live[s] = h < a.heads;
      head[s] = min(h, a.heads - 1);
    }
  }

  // The edge of a step whose numbers the lane has; whether it is the first lane that does, of the head of step s, and
  // whether it is the first of all that have the head.
  __device__ __forceinline__ int own_edge() const { return lane_of_head() >> log_part(); }
  __device__ __forceinline__ bool is_first_of_edge(int s) const {
    return live[s] && (lane() & ((1 << log_part()) - 1)) == 0;
  }
  __device__ __forceinline__ bool is_first_of_head(int s) const {
    return live[s] && threadIdx.x < S::kLanes && lane_of_head() == 0;
  }

  // The lane's share of row i of x; with W^T of it.
  __device__ __forceinline__ Packed<S> row(const void* x, int i) const {
    return RowReader<S>(in_one_head(a_, width()), x, 0, lane())(i);
  }
  __device__ __forceinline__ Own own(const void* x, int i) const {
    Own own{row(x, i), {}};
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
#pragma unroll 1
      for (int base = 0; base < chunks(); base += kChunks) {
        A terms[kTerm][kChunks] = {};
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          if (base + c >= chunks()) break;
#pragma unroll
          for (int v = 0; v < S::kVec; ++v) {
            A weights[kTerm];
            load_numbers(weights, weights_of(s, v, base + c));
#pragma unroll
            for (int t = 0; t < kTerm; ++t) terms[t][c] += own.x[s * S::kVec + v] * weights[t];
          }
        }
#pragma unroll
        for (int t = 0; t < kTerm; ++t) {
          share_sums<kChunks / 2, 1>(terms[t]);  // the sum of chunk c is for the lanes c, c + kChunks, ...
          A sum = terms[t][0];
#pragma unroll
          for (int apart = kChunks; apart < S::kLanes; apart *= 2) {
            if (apart < 1 << log_lanes_) sum += __shfl_xor_sync(kAllLanes, sum, apart);
          }
          if (lane_of_head() / kChunks == base / kChunks) own.terms[s][t] = sum;
        }
      }
    }
    return own;
  }

  // Adds W of its features to a sum's rows.
  __device__ __forceinline__ void add_product(Sum& sum) const {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
#pragma unroll 2
      for (int c = 0; c < chunks(); ++c) {
        A terms[kTerm];
#pragma unroll
        for (int t = 0; t < kTerm; ++t) terms[t] = __shfl_sync(kAllLanes, sum.terms[s][t], c, 1 << log_lanes_);
#pragma unroll
        for (int v = 0; v < S::kVec; ++v) {
          A weights[kTerm];
          load_numbers(weights, weights_of(s, v, c));
#pragma unroll
          for (int t = 0; t < kTerm; ++t) sum.x.x[s * S::kVec + v] += weights[t] * terms[t];
        }
      }
    }
  }

  // Calls visit(e, count, step) for the steps of a row's batches of `count` edges from the e-th on.
  template <class Visit>
  __device__ __forceinline__ void for_steps(const Range& row, const Visit& visit) const {
    const int t = threadIdx.x, group = t / S::kLanes;
    int node = 0, features = 0;
    const auto load = [&](int64_t e) {
      e = min(e, row.end - 1);
      node = checked_node(a_.col[e], a_.num_src);
      features = checked_node(edges_.eid[e], edges_.rows);
    };
    if (row.size() > 0) load(row.begin + t);
#pragma unroll 1
    for (int64_t e = row.begin; e < row.end; e += kWarp) {
      const int count = static_cast<int>(min(int64_t{kWarp}, row.end - e));
      __syncwarp();
      batch_.node[t] = max(node, 0);
      batch_.features[t] = max(features, 0);
      batch_.offset[t] = t >= count ? -INFINITY : (node | features) == kNoNode ? A(NAN) : A(0);
      if (e + kWarp < row.end) load(e + kWarp + t);
      __syncwarp();
#pragma unroll 1
      for (int base = 0; base < count; base += kEdges * S::kGroups) {
        Step step;
        step.first = base + group * kEdges;
        int nodes[kEdges], rows[kEdges];
        load_numbers(nodes, batch_.node + step.first);
        load_numbers(rows, batch_.features + step.first);
#pragma unroll
        for (int u = 0; u < kEdges; ++u) {
          step.keys[u] = keys_(nodes[u]);
          step.values[u] = values_(nodes[u]);
          step.terms[u] = features_(rows[u]);
        }
        visit(e, count, step);
      }
    }
  }

  // The logit of the batch's edge t.
  __device__ __forceinline__ A logit(A x, int t) const { return x + batch_.offset[t]; }

  // The products of a node's head of step s and the step's edges: that of own_edge().
  __device__ __forceinline__ A dots(const Own& own, const Packed<S> (&rows)[kEdges], const Term (&terms)[kEdges],
                                    int s) const {
    A x[kEdges];
#pragma unroll
    for (int u = 0; u < kEdges; ++u) {
      x[u] = A(0);
#pragma unroll
      for (int v = 0; v < kTerm; ++v) x[u] += own.terms[s][v] * terms[u][v];
#pragma unroll
      for (int v = 0; v < S::kVec; ++v) x[u] += own.x[s * S::kVec + v] * rows[u][s * S::kVec + v];
    }
    return scattered_sum(x, lane(), 1 << log_lanes_);
  }

  // <x, y> of a head of step s, in all of its lanes.
  __device__ __forceinline__ A dot(const Packed<S>& x, const Packed<S>& y, int s) const {
    A sum = A(0);
#pragma unroll
    for (int v = 0; v < S::kVec; ++v) sum += x[s * S::kVec + v] * y[s * S::kVec + v];
    return lanes_sum(sum, 1 << log_lanes_);
  }

  // What the lanes have of edge u of the step, of one number each; and these combined over the step's edges, or over
  // the groups.
  __device__ __forceinline__ A of_edge(A x, int u) const {
    return __shfl_sync(kAllLanes, x, u << log_part(), 1 << log_lanes_);
  }
  template <class Combine>
  __device__ __forceinline__ A over_edges(A x, const Combine& combine) const {
#pragma unroll
    for (int apart = 2; apart <= kEdges; apart *= 2) {
      x = combine(x, __shfl_xor_sync(kAllLanes, x, (1 << log_lanes_) / apart));
    }
    return x;
  }
  template <class Combine>
  __device__ __forceinline__ A over_groups(A x, const Combine& combine) const {
#pragma unroll
    for (int apart = S::kLanes; apart < kWarp; apart *= 2) x = combine(x, __shfl_xor_sync(kAllLanes, x, apart));
    return x;
  }

  // Stores, as gradients of the features of the batch's edges from `first` on, sums over the heads of what the lanes
  // have of each.
  __device__ __forceinline__ void store_features(void* gradients, int first, int count, A (&x)[kEdges * kTerm]) const {
    store_features_of<S::kLanes>(static_cast<T*>(gradients), first, count, x);
  }

  // Stores a sum's rows, times a factor for each step's head, as those of node i, T [nodes, heads, head_dim]; and of a
  // piece, in a slot, of which each head has so many numbers. Groups' sums are added first.
  __device__ __forceinline__ void store(Sum& sum, void* x, int i, const A (&factor)[S::kSteps]) const {
    add_groups(sum.x.x);
    if (threadIdx.x >= S::kLanes) return;
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) sum.scale(s, factor[s]);
    sum.x.template store<S::kSteps>(static_cast<T*>(x) + static_cast<int64_t>(i) * width(), lane(), width(), 0);
  }
  __device__ __forceinline__ void store_piece(Sum& sum, A* slot, int numbers) const {
    add_groups(sum.x.x);
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      if (threadIdx.x >= S::kLanes || !live[s]) continue;
      A* const to = slot + head[s] * numbers + lane_of_head() * S::kVec;
#pragma unroll
      for (int v = 0; v < S::kVec; ++v) to[v] = sum.x.x[s * S::kVec + v];
    }
  }

  // The same of features, T [nodes, heads, width], and into a slot from the numbers `at` of each head on.
  __device__ __forceinline__ void store_terms(TermSum& sum, void* to, int i) const {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      add_groups(sum.terms[s]);
      if (threadIdx.x >= S::kLanes || !live[s]) continue;
      T* const row = static_cast<T*>(to) + a_.scalar(i, head[s]) * edges_.width;
      put<kTerm>(sum.terms[s], row, lane_of_head() * kTerm);
    }
  }
  __device__ __forceinline__ void store_terms_piece(TermSum& sum, A* slot, int numbers, int at) const {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      add_groups(sum.terms[s]);
      if (threadIdx.x >= S::kLanes || !live[s] || lane_of_head() >= chunks()) continue;
      A* const to = slot + head[s] * numbers + at + lane_of_head() * kTerm;
#pragma unroll
      for (int v = 0; v < kTerm; ++v) to[v] = sum.terms[s][v];
    }
  }

 private:
  // For heads of kHead lanes, or fewer.
  template <int kHead>
  __device__ __forceinline__ void store_features_of(T* gradients, int first, int count, A (&x)[kEdges * kTerm]) const {
    if constexpr (kHead > 4) {
      if (kHead > 1 << log_lanes_) return store_features_of<kHead / 2>(gradients, first, count, x);
    }
    constexpr int kHeld = shared_sums(S::kLanes / 2, kHead, kEdges * kTerm), kRun = kHeld < kTerm ? kHeld : kTerm;
    const int number = share_sums<S::kLanes / 2, kHead>(x);
    if (number < 0) return;
#pragma unroll
    for (int n = 0; n < kHeld; n += kRun) {
      const int t = first + (number + n) / kTerm, at = lane_of_head() * kTerm + (number + n) % kTerm;
      if (t >= count || batch_.offset[t] != A(0)) continue;
      put<kRun>(&x[n], gradients + static_cast<int64_t>(batch_.features[t]) * edges_.width, at);
    }
  }

  // Of the lanes of a head those that have the same edge of a step.
  __device__ __forceinline__ int log_part() const { return log_lanes_ - (kEdges == 4 ? 2 : 1); }
  __device__ __forceinline__ static int lane() { return threadIdx.x % S::kLanes; }
  __device__ __forceinline__ int lane_of_head() const { return lane() & ((1 << log_lanes_) - 1); }
  __device__ __forceinline__ int width() const { return a_.heads * a_.head_dim; }

  // Lanes of a head that have features of edges, and W's numbers of these for the lane's v-th of step s.
  __device__ __forceinline__ int chunks() const { return edges_.width / kTerm; }
  __device__ __forceinline__ const A* weights_of(int s, int v, int chunk) const {
    return static_cast<const A*>(edges_.weights) +
           (((s * S::kVec + v) * chunks() + chunk) * S::kLanes + lane()) * kTerm;
  }

  // For rows of so many numbers.
  __device__ __forceinline__ static Typed<T> in_one_head(Typed<T> a, int numbers) {
    a.head_dim = numbers;
    a.heads = 1;
    return a;
  }

  // So many features of an edge or a head, from number `at` of the row on, if it has these.
  template <int kCount>
  __device__ __forceinline__ void put(const A* x, T* row, int at) const {
    Fragment<Shape<T, kCount, 1, 1>> fragment;
#pragma unroll
    for (int v = 0; v < kCount; ++v) fragment.x[v] = x[v];
    fragment.template store<1>(row + at, 0, edges_.width - at, 0);
  }

  template <int kCount>
  __device__ __forceinline__ void add_groups(A (&x)[kCount]) const {
#pragma unroll
    for (A& y : x) y = over_groups(y, [](A a, A b) { return a + b; });
  }

  const Typed<T>& a_;
  const MessageFeatures& edges_;
  MessageBatch<A>& batch_;
  const int log_lanes_;
  const RowReader<S> keys_, values_;
  const RowReader<TermShape> features_;
};

// Calls launch.operator()<S>() with the shape of a row of all heads.
template <class Launch>
cudaError_t for_message_shape(const Attention& a, const Launch& launch) {
  return for_type(a.type, [&]<class T>() {
    constexpr int kVec = message_vector(sizeof(T));
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
  });
}

}  // namespace dfgnn::cuda
