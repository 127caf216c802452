// Norms of rows, and the derivative of what they normalise: some lanes a row, one pass over it (from the cache, a
// second).
#include <cmath>

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
  const A reciprocal = reciprocal_norm_of(squares, rows.eps);
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
  const A norm = sqrt(squares), eps = static_cast<A>(rows.eps), r = reciprocal_norm_of(squares, rows.eps);
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

}  // namespace

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
