// The gradient of one edge's logit, from the saved log-sum-exp: the probabilities are made again, not stored.
#pragma once

#include "logit.cuh"

namespace dfgnn::cuda {

// With p = exp(s - lse_i), k (`keep`) the dropout factor, dp = <grad_out_i, value_j> and delta_i = <grad_out_i, out_i>
// - grad_lse_i:
//   ds = p (k dp - delta_i),   weight = k p (of value_j in out_i).
template <class A>
struct EdgeGradient {
  A weight, ds;
  A operand;  // ds times the slope: the gradient of the scaled dot product, or of additive's sum
};

// What stands for delta where a row has one edge, whose weight is constant, and lse has no gradient: ds is 0 then,
// which a difference of roundings would not be. A NaN that no operation makes.
constexpr uint32_t kNoDelta = 0x7FC0A10E;
template <class A>
__device__ __forceinline__ A no_delta() {
  if constexpr (sizeof(A) == 4) {
    return __uint_as_float(kNoDelta);
  } else {
    return __hiloint2double(kNoDelta | 0x7FF80000, 0);
  }
}
__device__ __forceinline__ bool is_delta(float x) { return __float_as_uint(x) != kNoDelta; }
__device__ __forceinline__ bool is_delta(double x) { return __double2hiint(x) != (kNoDelta | 0x7FF80000); }

// delta from <grad_out_i, out_i>, of a row whose number of edges is known or not.
template <class T, class A>
__device__ __forceinline__ A delta_of(const Typed<T>& a, const Gradients& g, int i, int h, A dot, bool is_only_edge) {
  if (g.grad_lse) return dot - a.at(g.grad_lse, a.scalar(i, h));
  return is_only_edge ? no_delta<A>() : dot;
}
template <class T, class A>
__device__ __forceinline__ A delta_of(const Typed<T>& a, const Gradients& g, int i, int h, A dot) {
  return delta_of(a, g, i, h, dot, row_range(a.rowptr, i, a.num_edges).size() == 1);
}

// ds. That of 0 is not a number where what it is made of is not.
template <class A>
__device__ __forceinline__ A logit_gradient(A p, A keep, A dp, A delta) {
  return p * (is_delta(delta) ? keep * dp - delta : keep * dp * A(0));
}

template <class A>
__device__ __forceinline__ EdgeGradient<A> edge_gradient(const Logit<A>& s, A dp, A lse, A delta, A keep) {
  const A p = exp_difference(s.value, lse), ds = logit_gradient(p, keep, dp, delta);
  return {keep * p, ds, ds * s.slope};
}

// delta_i, S::kLanes lanes a (row, head).
template <class S>
__global__ void delta_kernel(Typed<typename S::T> a, Gradients g) {
  using T = typename S::T;
  using A = typename S::A;
  const int64_t t = (static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x) / S::kLanes;
  const bool live = t < a.num_dst * a.heads;
  const int lane = threadIdx.x % S::kLanes;
  A sum = A(0);
  for (int f = 0; live && f < a.head_dim; f += S::kFeatures) {
    Fragment<S> x, y;
    x.load(static_cast<const T*>(g.grad_out) + t * a.head_dim + f, lane, a.head_dim - f);
    y.load(static_cast<const T*>(g.out) + t * a.head_dim + f, lane, a.head_dim - f);
    sum += x.dot(y);
  }
  sum = lanes_sum<S::kLanes>(sum);
  if (!live || lane != 0) return;
  static_cast<A*>(g.delta)[t] = delta_of(a, g, static_cast<int>(t / a.heads), static_cast<int>(t % a.heads), sum);
}

template <class S>
cudaError_t launch_delta(const Attention& a, const Gradients& g, cudaStream_t stream) {
  constexpr int kThreads = 256;
  const int64_t lanes = a.num_dst * a.heads * S::kLanes;
  if (lanes == 0) return cudaSuccess;
  delta_kernel<S>
      <<<static_cast<unsigned>((lanes + kThreads - 1) / kThreads), kThreads, 0, stream>>>(Typed<typename S::T>{a}, g);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
