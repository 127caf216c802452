// Two arrays of numbers in another type, a thread a number.
#include "casts.h"
#include "fragment.cuh"

namespace dfgnn::cuda {
namespace {

constexpr int kThreads = 256;

template <class T, bool kToNarrow>
__global__ void __launch_bounds__(kThreads) cast_both_kernel(const __grid_constant__ CastBoth t) {
  using From = std::conditional_t<kToNarrow, float, T>;
  using To = std::conditional_t<kToNarrow, T, float>;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool is_second = i >= t.sizes[0];
  const int64_t at = is_second ? i - t.sizes[0] : i;
  if (is_second && at >= t.sizes[1]) return;
  static_cast<To*>(t.y[is_second])[at] =
      from_accumulate<To>(to_accumulate(static_cast<const From*>(t.x[is_second])[at]));
}

template <class T>
void launch(const CastBoth& t, unsigned blocks, cudaStream_t stream) {
  (t.to_narrow ? cast_both_kernel<T, true> : cast_both_kernel<T, false>)<<<blocks, kThreads, 0, stream>>>(t);
}

}  // namespace

cudaError_t cast_both(const CastBoth& t, cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((t.sizes[0] + t.sizes[1] + kThreads - 1) / kThreads);
  if (blocks == 0) return cudaSuccess;
  t.narrow == Type::f16 ? launch<__half>(t, blocks, stream) : launch<__nv_bfloat16>(t, blocks, stream);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
