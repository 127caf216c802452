// What the current device has.
#pragma once

#include <cuda_runtime_api.h>

namespace dfgnn::cuda {

inline cudaError_t device_attribute(cudaDeviceAttr attribute, int& value) {
  int device = 0;
  const cudaError_t error = cudaGetDevice(&device);
  return error == cudaSuccess ? cudaDeviceGetAttribute(&value, attribute, device) : error;
}

}  // namespace dfgnn::cuda
