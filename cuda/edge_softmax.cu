// A warp takes a row, 32 heads at a time: its numbers are neighbours in memory, and so are those of its lanes. Of long
// rows the warps of a block take slices.
#include "edge_softmax.h"
#include "row_blocks.cuh"

namespace dfgnn::cuda {
namespace {

// Which numbers of a row are a lane's: those of one head, of every `apart`-th entry. Other lanes have the same head.
class HeadLanes {
 public:
  int head, first, apart;
  bool has_some;

  __device__ __forceinline__ HeadLanes(int heads, int base) : count_(min(heads - base, kWarp)) {
    const int lane = threadIdx.x % kWarp;
    apart = kWarp / count_;
    first = lane / count_;
    head = base + lane % count_;
    has_some = first < apart;
  }

  // Of what the lanes of a head have; the same in all of them. Others have what changes nothing.
  template <class X, class Combine>
  __device__ __forceinline__ X over_lanes(X x, const Combine& combine) const {
    if ((count_ & (count_ - 1)) == 0) {
      for (int offset = kWarp / 2; offset >= count_; offset /= 2) x = combine(x, shuffle(x, lane() ^ offset));
      return x;
    }
    const int first_of_head = lane() % count_;
    X total = shuffle(x, first_of_head);
    for (int k = 1; k < apart; ++k) total = combine(total, shuffle(x, first_of_head + k * count_));
    return total;
  }

  // Of what the warps of a block have, in their order.
  template <class X, class Combine>
  __device__ __forceinline__ X over_warps(X x, X (&scratch)[RowPlan::kWarps][kWarp], const Combine& combine) const {
    scratch[threadIdx.x / kWarp][lane()] = x;
    __syncthreads();
    X total = scratch[0][lane()];
#pragma unroll
    for (int w = 1; w < RowPlan::kWarps; ++w) total = combine(total, scratch[w][lane()]);
    __syncthreads();
    return total;
  }

 private:
  int count_;

  __device__ __forceinline__ static int lane() { return threadIdx.x % kWarp; }

  template <class X>
  __device__ __forceinline__ static X shuffle(X x, int from) {
    if constexpr (std::is_arithmetic_v<X>) {
      return __shfl_sync(kAllLanes, x, from);
    } else {
      return {__shfl_sync(kAllLanes, x.most, from), __shfl_sync(kAllLanes, x.sum, from)};
    }
  }
};

constexpr int kKept = 16;  // numbers of a lane that are read once, and kept

// Calls visit(k, e) with the entries of a row that are the lane's; k counts them. Of a row that a warp's registers hold
// (is_kept) by a loop that compilers can unroll.
template <class Visit>
__device__ __forceinline__ void for_kept(const HeadLanes& lanes, const Range& row, const Visit& visit) {
#pragma unroll
  for (int k = 0; k < kKept; ++k) {
    const int64_t e = row.begin + lanes.first + k * lanes.apart;
    if (lanes.has_some && e < row.end) visit(k, e);
  }
}
template <class Visit>
__device__ __forceinline__ void for_all(const HeadLanes& lanes, const Range& row, const Visit& visit) {
  if (!lanes.has_some) return;
#pragma unroll 4
  for (int64_t e = row.begin + lanes.first; e < row.end; e += lanes.apart) visit(e);
}
__device__ __forceinline__ bool is_kept(const HeadLanes& lanes, const Range& row) {
  return row.size() <= kKept * lanes.apart;
}

// Calls visit(lanes, r, entries, is_slice) with every row of the block and up to 32 of its heads.
template <class A, class Visit>
__device__ __forceinline__ void for_rows_and_heads(const Typed<A>& a, const RowPlan& plan, const Visit& visit) {
  for_rows(a.rowptr, a.num_dst, a.num_edges, plan, [&](int r, const Range& entries, bool is_slice) {
    for (int base = 0; base < a.heads; base += kWarp) visit(HeadLanes(a.heads, base), r, entries, is_slice);
    __syncwarp();
  });
}

struct Add {
  template <class A>
  __device__ __forceinline__ A operator()(A x, A y) const {
    return x + y;
  }
};

template <class A>
__global__ void __launch_bounds__(RowPlan::kThreads)
    sums_kernel(Typed<A> a, Index position, const A* values, A* result, RowPlan plan) {
  __shared__ A scratch[RowPlan::kWarps][kWarp];
  for_rows_and_heads(a, plan, [&](const HeadLanes& lanes, int r, const Range& row, bool is_slice) {
    A sum = A(0);
    for_all(lanes, row, [&](int64_t c) {
      const int64_t e = position.data ? clamp_to(position[c], a.num_edges - 1) : c;
      sum += values[a.scalar(e, lanes.head)];
    });
    sum = lanes.over_lanes(sum, Add());
    if (is_slice) sum = lanes.over_warps(sum, scratch, Add());
    if (lanes.first == 0 && (!is_slice || threadIdx.x < kWarp)) result[a.scalar(r, lanes.head)] = sum;
  });
}

// The largest logit, and the sum of exp(logit - most).
template <class A>
struct Weights {
  A most, sum;

