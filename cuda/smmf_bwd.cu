// SMMF backward: a pass over the rows (gradients of dst and of the logits' edge terms) and one over the columns
// (gradients of src and value). Each makes the logits again, pulls the rows of features it needs, and writes every
// result once: no atomics, and nothing of size num_edges is kept.
#include "gradient.cuh"
#include "row_blocks.cuh"
#include "sddmm.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

// The two passes are one kernel seen from either side: a node's own rows stay in registers, those of the nodes it
// shares edges with are gathered. `features` takes part in the logit, `value_features` in <grad_out_i, value_j>.
enum class Side { rows, columns };

template <Side side>
struct Pass {
  const Attention& a;
  const Gradients& g;

  __device__ __forceinline__ static constexpr bool rows() { return side == Side::rows; }
  __device__ __forceinline__ const Index& ptr() const { return rows() ? a.rowptr : a.colptr; }
  __device__ __forceinline__ const Index& others() const { return rows() ? a.col : a.row; }
  __device__ __forceinline__ int64_t num_own() const { return rows() ? a.num_dst : a.num_src; }
  __device__ __forceinline__ int64_t num_others() const { return rows() ? a.num_src : a.num_dst; }
  __device__ __forceinline__ const void* own() const { return rows() ? a.dst : a.src; }
  __device__ __forceinline__ const void* own_value() const { return rows() ? g.grad_out : a.value; }
  __device__ __forceinline__ const void* other() const { return rows() ? a.src : a.dst; }
  __device__ __forceinline__ const void* other_value() const { return rows() ? a.value : g.grad_out; }
  __device__ __forceinline__ const void* other_scale() const { return rows() ? a.src_scale : a.dst_scale; }
  __device__ __forceinline__ void* grad() const { return rows() ? g.dst : g.src; }
};

constexpr int64_t kFewEdges = 12;  // a row, on average

// Blocks a multiprocessor, as many as registers allow.
template <Side side, Score score, class S>
constexpr int blocks_per_multiprocessor() {
  if (sizeof(typename S::A) == 8) return 1;
  const bool few_registers = side == Side::rows && score != Score::additive_v2;
  if (S::kSteps * S::kVec <= 8 && S::kLanes == 16) return few_registers ? 7 : 6;
  return few_registers ? 5 : 4;
}

template <Side side, Score score, class S>
__global__ void __launch_bounds__(RowPlan::kThreads, (blocks_per_multiprocessor<side, score, S>()))
    gradients_kernel(Typed<typename S::T> a, Gradients g, RowPlan plan) {
  using T = typename S::T;
  using A = typename S::A;
  constexpr bool kRows = side == Side::rows, kAdditive = score == Score::additive;
  // Where src is the value too, it is gathered once by the rows and held once by the columns.
  constexpr bool kShared = score == Score::cosine || score == Score::additive_v2;
  __shared__ SliceSums<S> sums;
  const Pass<side> pass{a, g};
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int h = blockIdx.y;
  const Dropout dropout(a);
  const bool needs_position = dropout.active() || a.bias || a.a_edge;
  const PairScore<score, S> pair(a, h, lane);
  const RowReader<S> other_row(a, pass.other(), h, lane), other_value_row(a, pass.other_value(), h, lane);

  for_rows(pass.ptr(), pass.num_own(), a.num_edges, plan, [&](int n, const Range& entries, bool is_slice) {
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
        lane_keep = dropout.template factor<A>(lane_position, h);
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
          }
        }
      }
    }
    if constexpr (!kRows) {
      store_row_sum(grad_value, a.features(g.value, n, h), a.head_dim, A(1), is_slice, sums);
    }
    if constexpr (kAdditive) {
      store_scalar_sum<S>(grad_scalar, static_cast<A*>(pass.grad()) + a.scalar(n, h), is_slice);
    } else {
      const A factor = score == Score::dot ? a.logit_scale : A(1);
      store_row_sum(grad, a.features(pass.grad(), n, h), a.head_dim, factor, is_slice, sums);
    }
  });
}

template <Side side, Score score, class S>
cudaError_t launch_gradients(const Attention& a, const Gradients& g, cudaStream_t stream) {
  const int64_t num_own = side == Side::rows ? a.num_dst : a.num_src;
  if (num_own == 0) return cudaSuccess;
  const RowPlan plan = plan_rows(num_own, a.num_edges);
  gradients_kernel<side, score, S>
      <<<dim3(plan.blocks, a.heads), RowPlan::kThreads, 0, stream>>>(Typed<typename S::T>{a}, g, plan);
  return cudaGetLastError();
}

template <Score score, class S>
cudaError_t launch_both_sides(const Attention& a, const Gradients& g, cudaStream_t stream) {
  const cudaError_t error = launch_gradients<Side::rows, score, S>(a, g, stream);
  return error == cudaSuccess ? launch_gradients<Side::columns, score, S>(a, g, stream) : error;
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

cudaError_t smmf_bwd(const Attention& given, const Gradients& gradients, cudaStream_t stream) {
  Attention attention = given;  // without nodes on one side there are no edges, whatever rowptr and colptr say
  if (attention.num_dst == 0 || attention.num_src == 0) attention.num_edges = 0;
  return for_score_and_shape(attention, [&]<Score score, class S>() {
    const cudaError_t error = launch_delta<S>(attention, gradients, stream);
    if (error != cudaSuccess) return error;
    if constexpr (S::kLanes == 8 && S::kSteps * S::kVec == 16) {
      // Rows of few edges leave groups of lanes idle: two wider ones need fewer registers, and more warps fit.
      using Wider = Shape<typename S::T, S::kVec, 2 * S::kLanes, S::kSteps / 2>;
      if (attention.num_edges < kFewEdges * attention.num_dst) {
        return launch_both_sides<score, Wider>(attention, gradients, stream);
      }
    }
    return launch_both_sides<score, S>(attention, gradients, stream);
  });
}

}  // namespace dfgnn::cuda
