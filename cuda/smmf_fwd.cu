// SMMF forward: one kernel, the logits never leave the registers. A warp takes a row, or a piece of a long one, and
// goes over its edges once, with an online softmax (Milakov & Gimelshein 2018): each group of lanes gathers the rows of
// its own edges and keeps a maximum, a sum and a weighted sum of rows of values; those of the groups are added up at
// the end. A logit and its exponential are made by one lane. Where src is the value too, its rows are gathered once.
// Long rows go by softmax_rows.cuh with additive scores, and by online_rows.cuh where src is the value; narrow heads by
// narrow_forward.cuh, and long rows of theirs with additive scores by narrow_softmax.cuh.
#include "narrow_softmax.cuh"
#include "online_rows.cuh"
#include "row_list.cuh"
#include "run_forward.cuh"
#include "sddmm.cuh"
#include "shapes.cuh"
#include "softmax_rows.cuh"

namespace dfgnn::cuda {
namespace {

// Rounds of a group whose rows are in flight at once: 8 vectors a lane.
template <Score score, class S>
__host__ __device__ constexpr int rounds_in_flight() {
  // Rows of an edge, or what takes as many registers.
  constexpr int kRows = score == Score::dot || score == Score::additive_v2 ? 2 : 1;
  return rounds_of_vectors<S>(8 / kRows);
}

template <Score score, class S>
constexpr int blocks_per_multiprocessor() {
  if (sizeof(typename S::A) == 8) return 1;
  return S::kLoop ? 12 : score == Score::cosine && S::kVec == 8 ? 16 : 20;
}

// The same where a warp takes a row: more of small heads, whose warps wait for memory most.
template <Score score, class S>
constexpr int warps_per_multiprocessor() {
  if (S::kSteps > 1) return blocks_per_multiprocessor<score, S>();
  if (S::kVec == 8 && score == Score::dot) return warps_here<S>(24);
  if (S::kVec == 8 && score == Score::additive_v2) return warps_here<S>(20);
  if (S::kVec == 4 && score == Score::cosine) return warps_here<S>(32, 15);
  return warps_here<S>(score == Score::dot || score == Score::additive ? 28 : 24);
}

template <Score score, class S>
constexpr bool kForwardTogether = kNarrowTogether<S> && score == Score::dot;

// And where groups of lanes take one each.
template <Score score, class S>
constexpr int own_rows_warps() {
  if (S::kSteps == 1) return warps_here<S>(score == Score::additive_v2 ? 20 : 24);
  return score == Score::additive ? 24 : blocks_per_multiprocessor<score, S>();
}

// Of heads that are more than a vector a lane.
template <Score score, class S, bool kOwnRows>
__device__ __forceinline__ void forward_wide_row(const Typed<typename S::T>& a, const Outputs& outputs,
                                                 const Dropout<typename S::A>& dropout,
                                                 const WarpHeads<S, kOwnRows>& heads, int i, const Range& edges,
                                                 typename S::A* piece, int f) {
  using A = typename S::A;
  constexpr bool kNeedsDots = score != Score::additive;
  constexpr bool kShared = kValueIsSrc<score>;
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
    for (int round = 0; round < (kUnroll == S::kLanes ? 1 : rounds); round += kUnroll) {
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
  if (!piece) {  // as store_output has it, by which kernels of few edges spill
    total.store(a.features(outputs.out, i, h) + f, a.head_dim - f, sum == A(0) ? A(0) : A(1) / sum);
    if (heads.is_first()) static_cast<A*>(outputs.lse)[a.scalar(i, h)] = row_max + log(sum);
  } else {
    piece += (h - heads.first()) * forward_slot_width(a);
    total.store_piece(piece + f, a.head_dim - f, A(1));
    if (heads.is_first()) {
      piece[a.head_dim] = row_max;
      piece[a.head_dim + 1] = sum;
    }
  }
}

// f: the first feature of what a fragment has of a head.
template <Score score, class S, bool kOwnRows>
__device__ __forceinline__ void forward_row(const Typed<typename S::T>& a, const Outputs& outputs,
                                            const Dropout<typename S::A>& dropout, const WarpHeads<S, kOwnRows>& heads,
                                            int i, const Range& edges, typename S::A* piece, int f) {
  if constexpr (S::kSteps == 1) {
    forward_narrow_row<score>(a, outputs, dropout, heads, i, edges, piece);
  } else {
    forward_wide_row<score>(a, outputs, dropout, heads, i, edges, piece, f);
  }
}

template <Score score, class S>
__global__ void __launch_bounds__(block_threads(warps_per_multiprocessor<score, S>(), kForwardTogether<score, S>),
                                  blocks_at_once(warps_per_multiprocessor<score, S>(), kForwardTogether<score, S>))
    forward_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                   RowUnits units, typename S::A* slots) {
  const WarpHeads<S> heads(a.heads);
  const Dropout dropout(a);
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t slot) {
    auto* piece = piece_in(a, slots, slot, heads.first());
    for (int f = 0; f < (S::kLoop ? a.head_dim : 1); f += S::kFeatures) {
      forward_row<score>(a, outputs, dropout, heads, i, edges, piece, f);
    }
  });
}

