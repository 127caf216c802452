// Norms of rows, and the derivative of what they normalise: some lanes a row, one pass over it (from the cache, a
// second).
#include <cmath>
#include <cub/block/block_reduce.cuh>

#include "fragment.cuh"
#include "normalize.h"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

constexpr int kThreads = 256;

template <class S>
__device__ __forceinline__ int64_t row_of_lanes() {
  return (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) / S::kLanes;
}

// Calls visit(fragment of x, feature) for the lane's parts of a row.
template <class S, class Visit>
__device__ __forceinline__ void for_parts(const void* data, int64_t row, int size, const Visit& visit) {
  for (int f = 0; f < size; f += S::kFeatures) {
    Fragment<S> x;
    x.load(static_cast<const typename S::T*>(data) + row * size + f, threadIdx.x % S::kLanes, size - f);
    visit(x, f);
  }
}

template <class S>
__global__ void reciprocal_norm_kernel(Rows rows, ReciprocalNorm t) {
  using A = typename S::A;
  const int64_t row = row_of_lanes<S>();
  const bool live = row < rows.num_rows;
  A squares = A(0);
  if (live) for_parts<S>(rows.x, row, rows.size, [&](const Fragment<S>& x, int) { squares += x.dot(x); });
  squares = lanes_sum<S::kLanes>(squares);
  if (!live || threadIdx.x % S::kLanes != 0) return;
  const A reciprocal = A(1) / max(sqrt(squares), static_cast<A>(rows.eps));
  if (t.reciprocal) static_cast<A*>(t.reciprocal)[row] = reciprocal;
  if (t.scaled) static_cast<A*>(t.scaled)[row] = reciprocal * static_cast<const A*>(t.factor)[row % t.heads];
}

template <class S>
__global__ void normalize_backward_kernel(Rows rows, NormalizeBackward t) {
  using T = typename S::T;
  using A = typename S::A;
  const int64_t row = row_of_lanes<S>();
  const bool live = row < rows.num_rows;
  const int lane = threadIdx.x % S::kLanes;
  const auto part_of = [&](const void* data, int f) {
    Fragment<S> part;
    part.load(static_cast<const T*>(data) + row * rows.size + f, lane, rows.size - f);
    return part;
  };
  A squares = A(0), g_dot = A(0), h_dot = A(0);
  if (live) {
    for_parts<S>(rows.x, row, rows.size, [&](const Fragment<S>& x, int f) {
      squares += x.dot(x);
      g_dot += x.dot(part_of(t.g, f));
      if (t.h) h_dot += x.dot(part_of(t.h, f));
    });
  }
  squares = lanes_sum<S::kLanes>(squares);
  // A row that nothing came back to has no part in the projection, even if it is not a number.
  const auto dot_of = [&](const void* data, A dot) {
    dot = lanes_sum<S::kLanes>(dot);
    A came_back = isnan(dot) ? A(0) : A(1);
    if (live && isnan(dot)) {
      for_parts<S>(data, row, rows.size, [&](const Fragment<S>& part, int) { came_back += part.dot(part); });
    }
    return lanes_sum<S::kLanes>(came_back) == A(0) ? A(0) : dot;
  };
  g_dot = dot_of(t.g, g_dot);
  if (t.h) h_dot = dot_of(t.h, h_dot);
  if (!live) return;
  const A norm = sqrt(squares), eps = static_cast<A>(rows.eps), r = A(1) / max(norm, eps);
  if (lane == 0) static_cast<A*>(t.projection)[row] = r * g_dot;
  const A factor = t.factor ? r * static_cast<const A*>(t.factor)[row % t.heads] : r;
  const A project = norm > eps ? r * r * (factor * g_dot + r * h_dot) : A(0);
  for_parts<S>(rows.x, row, rows.size, [&](const Fragment<S>& x, int f) {
    Fragment<S> grad = part_of(t.g, f);
#pragma unroll
    for (int i = 0; i < Fragment<S>::kSize; ++i) grad.x[i] *= factor;
    if (t.h) grad.add(r, part_of(t.h, f));
    if (t.added) grad.add(A(1), part_of(t.added, f));
    if (project != A(0)) grad.add(-project, x);
    const int64_t offset = row * rows.size + f;
    grad.template store<S::kSteps>(static_cast<T*>(t.grad) + offset, lane, rows.size - f, 0);
  });
}

