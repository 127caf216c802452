// Rows and columns by one warp, edge by edge: what the kernels of tiles do with those that do not fit their plan.
#pragma once

#include "gradient.cuh"

namespace dfgnn::cuda::edge_by_edge {

// A row of one head over the lanes of a warp, in numbers.
template <class T, int kFeatures>
class LaneFeatures {
 public:
  LaneFeatures() = default;
  __device__ __forceinline__ LaneFeatures(const Typed<T>& a, const void* data, int node, int h) {
    if (data == nullptr) return;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (feature(k) < a.head_dim) x_[k] = to_accumulate(a.features(data, node, h)[feature(k)]);
    }
  }

  __device__ __forceinline__ float dot(const LaneFeatures& other) const {
    float sum = 0;
#pragma unroll
    for (int k = 0; k < kCount; ++k) sum += x_[k] * other.x_[k];
    return lanes_sum<kWarp>(sum);
  }

  __device__ __forceinline__ float reciprocal_norm(double eps) const { return reciprocal_norm_of(dot(*this), eps); }

  __device__ __forceinline__ void fade_and_add(float fade, float weight, const LaneFeatures& other) {
#pragma unroll
    for (int k = 0; k < kCount; ++k) x_[k] = x_[k] * fade + weight * other.x_[k];
  }

  __device__ __forceinline__ void store(const Typed<T>& a, void* data, int node, int h, float scale) const {
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      if (feature(k) < a.head_dim) a.features(data, node, h)[feature(k)] = from_accumulate<T>(x_[k] * scale);
    }
  }

 private:
  static constexpr int kCount = (kFeatures + kWarp - 1) / kWarp;
  __device__ __forceinline__ static int feature(int k) { return threadIdx.x % kWarp + k * kWarp; }
  float x_[kCount] = {};
};

// Made again where nobody knows whether it has been stored yet.
template <class T, int kFeatures>
__device__ __forceinline__ float delta_of(const Typed<T>& a, const Gradients& g,
                                          const LaneFeatures<T, kFeatures>& grad_out, int i, int h) {
  return cuda::delta_of(a, g, i, h, grad_out.dot(LaneFeatures<T, kFeatures>(a, g.out, i, h)));
}

// What nodes bring to logits; cosine's scales are made again.
template <Score score, int kFeatures, class T>
__device__ __forceinline__ float dst_term(const Typed<T>& a, const LaneFeatures<T, kFeatures>& x, int i, int h) {
  if constexpr (score != Score::cosine) return cuda::dst_term<score>(a, i, h);
  return a.beta_of(h) * x.reciprocal_norm(a.eps);
}
template <Score score, int kFeatures, class T>
__device__ __forceinline__ float src_term(const Typed<T>& a, const LaneFeatures<T, kFeatures>& x, int j, int h) {
  if constexpr (score != Score::cosine) return cuda::src_term<score>(a, j, h);
  return x.reciprocal_norm(a.eps);
}

// The logit of edge e from node j, NaN where there is no such node.
template <Score score, class T>
__device__ __forceinline__ auto logit(const Typed<T>& a, float dot, float dst, float src, int j, int64_t e, int h) {
  if (j == kNoNode) return Logit<float>{NAN, 1};
  return logit_of<score>(a, dot, dst, src, e, h);
}

// Sums of what add(e, sums) adds of each edge. Parts are added up first: one after another, roundings add up as well.
template <class Sums, class Add>
__device__ __forceinline__ Sums sum_in_parts(const Range& edges, const Add& add) {
  constexpr int kPart = 64;
  Sums sums;
  for (int64_t begin = edges.begin; begin < edges.end; begin += kPart) {
    Sums part;
    for (int64_t e = begin; e < min(begin + kPart, edges.end); ++e) add(e, part);
    sums.add(part);
  }
  return sums;
}

// What a row's edges add up to: exp(logit - m), and that times keep times values.
template <class T, int kFeatures>
struct Softmax {
  LaneFeatures<T, kFeatures> out;
  float m = -INFINITY, sum = 0;

  // What has `weight` and `features` where m is `logit`.
  __device__ __forceinline__ void add(float logit, float weight, float keep,
                                      const LaneFeatures<T, kFeatures>& features) {
    const float before = m;
    m = max(m, logit);
    const float fade = exp_difference(before, m), p = exp_difference(logit, m);
    sum = sum * fade + weight * p;
    out.fade_and_add(fade, p * keep, features);
  }
  __device__ __forceinline__ void add(const Softmax& part) { add(part.m, part.sum, 1, part.out); }
};

