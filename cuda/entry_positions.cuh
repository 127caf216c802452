// Places of a column's entries in the order of the rows, where dropout or the edges' terms want them: copied to shared
// memory a batch ahead, so that no registers wait for them.
#pragma once

#include "async_copy.cuh"
#include "attention.h"
#include "fragment.cuh"

namespace dfgnn::cuda {

// Those of 32 entries, a lane each.
class EntryPositions {
 public:
  // Before the first copy, as of places of 32 bits the lower halves alone are copied.
  __device__ __forceinline__ void clear() { of_[threadIdx.x % kWarp] = 0; }

  // Starts to copy the lane's entry, when nobody reads the one before any more. Before the next copy there has to be a
  // wait(), which waits for the lane's own.
  __device__ __forceinline__ void copy(const Index& positions, int64_t entry) {
    const uint32_t to = shared_address(&of_[threadIdx.x % kWarp]);
    if (positions.wide) {
      copy_async<8>(to, static_cast<const int64_t*>(positions.data) + entry, true);
    } else {
      copy_async<4>(to, static_cast<const int32_t*>(positions.data) + entry, true);
    }
  }
  __device__ __forceinline__ static void wait() { wait_for_copies(); }

  __device__ __forceinline__ int64_t operator[](int lane) const { return of_[lane]; }

 private:
  alignas(16) int64_t of_[kWarp];
};

// A batch of entries with their places.
template <class Batch>
struct ColumnBatch : Batch {
  EntryPositions positions;
};

}  // namespace dfgnn::cuda
