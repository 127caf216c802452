// Gradients by rows (of dst and of the logits' edge terms) or by columns (of src and value), one kernel seen from
// either side: it makes the logits again, pulls the rows of features it needs, and writes every result once.
#pragma once

#include "narrow_gradient.cuh"
#include "row_list.cuh"

namespace dfgnn::cuda {

// Warps a multiprocessor, as many as registers allow; more of small heads, whose warps wait for memory most, where a
// warp takes a row.
template <Side side, Score score>
constexpr bool kFewWarps = side == Side::columns || score == Score::additive_v2;
template <Side side, Score score, class S>
constexpr int warps_of_wide_heads() {
  return warps_here<S>(kFewWarps<side, score> ? 16 : 20, 12);
}
template <Side side, Score score, class S>
constexpr int warps_per_multiprocessor() {
  constexpr bool kFew = kFewWarps<side, score>, kHas16Bits = S::kVec == 8, kRows = side == Side::rows;
  if (sizeof(typename S::A) == 8) return 1;
  if (S::kSteps > 1) return warps_of_wide_heads<side, score, S>();
  if (kHas16Bits && score != Score::additive) {
    if (!kRows) return 16;
    return kFew ? warps_here<S>(20, 16) : warps_here<S>(S::kLanes == 2 ? 20 : 24, 20);
  }
  if (!kFew) return warps_here<S>(28);
  const bool has_long_steps = kRows && S::kLanes == 8;  // GATv2's, of eight entries
  return kHas16Bits || has_long_steps ? warps_here<S>(20) : warps_here<S>(24, 12);
}

// Rows gather two where src is not the value.
template <Side side, Score score, class S>
constexpr bool kSideTogether =
    kNarrowTogether<S> && (score == Score::dot || (score != Score::additive && side == Side::columns));

// And where groups of lanes take one each.
template <Side side, Score score, class S>
constexpr int own_rows_warps() {
  if (score != Score::additive && S::kSteps > 1) return warps_of_wide_heads<side, score, S>();
  if (score != Score::additive) return kFewWarps<side, score> ? 16 : 20;
  return S::kSteps == 1 && side == Side::rows ? warps_here<S>(24) : 20;
}

// Of heads that are more than a vector a lane.
template <Side side, Score score, class S, bool kOwnRows>
__device__ __forceinline__ void gradient_wide_row(const Typed<typename S::T>& a, const Gradients& g,
                                                  typename S::A* slots, const EdgeStore<typename S::A>& store,
                                                  const Dropout<typename S::A>& dropout,
                                                  const PairScore<score, S, true>& pair,
                                                  const WarpHeads<S, kOwnRows>& heads, int n, const Range& entries,
                                                  int64_t slot) {
  using A = typename S::A;
  constexpr bool kRows = side == Side::rows, kAdditive = score == Score::additive;
  // Where src is the value too, it is gathered once by the rows and held once by the columns.
  constexpr bool kShared = kValueIsSrc<score>;
  constexpr bool kLoadsOthers = !kAdditive, kLoadsValues = !kShared || !kRows;
  constexpr int kInFlight = sizeof(typename S::T) == 2 ? 4 : 8;  // vectors a lane
  constexpr int kUnroll = rounds_of_vectors<S>(kInFlight / (kLoadsOthers && kLoadsValues ? 2 : 1));
  const Pass<side> pass{a, g};
  const int h = heads.head, lane = heads.lane;
  const bool needs_position = dropout.active() || a.bias || a.a_edge;
  const RowReader<S> other_row(a, pass.other(), h, lane), other_value_row(a, pass.other_value(), h, lane);

  Fragment<S> own, own_value, grad, grad_value;
  load_own<side, score>(a, g, heads, n, own, own_value);
  grad.zero();
  grad_value.zero();
  A grad_scalar = A(0), own_lse = A(0), own_delta = A(0);
  if constexpr (kRows) {
    own_lse = a.at(g.lse, a.scalar(n, h));
    own_delta = row_delta(a, g, heads, own_value, n);
  }

  const int size = static_cast<int>(entries.size()), last = max(size - 1, 0);  // what is longer comes in pieces
  const int longest = heads.most(size);
  const Index others_nodes = pass.others().from(entries.begin);
  const auto load_node = [&](int first) {  // past the end, the last again, which is then not used
    return checked_node(others_nodes[min(first + heads.entry(lane), last)], pass.num_others());
  };
  int next_node = longest > 0 ? load_node(0) : kNoNode;
  for (int first = 0; first < longest; first += heads.entries()) {
    const int count = min(heads.entries(), max(size - first, 0));
    const int rounds = heads.rounds(count), own_rounds = heads.own_rounds(count);
    // One entry a lane: what is a number each.
    const int lane_node = next_node, lane_safe_node = max(lane_node, 0);
    next_node = load_node(first + heads.entries());
    int64_t position = entries.begin + min(first + heads.entry(lane), last);
    if (!kRows && needs_position) position = clamp_to(a.perm[position], a.num_edges - 1);
    const A keep = dropout.factor(position, h);
    A lse = own_lse, delta = own_delta;
    if constexpr (!kRows) {
      lse = a.at(g.lse, a.scalar(lane_safe_node, h));
      delta = a.at(g.delta, a.scalar(lane_safe_node, h));
    }
    // One entry a group of lanes: what is a row of features each, of a few rounds at once.
    for (int round = 0; round < rounds; round += kUnroll) {
      int nodes[kUnroll];
      Packed<S> others[kUnroll], other_values[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {  // past the last round, too, and no branches
        nodes[u] = heads.of_round(lane_node, round + u);
        if constexpr (kLoadsOthers) others[u] = other_row(max(nodes[u], 0));
        if constexpr (kLoadsValues) other_values[u] = other_value_row(max(nodes[u], 0));
      }
      A dots[kUnroll], dps[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const auto& left = kShared && !kRows ? own : own_value;
        const auto& right = kShared && kRows ? others[u] : other_values[u];
        dots[u] = kAdditive ? A(0) : pair(own, others[u]);
        dps[u] = left.dot(right);
      }
      const A dot = kAdditive ? A(0) : transposed_sum<S::kLanes>(dots), dp = transposed_sum<S::kLanes>(dps);
      const auto s = logit<score>(a, dot, kRows ? n : lane_safe_node, kRows ? lane_node : n, position, h);
      const auto d = edge_gradient(s, dp, lse, delta, keep);
      const bool is_own = lane >= round && lane < min(round + kUnroll, own_rounds) && (kRows || lane_node != kNoNode);
      if (kAdditive && is_own) grad_scalar += d.operand;
      if (kRows && is_own && heads.live) {
        if (g.bias) static_cast<A*>(g.bias)[a.scalar(position, h)] = d.ds;
        if (g.a_edge) static_cast<A*>(g.a_edge)[a.scalar(position, h)] = d.operand;
        if (store.pairs) store.pairs[a.kept(position, h)] = pair_of<score>(d, dst_term<score>(a, n, h));
      }
      A operand = d.operand;
      if constexpr (score == Score::cosine) operand *= a.at(pass.other_scale(), a.scalar(lane_safe_node, h));
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const A row_operand = heads.of_round(operand, round + u), row_weight = heads.of_round(d.weight, round + u);
        if (round + u >= own_rounds || (!kRows && nodes[u] == kNoNode)) continue;
        if constexpr (!kRows) grad_value.add(row_weight, other_values[u]);
        if constexpr (score == Score::additive_v2) {
          pair.add_slopes(grad, row_operand, own, others[u]);
        } else if constexpr (!kAdditive) {
          grad.add(row_operand, others[u]);
        }
      }
    }
  }
  if constexpr (kAdditive) {
    grad_scalar = heads.over_groups(lanes_sum<S::kLanes>(grad_scalar), [](A x, A y) { return x + y; });
  }
  const A factor = score == Score::dot ? a.logit_scale : A(1);
  store_gradients<side, score>(a, g, n, h, HeadSum<S, kOwnRows>{grad, heads}, HeadSum<S, kOwnRows>{grad_value, heads},
                               grad_scalar, heads.is_first(), factor, slot, slots);
}

// The gradients of row (or column) n, or of a piece of one, by a warp for the heads that it takes at once.
template <Side side, Score score, class S, bool kOwnRows>
__device__ __forceinline__ void gradient_row(const Typed<typename S::T>& a, const Gradients& g, typename S::A* slots,
                                             const EdgeStore<typename S::A>& store,
                                             const Dropout<typename S::A>& dropout,
                                             const PairScore<score, S, true>& pair, const WarpHeads<S, kOwnRows>& heads,
                                             int n, const Range& entries, int64_t slot) {
  if constexpr (S::kSteps == 1) {
    gradient_narrow_row<side, score>(a, g, slots, store, dropout, pair, heads, n, entries, slot);
  } else {
    gradient_wide_row<side, score>(a, g, slots, store, dropout, pair, heads, n, entries, slot);
  }
}

template <Side side, Score score, class S>
__global__ void __launch_bounds__(block_threads(warps_per_multiprocessor<side, score, S>(),
                                                kSideTogether<side, score, S>),
                                  blocks_at_once(warps_per_multiprocessor<side, score, S>(),
                                                 kSideTogether<side, score, S>))
    gradients_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                     RowUnits units, typename S::A* slots, const EdgeStore<typename S::A> store) {
  const Pass<side> pass{a, g};
  const Dropout dropout(a);
  const WarpHeads<S> heads(a.heads);
  const PairScore<score, S, true> pair(a, heads.head, heads.lane);
  for_units(pass.ptr(), pass.num_own(), a.num_edges, units, [&](int n, const Range& entries, int64_t slot) {
    gradient_row<side, score>(a, g, slots, store, dropout, pair, heads, n, entries, slot);
  });
}