// A short row by a group of lanes. Of wide heads of up to S::kLanes edges the dots, then the softmax, then the values,
// so that a step of the softmax serves all of them.
template <Score score, class S>
__device__ __forceinline__ void forward_short_row(const Typed<typename S::T>& a, const Outputs& outputs,
                                                  const Dropout<typename S::A>& dropout,
                                                  const WarpHeads<S, true>& heads, int i, const Range& edges) {
  using A = typename S::A;
  if constexpr (S::kSteps == 1 || kValueIsSrc<score>) {  // or rows are gathered once
    forward_row<score>(a, outputs, dropout, heads, i, edges, static_cast<A*>(nullptr), 0);
    return;
  }
  constexpr int kUnroll = rounds_of_vectors<S>(score == Score::additive ? 4 : 8);
  const int h = heads.head, lane = heads.lane;
  const RowReader<S> src_row(a, a.src, h, lane), value_row(a, a.value, h, lane);
  const A own_term = dst_term<score>(a, i, h);
  Packed<S> own;
  if constexpr (score == Score::dot) own.load(a.features(a.dst, i, h), lane, a.head_dim);
  Fragment<S> out;
  out.zero();
  A m = -INFINITY, sum = A(0);
  const int size = static_cast<int>(edges.size()), last = max(size - 1, 0), longest = heads.most(size);
  const Index col = a.col.from(edges.begin);
  for (int first = 0; first < longest; first += S::kLanes) {
    const int count = min(size - first, S::kLanes), rounds = min(longest - first, S::kLanes);
    const int t = min(first + lane, last);  // past the end, the last again
    const int lane_node = checked_node(col[t], a.num_src), safe_node = max(lane_node, 0);
    const A term = src_term<score>(a, safe_node, h);
    Packed<S> rows[kUnroll];
    const auto load = [&](const RowReader<S>& row, int round) {  // past the last round, too, and no branches
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        rows[u] = row(heads.of_round(safe_node, round + u));
      }
    };
    A dot = A(0);
    if constexpr (score == Score::dot) {
#pragma unroll 1
      for (int round = 0; round < rounds; round += kUnroll) {
        load(src_row, round);
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          const A row_dot = lanes_sum<S::kLanes>(own.dot(rows[u]));
          if (lane == round + u) dot = row_dot;
        }
      }
    }
    load(value_row, 0);
    A s = logit_of<score>(a, dot, own_term, term, edges.begin + t, h).value;
    if (lane_node == kNoNode) s = NAN;
    if (lane >= count) s = -INFINITY;
    const A largest = max(m, lanes_max<S::kLanes>(s)), fade = exp_difference(m, largest);
    m = largest;
    const A p = exp_difference(s, m), weight = p * dropout.factor(edges.begin + t, h);
    sum = sum * fade + p;  // of the lane's own edges
    if (first > 0) {
#pragma unroll
      for (int x = 0; x < Fragment<S>::kSize; ++x) out.x[x] *= fade;
    }
