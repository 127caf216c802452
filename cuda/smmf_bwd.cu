// SMMF backward: a pass over the rows (gradients of dst and of the logits' terms) and one over the columns (gradients
// of src and value). Each makes the logits again, pulls the rows it needs, and writes every result once: no atomics,
// and nothing of size num_edges is kept.
#include "gradient.cuh"
#include "row_blocks.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

template <Score score, class S>
__global__ void __launch_bounds__(RowPlan::kThreads, sizeof(typename S::A) == 4 ? 4 : 1)
    rows_kernel(Typed<typename S::T> a, Gradients g, RowPlan plan) {
  using T = typename S::T;
  using A = typename S::A;
  constexpr bool kAdditive = score == Score::additive;
  __shared__ SliceSums<S> sums;
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int h = blockIdx.y;
  const Dropout dropout(a);

  for_rows(a.rowptr, a.num_dst, a.num_edges, plan, [&](int64_t i, const Range& edges, bool is_slice) {
    Fragment<S> own, grad_out, grad;
    grad_out.load(static_cast<const T*>(g.grad_out) + a.features(i, h), lane, a.head_dim);
    if constexpr (!kAdditive) own.load(a.dst_row(i, h), lane, a.head_dim);
    grad.zero();
    A grad_scalar = A(0);
    const A lse = a.at(g.lse, i * a.heads + h), delta = a.at(g.delta, i * a.heads + h);

    for (int64_t base = edges.begin; base < edges.end; base += S::kGroups) {
      const int64_t e = base + group;
      const bool live = e < edges.end;
      bool ok = true;
      int64_t j = 0;
      Fragment<S> src, value;
      if (live) {
        j = a.source(e, ok);
        if constexpr (!kAdditive) src.load(a.src_row(j, h), lane, a.head_dim);
        if constexpr (score != Score::cosine) value.load(a.value_row(j, h), lane, a.head_dim);
      } else {
        src.zero();
        value.zero();
      }
      const A dot = kAdditive ? A(0) : lanes_sum<S::kLanes>(own.dot(src));
      const A dp = lanes_sum<S::kLanes>(grad_out.dot(score == Score::cosine ? src : value));
      if (live) {
        const auto d = edge_gradient<score>(a, dropout, dot, dp, lse, delta, i, j, e, h);
        if constexpr (kAdditive) {
          grad_scalar += d.operand;
        } else if constexpr (score == Score::cosine) {
          grad.add(d.operand * a.at(a.src_scale, j * a.heads + h), src);
        } else {
          grad.add(d.operand, src);
        }
        if (lane == 0) {
          if (g.bias) static_cast<A*>(g.bias)[e * a.heads + h] = d.ds;
          if (g.a_edge) static_cast<A*>(g.a_edge)[e * a.heads + h] = d.operand;
        }
      }
    }
    if constexpr (kAdditive) {
      store_scalar_sum<S>(grad_scalar, static_cast<A*>(g.dst) + i * a.heads + h, is_slice);
    } else {
      const A factor = score == Score::dot ? static_cast<A>(a.scale) : A(1);
      store_row_sum(grad, static_cast<T*>(g.dst) + a.features(i, h), a.head_dim, factor, is_slice, sums);
    }
  });
}

template <Score score, class S>
__global__ void __launch_bounds__(RowPlan::kThreads, sizeof(typename S::A) == 4 ? 3 : 1)
    columns_kernel(Typed<typename S::T> a, Gradients g, RowPlan plan) {
  using T = typename S::T;
  using A = typename S::A;
  constexpr bool kAdditive = score == Score::additive;
  __shared__ SliceSums<S> sums;
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int h = blockIdx.y;
  const Dropout dropout(a);
  const bool needs_position = dropout.active() || a.bias || a.a_edge;

  for_rows(a.colptr, a.num_src, a.num_edges, plan, [&](int64_t j, const Range& entries, bool is_slice) {
    Fragment<S> own, value, grad, grad_value;
    if constexpr (!kAdditive) own.load(a.src_row(j, h), lane, a.head_dim);
    if constexpr (score != Score::cosine) value.load(a.value_row(j, h), lane, a.head_dim);
    grad.zero();
    grad_value.zero();
    A grad_scalar = A(0);

    for (int64_t base = entries.begin; base < entries.end; base += S::kGroups) {
      const int64_t c = base + group;
      int64_t i = 0;
      bool live = c < entries.end;
      if (live) {
        i = a.row[c];
        live = static_cast<uint64_t>(i) < static_cast<uint64_t>(a.num_dst);
      }
      Fragment<S> dst, grad_out;
      if (live) {
        if constexpr (!kAdditive) dst.load(a.dst_row(i, h), lane, a.head_dim);
        grad_out.load(static_cast<const T*>(g.grad_out) + a.features(i, h), lane, a.head_dim);
      } else {
        dst.zero();
        grad_out.zero();
      }
      const A dot = kAdditive ? A(0) : lanes_sum<S::kLanes>(own.dot(dst));
      const A dp = lanes_sum<S::kLanes>(grad_out.dot(score == Score::cosine ? own : value));
      if (live) {
        const int64_t e = needs_position ? clamp_to(a.perm[c], a.num_edges - 1) : 0;
        const A lse = a.at(g.lse, i * a.heads + h), delta = a.at(g.delta, i * a.heads + h);
        const auto d = edge_gradient<score>(a, dropout, dot, dp, lse, delta, i, j, e, h);
        grad_value.add(d.weight, grad_out);
        if constexpr (kAdditive) {
          grad_scalar += d.operand;
        } else if constexpr (score == Score::cosine) {
          grad.add(d.operand * a.at(a.dst_scale, i * a.heads + h), dst);
        } else {
          grad.add(d.operand, dst);
        }
      }
    }
    store_row_sum(grad_value, static_cast<T*>(g.value) + a.features(j, h), a.head_dim, A(1), is_slice, sums);
    if constexpr (kAdditive) {
      store_scalar_sum<S>(grad_scalar, static_cast<A*>(g.src) + j * a.heads + h, is_slice);
    } else {
      const A factor = score == Score::dot ? static_cast<A>(a.scale) : A(1);
      store_row_sum(grad, static_cast<T*>(g.src) + a.features(j, h), a.head_dim, factor, is_slice, sums);
    }
  });
}

}  // namespace

bool smmf_bwd_supports(Type type, int head_dim) {
  bool supports = false;
  for_type_and_shape(type, head_dim, [&]<class S>() {
    supports = head_dim <= S::kFeatures;
    return cudaSuccess;
  });
  return supports;
}

cudaError_t smmf_bwd(const Attention& attention, const Gradients& gradients, cudaStream_t stream) {
  return for_score_and_shape(attention, [&]<Score score, class S>() {
    const Typed<typename S::T> a{attention};
    cudaError_t error = launch_delta<S>(attention, gradients, stream);
    if (error == cudaSuccess && attention.num_dst > 0) {
      const RowPlan plan = plan_rows(attention.num_dst, attention.num_edges);
      rows_kernel<score, S><<<dim3(plan.blocks, attention.heads), RowPlan::kThreads, 0, stream>>>(a, gradients, plan);
      error = cudaGetLastError();
    }
    if (error == cudaSuccess && attention.num_src > 0) {
      const RowPlan plan = plan_rows(attention.num_src, attention.num_edges);
      columns_kernel<score, S>
          <<<dim3(plan.blocks, attention.heads), RowPlan::kThreads, 0, stream>>>(a, gradients, plan);
      error = cudaGetLastError();
    }
    return error;
  });
}

}  // namespace dfgnn::cuda