// The same of a short row (or column) by a group of lanes, of wide heads a chunk of S::kLanes entries after another.
template <Side side, Score score, class S>
__device__ __forceinline__ void gradient_short_row(const Typed<typename S::T>& a, const Gradients& g,
                                                   const Dropout<typename S::A>& dropout,
                                                   const WarpHeads<S, true>& heads, int n, const Range& entries) {
  using A = typename S::A;
  if constexpr (S::kSteps == 1 || kValueIsSrc<score>) {  // or rows are gathered once
    const PairScore<score, S, true> pair(a, heads.head, heads.lane);
    gradient_row<side, score>(a, g, static_cast<A*>(nullptr), EdgeStore<A>{}, dropout, pair, heads, n, entries, kWhole);
    return;
  }
  constexpr bool kRows = side == Side::rows, kDot = score == Score::dot;
  constexpr int kUnroll = kDot ? 1 : rounds_of_vectors<S>(4);
  const Pass<side> pass{a, g};
  const int h = heads.head, lane = heads.lane;
  const RowReader<S> other_row(a, pass.other(), h, lane), other_value_row(a, pass.other_value(), h, lane);
  Packed<S> own, own_value;
  if constexpr (kDot) own.load(a.features(pass.own(), n, h), lane, a.head_dim);
  own_value.load(a.features(pass.own_value(), n, h), lane, a.head_dim);
  A own_lse = A(0), own_delta = A(0);
  if constexpr (kRows) {
    own_lse = a.at(g.lse, a.scalar(n, h));
    own_delta = row_delta(a, g, heads, own_value, n);
  }
  Fragment<S> grad, grad_value;
  grad.zero();
  grad_value.zero();
  A grad_scalar = A(0);
  const int size = static_cast<int>(entries.size()), last = max(size - 1, 0), longest = heads.most(size);
  const Index others_nodes = pass.others().from(entries.begin);
  const bool needs_position = dropout.active() || a.bias || a.a_edge;
  for (int first = 0; first < longest; first += S::kLanes) {
    const int count = min(size - first, S::kLanes), rounds = min(longest - first, S::kLanes);
    const int t = min(first + lane, last);  // past the end, the last again
    const int lane_node = checked_node(others_nodes[t], pass.num_others()), safe_node = max(lane_node, 0);
    int64_t position = entries.begin + t;
    if (!kRows && needs_position) position = clamp_to(a.perm[position], a.num_edges - 1);
    const int64_t term = a.scalar(position, h);
    const A keep = dropout.factor(position, h);
    const A lse = kRows ? own_lse : a.at(g.lse, a.scalar(safe_node, h));
    const A delta = kRows ? own_delta : a.at(g.delta, a.scalar(safe_node, h));
    const bool is_entry = lane < count && (kRows || lane_node != kNoNode);
    A dp = A(0), p = A(0);
    Logit<A> s{};
    if constexpr (!kDot) {
      s = logit<score>(a, A(0), kRows ? n : safe_node, kRows ? lane_node : n, position, h);
      p = exp_difference(s.value, lse);
    }
#pragma unroll 1
    for (int round = 0; round < rounds; round += kUnroll) {
      Packed<S> others[kUnroll], other_values[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int node = heads.of_round(safe_node, round + u);
        if constexpr (kDot) others[u] = other_row(node);
        other_values[u] = other_value_row(node);
      }
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const int node = heads.of_round(lane_node, round + u);
        const bool is_own = round + u < count && (kRows || node != kNoNode);
        const A row_dp = lanes_sum<S::kLanes>(own_value.dot(other_values[u]));
        if constexpr (kDot) {
          const int64_t row_term = needs_position ? heads.of_round(term, round + u) : 0;
          A row_s = lanes_sum<S::kLanes>(own.dot(others[u])) * a.logit_scale;
          if (a.bias) row_s += a.at(a.bias, row_term);
          if (kRows && node == kNoNode) row_s = A(NAN);
          const A row_keep = dropout.active() ? heads.of_round(keep, round + u) : A(1);
          const A row_lse = kRows ? lse : heads.of_round(lse, round + u);
          const A row_delta = kRows ? delta : heads.of_round(delta, round + u);
          const A row_p = exp_difference(row_s, row_lse), ds = logit_gradient(row_p, row_keep, row_dp, row_delta);
          if (is_own) {
            if constexpr (!kRows) grad_value.add(row_keep * row_p, other_values[u]);
            grad.add(ds, others[u]);
            if (kRows && g.bias && lane == 0 && heads.live) static_cast<A*>(g.bias)[row_term] = ds;
          }
        } else {
          if (lane == round + u) dp = row_dp;
          if constexpr (!kRows) {
            const A row_weight = heads.of_round(keep * p, round + u);
            if (is_own) grad_value.add(row_weight, other_values[u]);
          }
        }
      }
    }
    if constexpr (!kDot) {
      const A ds = logit_gradient(p, keep, dp, delta), operand = ds * s.slope;
      if (is_entry) {
        grad_scalar += operand;
        if (kRows && g.bias && heads.live) static_cast<A*>(g.bias)[term] = ds;
        if (kRows && g.a_edge && heads.live) static_cast<A*>(g.a_edge)[term] = operand;
      }
    }
  }
  if constexpr (!kDot) grad_scalar = lanes_sum<S::kLanes>(grad_scalar);
  const A factor = kDot ? a.logit_scale : A(1);
  store_gradients<side, score>(a, g, n, h, HeadSum<S, true>{grad, heads}, HeadSum<S, true>{grad_value, heads},
                               grad_scalar, heads.is_first(), factor, kWhole, static_cast<A*>(nullptr));
}

