// COO to CSR and CSR to CSC: what is sorted in each, and by which sort.
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

}  // namespace dfgnn::cuda
