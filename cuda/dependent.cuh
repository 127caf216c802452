// A kernel that begins while the last blocks of the one before are still at work, and waits for them later
// (programmatic dependent launch). Elsewhere than on devices and in code of compute capability 9.0 on it begins after.
#pragma once

#include <cuda_runtime_api.h>

#include <map>
#include <mutex>

namespace dfgnn::cuda {

// In the kernel before, by each block: the next may begin once there is room.
__device__ __forceinline__ void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

// In a kernel of launch_dependent: what the kernel before writes, which must be read by this pointer and past the L1
// cache (__ldcg), once it is there.
__device__ __forceinline__ const void* when_written(const void* data) {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" : "+l"(data)::"memory");
#endif
  return data;
}

// Whether a kernel's code for the current device has these; all kernels are compiled for the same architectures.
inline cudaError_t can_depend(const void* kernel, bool& can) {
  static std::mutex mutex;
  static std::map<int, bool> known;  // by device: to ask costs as much as a launch
  int device = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  const std::lock_guard lock(mutex);
  const auto found = known.find(device);
  if (found != known.end()) {
    can = found->second;
    return cudaSuccess;
  }
  cudaFuncAttributes attributes{};
  error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess) known[device] = can = attributes.ptxVersion >= 90;
  return error;
}

template <class... Parameters, class... Arguments>
cudaError_t launch_dependent(void (*kernel)(Parameters...), dim3 grid, dim3 block, int shared_bytes,
                             cudaStream_t stream, const Arguments&... arguments) {
  bool can = false;
  const cudaError_t error = can_depend(reinterpret_cast<const void*>(kernel), can);
  if (error != cudaSuccess) return error;
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = can ? 1 : 0;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace dfgnn::cuda