template <class S>
unsigned blocks_for(int64_t num_rows) {
  return static_cast<unsigned>((num_rows * S::kLanes + kThreads - 1) / kThreads);
}

// Sums of a head over the nodes of a block; of block b, the b-th.
constexpr int kSumThreads = 512, kSumNodes = 8 * kSumThreads;
template <class A>
__global__ void __launch_bounds__(kSumThreads) node_sums_kernel(const A* x, int64_t nodes, int heads, A* sums) {
  using Reduce = cub::BlockReduce<A, kSumThreads>;
  __shared__ typename Reduce::TempStorage storage;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kSumNodes;
  A sum = A(0);
#pragma unroll
  for (int k = 0; k < kSumNodes; k += kSumThreads) {
    const int64_t node = first + k + threadIdx.x;
    if (node < nodes) sum += x[node * heads + blockIdx.y];
  }
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) sums[static_cast<int64_t>(blockIdx.x) * heads + blockIdx.y] = sum;
}

int64_t sum_blocks(int64_t nodes) { return (nodes + kSumNodes - 1) / kSumNodes; }

template <class A>
cudaError_t launch_node_sums(const A* x, int64_t nodes, int heads, A* partial, A* sums, cudaStream_t stream) {
  while (true) {
    const int64_t blocks = sum_blocks(nodes);
    A* to = blocks == 1 ? sums : partial;
    node_sums_kernel<<<dim3(static_cast<unsigned>(blocks), heads), kSumThreads, 0, stream>>>(x, nodes, heads, to);
    const cudaError_t error = cudaGetLastError();
    if (blocks == 1 || error != cudaSuccess) return error;
    x = partial;
    partial += blocks * heads;
    nodes = blocks;
  }
}

}  // namespace

int64_t node_sums_partial(int64_t nodes, int heads) {
  int64_t numbers = 0;
  while ((nodes = sum_blocks(nodes)) > 1) numbers += nodes * heads;
  return numbers;
}

cudaError_t node_sums(Type type, const void* x, int64_t nodes, int heads, void* partial, void* sums,
                      cudaStream_t stream) {
  const auto launch = [&]<class A>(A* to) {
    if (nodes == 0) return cudaMemsetAsync(to, 0, heads * sizeof(A), stream);
    return launch_node_sums(static_cast<const A*>(x), nodes, heads, static_cast<A*>(partial), to, stream);
  };
  return type == Type::f64 ? launch(static_cast<double*>(sums)) : launch(static_cast<float*>(sums));
}

cudaError_t reciprocal_norm(const Rows& rows, const ReciprocalNorm& task, cudaStream_t stream) {
  if (rows.num_rows == 0) return cudaSuccess;
  return for_type_and_shape(rows.type, rows.size, [&]<class S>() {
    reciprocal_norm_kernel<S><<<blocks_for<S>(rows.num_rows), kThreads, 0, stream>>>(rows, task);
    return cudaGetLastError();
  });
}

cudaError_t normalize_backward(const Rows& rows, const NormalizeBackward& task, cudaStream_t stream) {
  if (rows.num_rows == 0) return cudaSuccess;
  return for_type_and_shape(rows.type, rows.size, [&]<class S>() {
    normalize_backward_kernel<S><<<blocks_for<S>(rows.num_rows), kThreads, 0, stream>>>(rows, task);
    return cudaGetLastError();
  });
}

}  // namespace dfgnn::cuda
