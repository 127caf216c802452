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

// <grad_out_i, out_i> - grad_lse_i, made again where nobody knows whether it has been stored yet.
template <class T, int kFeatures>
__device__ __forceinline__ float delta_of(const Typed<T>& a, const Gradients& g,
                                          const LaneFeatures<T, kFeatures>& grad_out, int i, int h) {
  const float delta = grad_out.dot(LaneFeatures<T, kFeatures>(a, g.out, i, h));
  return g.grad_lse ? delta - a.at(g.grad_lse, a.scalar(i, h)) : delta;
}

// Forward, row i.
template <Score score, int kFeatures, class T>
__device__ __noinline__ void forward_row(const Typed<T>& a, const Outputs& outputs, int i, int h) {
  using Features = LaneFeatures<T, kFeatures>;
  constexpr bool kNeedsDots = score != Score::additive;
  const Features q(a, kNeedsDots ? a.dst : nullptr, i, h);
  Features out;
  const Dropout dropout(a);
  float m = -INFINITY, sum = 0;
  const Range edges = row_range(a.rowptr, i, a.num_edges);
  for (int64_t e = edges.begin; e < edges.end; ++e) {
    const int j = checked_node(a.col[e], a.num_src), source = max(j, 0);
    const float dot = kNeedsDots ? q.dot(Features(a, a.src, source, h)) : 0;
    const float s = logit<score>(a, dot, i, j, e, h).value;
    const float before = m;
    m = max(m, s);
    const float fade = exp_difference(before, m), p = exp_difference(s, m);
    sum = sum * fade + p;
    out.fade_and_add(fade, p * dropout.factor(e, h), Features(a, a.value, source, h));
  }
  out.store(a, outputs.out, i, h, sum == 0 ? 0 : 1 / sum);
  if (threadIdx.x % kWarp == 0) static_cast<float*>(outputs.lse)[a.scalar(i, h)] = m + log(sum);
}

// Backward, row i. kHasDelta: delta is stored.
template <Score score, int kFeatures, bool kHasDelta, class T>
__device__ __noinline__ void backward_row(const Typed<T>& a, const Gradients& g, int i, int h) {
  using Features = LaneFeatures<T, kFeatures>;
  constexpr bool kNeedsDots = score != Score::additive;
  const Features q(a, kNeedsDots ? a.dst : nullptr, i, h), grad_out(a, g.grad_out, i, h);
  Features grad;
  float grad_scalar = 0;
  const Dropout dropout(a);
  const float lse = a.at(g.lse, a.scalar(i, h));
  const float delta = kHasDelta ? static_cast<const float*>(g.delta)[a.scalar(i, h)]  // perhaps by this kernel
                                : delta_of(a, g, grad_out, i, h);
  const Range edges = row_range(a.rowptr, i, a.num_edges);
  for (int64_t e = edges.begin; e < edges.end; ++e) {
    const int j = checked_node(a.col[e], a.num_src), source = max(j, 0);
    const Features k(a, kNeedsDots ? a.src : nullptr, source, h);
    const float dp = grad_out.dot(Features(a, a.value, source, h));
    const auto s = logit<score>(a, kNeedsDots ? q.dot(k) : 0, i, j, e, h);
    const auto d = edge_gradient(s, dp, lse, delta, dropout.factor(e, h));
    grad_scalar += d.operand;
    grad.fade_and_add(1, score == Score::cosine ? d.operand * src_term<score>(a, source, h) : d.operand, k);
    if (threadIdx.x % kWarp == 0) {
      if (g.bias) static_cast<float*>(g.bias)[a.scalar(e, h)] = d.ds;
      if (g.a_edge) static_cast<float*>(g.a_edge)[a.scalar(e, h)] = d.operand;
    }
  }
  if constexpr (kNeedsDots) {
    grad.store(a, g.dst, i, h, score == Score::dot ? a.logit_scale : 1);
  } else if (threadIdx.x % kWarp == 0) {
    static_cast<float*>(g.dst)[a.scalar(i, h)] = grad_scalar;
  }
}

// Backward, column j. kHasDelta: as above, by a kernel before.
template <Score score, int kFeatures, bool kHasDelta, class T>
__device__ __noinline__ void backward_column(const Typed<T>& a, const Gradients& g, int j, int h) {
  using Features = LaneFeatures<T, kFeatures>;
  constexpr bool kNeedsDots = score != Score::additive;
  const Features k(a, kNeedsDots ? a.src : nullptr, j, h), value(a, a.value, j, h);
  Features grad, grad_value;
  float grad_scalar = 0;
  const Dropout dropout(a);
  const Range entries = row_range(a.colptr, j, a.num_edges);
  for (int64_t c = entries.begin; c < entries.end; ++c) {
    const int i = checked_node(a.row[c], a.num_dst);
    if (i == kNoNode) continue;
    const int64_t e = clamp_to(a.perm[c], a.num_edges - 1);
    const Features q(a, kNeedsDots ? a.dst : nullptr, i, h), grad_out(a, g.grad_out, i, h);
    const auto s = logit<score>(a, kNeedsDots ? q.dot(k) : 0, i, j, e, h);
    const float delta = kHasDelta ? __ldcg(static_cast<const float*>(g.delta) + a.scalar(i, h))  // (dependent.cuh)
                                  : delta_of(a, g, grad_out, i, h);
    const auto d = edge_gradient(s, grad_out.dot(value), a.at(g.lse, a.scalar(i, h)), delta, dropout.factor(e, h));
    grad_scalar += d.operand;
    grad.fade_and_add(1, score == Score::cosine ? d.operand * dst_term<score>(a, i, h) : d.operand, q);
    grad_value.fade_and_add(1, d.weight, grad_out);
  }
  grad_value.store(a, g.value, j, h, 1);
  if constexpr (kNeedsDots) {
    grad.store(a, g.src, j, h, score == Score::dot ? a.logit_scale : 1);
  } else if (threadIdx.x % kWarp == 0) {
    static_cast<float*>(g.src)[a.scalar(j, h)] = grad_scalar;
  }
}

}  // namespace dfgnn::cuda::edge_by_edge
