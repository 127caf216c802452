// Heads of another size, 16 bytes of the result at a time, wherever heads begin in them.
#include <algorithm>

#include "resize_heads.h"

namespace dfgnn::cuda {
namespace {

constexpr int kThreads = 256, kVectors = 4;  // of a thread

template <class Number>
constexpr int kVec = 16 / sizeof(Number);
template <class Number>
constexpr int kBlockNumbers = kThreads * kVectors * kVec<Number>;

template <class Number>
__global__ void __launch_bounds__(kThreads) resize_heads_kernel(const __grid_constant__ ResizeHeads t) {
  const int array = static_cast<int>(blockIdx.y);
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kBlockNumbers<Number>;
  const int64_t all = t.heads[array] * t.to;
  if (first >= all) return;
  const int left = static_cast<int>(all - first < kBlockNumbers<Number> ? all - first : kBlockNumbers<Number>);
  const auto from = static_cast<unsigned>(t.from), to = static_cast<unsigned>(t.to);
  const int64_t first_head = first / t.to;
  const auto begin = static_cast<unsigned>(first - first_head * t.to);  // in that head
  const Number* const x = static_cast<const Number*>(t.x[array]) + first_head * t.from;
  Number* const y = static_cast<Number*>(t.y[array]) + first;
#pragma unroll
  for (int u = 0; u < kVectors; ++u) {
    const int i = (u * kThreads + static_cast<int>(threadIdx.x)) * kVec<Number>;
    if (i >= left) break;
    const unsigned place = begin + i, head = place / to;
    unsigned number = place - head * to;
    const Number* own = x + static_cast<int64_t>(head) * t.from;
    alignas(16) Number numbers[kVec<Number>];
#pragma unroll
    for (int v = 0; v < kVec<Number>; ++v) {
      numbers[v] = number < from && i + v < left ? own[number] : Number{0};
      if (++number == to) number = 0, own += t.from;
    }
    if (i + kVec<Number> <= left) {
      *reinterpret_cast<uint4*>(y + i) = *reinterpret_cast<const uint4*>(numbers);
    } else {
#pragma unroll
      for (int v = 0; v < kVec<Number>; ++v) {
        if (i + v < left) y[i + v] = numbers[v];
      }
    }
  }
}

template <class Number>
cudaError_t launch(const ResizeHeads& t, cudaStream_t stream) {
  const int64_t most = *std::max_element(t.heads, t.heads + t.count) * t.to;
  if (most == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>((most + kBlockNumbers<Number> - 1) / kBlockNumbers<Number>), t.count);
  resize_heads_kernel<Number><<<blocks, kThreads, 0, stream>>>(t);
  return cudaGetLastError();
}

}  // namespace

cudaError_t resize_heads(const ResizeHeads& task, cudaStream_t stream) {
  ResizeHeads t = task;
  bool are_pairs = t.number_bytes == 2 && t.from % 2 == 0 && t.to % 2 == 0;
  for (int i = 0; i < t.count; ++i) are_pairs &= reinterpret_cast<uintptr_t>(t.x[i]) % 4 == 0;
  if (are_pairs) t.from /= 2, t.to /= 2;
  return t.number_bytes == 4 || are_pairs ? launch<uint32_t>(t, stream) : launch<uint16_t>(t, stream);
}

}  // namespace dfgnn::cuda