// Forward, row i.
template <Score score, int kFeatures, class T>
__device__ __noinline__ void forward_row(const Typed<T>& a, const Outputs& outputs, int i, int h) {
  using Features = LaneFeatures<T, kFeatures>;
  constexpr bool kNeedsDots = score != Score::additive;
  const Features q(a, kNeedsDots ? a.dst : nullptr, i, h);
  const Dropout dropout(a);
  const float own_term = dst_term<score>(a, q, i, h);
  using Row = Softmax<T, kFeatures>;
  const Row row = sum_in_parts<Row>(row_range(a.rowptr, i, a.num_edges), [&](int64_t e, Row& sums) {
    const int j = checked_node(a.col[e], a.num_src), source = max(j, 0);
    const Features k(a, kNeedsDots ? a.src : nullptr, source, h);
    const float term = src_term<score>(a, k, source, h);
    const float s = logit<score>(a, kNeedsDots ? q.dot(k) : 0, own_term, term, j, e, h).value;
    sums.add(s, 1, dropout.factor(e, h), Features(a, a.value, source, h));
  });
  row.out.store(a, outputs.out, i, h, row.sum == 0 ? 0 : 1 / row.sum);
  if (threadIdx.x % kWarp == 0) static_cast<float*>(outputs.lse)[a.scalar(i, h)] = row.m + log(row.sum);
}

// What a node's edges on one side add up to: of dst or src, without what they have in common, and of value.
template <class T, int kFeatures>
struct Sums {
  LaneFeatures<T, kFeatures> grad, grad_value;
  float grad_scalar = 0;

  __device__ __forceinline__ void add(const Sums& part) {
    grad.fade_and_add(1, 1, part.grad);
    grad_value.fade_and_add(1, 1, part.grad_value);
    grad_scalar += part.grad_scalar;
  }
};

// Backward, row i. kHasDelta: delta is stored.
template <Score score, int kFeatures, bool kHasDelta, class T>
__device__ __forceinline__ Sums<T, kFeatures> sum_of_row(const Typed<T>& a, const Gradients& g, int i, int h) {
  using Features = LaneFeatures<T, kFeatures>;
  constexpr bool kNeedsDots = score != Score::additive;
  const Features q(a, kNeedsDots ? a.dst : nullptr, i, h), grad_out(a, g.grad_out, i, h);
  const Dropout dropout(a);
  const float own_term = dst_term<score>(a, q, i, h), lse = a.at(g.lse, a.scalar(i, h));
  const float delta = kHasDelta ? static_cast<const float*>(g.delta)[a.scalar(i, h)]  // perhaps by this kernel
                                : delta_of(a, g, grad_out, i, h);
  return sum_in_parts<Sums<T, kFeatures>>(row_range(a.rowptr, i, a.num_edges), [&](int64_t e, auto& sums) {
    const int j = checked_node(a.col[e], a.num_src), source = max(j, 0);
    const Features k(a, kNeedsDots ? a.src : nullptr, source, h);
    const float dp = grad_out.dot(Features(a, a.value, source, h));
    const float term = src_term<score>(a, k, source, h);
    const auto s = logit<score>(a, kNeedsDots ? q.dot(k) : 0, own_term, term, j, e, h);
    const auto d = edge_gradient(s, dp, lse, delta, dropout.factor(e, h));
    sums.grad_scalar += d.operand;
    sums.grad.fade_and_add(1, score == Score::cosine ? d.operand * term : d.operand, k);
    if (threadIdx.x % kWarp == 0) {
      if (g.bias) static_cast<float*>(g.bias)[a.scalar(e, h)] = d.ds;
      if (g.a_edge) static_cast<float*>(g.a_edge)[a.scalar(e, h)] = d.operand;
    }
  });
}

