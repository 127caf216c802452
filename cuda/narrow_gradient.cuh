// The gradients of a row (or column) of narrow heads.
#pragma once

#include "gradient_pass.cuh"
#include "narrow_steps.cuh"

namespace dfgnn::cuda {

template <Side side, Score score, class S, bool kOwnRows>
__device__ __forceinline__ void gradient_narrow_row(const Typed<typename S::T>& a, const Gradients& g,
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
  using Steps = NarrowSteps<S, kOwnRows, !(kLoadsOthers && kLoadsValues)>;
  constexpr int kStep = Steps::kStep, kSlots = Steps::kSlots;
  const Steps steps{heads};
  const Pass<side> pass{a, g};
  const int h = heads.head, lane = heads.lane;
  const RowReader<S> other_row(a, pass.other(), h, lane), other_value_row(a, pass.other_value(), h, lane);

  Fragment<S> own, own_value, grad, grad_value;
  load_own<side, score>(a, g, heads, n, own, own_value);
  if constexpr (kRows) {  // columns have no registers for that
    if constexpr (!kAdditive) keep_numbers(own);
    keep_numbers(own_value);
  }
  grad.zero();
  grad_value.zero();
  A grad_scalar = A(0), own_lse = A(0), own_delta = A(0);
  if constexpr (kRows) {
    own_lse = a.at(g.lse, a.scalar(n, h));
    own_delta = row_delta(a, g, heads, own_value, n);
  }
  const A own_term = kRows ? dst_term<score>(a, n, h) : src_term<score>(a, n, h);

  const int size = static_cast<int>(entries.size()), last = max(size - 1, 0);  // what is longer comes in pieces
  const int longest = heads.most(size);
  const bool stores = kRows && (g.bias || g.a_edge || store.pairs);
  const auto position_of = [&](int t) { return entries.begin + min(t, last); };
  const EntryNodes nodes(pass.others(), entries.begin, pass.num_others());
  int next[kSlots];
  if (longest > 0) steps.load(nodes, 0, last, next);
#pragma unroll 1
  for (int first = 0; first < longest; first += steps.entries()) {
    int node[kSlots], safe[kSlots];
    A lse[kSlots], delta[kSlots], term[kSlots], dot[kSlots] = {}, dp[kSlots] = {};
#pragma unroll
    for (int x = 0; x < kSlots; ++x) {
      node[x] = next[x];
      safe[x] = max(node[x], 0);
    }
    steps.load(nodes, first + steps.entries(), last, next);
    Packed<S> others[kStep], values[kStep];
    const bool is_whole = !kOwnRows || first + kStep / 2 < longest;  // else half of the step is past the end
#pragma unroll
    for (int u = 0; u < kStep; ++u) {
      if (u == kStep / 2 && !is_whole) break;
      const int from = steps.of(safe, u);
      if (kLoadsOthers) others[u] = other_row(from);
      if (kLoadsValues) values[u] = other_value_row(from);
    }
#pragma unroll
    for (int x = 0; x < kSlots; ++x) {
      term[x] = kRows ? src_term<score>(a, safe[x], h) : dst_term<score>(a, safe[x], h);
      lse[x] = kRows ? own_lse : a.at(g.lse, a.scalar(safe[x], h));
      delta[x] = kRows ? own_delta : a.at(g.delta, a.scalar(safe[x], h));
    }
    const EntryTerms<score, A, kSlots> terms(a, dropout, h, [&](int x) {
      const int64_t position = position_of(first + steps.own(x));
      return kRows ? position : clamp_to(a.perm[position], a.num_edges - 1);
    });
    if (!kAdditive) {
      steps.sum_lanes(dot, [&](int u) { return Steps::has(u, is_whole) ? pair(own, others[u]) : A(0); });
    }
    steps.sum_lanes(dp, [&](int u) {
      const auto& left = kShared && !kRows ? own : own_value;
      const auto& right = kShared && kRows ? others[u] : values[u];
      return Steps::has(u, is_whole) ? left.dot(right) : A(0);
    });
    A weight[kSlots], operand[kSlots];
#pragma unroll
    for (int x = 0; x < kSlots; ++x) {
      const int t = first + steps.own(x);
      const bool is_own = t < size && lane < Steps::kOwners && (kRows || node[x] != kNoNode);
      const A dst = kRows ? own_term : term[x], src = kRows ? term[x] : own_term;
      auto s = kAdditive ? logit_of<score, false>(a, dot[x], dst + src, terms.edge[x], 0, h)
                         : logit_of<score, false>(a, dot[x], dst, src, 0, h);
      s.value += terms.bias[x];
      if (kRows && node[x] == kNoNode) s.value = NAN;
      const auto d = edge_gradient(s, dp[x], lse[x], delta[x], terms.keep[x]);
      weight[x] = d.weight;
      operand[x] = d.operand;
      if (kAdditive && is_own) grad_scalar += d.operand;
      if (stores && is_own && heads.live) {
        const int64_t position = position_of(t), place = a.scalar(position, h);
        if (g.bias) static_cast<A*>(g.bias)[place] = d.ds;
        if (g.a_edge) static_cast<A*>(g.a_edge)[place] = d.operand;
        if (store.pairs) store.pairs[a.kept(position, h)] = pair_of<score>(d, own_term);
      }
      if constexpr (score == Score::cosine) operand[x] *= term[x];
      if (!kRows && node[x] == kNoNode) weight[x] = operand[x] = A(0);  // gathered was the first row
    }
#pragma unroll
    for (int u = 0; u < kStep; ++u) {
      if (u == kStep / 2 && !is_whole) break;
      const bool adds = first + steps.of_group(u) < size;
      if constexpr (!kRows) add_if(adds, grad_value, steps.of(weight, u), values[u]);
      if constexpr (!kAdditive) {
        const A row_operand = steps.of(operand, u);
        if constexpr (score == Score::additive_v2) {
#pragma unroll
          for (int x = 0; x < Fragment<S>::kSize; ++x) {
            if (adds) grad.x[x] += row_operand * pair.slope(own[x] + others[u][x]);
          }
        } else {
          add_if(adds, grad, row_operand, others[u]);
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

}  // namespace dfgnn::cuda
