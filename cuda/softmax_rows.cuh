// Softmax and SpMM by rows, a warp each, of logits that are stored, or of additive ones, which a lane makes of two
// numbers.
#pragma once

#include "forward_pieces.cuh"
#include "row_sum.cuh"

namespace dfgnn::cuda {

// Softmax and SpMM of a row, or of a piece of one, by a warp: an online softmax over batches of edges (Milakov &
// Gimelshein 2018). Without kStored there are no `logits`: they are additive. Of two sums, the second is of edges
// with slope 1, for the derivative (forward_pieces.cuh).
template <bool kStored, class S, class Sum>
__device__ __forceinline__ void softmax_row(const Typed<typename S::T>& a, const typename S::A* logits,
                                            const Outputs& outputs, typename S::A* slots, unsigned* inexact, int i,
                                            const Range& edges, int64_t slot, int h) {
  using A = typename S::A;
  constexpr int kSums = Sum::kSums;
  auto& batch = warp_storage<typename Sum::Batch>();
  const int lane = threadIdx.x;
  const Dropout dropout(a);
  const A own_term = kStored ? A(0) : dst_term<Score::additive>(a, i, h);
  const int size = static_cast<int>(edges.size());  // what is longer comes in pieces
  const Index col = a.col.from(edges.begin);
  const auto place = [&](int first) { return min(first + lane, size - 1); };  // past the end, the last again
  for (int f = 0; f < (S::kLoop ? a.head_dim : 1); f += S::kFeatures) {
    const typename Sum::Reader value_row(a, a.value, h, Sum::lane(), f);
    Sum out(batch);
    A m = -INFINITY, sum = A(0), above = A(0), number = A(0);  // the logit, or what the node brings to it
    int node = 0;
    LoadedNode next;
    const auto load = [&](int first) {
      if constexpr (kStored) {
        next = {col, place(first)};
        number = logits[a.kept(edges.begin + place(first), h)];
      } else {
        node = next.check(a.num_src);
        number = src_term<Score::additive>(a, max(node, 0), h);
        next = {col, place(first + kWarp)};
        if constexpr (std::is_same_v<Sum, VectorSum<S, kSums>>) next.wait(a.num_src);  // more on their way are no gain
      }
    };
    if (size > 0) {
      if (!kStored) next = {col, place(0)};
      load(0);
    }
    for (int first = 0; first < size; first += kWarp) {
      const int count = min(kWarp, size - first);
      if (kStored) node = next.check(a.num_src);
      __syncwarp();
      batch.node[lane] = max(node, 0);
      __syncwarp();
      out.load(batch, count, value_row);
      A s = number;
      const bool is_nowhere = node == kNoNode;
      load(first + kWarp);
      bool is_above = false;
      if constexpr (!kStored) {
        const auto logit = logit_of<Score::additive>(a, A(0), own_term, s, edges.begin + place(first), h);
        s = is_nowhere ? A(NAN) : logit.value;
        is_above = logit.slope == A(1);
      }
      if (lane >= count) s = -INFINITY;
      const A largest = warp_max(s);
      if (largest > m) {
        const A fade = exp_difference(m, largest);
        sum *= fade;
        above *= fade;
        out.scale(fade);
        m = largest;
      }
      const A p = exp_difference(s, m), weight = out.fit(p * dropout.factor(edges.begin + first + lane, h));
      sum += p;
      batch.put(lane, weight);
      if constexpr (kSums == 2) {
        if (is_above) above += p;
        batch.put(lane, is_above ? weight : A(0), 1);
      }
      __syncwarp();
      out.add(batch, count, value_row);
    }
    if (!out.is_exact()) *inexact = 1;
    sum = lanes_sum<kWarp>(sum);
    A* const piece = piece_in(a, slots, slot, h, kSums);
    if constexpr (kSums == 1) {
      store_output(a, outputs, i, h, f, out, m, sum, lane == 0, piece);
    } else {
      store_with_derivative(a, outputs, i, h, SumOf<Sum, 0>{out}, SumOf<Sum, 1>{out}, m, sum, lanes_sum<kWarp>(above),
                            lane == 0, piece);
    }
  }
}

// Whose blocks take listed units together in 16 bits, too.
template <class S, class Sum>
constexpr int softmax_rows_warps() {
  constexpr bool kByVectors = std::is_same_v<Sum, VectorSum<S, Sum::kSums>>;
  constexpr int kVectors = Sum::kSums == 2 ? 28 : 24, kTensors = Sum::kSums == 2 ? 24 : 32;
  return warps_here<S>(kByVectors ? kVectors : kTensors);
}

template <bool kStored, class S, class Sum>
__global__ void __launch_bounds__(block_threads(softmax_rows_warps<S, Sum>(), true),
                                  blocks_at_once(softmax_rows_warps<S, Sum>(), true))
    softmax_rows_kernel(const __grid_constant__ Typed<typename S::T> a, const typename S::A* logits,
                        const __grid_constant__ Outputs outputs, RowUnits units, typename S::A* slots) {
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t slot) {
    softmax_row<kStored, S, Sum>(a, logits, outputs, slots, units.inexact, i, edges, slot, blockIdx.y);
  });
}

template <bool kStored, class S, int kSums = 1>
cudaError_t launch_softmax_rows(const Attention& a, const typename S::A* logits, const Outputs& outputs,
                                const RowUnits& units, const UnitScratch<typename S::A>& scratch, cudaStream_t stream) {
  using T = typename S::T;
  auto* by_vectors = softmax_rows_kernel<kStored, S, VectorSum<S, kSums>>;
  auto* kernel = by_vectors;
  decltype(by_vectors) exact = nullptr;
  if constexpr (kTensorRows<S>) {
    if (has_tensor_sums<S>(a)) {
      kernel = softmax_rows_kernel<kStored, S, TensorSum<S, kSums>>;
      exact = by_vectors;
    }
  }
  const auto launch = [&](dim3 grid, const RowUnits& with, auto* chosen) {
    chosen<<<grid, with.block(), with.warps * sum_storage<S, kSums>(), stream>>>(Typed<T>{a}, logits, outputs, with,
                                                                                 scratch.slots);
  };
  const cudaError_t error = launch_units(units, a, a.num_dst, a.heads, scratch.counters, stream, kernel, exact, launch);
  if (error != cudaSuccess) return error;
  return merge_outputs<T, kSums>(a, outputs, units, scratch.slots, stream);
}

}  // namespace dfgnn::cuda