#pragma unroll 1
    for (int round = 0; round < rounds; round += kUnroll) {
      if (round > 0) load(value_row, round);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const A row_weight = heads.of_round(weight, round + u);
        if (round + u < count) out.add(row_weight, rows[u]);
      }
    }
  }
  sum = lanes_sum<S::kLanes>(sum);
  if (!heads.live) return;
  out.template store<S::kSteps>(a.features(outputs.out, i, h), lane, a.head_dim, 0, sum == A(0) ? A(0) : A(1) / sum);
  if (lane == 0) static_cast<A*>(outputs.lse)[a.scalar(i, h)] = m + log(sum);
}

template <Score score, class S>
__global__ void __launch_bounds__(RowUnits::kThreads, (own_rows_warps<score, S>()))
    forward_own_rows_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                            RowUnits units, typename S::A*) {
  WarpHeads<S, true> heads(a.heads);
  const Dropout dropout(a);
  const unsigned row = own_row(blockIdx.x, kWarp / heads.apart(), heads.apart());
  for_own_row(a.rowptr, a.num_dst, a.num_edges, row, units.own_most, [&](bool has_row, int i, const Range& edges) {
    heads.live &= has_row;
    forward_short_row<score>(a, outputs, dropout, heads, i, edges);
  });
}

// Few edges: rows by blocks, which take short rows first, where there are many, and add up their long rows themselves
// (row_blocks.cuh).
template <Score score, class S, class Short>
__global__ void __launch_bounds__(RowPlan::kThreads, 4)
    forward_blocks_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                          RowPlan plan) {
  __shared__ ForwardSlices<S> slices;
  const WarpHeads<S> heads(a.heads);
  const Dropout dropout(a);
  if constexpr (S::kGroups > 1) {
    if (plan.shortest > 0) {
      WarpHeads<Short, true> own(a.heads);
      const unsigned row = own_row(blockIdx.x, plan.rows_per_block, own.apart());
      const auto visit = [&](bool has_row, int i, const Range& edges) {
        own.live &= has_row;
        forward_short_row<score>(a, outputs, dropout, own, i, edges);
      };
      for_own_row(a.rowptr, a.num_dst, a.num_edges, row, plan.shortest - 1, visit);
    }
  }
  for_rows<false>(a.rowptr, a.num_dst, a.num_edges, plan, [&](int i, const Range& edges, bool is_slice, int) {
    forward_row<score>(a, outputs, dropout, heads, i, edges, is_slice ? slices.own() : nullptr, 0);
    if (is_slice) slices.add_up(a, outputs, i, heads.first(), heads.count(a.heads));
  });
}

// Whether rows are long.
bool has_long_rows(const Attention& a) { return rows_fill_warps(a.num_dst, a.num_edges); }

// Additive scores of long rows, where heads do not lie side by side: a lane makes a logit of two numbers, while the
// warp sums up the rows of values that it gathers on tensor cores or a whole row at a time.
template <Score score, class S>
bool goes_by_softmax_rows(const Attention& a) {
  return score == Score::additive && has_long_rows(a) && log_heads_side_by_side<S>(a.heads) == 0;
}

// Scores of long rows whose src is the value, of heads that a fragment holds, likewise, or, of cosines, on tensor
// cores.
template <Score score, class S>
bool goes_by_online_rows(const Attention& a) {
  return kValueIsSrc<score> && a.head_dim <= S::kFeatures && has_long_rows(a) &&
         ((score == Score::cosine && tensor_rows<S>(a.head_dim)) || log_heads_side_by_side<S>(a.heads) == 0);
}

// Few edges, in short rows.
template <class S>
bool goes_by_blocks(const Attention& a) {
  return !S::kLoop && is_few(a.num_dst, a.num_edges, a.max_degree);
}

