// SMMF backward: a pass over the rows and one over the columns; no edge's gradient is kept, no atomics.
#include <algorithm>

#include "gradient_sides.cuh"
#include "run_gradient.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

template <Side side, Score score, class S>
cudaError_t launch_gradients(const Attention& a, const Gradients& g, void* workspace, cudaStream_t stream) {
  const Pass<side> pass{a, g};
  if constexpr (kHasRuns<S>) {
    if (gradients_go_by_runs<side, S>(a)) return launch_gradient_runs<side, score, S>(a, g, workspace, stream);
  }
  auto* kernel = gradients_kernel<side, score, S>;
  decltype(kernel) own = nullptr;
  if constexpr (S::kGroups > 1) {
    own = a.head_dim == S::kFeatures ? gradients_own_rows_kernel<side, score, typename S::Exact>
                                     : gradients_own_rows_kernel<side, score, S>;
  }
  return launch_side<side, score, S>(a, g, workspace, stream, [&](RowUnits& units, const auto& scratch) {
    const auto launch = [&](dim3 grid, const RowUnits& with, auto* chosen) {
      chosen<<<grid, with.block(), 0, stream>>>(Typed<typename S::T>{a}, g, with, scratch.slots,
                                                EdgeStore<typename S::A>{});
    };
    const unsigned blocks = head_blocks<S>(a.heads);
    const int64_t longest = side == Side::rows ? a.max_degree : -1;
    if (!launch_short_rows(units, pass.num_own(), a.num_edges, longest, lanes_of_heads<S>(a.heads), blocks, own,
                           launch)) {
      return cudaGetLastError();
    }
    return launch_units(units, a, pass.num_own(), blocks, scratch.counters, stream, kernel, nullptr, launch);
  });
}

template <Side side, Score score, class S>
size_t workspace_of_side(const Attention& a) {
  if (gradients_go_by_runs<side, S>(a)) return gradient_runs_workspace<side, score>(a);
  const int64_t num_own = side == Side::rows ? a.num_dst : a.num_src;
  return plan_side<side, score>(a).need_scratch(num_own, a.num_edges) ? scratch_bytes<side, score, S>(a) : 0;
}

template <Score score, class S>
cudaError_t launch_both_sides(const Attention& a, const Gradients& g, void* workspace, cudaStream_t stream) {
  const cudaError_t error = launch_gradients<Side::rows, score, S>(a, g, workspace, stream);
  return error == cudaSuccess ? launch_gradients<Side::columns, score, S>(a, g, workspace, stream) : error;
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

size_t smmf_bwd_workspace(const Attention& a) {
  size_t bytes = 0;
  for_score_and_shape(a, [&]<Score score, class S>() {
    bytes = std::max(workspace_of_side<Side::rows, score, S>(a), workspace_of_side<Side::columns, score, S>(a));
    return cudaSuccess;
  });
  return bytes;
}

cudaError_t smmf_bwd(const Attention& given, const Gradients& gradients, void* workspace, cudaStream_t stream) {
  const Attention attention = without_edges_to_nowhere(given);
  return for_score_and_shape(attention, [&]<Score score, class S>() {
    return launch_both_sides<score, S>(attention, gradients, workspace, stream);
  });
}

}  // namespace dfgnn::cuda
