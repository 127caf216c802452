// Sums of half precision in float32, eight numbers a thread.
#include "fragment.cuh"
#include "widening_add.h"

namespace dfgnn::cuda {
namespace {

constexpr int kThreads = 256, kVec = 8;

template <class T>
using Eight = Shape<T, 16 / sizeof(T), 1, kVec * sizeof(T) / 16, false, true>;

template <class T, class Y>
__global__ void __launch_bounds__(kThreads) widening_add_kernel(const __grid_constant__ WideningAdd t) {
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kVec;
  if (i >= t.rows * t.features) return;
  Packed<Eight<T>> x;
  Packed<Eight<Y>> y;
  x.load(static_cast<const T*>(t.x) + i, 0, kVec);
  y.load(static_cast<const Y*>(t.y) + (t.one_row ? i % t.features : i), 0, kVec);
  auto* const sums = reinterpret_cast<float4*>(t.sums + i);
#pragma unroll
  for (int k = 0; k < kVec; k += 4) {
    sums[k / 4] = float4{x[k] + y[k], x[k + 1] + y[k + 1], x[k + 2] + y[k + 2], x[k + 3] + y[k + 3]};
  }
}

template <class T>
void launch(const WideningAdd& t, unsigned blocks, cudaStream_t stream) {
  (t.wide_y ? widening_add_kernel<T, float> : widening_add_kernel<T, T>)<<<blocks, kThreads, 0, stream>>>(t);
}

}  // namespace

cudaError_t widening_add(const WideningAdd& t, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((t.rows * t.features / kVec + kThreads - 1) / kThreads);
  if (blocks == 0) return cudaSuccess;
  t.type == Type::f16 ? launch<__half>(t, blocks, stream) : launch<__nv_bfloat16>(t, blocks, stream);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
