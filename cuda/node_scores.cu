// Some lanes a head of a node.
#include "att_side.cuh"
#include "node_scores.h"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

constexpr int kThreads = 256;

template <class A>
struct Results {
  A* scores[2];
};

template <class S, int kCount>
__global__ void __launch_bounds__(kThreads) scores_kernel(NodeScores task, Results<typename S::A> results) {
  using A = typename S::A;
  const int64_t row = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / S::kLanes;
  const int lane = threadIdx.x % S::kLanes;
  const bool live = row < task.nodes * task.heads;
  A dots[kCount] = {};
  for (int f = 0; live && f < task.head_dim; f += S::kFeatures) {
    Packed<S> x;
    x.load(static_cast<const typename S::T*>(task.x) + row * task.head_dim + f, lane, task.head_dim - f);
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      NumberFragment<S> att;
      att.load(static_cast<const A*>(task.att[k]) + row % task.heads * task.head_dim + f, lane, task.head_dim - f);
      dots[k] += x.dot(att);
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    dots[k] = lanes_sum<S::kLanes>(dots[k]);
    if (live && lane == 0) results.scores[k][row] = dots[k];
  }
}

template <class T_, int kVec_, int kCount_>
struct ScoresSide {
  using T = T_;
  using A = typename Accumulate<T>::type;
  static constexpr int kVec = kVec_, kCount = kCount_;
  static constexpr bool kOfEdges = false;
  int64_t nodes;
  const void* x;
  void* grad;
  const void *att[2], *scores[2];
  int heads, head_dim;

  struct Row {
    A of_scores[kCount];
    __device__ __forceinline__ A g(int k, int) const { return of_scores[k]; }
    __device__ __forceinline__ A added(int) const { return A(0); }
  };
  // A vector is of one head.
  __device__ __forceinline__ Row load(int64_t, int64_t node, int64_t f) const {
    Row row;
#pragma unroll
    for (int k = 0; k < kCount; ++k) {
      row.of_scores[k] = static_cast<const A*>(scores[k])[node * heads + static_cast<int>(f) / head_dim];
    }
    return row;
  }
};

int count_of(const NodeScores& task) { return task.att[1] ? 2 : 1; }

int64_t width_of(const NodeScores& task) { return int64_t{task.heads} * task.head_dim; }

template <class T, int kVec, int kCount>
cudaError_t launch_gradients(const NodeScores& task, const NodeScoresGradients& g, cudaStream_t stream) {
  using A = typename Accumulate<T>::type;
  A* partial = static_cast<A*>(g.partial);
  const int64_t width = width_of(task);
  int64_t parts = 0;
  const ScoresSide<T, kVec, kCount> side{
      task.nodes, task.x, g.grad_x, {task.att[0], task.att[1]}, {g.scores[0], g.scores[1]}, task.heads, task.head_dim};
  const cudaError_t error = att_side::launch(side, width, partial, parts, stream);
  if (error != cudaSuccess) return error;
  const int64_t columns = kCount * width;
  return column_sums(task.type, partial, parts, columns, partial + parts * columns, g.grad_att, stream);
}

}  // namespace

cudaError_t node_scores(const NodeScores& task, void* const (&scores)[2], cudaStream_t stream) {
  if (task.nodes == 0) return cudaSuccess;
  return for_type_and_shape(task.type, task.head_dim, [&]<class S>() {
    using A = typename S::A;
    const Results<A> results{{static_cast<A*>(scores[0]), static_cast<A*>(scores[1])}};
    const int64_t lanes = task.nodes * task.heads * S::kLanes;
    const auto blocks = static_cast<unsigned>((lanes + kThreads - 1) / kThreads);
    const auto kernel = task.att[1] ? scores_kernel<S, 2> : scores_kernel<S, 1>;
    kernel<<<blocks, kThreads, 0, stream>>>(task, results);
    return cudaGetLastError();
  });
}

int64_t node_scores_partial(const NodeScores& task) {
  const int64_t parts = att_side::blocks_of(task.nodes), columns = count_of(task) * width_of(task);
  return parts * columns + column_sums_partial(parts, columns);
}

cudaError_t node_scores_gradients(const NodeScores& task, const NodeScoresGradients& gradients, cudaStream_t stream) {
  return for_type_and_vector(task.type, task.head_dim, [&]<class T, int kVec>() {
    return task.att[1] ? launch_gradients<T, kVec, 2>(task, gradients, stream)
                       : launch_gradients<T, kVec, 1>(task, gradients, stream);
  });
}

}  // namespace dfgnn::cuda
