// Kernels that take the whole device, with barriers over all blocks between their steps: who does what, sums over all,
// and how they are launched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <cub/block/block_scan.cuh>
#include <map>
#include <mutex>
#include <type_traits>
#include <utility>

#include "device.h"

namespace dfgnn::cuda {

constexpr int kGridThreads = 256;  // of a block

inline __host__ __device__ int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

__device__ __forceinline__ int64_t grid_thread() {
  return static_cast<int64_t>(blockIdx.x) * kGridThreads + threadIdx.x;
}
__device__ __forceinline__ int64_t grid_threads() { return static_cast<int64_t>(gridDim.x) * kGridThreads; }

struct Share {
  int64_t begin, end;
};

// The block's of `count` things in a row.
__device__ __forceinline__ Share block_share(int64_t count) {
  return {count * blockIdx.x / gridDim.x, count * (blockIdx.x + 1) / gridDim.x};
}

struct Larger {
  template <class K>
  __device__ __forceinline__ K operator()(K x, K y) const {
    return max(x, y);
  }
};

// All threads of a block must come to these.
template <class K>
class BlockSums {
 public:
  using Scan = cub::BlockScan<K, kGridThreads, cub::BLOCK_SCAN_WARP_SCANS>;
  using Storage = typename Scan::TempStorage;

  explicit __device__ BlockSums(Storage& storage) : storage_(storage) {}

  __device__ K total(K value) {
    K all;
    __syncthreads();
    Scan(storage_).InclusiveSum(value, value, all);
    return all;
  }

  // Of the values of threads before; `before` is that of what came before all of them, and grows by theirs.
  __device__ K exclusive(K value, K& before) {
    K all;
    __syncthreads();
    Scan(storage_).ExclusiveSum(value, value, all);
    value += before;
    before += all;
    return value;
  }

  // Of the first `count` values.
  __device__ K total(const K* values, int64_t count) {
    K sum = 0;
    for (int64_t i = threadIdx.x; i < count; i += kGridThreads) sum += values[i];
    return total(sum);
  }

 private:
  Storage& storage_;
};

// The most blocks of a kernel, which always has as much shared memory, that run at a time. To ask costs as much as a
// launch: answers are kept.
template <class... Parameters>
cudaError_t max_grid(void (*kernel)(Parameters...), int shared_bytes, int64_t& blocks) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int64_t> known;  // by kernel and device
  int device = 0, processors = 0, of_each = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const std::lock_guard lock(mutex);
  const auto [found, is_new] = known.try_emplace({reinterpret_cast<const void*>(kernel), device}, 0);
  if (is_new) {
    error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    if (error == cudaSuccess) error = allow_shared_memory(kernel, shared_bytes);
    if (error == cudaSuccess) {
      error = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&of_each, kernel, kGridThreads, shared_bytes);
    }
    if (error != cudaSuccess) {
      known.erase(found);
      return error;
    }
    found->second = static_cast<int64_t>(processors) * of_each;
  }
  blocks = found->second;
  return cudaSuccess;
}

// How many blocks to start where so many have something to do.
inline int64_t grid_for(int64_t wanted, int64_t most) { return wanted < 1 ? 1 : wanted < most ? wanted : most; }

template <class... Parameters>
cudaError_t launch_cooperative(void (*kernel)(Parameters...), int64_t blocks, int shared_bytes, cudaStream_t stream,
                               std::type_identity_t<Parameters>... parameters) {
  void* pointers[] = {&parameters...};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(kernel), dim3(static_cast<unsigned>(blocks)),
                                     dim3(kGridThreads), pointers, shared_bytes, stream);
}

// Places arrays in a workspace; where that is null, the total alone is of use.
class Workspace {
 public:
  explicit Workspace(void* data) : data_(static_cast<char*>(data)) {}

  template <class T>
  void place(T*& array, int64_t count) {
    array = reinterpret_cast<T*>(data_ + bytes_);
    bytes_ += (static_cast<size_t>(count) * sizeof(T) + 255) / 256 * 256;
  }

  size_t bytes() const { return bytes_; }

 private:
  char* data_;
  size_t bytes_ = 0;
};

}  // namespace dfgnn::cuda
