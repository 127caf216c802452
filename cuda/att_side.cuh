// Gradients of products of rows with vectors `att`, and of these: one pass over rows, in which a thread has some
// features of every so many-th row of its block, and a part of the sums over nodes; then one over the blocks' parts.
#pragma once

#include <algorithm>

#include "column_sums.h"
#include "fragment.cuh"

namespace dfgnn::cuda::att_side {

constexpr int kThreads = 256, kUnroll = 4;
constexpr int64_t kMostBlocks = 1024;

// As many for a task on any device, so that sums are the same there. (Rows of a block: eight of each thread that has
// all of a row to itself.)
inline int64_t blocks_of(int64_t nodes) { return std::min((nodes + 63) / 64, kMostBlocks); }

// Threads of a block take `vectors` vectors of a row side by side, and as many rows as that leaves room for.
// Side: rows x [nodes, width] and their gradient, vectors att[kCount], and of a row load(offset, node, f) -> Row, which
// has g(k, v), what att[k] is multiplied by in the gradient at feature f + v, and added(v), what is added to that;
// kOfEdges where g is a sum of edges, so that nodes without any have no part in that of att, even if they are not a
// number. partial [blocks, kCount, width]
template <class Side>
__global__ void __launch_bounds__(kThreads)
    gradients_kernel(Side side, int64_t width, int vectors, typename Side::A* partial) {
  using T = typename Side::T;
  using A = typename Side::A;
  constexpr int kVec = Side::kVec, kCount = Side::kCount;
  using S = Shape<T, kVec, 1, 1, false, true>;
  __shared__ A sums[kThreads][kVec];
  const int rows = kThreads / vectors, row = threadIdx.x / vectors;
  const int64_t vector = static_cast<int64_t>(blockIdx.y) * vectors + threadIdx.x % vectors, f = vector * kVec;
  const int64_t each = (side.nodes + gridDim.x - 1) / gridDim.x, begin = blockIdx.x * each;
  const int64_t end = min(begin + each, side.nodes);
  const bool has_features = row < rows && f < width;
  NumberFragment<S> att[kCount];
  Fragment<S> sum[kCount];
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    sum[k].zero();
    if (has_features) att[k].load(static_cast<const A*>(side.att[k]) + f, 0, kVec);
  }
  for (int64_t first = begin + row; has_features && first < end; first += kUnroll * rows) {
    Packed<S> x[kUnroll];
    typename Side::Row loaded[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {  // past the end, the first again
      const int64_t node = first + u * rows < end ? first + u * rows : first;
      x[u].load(static_cast<const T*>(side.x) + node * width + f, 0, kVec);
      loaded[u] = side.load(node * width + f, node, f);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (first + u * rows >= end) break;
      Fragment<S> grad;
#pragma unroll
      for (int v = 0; v < kVec; ++v) {
        grad.x[v] = loaded[u].added(v);
#pragma unroll
        for (int k = 0; k < kCount; ++k) {
          const A g = loaded[u].g(k, v);
          if (!Side::kOfEdges || g != A(0)) sum[k].x[v] += x[u][v] * g;
          grad.x[v] += att[k][v] * g;
        }
      }
      grad.template store<1>(static_cast<T*>(side.grad) + (first + u * rows) * width + f, 0, kVec, 0);
    }
  }
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    if (k > 0) __syncthreads();
#pragma unroll
    for (int v = 0; v < kVec; ++v) sums[threadIdx.x][v] = sum[k].x[v];
    __syncthreads();
    if (row > 0 || !has_features) continue;
#pragma unroll
    for (int v = 0; v < kVec; ++v) {
      A total = A(0);
      for (int r = 0; r < rows; ++r) total += sums[r * vectors + threadIdx.x][v];
      partial[(blockIdx.x * kCount + k) * width + f + v] = total;
    }
  }
}

// The kernel, where there are nodes; afterwards `parts` counts its blocks, too.
template <class Side>
cudaError_t launch(const Side& side, int64_t width, typename Side::A* partial, int64_t& parts, cudaStream_t stream) {
  const int64_t blocks = blocks_of(side.nodes);
  if (blocks == 0) return cudaSuccess;
  const int64_t vectors = (width + Side::kVec - 1) / Side::kVec, side_by_side = std::min<int64_t>(vectors, kThreads);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>((vectors + side_by_side - 1) / side_by_side));
  gradients_kernel<Side><<<grid, kThreads, 0, stream>>>(side, width, static_cast<int>(side_by_side),
                                                        partial + parts * Side::kCount * width);
  parts += blocks;
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda::att_side
