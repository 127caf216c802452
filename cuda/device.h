// What the current device has, and what kernels may have of it.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>
#include <utility>

namespace dfgnn::cuda {

inline cudaError_t device_attribute(cudaDeviceAttr attribute, int& value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error == cudaSuccess ? cudaDeviceGetAttribute(&value, attribute, device) : error;
}

// Lets a kernel's blocks have so much dynamic shared memory, if they may not have it yet: to tell costs host time at
// every launch.
template <class... Parameters>
cudaError_t allow_shared_memory(void (*kernel)(Parameters...), int bytes) {
  static std::mutex mutex;
  static std::map<std::pair<const void*, int>, int> allowed;  // by kernel and device
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const std::lock_guard lock(mutex);
  int& most = allowed[{reinterpret_cast<const void*>(kernel), device}];
  if (bytes <= most) return cudaSuccess;
  error = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  if (error == cudaSuccess) most = bytes;
  return error;
}

}  // namespace dfgnn::cuda
