// The forward pass of a row of narrow heads.
#pragma once

#include "forward_pieces.cuh"
#include "narrow_steps.cuh"
#include "row_sum.cuh"
#include "sddmm.cuh"

namespace dfgnn::cuda {

// Stores what a softmax has summed up of row i and the lane's head, over `sum`, which is relative to the maximum m; or
// leaves it in its place of a piece's slot, `piece` being that of the heads' first.
template <class S, bool kOwnRows>
__device__ __forceinline__ void store_narrow(const Typed<typename S::T>& a, const Outputs& outputs,
                                             const WarpHeads<S, kOwnRows>& heads, int i, HeadSum<S, kOwnRows> total,
                                             typename S::A m, typename S::A sum, typename S::A* piece) {
  using A = typename S::A;
  const int h = heads.head;
  if (!piece) {
    total.store(a.features(outputs.out, i, h), a.head_dim, sum == A(0) ? A(0) : __frcp_rn(sum));
    if (heads.is_first()) static_cast<A*>(outputs.lse)[a.scalar(i, h)] = m + log(sum);
  } else {
    piece += (h - heads.first()) * forward_slot_width(a);
    total.store_piece(piece, a.head_dim, A(1));
    if (heads.is_first()) {
      piece[a.head_dim] = m;
      piece[a.head_dim + 1] = sum;
    }
  }
}

// Of heads side by side.
template <Score score, class S, bool kOwnRows>
__device__ __forceinline__ void forward_narrow_row(const Typed<typename S::T>& a, const Outputs& outputs,
                                                   const Dropout<typename S::A>& dropout,
                                                   const WarpHeads<S, kOwnRows>& heads, int i, const Range& edges,
                                                   typename S::A* piece) {
  using A = typename S::A;
  constexpr bool kNeedsDots = score != Score::additive;
  constexpr bool kShared = kValueIsSrc<score>;
  using Steps = NarrowSteps<S, kOwnRows, kShared || !kNeedsDots>;
  constexpr int kStep = Steps::kStep, kSlots = Steps::kSlots;
  const Steps steps{heads};
  const int h = heads.head, lane = heads.lane;
  const RowReader<S> src_row(a, a.src, h, lane), value_row(a, a.value, h, lane);
  const PairScore<score, S> pair(a, h, lane);
  Fragment<S> own;
  if constexpr (kNeedsDots) own.load(a.features(a.dst, i, h), lane, a.head_dim);
  if constexpr (score == Score::dot) keep_numbers(own);  // others have no registers for that
  const A own_term = dst_term<score>(a, i, h);

  Fragment<S> out;
  out.zero();
  A m = -INFINITY, sum = A(0);
  const int size = static_cast<int>(edges.size()), last = max(size - 1, 0);  // what is longer comes in pieces
  const int longest = heads.most(size);
  const EntryNodes nodes(a.col, edges.begin, a.num_src);
  int next[kSlots];
  if (longest > 0) steps.load(nodes, 0, last, next);
#pragma unroll 1
  for (int first = 0; first < longest; first += steps.entries()) {
    int node[kSlots], safe[kSlots];
    A term[kSlots], s[kSlots] = {};
#pragma unroll
    for (int x = 0; x < kSlots; ++x) {
      node[x] = next[x];
      safe[x] = max(node[x], 0);
    }
    steps.load(nodes, first + steps.entries(), last, next);
    Packed<S> sources[kStep], values[kStep];
    const bool is_whole = !kOwnRows || first + kStep / 2 < longest;  // else half of the step is past the end
#pragma unroll
    for (int u = 0; u < kStep; ++u) {
      if (u == kStep / 2 && !is_whole) break;
      const int from = steps.of(safe, u);
      if (kNeedsDots) sources[u] = src_row(from);
      if (!kShared) values[u] = value_row(from);
    }
#pragma unroll
    for (int x = 0; x < kSlots; ++x) term[x] = src_term<score>(a, safe[x], h);
    const EntryTerms<score, A, kSlots> terms(a, dropout, h,
                                             [&](int x) { return edges.begin + min(first + steps.own(x), last); });
    if constexpr (kNeedsDots) {
      steps.sum_lanes(s, [&](int u) { return Steps::has(u, is_whole) ? pair(own, sources[u]) : A(0); });
    }
    A largest = m;
#pragma unroll
    for (int x = 0; x < kSlots; ++x) {
      const int t = first + steps.own(x);
      A dst = own_term, src = term[x];
      if constexpr (score == Score::additive) {
        dst += src;
        src = terms.edge[x];
      }
      s[x] = logit_of<score, false>(a, s[x], dst, src, 0, h).value + terms.bias[x];
      if (node[x] == kNoNode) s[x] = NAN;
      if (t >= size) s[x] = -INFINITY;
      largest = max(largest, s[x]);
    }
    if (kOwnRows || __any_sync(kAllLanes, largest > m + A(kMostAbove))) {  // short rows have few steps
      largest = lanes_max<Steps::kOwners>(largest);
      if (!kOwnRows && !(largest > m + A(kMostAbove))) largest = m;  // of others, by which nothing may change here
      if (!kOwnRows || first > 0) {
        const A fade = exp_difference(m, largest);
        sum *= fade;
#pragma unroll
        for (int x = 0; x < Fragment<S>::kSize; ++x) out.x[x] *= fade;
      }
      m = largest;
    }
    const A base = m == -INFINITY ? A(0) : m;
#pragma unroll
    for (int x = 0; x < kSlots; ++x) {
      s[x] = exp_from(s[x], base);
      sum += s[x];  // of the lane's own entries
      s[x] *= terms.keep[x];
    }
#pragma unroll
    for (int u = 0; u < kStep; ++u) {
      if (u == kStep / 2 && !is_whole) break;
      const A weight = steps.of(s, u);
      add_if(first + steps.of_group(u) < size, out, weight, kShared ? sources[u] : values[u]);
    }
  }

  const auto add = [](A x, A y) { return x + y; };
  const A row_max = heads.over_groups(m, [](A x, A y) { return max(x, y); });
  sum = lanes_sum<Steps::kOwners>(sum);
  if constexpr (!kOwnRows) {
    const A share = exp_difference(m, row_max);
    sum = heads.over_groups(sum * share, add);
#pragma unroll
    for (int x = 0; x < Fragment<S>::kSize; ++x) out.x[x] *= share;
  }
  store_narrow(a, outputs, heads, i, HeadSum<S, kOwnRows>{out, heads}, row_max, sum, piece);
}

}  // namespace dfgnn::cuda
