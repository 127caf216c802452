// Backward pass of additive scores from the derivative of out by dst.
#include "additive_columns.cuh"
#include "additive_shapes.cuh"
#include "narrow_columns.cuh"

namespace dfgnn::cuda {
namespace {

// At the beginning of the workspace, which is aligned for it.
size_t numbers_bytes(const Attention& a) {
  return a.num_dst * a.heads * (a.type == Type::f64 ? sizeof(RowNumbers<double>) : sizeof(RowNumbers<float>));
}

}  // namespace

size_t additive_bwd_workspace(const Attention& a) {
  size_t bytes = numbers_bytes(a);
  for_type_and_shape(a.type, a.head_dim, [&]<class S>() {
    bytes += scratch_bytes<Side::columns, Score::additive, S>(a);
    return cudaSuccess;
  });
  return bytes;
}

cudaError_t additive_bwd(const Attention& given, const Gradients& g, void* workspace, cudaStream_t stream) {
  const Attention a = without_edges_to_nowhere(given);
  return for_type_and_shape(a.type, a.head_dim, [&]<class S>() {
    auto* const numbers = static_cast<RowNumbers<typename S::A>*>(workspace);
    const cudaError_t error = launch_row_numbers<S>(a, g, numbers, stream);
    if (error != cudaSuccess) return error;
    void* const rest = static_cast<char*>(workspace) + numbers_bytes(a);
    return launch_side<Side::columns, Score::additive, S>(
        a, g, rest, stream, [&](const RowUnits& units, const auto& scratch) {
          if constexpr (kNarrowSoftmax<S>) {
            if (additive_heads_of<S>(a) == AdditiveHeads::side_by_side) {
              return launch_narrow_columns<S>(a, g, numbers, units, scratch, stream);
            }
          }
          return launch_additive_columns<S>(a, g, numbers, units, scratch, stream);
        });
  });
}

}  // namespace dfgnn::cuda
