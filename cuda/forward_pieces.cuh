// What forward passes leave of pieces of long rows (row_units.cuh), and its sums.
//
// Of additive scores, a pass may make the derivative of out_i by dst_i, too: as leaky_relu has slope 1 above 0 and a
// below,
//   sum_j slope_j p_j (k_j value_j - out_i) = (1 - a) (above_i - share_i out_i),
// where above is the part of the sum out that edges with slope 1 have, and share that of the probabilities.
#pragma once

#include "merge.cuh"
#include "row_blocks.cuh"

namespace dfgnn::cuda {

// Of a slot, for each head: the weighted sum of rows of values, with a derivative the part of slope 1, then the maximum
// and the sum of the softmax, and that part.
__host__ __device__ inline int forward_slot_width(const Attention& a, int sums = 1) {
  return sums * (a.head_dim + 1) + 1;
}

// Stores, of row i and head h, what a softmax has summed up from feature f on, `total`, over `sum`, which is relative
// to the maximum m; or, where there is a piece to leave it in, leaves it there.
template <class T, class Sum>
__device__ __forceinline__ void store_output(const Typed<T>& a, const Outputs& outputs, int i, int h, int f,
                                             Sum&& total, typename Typed<T>::A m, typename Typed<T>::A sum,
                                             bool stores_numbers, typename Typed<T>::A* piece) {
  using A = typename Typed<T>::A;
  if (!piece) {
    total.store(a.features(outputs.out, i, h) + f, a.head_dim - f, sum == A(0) ? A(0) : A(1) / sum);
    if (stores_numbers) static_cast<A*>(outputs.lse)[a.scalar(i, h)] = m + log(sum);
  } else {
    total.store_piece(piece + f, a.head_dim - f, A(1));
    if (stores_numbers) {
      piece[a.head_dim] = m;
      piece[a.head_dim + 1] = sum;
    }
  }
}

// The same with the derivative, `above` and `part` being what the sums have of edges with slope 1.
template <class T, class Total, class Above>
__device__ __forceinline__ void store_with_derivative(const Typed<T>& a, const Outputs& outputs, int i, int h,
                                                      Total&& total, Above&& above, typename Typed<T>::A m,
                                                      typename Typed<T>::A sum, typename Typed<T>::A part,
                                                      bool stores_numbers, typename Typed<T>::A* piece) {
  using A = typename Typed<T>::A;
  if (!piece) {
    above.subtract(share_of(part, sum), total);
    const A factor = sum == A(0) ? A(0) : A(1) / sum;
    total.store(a.features(outputs.out, i, h), a.head_dim, factor);
    above.store(a.features(outputs.derivative, i, h), a.head_dim, factor * (A(1) - a.slope_below_zero));
    if (stores_numbers) static_cast<A*>(outputs.lse)[a.scalar(i, h)] = m + log(sum);
  } else {
    total.store_piece(piece, a.head_dim, A(1));
    above.store_piece(piece + a.head_dim, a.head_dim, A(1));
    if (stores_numbers) {
      piece += 2 * a.head_dim;
      piece[0] = m;
      piece[1] = sum;
      piece[2] = part;
    }
  }
}

// The piece of head h in a slot, if it is one.
template <class T>
__device__ __forceinline__ typename Typed<T>::A* piece_in(const Typed<T>& a, typename Typed<T>::A* slots, int64_t slot,
                                                          int h, int sums = 1) {
  return slot == kWhole ? nullptr : slots + (slot * a.heads + h) * forward_slot_width(a, sums);
}

// The same units with a derivative, whose slots are twice as wide, so that out has the same bits.
inline RowUnits plan_forward(const Attention& a) {
  return plan_units(a, a.num_dst, a.heads * forward_slot_width(a), a.max_degree);
}

inline size_t forward_scratch_bytes(const Attention& a, const RowUnits& units, int sums = 1) {
  const int width = forward_slot_width(a, sums);
  return a.type == Type::f64 ? UnitScratch<double>::bytes(units, a.heads, width)
                             : UnitScratch<float>::bytes(units, a.heads, width);
}

// The same for the slices of a long row that a block's warps take: adds up those of `count` heads from `first_head` on,
// which piece_of(w) has of warp w. All threads come, when the pieces are there.
template <class T, class PieceOf>
__device__ __forceinline__ void add_up_slices(const Typed<T>& a, const Outputs& outputs, int row, int first_head,
                                              int count, int warps, const PieceOf& piece_of) {
  using A = typename Typed<T>::A;
  __syncthreads();
  const int64_t first = a.scalar(row, first_head);
  auto* out = static_cast<T*>(outputs.out) + first * a.head_dim;
  for (int t = threadIdx.x; t < count * a.head_dim; t += warps * kWarp) {
    const int h = t / a.head_dim, f = t - h * a.head_dim, begin = h * forward_slot_width(a);
    A row_max = -INFINITY, sum = A(0), x = A(0);
#pragma unroll
    for (int w = 0; w < warps; ++w) row_max = max(row_max, piece_of(w)[begin + a.head_dim]);
#pragma unroll
    for (int w = 0; w < warps; ++w) {
      const A* piece = piece_of(w) + begin;
      const A share = exp_difference(piece[a.head_dim], row_max);
      sum += share * piece[a.head_dim + 1];
      x += share * piece[f];
    }
    out[t] = from_accumulate<T>(sum == A(0) ? A(0) : x / sum);
    if (f == 0) static_cast<A*>(outputs.lse)[first + h] = row_max + log(sum);
  }
  __syncthreads();
}

// Room for the slices of blocks by row_blocks.cuh.
template <class S>
class ForwardSlices {
 public:
  using A = typename S::A;

  __device__ __forceinline__ A* own() { return pieces_[threadIdx.x / kWarp]; }
  __device__ __forceinline__ void add_up(const Typed<typename S::T>& a, const Outputs& outputs, int row, int first_head,
                                         int count) {
    add_up_slices(a, outputs, row, first_head, count, RowPlan::kWarps, [&](int w) { return pieces_[w]; });
  }

 private:
  static constexpr int kHeads = S::kSteps == 1 ? S::kGroups : 1;  // side by side, at the most
  A pieces_[RowPlan::kWarps][kHeads * (S::kFeatures + 2)];
};

template <class T, int kSums = 1>
cudaError_t merge_outputs(const Attention& a, const Outputs& outputs, const RowUnits& units,
                          const typename Accumulate<T>::type* slots, cudaStream_t stream) {
  using A = typename Accumulate<T>::type;
  const int width = forward_slot_width(a, kSums);
  Merge<T, true, kSums == 2> merge{a.rowptr, a.num_dst, a.num_edges, units, a.heads, slots, width, a.head_dim};
  merge.number = static_cast<A*>(outputs.lse);
  merge.rows[merge.results++] = static_cast<T*>(outputs.out);
  if constexpr (kSums == 2) {
    merge.rows[merge.results++] = static_cast<T*>(outputs.derivative);
    merge.derivative_factor = A(1) - static_cast<A>(a.negative_slope);
  }
  return launch_merge(merge, stream);
}

}  // namespace dfgnn::cuda
