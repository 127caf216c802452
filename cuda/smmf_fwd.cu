// SMMF forward: one kernel, the logits never leave the registers. A warp takes a row, or a piece of a long one, and
// goes over its edges once, with an online softmax (Milakov & Gimelshein 2018): each group of lanes gathers the rows of
// its own edges and keeps a maximum, a sum and a weighted sum of rows of values; those of the groups are added up at
// the end. A logit and its exponential are made by one lane. Where src is the value too, its rows are gathered once.
#include "forward_pieces.cuh"
#include "row_sum.cuh"
#include "sddmm.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

// Rounds of a group whose rows are in flight at once: 8 vectors a lane.
template <Score score, class S>
__host__ __device__ constexpr int rounds_in_flight() {
  // Rows of an edge, or what takes as many registers.
  constexpr int kRows = score == Score::dot || score == Score::additive_v2 ? 2 : 1;
  constexpr int kRounds = S::kSteps * kRows < 8 ? 8 / (S::kSteps * kRows) : 1;
  return kRounds < S::kLanes ? kRounds : S::kLanes;
}

template <Score score, class S>
constexpr int blocks_per_multiprocessor() {
  if (sizeof(typename S::A) == 8) return 1;
  return S::kLoop ? 12 : score == Score::cosine && S::kVec == 8 ? 16 : 20;
}

template <Score score, class S, bool kOwnRows>
__device__ __forceinline__ void forward_row(const Typed<typename S::T>& a, const Outputs& outputs, typename S::A* slots,
                                            const Dropout<typename S::A>& dropout, const WarpHeads<S, kOwnRows>& heads,
                                            int i, const Range& edges, int64_t slot, int f) {
  using A = typename S::A;
  constexpr bool kNeedsDots = score != Score::additive;
  constexpr bool kShared = score == Score::cosine || score == Score::additive_v2;  // src is the value too
  constexpr int kUnroll = rounds_in_flight<score, S>();
  const int h = heads.head, lane = heads.lane;
  const bool in_chunks = S::kLoop && a.head_dim > S::kFeatures;  // features from f on, of more than a fragment has
  const RowReader<S> src_row(a, a.src, h, lane), value_row(a, a.value, h, lane, f);
  const PairScore<score, S> pair(a, h, lane);
  Packed<S> own;
  if constexpr (kNeedsDots) own.load(a.features(a.dst, i, h), lane, a.head_dim);
  const A own_term = dst_term<score>(a, i, h);

  Fragment<S> out;
  out.zero();
  A m = -INFINITY, sum = A(0);
  const int size = static_cast<int>(edges.size()), last = max(size - 1, 0);  // what is longer comes in pieces
  const int longest = heads.most(size);
  const Index col = a.col.from(edges.begin);
  const auto load_node = [&](int first) {  // past the end, the last again
    return checked_node(col[min(first + heads.entry(lane), last)], a.num_src);
  };
  int next_node = longest > 0 ? load_node(0) : kNoNode;
  for (int first = 0; first < longest; first += heads.entries()) {
    const int count = min(heads.entries(), max(size - first, 0));
    const int rounds = heads.rounds(count), own_rounds = heads.own_rounds(count);
    // One edge a lane: what is a number each.
    const int64_t e = edges.begin + min(first + heads.entry(lane), last);
    const int lane_node = next_node;
    next_node = load_node(first + heads.entries());
    const A term = src_term<score>(a, max(lane_node, 0), h);
    const A keep = dropout.factor(e, h);
    // One edge a group of lanes: what is a row of features each.
    for (int round = 0; round < rounds; round += kUnroll) {
      Packed<S> sources[kUnroll], values[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u > 0 && round + u >= rounds) break;
        const int node = max(heads.of_round(lane_node, round + u), 0);
        if (kNeedsDots && !in_chunks) sources[u] = src_row(node);
        if (!kShared || in_chunks) values[u] = value_row(node);
      }
      A dot = A(0);
      if constexpr (kNeedsDots) {
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          if (u > 0 && round + u >= rounds) break;
          A row_dot;
          if (in_chunks) {
            const int node = max(heads.of_round(lane_node, round + u), 0);
            row_dot = long_pair_score<score, S>(a, a.features(a.dst, i, h), a.features(a.src, node, h), h, lane);
          } else {
            row_dot = pair(own, sources[u]);
          }
          row_dot = lanes_sum<S::kLanes>(row_dot);
          if (lane == round + u) dot = row_dot;
        }
      }
      A s = logit_of<score>(a, dot, own_term, term, e, h).value;
      if (lane_node == kNoNode) s = NAN;
      if (lane < round || lane >= min(round + kUnroll, own_rounds)) s = -INFINITY;
      const A largest = max(m, lanes_max<S::kLanes>(s));
      const A fade = exp_difference(m, largest);
      m = largest;
      const A p = exp_difference(s, m);
      sum = sum * fade + p;  // of the lane's own edges
      const A weight = p * keep;
#pragma unroll
      for (int x = 0; x < Fragment<S>::kSize; ++x) out.x[x] *= fade;
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        if (u > 0 && round + u >= rounds) break;
        const A row_weight = heads.of_round(weight, round + u);
        if (round + u < own_rounds) out.add(row_weight, kShared && !in_chunks ? sources[u] : values[u]);
      }
    }
  }

  const auto add = [](A x, A y) { return x + y; };
  const A row_max = heads.over_groups(m, [](A x, A y) { return max(x, y); });
  const A share = exp_difference(m, row_max);
  sum = heads.over_groups(lanes_sum<S::kLanes>(sum) * share, add);
