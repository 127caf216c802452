// Gradients by rows (of dst and of the logits' edge terms) or by columns (of src and value), one kernel seen from
// either side: it makes the logits again, pulls the rows of features it needs, and writes every result once.
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

// What the rows leave to the columns, where it is kept: EdgeGradient's weight and operand of each edge and head.
template <class A>
struct alignas(2 * sizeof(A)) Pair {
  A weight, operand;
};

// Warps a multiprocessor, as many as registers allow.
template <Side side, Score score, class S>
constexpr int warps_per_multiprocessor() {
  if (sizeof(typename S::A) == 8) return 1;
  const bool few_registers = side == Side::rows && score != Score::additive_v2;
  if (S::kSteps * S::kVec <= 8 && S::kLanes == 16) return few_registers ? 28 : 24;
  return few_registers ? 20 : 16;
}

// What a piece of a long row leaves in its slot: the sums for grad, then, of columns, those for grad_value.
template <Side side, Score score>
__host__ __device__ constexpr int slot_width(int head_dim) {
  return (score == Score::additive ? 1 : head_dim) + (side == Side::columns ? head_dim : 0);
}

// Stores the sums of row (or column) n and head h, or, of a piece, leaves them in its slot.
template <Side side, Score score, class T, class Sum>
__device__ __forceinline__ void store_gradients(const Typed<T>& a, const Gradients& g, int n, int h, Sum grad,
                                                Sum grad_value, typename Typed<T>::A grad_scalar,
                                                typename Typed<T>::A factor, int64_t slot,
                                                typename Typed<T>::A* slots) {
  using A = typename Typed<T>::A;
  const Pass<side> pass{a, g};
  if (slot == kWhole) {
    if constexpr (side == Side::columns) grad_value.store(a.features(g.value, n, h), a.head_dim, A(1));
    if constexpr (score == Score::additive) {
      if (threadIdx.x == 0) static_cast<A*>(pass.grad())[a.scalar(n, h)] = grad_scalar;
    } else {
      grad.store(a.features(pass.grad(), n, h), a.head_dim, factor);
    }
  } else {
    const int width = slot_width<side, score>(a.head_dim);
    A* piece = slots + (slot * a.heads + h) * width;
    if constexpr (side == Side::columns) grad_value.store_piece(piece + width - a.head_dim, a.head_dim, A(1));
    if constexpr (score == Score::additive) {
      if (threadIdx.x == 0) *piece = grad_scalar;
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
  const int width = slot_width<side, score>(a.head_dim);
  const auto merge = [&]<class R>(R* result, int offset, int features) {
    return launch_merge(Merge<R>{pass.ptr(), pass.num_own(), a.num_edges, units, a.heads, slots, width, offset,
                                 features, result, nullptr},
                        stream);
  };
  cudaError_t error;
  if constexpr (score == Score::additive) {
    error = merge(static_cast<A*>(pass.grad()), 0, 1);
  } else {
    error = merge(static_cast<T*>(pass.grad()), 0, a.head_dim);
  }
  if (error != cudaSuccess || side == Side::rows) return error;
  return merge(static_cast<T*>(g.value), width - a.head_dim, a.head_dim);
}

// The gradients of row (or column) n and head h, or of a piece of one, by a warp.
template <Side side, Score score, class S>
__device__ __forceinline__ void gradient_row(const Typed<typename S::T>& a, const Gradients& g, typename S::A* slots,
                                             Pair<typename S::A>* pairs, const Dropout<typename S::A>& dropout,
                                             const PairScore<score, S>& pair, int n, const Range& entries, int64_t slot,
                                             int h) {
  using A = typename S::A;
  constexpr bool kRows = side == Side::rows, kAdditive = score == Score::additive;
  // Where src is the value too, it is gathered once by the rows and held once by the columns.
  constexpr bool kShared = score == Score::cosine || score == Score::additive_v2;
  const Pass<side> pass{a, g};
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const bool needs_position = dropout.active() || a.bias || a.a_edge;
  const RowReader<S> other_row(a, pass.other(), h, lane), other_value_row(a, pass.other_value(), h, lane);

  Fragment<S> own, own_value, grad, grad_value;
  if constexpr (!kAdditive) own.load(a.features(pass.own(), n, h), lane, a.head_dim);
  if constexpr (!kShared || kRows) own_value.load(a.features(pass.own_value(), n, h), lane, a.head_dim);
  grad.zero();
  grad_value.zero();
  A grad_scalar = A(0), own_lse = A(0), own_delta = A(0);
  if constexpr (kRows) {
    own_lse = a.at(g.lse, a.scalar(n, h));
    own_delta = a.at(g.delta, a.scalar(n, h));
  }

  for (int64_t first = entries.begin; first < entries.end; first += kWarp) {
    // One entry a lane: what is a number each.
    const int64_t entry = first + threadIdx.x % kWarp;
    int lane_node = kNoNode;
    int64_t lane_position = entry;
    A lane_lse = A(0), lane_delta = A(0), lane_keep = A(1);
    if (entry < entries.end) {
      lane_node = checked_node(pass.others()[entry], pass.num_others());
      if (!kRows && needs_position) lane_position = clamp_to(a.perm[entry], a.num_edges - 1);
      if (!kRows && lane_node != kNoNode) {
        lane_lse = a.at(g.lse, a.scalar(lane_node, h));
        lane_delta = a.at(g.delta, a.scalar(lane_node, h));
      }
      lane_keep = dropout.factor(lane_position, h);
    }
    // One entry a group of lanes: what is a row of features each.
    const int count = static_cast<int>(min(static_cast<int64_t>(kWarp), entries.end - first));
    for (int base = 0; base < count; base += S::kGroups) {
      // Past the end, the last entry again: a load more, and no branch.
      const int t = min(base + group, count - 1);
      const int node = __shfl_sync(kAllLanes, lane_node, t);
      const A lse = kRows ? own_lse : __shfl_sync(kAllLanes, lane_lse, t);
      const A delta = kRows ? own_delta : __shfl_sync(kAllLanes, lane_delta, t);
      const A keep = dropout.active() ? __shfl_sync(kAllLanes, lane_keep, t) : A(1);
      const int64_t position = needs_position ? __shfl_sync(kAllLanes, lane_position, t) : first + t;
      const int safe_node = max(node, 0);
      Packed<S> other, other_value;
      if constexpr (!kAdditive) other = other_row(safe_node);
      if constexpr (!kShared || !kRows) other_value = other_value_row(safe_node);
      const auto& left = kShared && !kRows ? own : own_value;
      const auto& right = kShared && kRows ? other : other_value;
      const A dot = kAdditive ? A(0) : lanes_sum<S::kLanes>(pair(own, other));
      const A dp = lanes_sum<S::kLanes>(left.dot(right));
      const auto d =
          edge_gradient<score>(a, dot, dp, lse, delta, keep, kRows ? n : safe_node, kRows ? node : n, position, h);
      if (base + group < count && (kRows || node != kNoNode)) {
        if constexpr (!kRows) grad_value.add(d.weight, other_value);
        if constexpr (kAdditive) {
          grad_scalar += d.operand;
        } else if constexpr (score == Score::additive_v2) {
#pragma unroll
          for (int x = 0; x < Fragment<S>::kSize; ++x) grad.x[x] += d.operand * pair.slope(own[x] + other[x]);
        } else if constexpr (score == Score::cosine) {
          grad.add(d.operand * a.at(pass.other_scale(), a.scalar(safe_node, h)), other);
        } else {
          grad.add(d.operand, other);
        }
        if (kRows && lane == 0) {
          if (g.bias) static_cast<A*>(g.bias)[a.scalar(position, h)] = d.ds;
          if (g.a_edge) static_cast<A*>(g.a_edge)[a.scalar(position, h)] = d.operand;
          if (pairs) pairs[a.scalar(position, h)] = {d.weight, d.operand};
        }
      }
    }
  }
  if constexpr (kAdditive) {
#pragma unroll
    for (int offset = kWarp / 2; offset >= S::kLanes; offset /= 2) {
      grad_scalar += __shfl_xor_sync(kAllLanes, grad_scalar, offset);
    }
  }
  const A factor = score == Score::dot ? a.logit_scale : A(1);
  store_gradients<side, score>(a, g, n, h, VectorSum<S, S>(grad), VectorSum<S, S>(grad_value), grad_scalar, factor,
                               slot, slots);
}

template <Side side, Score score, class S>
__global__ void __launch_bounds__(RowUnits::kThreads, (warps_per_multiprocessor<side, score, S>()))
    gradients_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                     RowUnits units, typename S::A* slots, Pair<typename S::A>* pairs) {
  const Pass<side> pass{a, g};
  const Dropout dropout(a);
  const PairScore<score, S> pair(a, blockIdx.y, threadIdx.x % S::kLanes);
  for_units(pass.ptr(), pass.num_own(), a.num_edges, units, [&](int n, const Range& entries, int64_t slot) {
    gradient_row<side, score, S>(a, g, slots, pairs, dropout, pair, n, entries, slot, blockIdx.y);
  });
}

// Without nodes on one side there are no edges, whatever rowptr and colptr say.
inline Attention without_edges_to_nowhere(Attention a) {
  if (a.num_dst == 0 || a.num_src == 0) a.num_edges = 0;
  return a;
}

template <Side side, Score score>
RowUnits plan_side(const Attention& a) {
  const int64_t num_own = side == Side::rows ? a.num_dst : a.num_src;
  return plan_units(num_own, a.num_edges, a.heads * slot_width<side, score>(a.head_dim));
}

// Of one side of a backward pass, in bytes.
template <Side side, Score score, class S>
size_t scratch_bytes(const Attention& a) {
  return UnitScratch<typename S::A>::bytes(plan_side<side, score>(a), a.heads, slot_width<side, score>(a.head_dim));
}

// Launches a kernel over the units of a side (launch_units), then adds up what their pieces left.
template <Side side, Score score, class S, class Kernel, class Launch>
cudaError_t launch_side(const Attention& a, const Gradients& g, void* scratch_memory, cudaStream_t stream,
                        Kernel* kernel, Kernel* exact, const Launch& launch) {
  const Pass<side> pass{a, g};
  if (pass.num_own() == 0) return cudaSuccess;
  const RowUnits units = plan_side<side, score>(a);
  const UnitScratch<typename S::A> scratch(scratch_memory, a.heads);
  const cudaError_t error =
      launch_units(units, a, pass.num_own(), scratch.counters, stream, kernel, exact,
                   [&](dim3 grid, const RowUnits& with, Kernel* chosen) { launch(grid, with, scratch.slots, chosen); });
  if (error != cudaSuccess) return error;
  return merge_gradients<side, score, S>(a, g, units, scratch.slots, stream);
}

}  // namespace dfgnn::cuda