  __device__ __forceinline__ void add(A s) {
    if (s > most) {
      sum *= exp_difference(most, s);
      most = s;
    }
    sum += exp_difference(s, most);
  }
};
struct Merge {
  template <class A>
  __device__ __forceinline__ Weights<A> operator()(const Weights<A>& x, const Weights<A>& y) const {
    const A most = max(x.most, y.most);
    return {most, x.sum * exp_difference(x.most, most) + y.sum * exp_difference(y.most, most)};
  }
};

template <class A>
__global__ void __launch_bounds__(RowPlan::kThreads)
    softmax_kernel(Typed<A> a, const A* logits, A scale, A* result, RowPlan plan) {
  __shared__ Weights<A> scratch[RowPlan::kWarps][kWarp];
  for_rows_and_heads(a, plan, [&](const HeadLanes& lanes, int, const Range& row, bool is_slice) {
    const auto of_sum = [](A sum) { return sum == A(0) ? A(0) : A(1) / sum; };
    if (!is_slice && is_kept(lanes, row)) {
      A kept[kKept], most = -INFINITY, sum = A(0);
      for_kept(lanes, row,
               [&](int k, int64_t e) { most = max(most, kept[k] = scale * logits[a.scalar(e, lanes.head)]); });
      most = lanes.over_lanes(most, [](A x, A y) { return max(x, y); });
      for_kept(lanes, row, [&](int k, int64_t) { sum += kept[k] = exp_difference(kept[k], most); });
      const A share = of_sum(lanes.over_lanes(sum, Add()));
      for_kept(lanes, row, [&](int k, int64_t e) { result[a.scalar(e, lanes.head)] = kept[k] * share; });
      return;
    }
    Weights<A> weights = {-INFINITY, A(0)};
    for_all(lanes, row, [&](int64_t e) { weights.add(scale * logits[a.scalar(e, lanes.head)]); });
    weights = lanes.over_lanes(weights, Merge());
    if (is_slice) weights = lanes.over_warps(weights, scratch, Merge());
    const A share = of_sum(weights.sum);
    for_all(lanes, row, [&](int64_t e) {
      const int64_t at = a.scalar(e, lanes.head);
      result[at] = exp_difference(scale * logits[at], weights.most) * share;
    });
  });
}

template <class A>
__global__ void __launch_bounds__(RowPlan::kThreads)
    softmax_backward_kernel(Typed<A> a, const A* grad, const A* alpha, A scale, A* result, RowPlan plan) {
  __shared__ A scratch[RowPlan::kWarps][kWarp];
  for_rows_and_heads(a, plan, [&](const HeadLanes& lanes, int, const Range& row, bool is_slice) {
    A sum = A(0);
    if (!is_slice && is_kept(lanes, row)) {
      A weight[kKept], weighted[kKept];
      for_kept(lanes, row, [&](int k, int64_t e) {
        const int64_t at = a.scalar(e, lanes.head);
        weight[k] = alpha[at];
        sum += weighted[k] = weight[k] * grad[at];
      });
      sum = lanes.over_lanes(sum, Add());
      for_kept(lanes, row,
               [&](int k, int64_t e) { result[a.scalar(e, lanes.head)] = scale * (weighted[k] - weight[k] * sum); });
      return;
    }
    for_all(lanes, row, [&](int64_t e) {
      const int64_t at = a.scalar(e, lanes.head);
      sum += alpha[at] * grad[at];
    });
    sum = lanes.over_lanes(sum, Add());
    if (is_slice) sum = lanes.over_warps(sum, scratch, Add());
    for_all(lanes, row, [&](int64_t e) {
      const int64_t at = a.scalar(e, lanes.head);
      result[at] = scale * alpha[at] * (grad[at] - sum);
    });
  });
}

// Calls launch(a Typed, RowPlan) where there are rows.
template <class Launch>
cudaError_t for_rows_of(const Products& graph, const Launch& launch) {
  if (graph.num_rows == 0) return cudaSuccess;
  const Attention a = operands_of(graph);
  const RowPlan plan = plan_rows(graph.num_rows, graph.num_edges);
  graph.type == Type::f64 ? launch(Typed<double>{a}, plan) : launch(Typed<float>{a}, plan);
  return cudaGetLastError();
}

}  // namespace

cudaError_t sum_edges(const Products& graph, const void* values, void* result, cudaStream_t stream) {
  return for_rows_of(graph, [&]<class A>(const Typed<A>& a, const RowPlan& plan) {
    sums_kernel<A><<<plan.blocks, RowPlan::kThreads, 0, stream>>>(a, graph.position, static_cast<const A*>(values),
                                                                  static_cast<A*>(result), plan);
  });
}

cudaError_t edge_softmax(const Products& graph, const void* logits, double scale, void* result, cudaStream_t stream) {
  return for_rows_of(graph, [&]<class A>(const Typed<A>& a, const RowPlan& plan) {
    softmax_kernel<A><<<plan.blocks, RowPlan::kThreads, 0, stream>>>(
        a, static_cast<const A*>(logits), static_cast<A>(scale), static_cast<A*>(result), plan);
  });
}

cudaError_t edge_softmax_backward(const Products& graph, const void* grad, const void* alpha, double scale,
                                  void* result, cudaStream_t stream) {
  return for_rows_of(graph, [&]<class A>(const Typed<A>& a, const RowPlan& plan) {
    softmax_backward_kernel<A>
        <<<plan.blocks, RowPlan::kThreads, 0, stream>>>(a, static_cast<const A*>(grad), static_cast<const A*>(alpha),
                                                        static_cast<A>(scale), static_cast<A*>(result), plan);
  });
}

}  // namespace dfgnn::cuda