#pragma unroll
  for (int x = 0; x < Fragment<S>::kSize; ++x) out.x[x] *= share;
  HeadSum<S, kOwnRows> total{out, heads};
  if (slot == kWhole) {
    total.store(a.features(outputs.out, i, h) + f, a.head_dim - f, sum == A(0) ? A(0) : A(1) / sum);
    if (heads.is_first()) static_cast<A*>(outputs.lse)[a.scalar(i, h)] = row_max + log(sum);
  } else {
    A* piece = slots + (slot * a.heads + h) * forward_slot_width(a);
    total.store_piece(piece + f, a.head_dim - f, A(1));
    if (heads.is_first()) {
      piece[a.head_dim] = row_max;
      piece[a.head_dim + 1] = sum;
    }
  }
}

template <Score score, class S>
__global__ void __launch_bounds__(RowUnits::kThreads, (blocks_per_multiprocessor<score, S>()))
    forward_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                   RowUnits units, typename S::A* slots) {
  const WarpHeads<S> heads(a.heads);
  const Dropout dropout(a);
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t slot) {
    for (int f = 0; f < (S::kLoop ? a.head_dim : 1); f += S::kFeatures) {
      forward_row<score>(a, outputs, slots, dropout, heads, i, edges, slot, f);
    }
  });
}

// Short rows, one a group of lanes.
template <Score score, class S>
__global__ void __launch_bounds__(RowUnits::kThreads, (blocks_per_multiprocessor<score, S>()))
    forward_own_rows_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                            RowUnits units, typename S::A*) {
  WarpHeads<S, true> heads(a.heads);
  const Dropout dropout(a);
  for_own_row(a.rowptr, a.num_dst, a.num_edges, units, heads.apart(), [&](bool has_row, int i, const Range& edges) {
    heads.live &= has_row;
    forward_row<score>(a, outputs, static_cast<typename S::A*>(nullptr), dropout, heads, i, edges, kWhole, 0);
  });
}

}  // namespace

size_t smmf_fwd_workspace(const Attention& a) {
  const RowUnits units = plan_forward(a);
  return units.need_scratch(a.num_dst, a.num_edges) ? forward_scratch_bytes(a, units) : 0;
}

cudaError_t smmf_fwd(const Attention& a, const Outputs& outputs, void* workspace, cudaStream_t stream) {
  if (a.num_dst == 0) return cudaSuccess;
  return for_score_and_shape(a, [&]<Score score, class S>() {
    using T = typename S::T;
    using A = typename S::A;
    RowUnits units = plan_forward(a);
    const UnitScratch<A> scratch(workspace, a.heads);
    auto* kernel = forward_kernel<score, S>;
    decltype(kernel) own = nullptr;
    if constexpr (S::kGroups > 1) own = forward_own_rows_kernel<score, S>;
    const decltype(kernel) none = nullptr;
    const auto launch = [&](dim3 grid, const RowUnits& with, auto* chosen) {
      chosen<<<grid, RowUnits::kThreads, 0, stream>>>(Typed<T>{a}, outputs, with, scratch.slots);
    };
    const unsigned blocks = head_blocks<S>(a.heads);
    if (!launch_short_rows(units, a.num_dst, a.num_edges, a.max_degree, lanes_of_heads<S>(a.heads), blocks, own,
                           launch)) {
      return cudaGetLastError();
    }
    const cudaError_t error = launch_units(units, a, a.num_dst, blocks, scratch.counters, stream, kernel, none, launch);
    if (error != cudaSuccess) return error;
    return merge_outputs<T>(a, outputs, units, scratch.slots, stream);
  });
}

}  // namespace dfgnn::cuda
