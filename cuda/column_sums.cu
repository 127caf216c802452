// A block sums up some rows of a column; what blocks leave is summed up the same way. Of many rows of features blocks
// first sum up some, vector by vector.
#include <algorithm>
#include <cub/block/block_reduce.cuh>

#include "column_sums.h"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

constexpr int kThreads = 512, kRows = 8 * kThreads;  // of a block

int64_t parts_of(int64_t rows) { return (rows + kRows - 1) / kRows; }

// sums [parts, columns]
template <class A>
__global__ void __launch_bounds__(kThreads) column_sums_kernel(const A* x, int64_t rows, int64_t columns, A* sums) {
  using Reduce = cub::BlockReduce<A, kThreads>;
  __shared__ typename Reduce::TempStorage storage;
  const int64_t column = blockIdx.x % columns, first = blockIdx.x / columns * kRows;
  A sum = A(0);
#pragma unroll
  for (int k = 0; k < kRows; k += kThreads) {
    const int64_t row = first + k + threadIdx.x;
    if (row < rows) sum += x[row * columns + column];
  }
  sum = Reduce(storage).Sum(sum);
  if (threadIdx.x == 0) sums[blockIdx.x] = sum;
}

template <class A>
cudaError_t launch(const A* x, int64_t rows, int64_t columns, A* partial, A* sums, cudaStream_t stream) {
  if (rows == 0) return cudaMemsetAsync(sums, 0, columns * sizeof(A), stream);
  while (true) {
    const int64_t parts = parts_of(rows);
    A* to = parts == 1 ? sums : partial;
    column_sums_kernel<<<static_cast<unsigned>(parts * columns), kThreads, 0, stream>>>(x, rows, columns, to);
    const cudaError_t error = cudaGetLastError();
    if (parts == 1 || error != cudaSuccess) return error;
    x = partial;
    partial += parts * columns;
    rows = parts;
  }
}

// How blocks share the rows of features, kVec of a thread at a time.
template <class T, int kVec>
struct FeaturePlan {
  static constexpr int kThreads = 256, kAtOnce = 4;  // rows that a thread has on their way
  static constexpr int64_t kSteps = 4, kBlocks = 2048;
  int lanes;  // a row's neighbouring vectors, a power of two
  unsigned chunks;
  int64_t rows_of_block, parts;

  FeaturePlan(int count, int64_t rows, int64_t columns) : lanes(1) {
    const int64_t vectors = columns / kVec;
    while (lanes < kWarp && lanes < vectors) lanes *= 2;
    chunks = static_cast<unsigned>((vectors + lanes - 1) / lanes);
    const int64_t most = std::max<int64_t>(kBlocks / (chunks * count), 1), step = kThreads / lanes * kAtOnce;
    rows_of_block = std::max(kSteps, (rows + most * step - 1) / (most * step)) * step;
    parts = std::max<int64_t>((rows + rows_of_block - 1) / rows_of_block, 1);
  }
};

// sums [parts, matrices, columns]
template <class T, int kVec>
__global__ void __launch_bounds__(FeaturePlan<T, kVec>::kThreads)
    feature_sums_kernel(FeatureMatrices matrices, int64_t rows, int64_t columns, FeaturePlan<T, kVec> plan,
                        typename Accumulate<T>::type* sums) {
  using Plan = FeaturePlan<T, kVec>;
  using S = Shape<T, kVec, 1, 1, false, true>;
  using A = typename S::A;
  __shared__ A shared[kVec][Plan::kThreads];
  const int lane = static_cast<int>(threadIdx.x) % plan.lanes, group = static_cast<int>(threadIdx.x) / plan.lanes;
  const int groups = Plan::kThreads / plan.lanes;
  const T* x = static_cast<const T*>(matrices.x[blockIdx.z]);
  const int64_t column = (static_cast<int64_t>(blockIdx.x) * plan.lanes + lane) * kVec;
  const int64_t begin = blockIdx.y * plan.rows_of_block, end = min(begin + plan.rows_of_block, rows);
  A sum[kVec] = {};
  if (column < columns) {
    for (int64_t first = begin + group; first < end; first += Plan::kAtOnce * groups) {
      Packed<S> some[Plan::kAtOnce];
#pragma unroll
      for (int u = 0; u < Plan::kAtOnce; ++u) {
        const int64_t row = first + u * groups;
        some[u] = {};
        if (row < end) some[u].load(x + row * columns + column, 0, kVec);
      }
#pragma unroll
      for (int u = 0; u < Plan::kAtOnce; ++u) {
#pragma unroll
        for (int v = 0; v < kVec; ++v) sum[v] += some[u][v];
      }
    }
  }
#pragma unroll
  for (int v = 0; v < kVec; ++v) shared[v][threadIdx.x] = sum[v];
  for (int half = groups / 2; half > 0; half /= 2) {
    __syncthreads();
    if (group >= half) continue;
#pragma unroll
    for (int v = 0; v < kVec; ++v) shared[v][threadIdx.x] += shared[v][threadIdx.x + half * plan.lanes];
  }
  if (group > 0 || column >= columns) return;
#pragma unroll
  for (int v = 0; v < kVec; ++v) {
    sums[(static_cast<int64_t>(blockIdx.y) * gridDim.z + blockIdx.z) * columns + column + v] = shared[v][threadIdx.x];
  }
}

}  // namespace

int64_t column_sums_partial(int64_t rows, int64_t columns) {
  int64_t numbers = 0;
  while ((rows = parts_of(rows)) > 1) numbers += rows * columns;
  return numbers;
}

cudaError_t column_sums(Type type, const void* x, int64_t rows, int64_t columns, void* partial, void* sums,
                        cudaStream_t stream) {
  const auto with = [&]<class A>(A* to) {
    return launch(static_cast<const A*>(x), rows, columns, static_cast<A*>(partial), to, stream);
  };
  return type == Type::f64 ? with(static_cast<double*>(sums)) : with(static_cast<float*>(sums));
}

int64_t feature_sums_partial(Type type, int count, int64_t rows, int64_t columns) {
  if (columns == 0) return 0;
  int64_t parts = 1;
  for_type_and_vector(type, columns, [&]<class T, int kVec>() {
    parts = FeaturePlan<T, kVec>(count, rows, columns).parts;
    return cudaSuccess;
  });
  return parts == 1 ? 0 : parts * count * columns + column_sums_partial(parts, count * columns);
}

cudaError_t feature_sums(Type type, const FeatureMatrices& matrices, int64_t rows, int64_t columns, void* partial,
                         void* sums, cudaStream_t stream) {
  if (columns == 0) return cudaSuccess;
  return for_type_and_vector(type, columns, [&]<class T, int kVec>() {
    using A = typename Accumulate<T>::type;
    const int64_t all = matrices.count * columns;
    const FeaturePlan<T, kVec> plan(matrices.count, rows, columns);
    auto* to = static_cast<A*>(plan.parts == 1 ? sums : partial);
    const dim3 blocks(plan.chunks, static_cast<unsigned>(plan.parts), matrices.count);
    feature_sums_kernel<<<blocks, plan.kThreads, 0, stream>>>(matrices, rows, columns, plan, to);
    const cudaError_t error = cudaGetLastError();
    if (plan.parts == 1 || error != cudaSuccess) return error;
    return column_sums(type, to, plan.parts, all, to + plan.parts * all, sums, stream);
  });
}

}  // namespace dfgnn::cuda
