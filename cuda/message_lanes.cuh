// How a warp goes over a row's messages, of all heads at once: a node's numbers lie over the lanes of a group, those of
// a head over as many neighbouring ones, and beside them what W makes of them or the edge's features, as if these were
// more of the head's numbers. Groups take kEdges consecutive edges at a time.
#pragma once

#include "message_rows.cuh"

namespace dfgnn::cuda {

template <class S>
class MessageLanes : public MessageRows<S> {
  using Rows = MessageRows<S>;
  using Rows::a_, Rows::log_lanes_, Rows::lane, Rows::lane_of_head, Rows::add_groups;

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
      Rows::scale(x, s, factor);
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

  using Rows::head, Rows::live, Rows::row;

  // log_lanes: of a head's.
  __device__ __forceinline__ MessageLanes(const Typed<T>& a, const MessageFeatures& edges, int log_lanes,
                                          MessageBatch<A>& batch)
      : Rows(a, log_lanes),
        edges_(edges),
        batch_(batch),
        keys_(this->reader(a.src)),
        values_(this->reader(a.value)),
        features_(in_one_head(a, edges.width), edges.features, 0, lane_of_head()) {}

  // The edge of a step whose numbers the lane has; whether it is the first lane that does, of the head of step s.
  __device__ __forceinline__ int own_edge() const { return lane_of_head() >> log_part(); }
  __device__ __forceinline__ bool is_first_of_edge(int s) const {
    return live[s] && (lane() & ((1 << log_part()) - 1)) == 0;
  }

  // The lane's share of row i of x, with W^T of it.
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
    const int group = threadIdx.x / S::kLanes;
    for_message_batches(a_, edges_, batch_, row, [&](int64_t e, int count) {
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
    });
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

  // Stores, as gradients of the features of the batch's edges from `first` on, sums over the heads of what the lanes
  // have of each.
  __device__ __forceinline__ void store_features(void* gradients, int first, int count, A (&x)[kEdges * kTerm]) const {
    store_features_of<S::kLanes>(static_cast<T*>(gradients), first, count, x);
  }

  // Stores sums of features as those of node i, T [nodes, heads, width]; and of a piece, in a slot, of which each head
  // has so many numbers, from the numbers `at` of each head on. Groups' sums are added first.
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

  // Lanes of a head that have features of edges, and W's numbers of these for the lane's v-th of step s.
  __device__ __forceinline__ int chunks() const { return edges_.width / kTerm; }
  __device__ __forceinline__ const A* weights_of(int s, int v, int chunk) const {
    return static_cast<const A*>(edges_.weights) +
           (((s * S::kVec + v) * chunks() + chunk) * S::kLanes + lane()) * kTerm;
  }

  // So many features of an edge or a head, from number `at` of the row on, if it has these.
  template <int kCount>
  __device__ __forceinline__ void put(const A* x, T* row, int at) const {
    Fragment<Shape<T, kCount, 1, 1>> fragment;
#pragma unroll
    for (int v = 0; v < kCount; ++v) fragment.x[v] = x[v];
    fragment.template store<1>(row + at, 0, edges_.width - at, 0);
  }

  const MessageFeatures& edges_;
  MessageBatch<A>& batch_;
  const RowReader<S> keys_, values_;
  const RowReader<TermShape> features_;
};

}  // namespace dfgnn::cuda
