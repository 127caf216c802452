// COO to CSR and CSR to CSC: keys, a stable radix sort (CUB), and pointers by binary search in the sorted keys.
#include <cub/device/device_radix_sort.cuh>

#include "graph.h"

namespace dfgnn::cuda {
namespace {

constexpr int kThreads = 256;

unsigned blocks_for(int64_t items) { return static_cast<unsigned>((items + kThreads - 1) / kThreads); }

__device__ __forceinline__ int64_t thread_index() { return static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; }

__device__ __forceinline__ bool in_range(int64_t i, int64_t size) {
  return static_cast<uint64_t>(i) < static_cast<uint64_t>(size);
}

// First of `count` sorted keys that is not below `key`.
template <class K>
__device__ int64_t lower_bound(const K* keys, int64_t count, K key) {
  int64_t low = 0;
  while (count > 0) {
    const int64_t half = count / 2;
    if (keys[low + half] < key) {
      low += half + 1;
      count -= half + 1;
    } else {
      count = half;
    }
  }
  return low;
}

// Sorts `count` pairs of key and position, keys in [0, max_key]. Positions lie in two of the caller's arrays that are
// results still to be made, keys in a workspace; what is sorted ends up in one of the two of each.
template <class K>
class PairSort {
 public:
  PairSort(int64_t count, int64_t max_key, const MutableIndex& values, const MutableIndex& more_values)
      : values_(static_cast<K*>(values.data), static_cast<K*>(more_values.data)), count_(count) {
    while (bits_ < 8 * static_cast<int>(sizeof(K)) - 1 && (max_key >> bits_) > 0) ++bits_;
  }

  // Places the keys in `workspace`, or, where that is null, says how large it must be.
  cudaError_t place(void* workspace, size_t& bytes) {
    const size_t array = (static_cast<size_t>(count_) * sizeof(K) + 255) / 256 * 256;
    const cudaError_t error = sort(nullptr, cub_bytes_, nullptr);
    if (error != cudaSuccess) return error;
    if (workspace == nullptr) {
      bytes = 2 * array + cub_bytes_;
      return cudaSuccess;
    }
    auto* base = static_cast<char*>(workspace);
    keys_ = {reinterpret_cast<K*>(base), reinterpret_cast<K*>(base + array)};
    cub_workspace_ = base + 2 * array;
    return cudaSuccess;
  }

  cudaError_t run(cudaStream_t stream) { return sort(cub_workspace_, cub_bytes_, stream); }

  // To be filled before the sort, sorted after.
  K* keys() { return keys_.Current(); }
  K* values() { return values_.Current(); }

 private:
  cudaError_t sort(void* workspace, size_t& bytes, cudaStream_t stream) {
    return cub::DeviceRadixSort::SortPairs(workspace, bytes, keys_, values_, count_, 0, bits_, stream);
  }

