// The sort of long lists: keys, CUB's radix sort, results. Keys lie in a workspace, positions in the two arrays of the
// caller's that are results still to be made.
#pragma once

#include <algorithm>
#include <cub/device/device_radix_sort.cuh>

#include "sorted_edges.cuh"

namespace dfgnn::cuda {

// A thread an item; there are edges.
template <class K, class Source>
__global__ void __launch_bounds__(kGridThreads)
    sort_keys_kernel(const __grid_constant__ Source source, const __grid_constant__ SortedEdges<K> out, K* keys,
                     K* items) {
  const int64_t e = grid_thread();
  bool bad = false;
  if (e < out.capacity()) {
    const auto loaded = source.load(min(e, out.num_edges - 1));
    keys[e] = full_sort_key(source, out, source.end(), e, loaded, bad);
    items[e] = static_cast<K>(e);
  }
  const int num_bad = __syncthreads_count(bad);
  if (threadIdx.x == 0) add_bad(out, num_bad);
}

template <class K, class Source>
__global__ void __launch_bounds__(kGridThreads)
    write_sorted_kernel(const __grid_constant__ Source source, const __grid_constant__ SortedEdges<K> out,
                        const K* keys, const K* items) {
  write_sorted<1>(source, out, keys, items);
}

// Call with workspace null for its size.
template <class K, class Source>
cudaError_t radix_sort(const Source& source, const SortedEdges<K>& out, void* workspace, size_t& workspace_bytes,
                       cudaStream_t stream) {
  cub::DoubleBuffer<K> keys, items(out.other, out.item);
  const auto sort = [&](void* storage, size_t& bytes) {
    return cub::DeviceRadixSort::SortPairs(storage, bytes, keys, items, out.capacity(), 0, out.key_bits(), stream);
  };
  size_t storage_bytes = 0;
  cudaError_t error = sort(nullptr, storage_bytes);
  if (error != cudaSuccess) return error;

  char* storage = nullptr;
  Workspace places(workspace);
  places.place(keys.d_buffers[0], out.capacity());
  places.place(keys.d_buffers[1], out.capacity());
  places.place(storage, static_cast<int64_t>(storage_bytes));
  if (workspace == nullptr) {
    workspace_bytes = places.bytes();
    return cudaSuccess;
  }

  if (out.stats) error = cudaMemsetAsync(out.stats, 0, 2 * sizeof(int64_t), stream);
  if (error != cudaSuccess) return error;
  const auto blocks_for = [](int64_t threads) { return static_cast<unsigned>(ceil_div(threads, kGridThreads)); };
  sort_keys_kernel<<<blocks_for(out.capacity()), kGridThreads, 0, stream>>>(source, out, keys.Current(),
                                                                            items.Current());
  error = sort(storage, storage_bytes);
  if (error != cudaSuccess) return error;
  write_sorted_kernel<<<blocks_for(std::max(out.capacity(), out.num_keys + 1)), kGridThreads, 0, stream>>>(
      source, out, keys.Current(), items.Current());
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
