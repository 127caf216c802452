// One side of a backward pass: what it reads, keeps and stores.
#pragma once

#include "gradient.cuh"
#include "merge.cuh"
#include "row_sum.cuh"
#include "sddmm.cuh"

namespace dfgnn::cuda {

// A node's own rows stay in registers, those of the nodes that it shares edges with are gathered.
enum class Side { rows, columns };

template <Side side>
struct Pass {
  const Attention& a;
  const Gradients& g;

  __host__ __device__ __forceinline__ static constexpr bool rows() { return side == Side::rows; }
  __host__ __device__ __forceinline__ const Index& ptr() const { return rows() ? a.rowptr : a.colptr; }
  __host__ __device__ __forceinline__ const Index& others() const { return rows() ? a.col : a.row; }
  __host__ __device__ __forceinline__ int64_t num_own() const { return rows() ? a.num_dst : a.num_src; }
  __host__ __device__ __forceinline__ int64_t num_others() const { return rows() ? a.num_src : a.num_dst; }
  __host__ __device__ __forceinline__ const void* own() const { return rows() ? a.dst : a.src; }
  __host__ __device__ __forceinline__ const void* own_value() const { return rows() ? g.grad_out : a.value; }
  __host__ __device__ __forceinline__ const void* other() const { return rows() ? a.src : a.dst; }
  __host__ __device__ __forceinline__ const void* other_value() const { return rows() ? a.value : g.grad_out; }
  __host__ __device__ __forceinline__ const void* other_scale() const { return rows() ? a.src_scale : a.dst_scale; }
  __host__ __device__ __forceinline__ void* grad() const { return rows() ? g.dst : g.src; }
};

// What the rows leave to the columns, where it is kept, of each edge and head: its weights in the sums for value and
// for src; of additive scores, whose src has no row, the latter is what it adds to the sum.
template <class A>
struct alignas(2 * sizeof(A)) Pair {
  A of_value, of_src;
};

// own_term: the row's dst_term.
template <Score score, class A>
__device__ __forceinline__ Pair<A> pair_of(const EdgeGradient<A>& d, A own_term) {
  return {d.weight, score == Score::additive ? d.operand : d.operand * own_term};
}

// Memory for that, and, of scores with dot products, for a number that one kernel leaves to the next: dP, in the order
// of the rows, then the weights of the columns' second sum, in that of the columns. [heads, num_edges]; null where
// nothing is kept.
template <class A>
struct EdgeStore {
  Pair<A>* pairs = nullptr;
  A* numbers = nullptr;
};

// What a piece of a long row leaves in its slot: the sums for grad, then, of columns, those for grad_value.
template <Side side, Score score>
__host__ __device__ constexpr int slot_width(int head_dim) {
  return (score == Score::additive ? 1 : head_dim) + (side == Side::columns ? head_dim : 0);
}

// Stores the sums of row (or column) n and head h, or, of a piece, leaves them in its slot.
template <Side side, Score score, class T, class Sum>
__device__ __forceinline__ void store_gradients(const Typed<T>& a, const Gradients& g, int n, int h, Sum grad,
                                                Sum grad_value, typename Typed<T>::A grad_scalar, bool stores_scalar,
                                                typename Typed<T>::A factor, int64_t slot,
                                                typename Typed<T>::A* slots) {
  using A = typename Typed<T>::A;
  const Pass<side> pass{a, g};
  if (slot == kWhole) {
    if constexpr (side == Side::columns) grad_value.store(a.features(g.value, n, h), a.head_dim, A(1));
    if constexpr (score == Score::additive) {
      if (stores_scalar) static_cast<A*>(pass.grad())[a.scalar(n, h)] = grad_scalar;
    } else {
      grad.store(a.features(pass.grad(), n, h), a.head_dim, factor);
    }
  } else {
    const int width = slot_width<side, score>(a.head_dim);
    A* piece = slots + (slot * a.heads + h) * width;
    if constexpr (side == Side::columns) grad_value.store_piece(piece + width - a.head_dim, a.head_dim, A(1));
    if constexpr (score == Score::additive) {
      if (stores_scalar) *piece = grad_scalar;
    } else {
      grad.store_piece(piece, a.head_dim, factor);
    }
  }
}

// Adds up what pieces left.
template <Side side, Score score, class S>
cudaError_t merge_gradients(const Attention& a, const Gradients& g, const RowUnits& units, const typename S::A* slots,
                            cudaStream_t stream) {
  using T = typename S::T;
  using A = typename S::A;
  const Pass<side> pass{a, g};
  Merge<T, false> merge{
      pass.ptr(), pass.num_own(), a.num_edges, units, a.heads, slots, slot_width<side, score>(a.head_dim), a.head_dim};
  if constexpr (score == Score::additive) {
    merge.number = static_cast<A*>(pass.grad());
  } else {
    merge.rows[merge.results++] = static_cast<T*>(pass.grad());
  }
  if constexpr (side == Side::columns) merge.rows[merge.results++] = static_cast<T*>(g.value);
  return launch_merge(merge, stream);
}

// A node's own rows, those that the score has on that side: where src is the value too, columns hold it once.
template <Side side, Score score, class S, bool kOwnRows>
__device__ __forceinline__ void load_own(const Typed<typename S::T>& a, const Gradients& g,
                                         const WarpHeads<S, kOwnRows>& heads, int n, Fragment<S>& own,
                                         Fragment<S>& own_value) {
  const Pass<side> pass{a, g};
  constexpr bool kShared = kValueIsSrc<score>;
  if constexpr (score != Score::additive) own.load(a.features(pass.own(), n, heads.head), heads.lane, a.head_dim);
  if constexpr (!kShared || side == Side::rows) {
    own_value.load(a.features(pass.own_value(), n, heads.head), heads.lane, a.head_dim);
  }
}

// delta_i = <grad_out_i, out_i> - grad_lse_i of the lane's head, for the columns too.
template <class S, bool kOwnRows, class Row>
__device__ __forceinline__ typename S::A row_delta(const Typed<typename S::T>& a, const Gradients& g,
                                                   const WarpHeads<S, kOwnRows>& heads, const Row& grad_out, int i) {
  Packed<S> out;
  out.load(a.features(g.out, i, heads.head), heads.lane, a.head_dim);
  const auto delta = delta_of(a, g, i, heads.head, lanes_sum<S::kLanes>(out.dot(grad_out)));
  if (heads.is_first()) static_cast<typename S::A*>(g.delta)[a.scalar(i, heads.head)] = delta;
  return delta;
}

}  // namespace dfgnn::cuda
