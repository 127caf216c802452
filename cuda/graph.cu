// COO to CSR and CSR to CSC: what is sorted in each, and by which sort. And rows that ascend.
#include <cooperative_groups.h>

#include "ascending_rows.cuh"
#include "edge_lists.cuh"
#include "edge_sort.cuh"
#include "graph.h"
#include "radix_sort.cuh"

namespace dfgnn::cuda {
namespace {

template <class K, class Source>
cudaError_t sort_edges(const Source& source, const SortedEdges<K>& out, void* workspace, size_t& workspace_bytes,
                       cudaStream_t stream) {
  const auto sort = out.num_edges < kLongList ? cooperative_sort<K, Source> : radix_sort<K, Source>;
  return sort(source, out, workspace, workspace_bytes, stream);
}

template <class K, class I>
cudaError_t coo_to_csr_as(const CooToCsr& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto convert = [&](const auto& edges) {
    return sort_edges(edges, sorted_edges<K>(t), workspace, workspace_bytes, stream);
  };
  return t.self_loops ? convert(coo_edges<I, true>(t)) : convert(coo_edges<I, false>(t));
}

template <class K>
cudaError_t csr_to_csc_as(const CsrToCsc& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  return sort_edges(csr_edges<K>(t), sorted_edges<K>(t), workspace, workspace_bytes, stream);
}

template <class K>
__global__ void __launch_bounds__(kGridThreads, 3)
    sort_rows_kernel(const __grid_constant__ AscendingRowsTask<K> task, const __grid_constant__ SortArrays<K> arrays) {
  extern __shared__ __align__(16) char memory[];
  AscendingRows<K> rows(task, arrays, *reinterpret_cast<typename AscendingRows<K>::Shared*>(memory));
  rows.check();
  cooperative_groups::this_grid().sync();
  rows.run();
}

template <class K>
cudaError_t sort_rows_as(const SortRows& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto kernel = sort_rows_kernel<K>;
  constexpr int shared_bytes = sizeof(typename AscendingRows<K>::Shared);
  int64_t blocks = 0;
  cudaError_t error = max_grid(kernel, shared_bytes, blocks);
  if (error != cudaSuccess) return error;
  const int64_t capacity = t.csr.capacity;
  blocks = sort_blocks<K>(capacity, t.csr.num_dst, blocks);
  AscendingRowsTask<K> task{sorted_edges<K>(t.csr), sorted_edges<K>(t.csc)};
  Workspace places(workspace);
  places.place(task.descents, 1);
  for (K*& spare : task.spare) places.place(spare, capacity);
  const auto arrays = place_sort_arrays<K>(places, capacity, blocks);
  if (workspace == nullptr) {
    workspace_bytes = places.bytes();
    return cudaSuccess;
  }
  error = cudaMemsetAsync(task.descents, 0, sizeof(*task.descents), stream);
  if (error == cudaSuccess) error = launch_cooperative(kernel, blocks, shared_bytes, stream, task, arrays);
  return error;
}

}  // namespace

cudaError_t coo_to_csr(const CooToCsr& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto convert = task.rowptr.wide
                           ? (task.src.wide ? coo_to_csr_as<int64_t, int64_t> : coo_to_csr_as<int64_t, int>)
                           : (task.src.wide ? coo_to_csr_as<int, int64_t> : coo_to_csr_as<int, int>);
  return convert(task, workspace, workspace_bytes, stream);
}

cudaError_t csr_to_csc(const CsrToCsc& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto convert = task.colptr.wide ? csr_to_csc_as<int64_t> : csr_to_csc_as<int>;
  return convert(task, workspace, workspace_bytes, stream);
}

cudaError_t sort_rows(const SortRows& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto sort = task.csr.col.wide ? sort_rows_as<int64_t> : sort_rows_as<int>;
  return sort(task, workspace, workspace_bytes, stream);
}

}  // namespace dfgnn::cuda
