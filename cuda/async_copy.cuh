// Copies from global to shared memory that a thread starts and later waits for.
#pragma once

#include <cstdint>

namespace dfgnn::cuda {

__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// 16 bytes, or 4 or 8; where not valid, zeros instead.
template <int kBytes = 16>
__device__ __forceinline__ void copy_async(uint32_t to, const void* from, bool valid) {
  const int bytes = valid ? kBytes : 0;
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(kBytes), "r"(bytes)
                 : "memory");
  }
}

// Makes a group of what the thread has started since the last one, even of nothing.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Until all groups of the thread but the last kGroups are there.
template <int kGroups>
__device__ __forceinline__ void wait_for_groups() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kGroups) : "memory");
}

__device__ __forceinline__ void wait_for_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

}  // namespace dfgnn::cuda