  cub::DoubleBuffer<K> keys_, values_;
  int64_t count_;
  int bits_ = 1;
  size_t cub_bytes_ = 0;
  void* cub_workspace_ = nullptr;
};

// Keys are destinations; num_dst stands for an entry that is no edge.
template <class K>
__global__ void coo_keys_kernel(CooToCsr t, K* keys, K* values) {
  const int64_t e = thread_index();
  bool invalid = false;
  if (e < t.capacity) {
    int64_t key = e - t.num_edges;  // of a self-loop that is put in
    if (e < t.num_edges) {
      const int64_t i = t.dst[e], j = t.src[e];
      invalid = !in_range(i, t.num_dst) || !in_range(j, t.num_src);
      key = invalid || (t.self_loops && i == j) ? t.num_dst : i;
    }
    keys[e] = static_cast<K>(key);
    values[e] = static_cast<K>(e);
  }
  const int count = __syncthreads_count(invalid);
  if (threadIdx.x == 0 && count > 0) atomicAdd(reinterpret_cast<unsigned long long*>(t.stats + 1), count);
}

// `values` is one of the arrays that are written.
template <class K>
__global__ void coo_fill_kernel(CooToCsr t, const K* keys, const K* values) {
  const int64_t c = thread_index();
  if (c >= t.capacity) return;
  const bool is_edge = keys[c] < static_cast<K>(t.num_dst);
  const int64_t e = is_edge ? static_cast<int64_t>(values[c]) : 0;
  int64_t j = 0;
  if (is_edge) j = e < t.num_edges ? t.src[e] : e - t.num_edges;
  static_cast<K*>(t.col.data)[c] = static_cast<K>(j);
  static_cast<K*>(t.eid.data)[c] = static_cast<K>(e);
}

// pointers[r]: where keys >= r begin; stats[0], where given, the largest distance of two.
template <class K>
__global__ void pointers_kernel(const K* keys, int64_t count, int64_t num_rows, K* pointers, int64_t* stats) {
  const int64_t r = thread_index();
  int64_t degree = 0;
  if (r <= num_rows) {
    const int64_t begin = lower_bound(keys, count, static_cast<K>(r));
    pointers[r] = static_cast<K>(begin);
    if (stats && r < num_rows) degree = lower_bound(keys + begin, count - begin, static_cast<K>(r + 1));
  }
  if (stats) {
    __shared__ unsigned long long largest;
    if (threadIdx.x == 0) largest = 0;
    __syncthreads();
    if (degree > 0) atomicMax(&largest, static_cast<unsigned long long>(degree));
    __syncthreads();
    if (threadIdx.x == 0) atomicMax(reinterpret_cast<unsigned long long*>(stats), largest);
  }
}

// Keys are sources; num_src stands for an entry that is no edge.
template <class K>
__global__ void csr_keys_kernel(CsrToCsc t, K* keys, K* values) {
  const int64_t c = thread_index();
  if (c >= t.capacity) return;
  const int64_t j = t.col[c];
  const bool is_edge = c < t.rowptr[t.num_dst] && in_range(j, t.num_src);
  keys[c] = static_cast<K>(is_edge ? j : t.num_src);
  values[c] = static_cast<K>(c);
}

// `values` is one of the arrays that are written.
template <class K>
__global__ void csr_fill_kernel(CsrToCsc t, const K* keys, const K* values) {
  const int64_t p = thread_index();
  if (p >= t.capacity) return;
  const bool is_edge = keys[p] < static_cast<K>(t.num_src);
  const int64_t c = is_edge ? static_cast<int64_t>(values[p]) : 0;
  int64_t row = 0;  // the last that begins at or before c
  if (is_edge) {
    int64_t high = t.num_dst;
    while (high - row > 1) {
      const int64_t middle = (row + high) / 2;
      (t.rowptr[middle] <= c ? row : high) = middle;
    }
  }
  static_cast<K*>(t.row.data)[p] = static_cast<K>(row);
  static_cast<K*>(t.perm.data)[p] = static_cast<K>(c);
}

template <class K>
cudaError_t coo_to_csr_as(const CooToCsr& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  PairSort<K> sort(t.capacity, t.num_dst, t.col, t.eid);
  cudaError_t error = sort.place(workspace, workspace_bytes);
  if (error != cudaSuccess || workspace == nullptr) return error;
  error = cudaMemsetAsync(t.stats, 0, 2 * sizeof(int64_t), stream);
  if (error != cudaSuccess) return error;
  if (t.capacity > 0) {
    coo_keys_kernel<<<blocks_for(t.capacity), kThreads, 0, stream>>>(t, sort.keys(), sort.values());
    error = sort.run(stream);
    if (error != cudaSuccess) return error;
    coo_fill_kernel<<<blocks_for(t.capacity), kThreads, 0, stream>>>(t, sort.keys(), sort.values());
  }
  pointers_kernel<<<blocks_for(t.num_dst + 1), kThreads, 0, stream>>>(sort.keys(), t.capacity, t.num_dst,
                                                                      static_cast<K*>(t.rowptr.data), t.stats);
  return cudaGetLastError();
}

template <class K>
cudaError_t csr_to_csc_as(const CsrToCsc& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  PairSort<K> sort(t.capacity, t.num_src, t.row, t.perm);
  cudaError_t error = sort.place(workspace, workspace_bytes);
  if (error != cudaSuccess || workspace == nullptr) return error;
  if (t.capacity > 0) {
    csr_keys_kernel<<<blocks_for(t.capacity), kThreads, 0, stream>>>(t, sort.keys(), sort.values());
    error = sort.run(stream);
    if (error != cudaSuccess) return error;
    csr_fill_kernel<<<blocks_for(t.capacity), kThreads, 0, stream>>>(t, sort.keys(), sort.values());
  }
  pointers_kernel<<<blocks_for(t.num_src + 1), kThreads, 0, stream>>>(
      sort.keys(), t.capacity, t.num_src, static_cast<K*>(t.colptr.data), static_cast<int64_t*>(nullptr));
  return cudaGetLastError();
}

}  // namespace

cudaError_t coo_to_csr(const CooToCsr& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  return task.rowptr.wide ? coo_to_csr_as<int64_t>(task, workspace, workspace_bytes, stream)
                          : coo_to_csr_as<int32_t>(task, workspace, workspace_bytes, stream);
}

cudaError_t csr_to_csc(const CsrToCsc& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  return task.colptr.wide ? csr_to_csc_as<int64_t>(task, workspace, workspace_bytes, stream)
                          : csr_to_csc_as<int32_t>(task, workspace, workspace_bytes, stream);
}

}  // namespace dfgnn::cuda
