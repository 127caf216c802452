// SMMF forward of long rows whose score's src is the value, too (cosine, GATv2's), a warp each: it gathers their rows
// in steps, makes their logits, and sums up the same rows while it has them, with an online softmax (Milakov &
// Gimelshein 2018).
#pragma once

#include <limits>

#include "forward_pieces.cuh"
#include "node_batches.cuh"
#include "row_groups.cuh"
#include "row_sum.cuh"

namespace dfgnn::cuda {

// What a maximum is at first: not -inf, which each exponential would have to ask for.
template <class A>
constexpr A kLowest = std::numeric_limits<A>::lowest();

// A row, or a piece of one.
template <Score score, class S, class Groups>
__device__ __forceinline__ void online_row(const Typed<typename S::T>& a, const Outputs& outputs,
                                           const Dropout<typename S::A>& dropout, const Groups& groups,
                                           typename S::A* slots, int i, const Range& edges, int64_t slot, int h) {
  using A = typename S::A;
  using W = typename Groups::W;
  using Batches = NodeBatches<score, typename S::T>;
  auto& batch = warp_storage<typename Batches::Storage>();
  const RowReader<W> other_row(a, a.src, h, groups.lane);
  const PairScore<score, W> pair(a, h, groups.lane);
  const bool needs_edges = a.bias || dropout.active();
  typename Groups::Own own;
  own.load(a.features(a.dst, i, h), groups.lane, a.head_dim);
  const A own_term = dst_term<score>(a, i, h);
  Fragment<W> out;
  out.zero();
  A m = kLowest<A>, sum = A(0);
  const int size = static_cast<int>(edges.size());  // what is longer comes in pieces
  if (size > 0) {
    Batches batches(a, batch, edges, h);
    for (int first = 0; first < size; first += kWarp) {
      const int count = min(kWarp, size - first);
      batches.load(first);
      auto nodes = groups.nodes_of(batch.nodes);
#pragma unroll 1
      for (int base = 0; base < count; base += Groups::kStep) {
        Packed<W> rows[Groups::kRows];
        groups.load(rows, nodes, other_row);
        nodes = groups.nodes_of(batch.nodes + base + Groups::kStep);
        const A dot = groups.dot(own, rows, pair);
        const int t = base + groups.own();
        A s = logit_of<score, false>(a, dot, own_term, batch.terms[t], 0, h).value, keep = A(1);
        if (needs_edges) {
          const int64_t e = edges.begin + min(first + t, size - 1);
          if (a.bias) s += a.at(a.bias, a.scalar(e, h));
          keep = dropout.factor(e, h);
        }
        if (t >= count) s = -INFINITY;  // the last row again
        if (__any_sync(kAllLanes, s > m + A(kMostAbove))) {
          const A largest = max(m, warp_max(s)), fade = exp_difference(m, largest);
          sum *= fade;
#pragma unroll
          for (A& x : out.x) x *= fade;
          m = largest;
        }
        const A p = exp_from(s, m);
        sum += p;
#pragma unroll
        for (int u = 0; u < Groups::kRows; ++u) out.add(groups.of_row(p * keep, u), rows[u]);
      }
    }
  }
  sum = lanes_sum<kWarp>(groups.is_first() ? sum : A(0));
  store_output(a, outputs, i, h, 0, WarpSum<W>{out}, m, sum, threadIdx.x == 0, piece_in(a, slots, slot, h));
}

// By times with 64, 128 and 256 features; of very long heads, and of GATv2's, as many as registers leave room for.
template <Score score, class S>
constexpr int online_rows_warps() {
  if (S::kLoop) return warps_here<S>(12);
  if (sizeof(typename S::T) == 2) return warps_here<S>(20);
  if (score == Score::additive_v2) return warps_here<S>(S::kFeatures <= 128 ? 24 : 20);
  return S::kFeatures <= 128 ? warps_here<S>(28, 15) : warps_here<S>(24);
}

template <Score score, class S, class Groups>
__global__ void __launch_bounds__(block_threads(online_rows_warps<score, S>(), kUnitsTogether<S>),
                                  blocks_at_once(online_rows_warps<score, S>(), kUnitsTogether<S>))
    online_rows_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                       RowUnits units, typename S::A* slots) {
  const Dropout dropout(a);
  const Groups groups;
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t slot) {
    online_row<score, S>(a, outputs, dropout, groups, slots, i, edges, slot, blockIdx.y);
  });
}

template <Score score, class S>
cudaError_t launch_online_rows(const Attention& a, const Outputs& outputs, const RowUnits& units,
                               const UnitScratch<typename S::A>& scratch, cudaStream_t stream) {
  using T = typename S::T;
  constexpr size_t kStorage = sizeof(typename NodeBatches<score, T>::Storage);
  const auto launch = [&](dim3 grid, const RowUnits& with, auto* kernel) {
    kernel<<<grid, with.block(), with.warps * kStorage, stream>>>(Typed<T>{a}, outputs, with, scratch.slots);
  };
  const cudaError_t error = for_row_groups<score, S>(a.head_dim, [&]<class Groups>() {
    return launch_units(units, a, a.num_dst, a.heads, scratch.counters, stream, online_rows_kernel<score, S, Groups>,
                        nullptr, launch);
  });
  return error == cudaSuccess ? merge_outputs<T>(a, outputs, units, scratch.slots, stream) : error;
}

}  // namespace dfgnn::cuda
