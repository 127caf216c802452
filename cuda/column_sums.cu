// A block sums up some rows of a column; what blocks leave is summed up the same way.
#include <cub/block/block_reduce.cuh>

#include "column_sums.h"

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

}  // namespace dfgnn::cuda