// Short rows, one a group of lanes.
template <Side side, Score score, class S>
__global__ void __launch_bounds__(RowUnits::kThreads, (own_rows_warps<side, score, S>()))
    gradients_own_rows_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                              RowUnits units, typename S::A*, const EdgeStore<typename S::A>) {
  const Pass<side> pass{a, g};
  const Dropout dropout(a);
  WarpHeads<S, true> heads(a.heads);
  const auto visit = [&](bool has_row, int n, const Range& entries) {
    heads.live &= has_row;
    gradient_short_row<side, score>(a, g, dropout, heads, n, entries);
  };
  const unsigned row = own_row(blockIdx.x, kWarp / heads.apart(), heads.apart());
  for_own_row(pass.ptr(), pass.num_own(), a.num_edges, row, units.own_most, visit);
}

// Without nodes on one side there are no edges, whatever rowptr and colptr say.
inline Attention without_edges_to_nowhere(Attention a) {
  if (a.num_dst == 0 || a.num_src == 0) a.num_edges = 0;
  return a;
}

template <Side side, Score score>
RowUnits plan_side(const Attention& a) {
  const int numbers = a.heads * slot_width<side, score>(a.head_dim);
  return side == Side::rows ? plan_units(a, a.num_dst, numbers, a.max_degree) : plan_units(a, a.num_src, numbers);
}

// Of one side of a backward pass, in bytes.
template <Side side, Score score, class S>
size_t scratch_bytes(const Attention& a) {
  return UnitScratch<typename S::A>::bytes(plan_side<side, score>(a), a.heads, slot_width<side, score>(a.head_dim));
}

// Calls launch(units, scratch) for what computes a side, then adds up what the pieces of its rows left.
template <Side side, Score score, class S, class Launch>
cudaError_t launch_side(const Attention& a, const Gradients& g, void* scratch_memory, cudaStream_t stream,
                        const Launch& launch) {
  const Pass<side> pass{a, g};
  if (pass.num_own() == 0) return cudaSuccess;
  RowUnits units = plan_side<side, score>(a);
  const UnitScratch<typename S::A> scratch(scratch_memory, a.heads, units);
  cudaError_t error = list_rows(units, pass.ptr(), pass.num_own(), a.num_edges, scratch.list, stream);
  if (error == cudaSuccess) error = launch(units, scratch);
  return error == cudaSuccess ? merge_gradients<side, score, S>(a, g, units, scratch.slots, stream) : error;
}

}  // namespace dfgnn::cuda