// The same of short rows and wide heads.
template <class S>
bool goes_by_runs(const Attention& a) {
  return kHasRuns<S> && has_runs(a.num_dst, a.num_edges, a.max_degree);
}

}  // namespace

size_t smmf_fwd_workspace(const Attention& a) {
  size_t bytes = 0;
  for_score_and_shape(a, [&]<Score score, class S>() {
    if (goes_by_runs<S>(a)) {
      bytes = forward_runs_workspace(a);
      return cudaSuccess;
    }
    const RowUnits units = plan_forward(a);
    const bool may_be_inexact = goes_by_softmax_rows<score, S>(a) && has_tensor_sums<S>(a);
    const bool needs_some = may_be_inexact || units.need_scratch(a.num_dst, a.num_edges);
    if (needs_some && !goes_by_blocks<S>(a)) bytes = forward_scratch_bytes(a, units);
    return cudaSuccess;
  });
  return bytes;
}

cudaError_t smmf_fwd(const Attention& a, const Outputs& outputs, void* workspace, cudaStream_t stream) {
  if (a.num_dst == 0) return cudaSuccess;
  return for_score_and_shape(a, [&]<Score score, class S>() {
    using T = typename S::T;
    using A = typename S::A;
    const unsigned blocks = head_blocks<S>(a.heads);
    if constexpr (kHasRuns<S>) {
      if (goes_by_runs<S>(a)) return launch_forward_runs<score, S>(a, outputs, workspace, stream);
    }
    if constexpr (!S::kLoop) {
      if (goes_by_blocks<S>(a)) {
        const RowPlan plan = plan_few_edges(a.num_dst, kWarp / lanes_of_heads<S>(a.heads));
        auto* kernel = a.head_dim == S::kFeatures ? forward_blocks_kernel<score, S, typename S::Exact>
                                                  : forward_blocks_kernel<score, S, S>;
        kernel<<<dim3(plan.blocks, blocks), RowPlan::kThreads, 0, stream>>>(Typed<T>{a}, outputs, plan);
        return cudaGetLastError();
      }
    }
    RowUnits units = plan_forward(a);
    const UnitScratch<A> scratch(workspace, a.heads, units);
    cudaError_t error = list_rows(units, a.rowptr, a.num_dst, a.num_edges, scratch.list, stream);
    if (error != cudaSuccess) return error;
    if constexpr (score == Score::additive) {
      if (goes_by_softmax_rows<score, S>(a)) {
        return launch_softmax_rows<false, S>(a, nullptr, outputs, units, scratch, stream);
      }
      if constexpr (kNarrowSoftmax<S>) {
        if (has_long_rows(a) && takes_narrow_softmax<S>(a)) {
          return launch_narrow_softmax<S>(a, outputs, units, scratch, stream);
        }
      }
    }
    if constexpr (kValueIsSrc<score>) {
      if (goes_by_online_rows<score, S>(a)) return launch_online_rows<score, S>(a, outputs, units, scratch, stream);
    }
    const auto launch = [&](dim3 grid, const RowUnits& with, auto* chosen) {
      chosen<<<grid, with.block(), 0, stream>>>(Typed<T>{a}, outputs, with, scratch.slots);
    };
    auto* kernel = forward_kernel<score, S>;
    decltype(kernel) own = nullptr;
    if constexpr (S::kGroups > 1) {
      own = a.head_dim == S::kFeatures ? forward_own_rows_kernel<score, typename S::Exact>
                                       : forward_own_rows_kernel<score, S>;
    }
    if (!launch_short_rows(units, a.num_dst, a.num_edges, a.max_degree, lanes_of_heads<S>(a.heads), blocks, own,
                           launch)) {
      return cudaGetLastError();
    }
    error = launch_units(units, a, a.num_dst, blocks, scratch.counters, stream, kernel, nullptr, launch);
    if (error != cudaSuccess) return error;
    return merge_outputs<T>(a, outputs, units, scratch.slots, stream);
  });
}

}  // namespace dfgnn::cuda
