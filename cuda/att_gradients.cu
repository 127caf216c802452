#include "att_gradients.h"
#include "att_side.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

template <class T_, int kVec_>
struct V2Side : AttSide {
  using T = T_;
  using A = typename Accumulate<T>::type;
  using S = Shape<T, kVec_, 1, 1, false, true>;
  static constexpr int kVec = kVec_, kCount = 1;
  static constexpr bool kOfEdges = true;
  const void* att[1];

  struct Row {
    Packed<S> of_sum, other;
    bool has_other;
    __device__ __forceinline__ A g(int, int v) const { return of_sum[v]; }
    __device__ __forceinline__ A added(int v) const { return has_other ? other[v] : A(0); }
  };
  __device__ __forceinline__ Row load(int64_t offset, int64_t, int64_t) const {
    Row row;
    row.of_sum.load(static_cast<const T*>(AttSide::g) + offset, 0, kVec);
    row.has_other = AttSide::added != nullptr;
    if (row.has_other) row.other.load(static_cast<const T*>(AttSide::added) + offset, 0, kVec);
    return row;
  }
};

template <class T, int kVec>
cudaError_t launch(const AttGradients& task, cudaStream_t stream) {
  using A = typename Accumulate<T>::type;
  A* partial = static_cast<A*>(task.partial);
  int64_t parts = 0;
  for (const auto& side : task.sides) {
    const cudaError_t error = att_side::launch(V2Side<T, kVec>{side, {task.att}}, task.width, partial, parts, stream);
    if (error != cudaSuccess) return error;
  }
  return column_sums(task.type, partial, parts, task.width, partial + parts * task.width, task.grad_att, stream);
}

}  // namespace

int64_t att_partial(const AttGradients& task) {
  const int64_t parts = att_side::blocks_of(task.sides[0].nodes) + att_side::blocks_of(task.sides[1].nodes);
  return parts * task.width + column_sums_partial(parts, task.width);
}

cudaError_t att_gradients(const AttGradients& task, cudaStream_t stream) {
  if (task.width == 0) return cudaSuccess;
  return for_type_and_vector(task.type, task.width, [&]<class T, int kVec>() { return launch<T, kVec>(task, stream); });
}

}  // namespace dfgnn::cuda