// Backward, column j. kHasDelta: as above, by a kernel before.
template <Score score, int kFeatures, bool kHasDelta, class T>
__device__ __forceinline__ Sums<T, kFeatures> sum_of_column(const Typed<T>& a, const Gradients& g, int j, int h) {
  using Features = LaneFeatures<T, kFeatures>;
  constexpr bool kNeedsDots = score != Score::additive;
  const Features k(a, kNeedsDots ? a.src : nullptr, j, h), value(a, a.value, j, h);
  const Dropout dropout(a);
  const float own_term = src_term<score>(a, k, j, h);
  return sum_in_parts<Sums<T, kFeatures>>(row_range(a.colptr, j, a.num_edges), [&](int64_t c, auto& sums) {
    const int i = checked_node(a.row[c], a.num_dst);
    if (i == kNoNode) return;
    const int64_t e = clamp_to(a.perm[c], a.num_edges - 1);
    const Features q(a, kNeedsDots ? a.dst : nullptr, i, h), grad_out(a, g.grad_out, i, h);
    const float term = dst_term<score>(a, q, i, h);
    const auto s = logit<score>(a, kNeedsDots ? q.dot(k) : 0, term, own_term, j, e, h);
    const float delta = kHasDelta ? __ldcg(static_cast<const float*>(g.delta) + a.scalar(i, h))  // (dependent.cuh)
                                  : delta_of(a, g, grad_out, i, h);
    const auto d = edge_gradient(s, grad_out.dot(value), a.at(g.lse, a.scalar(i, h)), delta, dropout.factor(e, h));
    sums.grad_scalar += d.operand;
    sums.grad.fade_and_add(1, score == Score::cosine ? d.operand * term : d.operand, q);
    sums.grad_value.fade_and_add(1, d.weight, grad_out);
  });
}

// The gradient of a node's dst or src.
template <Score score, int kFeatures, class T>
__device__ __forceinline__ void store_gradient(const Typed<T>& a, void* to, int n, int h,
                                               const Sums<T, kFeatures>& sums) {
  if constexpr (score != Score::additive) {
    sums.grad.store(a, to, n, h, score == Score::dot ? a.logit_scale : 1);
  } else if (threadIdx.x % kWarp == 0) {
    static_cast<float*>(to)[a.scalar(n, h)] = sums.grad_scalar;
  }
}

// Cosine's one x: its row n, and what a sum of edges, the gradient of that row over its norm, leaves to the gradient of
// the row itself (normalize.h).
template <int kFeatures, class T>
struct OneX {
  using Features = LaneFeatures<T, kFeatures>;
  const Features x;
  const float norm;  // its reciprocal
  float dot = 0;     // of the sum and x

  __device__ __forceinline__ OneX(const Typed<T>& a, int n, int h)
      : x(a, a.src, n, h), norm(src_term<Score::cosine>(a, x, n, h)) {}

  __device__ __forceinline__ Features project(const Typed<T>& a, Features sum) {
    dot = x.dot(sum);
    if (isnan(dot) && sum.dot(sum) == 0) dot = 0;  // of a row that nothing came back to, even if it is not a number
    if (const float share = own_share(a, norm, dot); share != 0) sum.fade_and_add(1, share, x);
    return sum;
  }
};

template <Score score, int kFeatures, bool kHasDelta, class T>
__device__ __noinline__ void backward_row(const Typed<T>& a, const Gradients& g, int i, int h) {
  const auto sums = sum_of_row<score, kFeatures, kHasDelta>(a, g, i, h);
  if (score != Score::cosine || !g.by_beta) return store_gradient<score>(a, g.dst, i, h, sums);
  OneX<kFeatures, T> one(a, i, h);
  one.project(a, sums.grad).store(a, g.value, i, h, dst_term<score>(a, one.x, i, h));
  if (threadIdx.x % kWarp == 0) static_cast<float*>(g.by_beta)[a.scalar(i, h)] = one.norm * one.dot;
}

// Of one x, behind backward_row.
template <Score score, int kFeatures, bool kHasDelta, class T>
__device__ __noinline__ void backward_column(const Typed<T>& a, const Gradients& g, int j, int h) {
  auto sums = sum_of_column<score, kFeatures, kHasDelta>(a, g, j, h);
  if (score == Score::cosine && g.by_beta) {
    OneX<kFeatures, T> one(a, j, h);
    sums.grad_value.fade_and_add(1, one.norm, one.project(a, sums.grad));
    sums.grad_value.fade_and_add(1, 1, LaneFeatures<T, kFeatures>(a, g.value, j, h));
  } else {
    store_gradient<score>(a, g.src, j, h, sums);
  }
  sums.grad_value.store(a, g.value, j, h, 1);
}

}  // namespace dfgnn::cuda::edge_by_edge
