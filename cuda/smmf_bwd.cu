// SMMF backward: a pass over the rows and one over the columns; no edge's gradient is kept, no atomics.
#include <algorithm>

#include "gradient_sides.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

template <Score score, class S>
cudaError_t launch_both_sides(const Attention& a, const Gradients& g, void* workspace, cudaStream_t stream) {
  using A = typename S::A;
  const auto launch = [&](dim3 grid, const RowUnits& units, A* slots, auto* kernel) {
    kernel<<<grid, RowUnits::kThreads, 0, stream>>>(Typed<typename S::T>{a}, g, units, slots, nullptr);
  };
  auto *rows = gradients_kernel<Side::rows, score, S>, *columns = gradients_kernel<Side::columns, score, S>;
  decltype(rows) own_rows = nullptr;
  decltype(columns) own_columns = nullptr;
  if constexpr (S::kGroups > 1) {
    if (a.head_dim == S::kFeatures) {
      own_rows = gradients_own_rows_kernel<Side::rows, score, typename S::Exact>;
      own_columns = gradients_own_rows_kernel<Side::columns, score, typename S::Exact>;
    } else {
      own_rows = gradients_own_rows_kernel<Side::rows, score, S>;
      own_columns = gradients_own_rows_kernel<Side::columns, score, S>;
    }
  }
  const unsigned blocks = head_blocks<S>(a.heads);
  const int apart = lanes_of_heads<S>(a.heads);
  const cudaError_t error =
      launch_side<Side::rows, score, S>(a, g, workspace, stream, blocks, rows, launch, own_rows, apart);
  if (error != cudaSuccess) return error;
  return launch_side<Side::columns, score, S>(a, g, workspace, stream, blocks, columns, launch, own_columns, apart);
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
    const bool needs_some = plan_side<Side::rows, score>(a).need_scratch(a.num_dst, a.num_edges) ||
                            plan_side<Side::columns, score>(a).need_scratch(a.num_src, a.num_edges);
    if (needs_some) bytes = std::max(scratch_bytes<Side::rows, score, S>(a), scratch_bytes<Side::columns, score, S>(a));
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
