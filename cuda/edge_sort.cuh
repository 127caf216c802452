// The sort of lists that may be short, one cooperative kernel that takes one of three ways: near (near_sort.cuh) where
// edges of a node lie near each other, counted (counted_sort.cuh) where nodes have few, or far (far_sort.cuh). The
// device finds out which; all give the same bits.
#pragma once

#include "counted_sort.cuh"
#include "far_sort.cuh"
#include "near_sort.cuh"

namespace dfgnn::cuda {

template <class K, class Source>
class EdgeSort {
  using Near = NearSort<K, Source>;
  using Counted = CountedSort<K, Source>;
  using Far = FarSort<K, Source>;

 public:
  union Shared {
    typename Near::Shared near;
    typename BlockSums<K>::Storage counted;
    typename Far::Shared far;
  };

  __device__ EdgeSort(const Source& source, const SortedEdges<K>& out, const SortArrays<K>& arrays, Shared& shared)
      : source_(source), out_(out), arrays_(arrays), shared_(shared) {}

  __device__ void run() const {
    if (Near{source_, out_, arrays_, shared_.near}.run()) return;
    const bool has_few = out_.num_edges <= kFewEdges * out_.num_keys;
    if (has_few && Counted{source_, out_, arrays_, shared_.counted}.run()) return;
    Far{source_, out_, arrays_, shared_.far}.run();
  }

 private:
  static constexpr int64_t kFewEdges = 12;  // of a key in the mean, at the most, where the counted way is faster

  const Source& source_;
  const SortedEdges<K>& out_;
  const SortArrays<K>& arrays_;
  Shared& shared_;
};

template <class K, class Source>
__global__ void __launch_bounds__(kGridThreads, 3)
    edge_sort_kernel(const __grid_constant__ Source source, const __grid_constant__ SortedEdges<K> out,
                     const __grid_constant__ SortArrays<K> arrays) {
  extern __shared__ __align__(16) char shared[];
  using Sort = EdgeSort<K, Source>;
  Sort(source, out, arrays, *reinterpret_cast<typename Sort::Shared*>(shared)).run();
}

// Call with workspace null for its size.
template <class K, class Source>
cudaError_t cooperative_sort(const Source& source, const SortedEdges<K>& out, void* workspace, size_t& workspace_bytes,
                             cudaStream_t stream) {
  using Sort = EdgeSort<K, Source>;
  const auto kernel = edge_sort_kernel<K, Source>;
  constexpr int shared_bytes = sizeof(typename Sort::Shared);
  int64_t blocks = 0;
  const cudaError_t error = max_grid(kernel, shared_bytes, blocks);
  if (error != cudaSuccess) return error;
  blocks = sort_blocks<K>(out.capacity(), out.num_keys, blocks);
  Workspace places(workspace);
  const auto arrays = place_sort_arrays<K>(places, out.capacity(), blocks);
  if (workspace == nullptr) {
    workspace_bytes = places.bytes();
    return cudaSuccess;
  }
  return launch_cooperative(kernel, blocks, shared_bytes, stream, source, out, arrays);
}

}  // namespace dfgnn::cuda
