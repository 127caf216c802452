// Numbers of nodes for additive_bwd, and the gradient of dst, which takes no edge.
#pragma once

#include "gradient.cuh"

namespace dfgnn::cuda {

// What a row and head brings to the gradients of its edges: one load, two of float64.
template <class A>
struct alignas(16) RowNumbers {
  A dst, lse, delta, unused;
};

// Gradients of dst, <grad_out_i, derivative_i>, and the numbers; S::kLanes lanes a (row, head).
template <class S>
__global__ void row_numbers_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                                   RowNumbers<typename S::A>* numbers) {
  using T = typename S::T;
  using A = typename S::A;
  const int64_t t = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / S::kLanes;
  const bool live = t < a.num_dst * a.heads;
  const int lane = threadIdx.x % S::kLanes;
  A dot = A(0), grad = A(0);
  for (int f = 0; live && f < a.head_dim; f += S::kFeatures) {
    const auto load = [&](const void* rows) {
      Packed<S> row;
      row.load(static_cast<const T*>(rows) + t * a.head_dim + f, lane, a.head_dim - f);
      return row;
    };
    const Packed<S> grad_out = load(g.grad_out), out = load(g.out), derivative = load(g.derivative);
    dot += grad_out.dot(out);
    grad += grad_out.dot(derivative);
  }
  dot = lanes_sum<S::kLanes>(dot);
  grad = lanes_sum<S::kLanes>(grad);
  if (!live || lane != 0) return;
  const int i = static_cast<int>(t / a.heads);
  const int h = static_cast<int>(t - int64_t{i} * a.heads);
  const int64_t size = row_range(a.rowptr, i, a.num_edges).size();
  static_cast<A*>(g.dst)[t] = size == 0 ? A(0) : grad;
  numbers[t] = {a.at(a.dst, t), a.at(g.lse, t), delta_of(a, g, i, h, dot, size == 1), A(0)};
}

template <class S>
cudaError_t launch_row_numbers(const Attention& a, const Gradients& g, RowNumbers<typename S::A>* numbers,
                               cudaStream_t stream) {
  constexpr int kThreads = 256;
  const int64_t lanes = a.num_dst * a.heads * S::kLanes;
  if (lanes == 0) return cudaSuccess;
  const auto blocks = static_cast<unsigned>((lanes + kThreads - 1) / kThreads);
  row_numbers_kernel<S><<<blocks, kThreads, 0, stream>>>(Typed<typename S::T>{a}, g, numbers);
  return cudaGetLastError();
}

// What an edge brings to its column: its weight in the sum for value; that in the sum for src's gradient, as a part of
// the former, which is <value_j, sum> * unit - the sum of `taken`.
template <class A>
struct ColumnTerms {
  A weight, part, taken;
};

// Slopes by their unit, the largest absolute value that there may be, are 1 at the most.
template <class T>
class ColumnScores {
 public:
  using A = typename Typed<T>::A;

  __device__ __forceinline__ explicit ColumnScores(const Typed<T>& a)
      : unit_(max(A(1), abs(a.slope_below_zero))), inverse_(A(1) / unit_) {}

  __device__ __forceinline__ ColumnTerms<A> operator()(const Logit<A>& s, const RowNumbers<A>& row, A keep) const {
    const A p = exp_difference(s.value, row.lse);
    if (!is_delta(row.delta)) return {keep * p, A(0), A(0)};
    return {keep * p, s.slope * inverse_, p * s.slope * row.delta};
  }

  __device__ __forceinline__ A unit() const { return unit_; }

 private:
  A unit_, inverse_;
};

}  // namespace dfgnn::cuda
