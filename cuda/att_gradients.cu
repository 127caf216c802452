// One pass over the rows of each side: a thread has some features of every so many-th row of its block, and a part of
// the sum over nodes; then one over the blocks' parts.
#include <algorithm>

#include "att_gradients.h"
#include "column_sums.h"
#include "fragment.cuh"

namespace dfgnn::cuda {
namespace {

constexpr int kThreads = 256, kUnroll = 4;
constexpr int64_t kMostBlocks = 1024;

// As many for a task on any device, so that sums are the same there. (Rows of a block: eight of each thread that has
// all of a row to itself.)
int64_t blocks_of(int64_t nodes) { return std::min((nodes + 63) / 64, kMostBlocks); }

// Threads of a block take `vectors` vectors of a row side by side, and as many rows as that leaves room for.
template <class T, int kVec>
__global__ void __launch_bounds__(kThreads)
    att_side_kernel(AttSide side, int64_t width, int vectors, const typename Accumulate<T>::type* att,
                    typename Accumulate<T>::type* partial) {
  using A = typename Accumulate<T>::type;
  using S = Shape<T, kVec, 1, 1, false, true>;
  __shared__ A sums[kThreads][kVec];
  const int rows = kThreads / vectors, row = threadIdx.x / vectors;
  const int64_t vector = static_cast<int64_t>(blockIdx.y) * vectors + threadIdx.x % vectors, f = vector * kVec;
  const int64_t each = (side.nodes + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * each;
  const int64_t end = min(begin + each, side.nodes);
  const bool has_features = row < rows && f < width;
  NumberFragment<S> own_att;
  Fragment<S> sum;
  sum.zero();
  if (has_features) own_att.load(att + f, 0, kVec);
  for (int64_t first = begin + row; has_features && first < end; first += kUnroll * rows) {
    Packed<S> x[kUnroll], g[kUnroll], added[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {  // past the end, the first again
      const int64_t offset = (first + u * rows < end ? first + u * rows : first) * width + f;
      x[u].load(static_cast<const T*>(side.x) + offset, 0, kVec);
      g[u].load(static_cast<const T*>(side.g) + offset, 0, kVec);
      if (side.added) added[u].load(static_cast<const T*>(side.added) + offset, 0, kVec);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * rows >= end) break;
      Fragment<S> grad;
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        sum.x[v] += x[u][v] * g[u][v];
        grad.x[v] = own_att[v] * g[u][v] + (side.added ? added[u][v] : A(0));
      }
      grad.template store<1>(static_cast<T*>(side.grad) + (first + u * rows) * width + f, 0, kVec, 0);
    }
  }
#pragma unroll
  for (int v = 0; v < kVec; ++v) sums[threadIdx.x][v] = sum.x[v];
  __syncthreads();
  if (row > 0 || !has_features) return;
#pragma unroll
  for (int v = 0; v < kVec; ++v) {
    A total = A(0);
    for (int r = 0; r < rows; ++r) total += sums[r * vectors + threadIdx.x][v];
    partial[blockIdx.x * width + f + v] = total;
  }
}

template <class T, int kVec>
cudaError_t launch(const AttGradients& task, cudaStream_t stream) {
  using A = typename Accumulate<T>::type;
  A* partial = static_cast<A*>(task.partial);
  const auto* att = static_cast<const A*>(task.att);
  int64_t parts = 0;
  const int64_t vectors = (task.width + kVec - 1) / kVec, side_by_side = std::min<int64_t>(vectors, kThreads);
  for (const auto& side : task.sides) {
    const int64_t blocks = blocks_of(side.nodes);
    if (blocks == 0) continue;
    const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>((vectors + side_by_side - 1) / side_by_side));
    att_side_kernel<T, kVec><<<grid, kThreads, 0, stream>>>(side, task.width, static_cast<int>(side_by_side), att,
                                                            partial + parts * task.width);
    const cudaError_t error = cudaGetLastError();
    if (error != cudaSuccess) return error;
    parts += blocks;
  }
  return column_sums(task.type, partial, parts, task.width, partial + parts * task.width, task.grad_att, stream);
}

template <class T>
cudaError_t launch_vectors(const AttGradients& task, cudaStream_t stream) {
  constexpr int kVec = 16 / sizeof(T);
  return task.width % kVec == 0 ? launch<T, kVec>(task, stream) : launch<T, 1>(task, stream);
}

}  // namespace

int64_t att_partial(const AttGradients& task) {
  const int64_t parts = blocks_of(task.sides[0].nodes) + blocks_of(task.sides[1].nodes);
  return parts * task.width + column_sums_partial(parts, task.width);
}

cudaError_t att_gradients(const AttGradients& task, cudaStream_t stream) {
  if (task.width == 0) return cudaSuccess;
  switch (task.type) {
    case Type::f32:
      return launch_vectors<float>(task, stream);
    case Type::f16:
      return launch_vectors<__half>(task, stream);
    case Type::bf16:
      return launch_vectors<__nv_bfloat16>(task, stream);
    default:
      return launch_vectors<double>(task, stream);
  }
}

}  // namespace dfgnn::cuda
