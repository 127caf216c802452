// COO to CSR and CSR to CSC: what is sorted in each, and by which sort.
#include "edge_sort.cuh"
#include "find_row.cuh"
#include "graph.h"
#include "radix_sort.cuh"

namespace dfgnn::cuda {
namespace {

// Lists from here on are CUB's, whose radix sort takes half the time of the cooperative kernel's. So long a list is
// seldom a batch of small graphs: it is one graph's, sorted by one of its ends at most. The near way would pay for that
// end alone, and by less than the far way costs for the other.
constexpr int64_t kLongList = 1 << 24;

__device__ __forceinline__ bool in_range(int64_t i, int64_t size) {
  return static_cast<uint64_t>(i) < static_cast<uint64_t>(size);
}

// By destination. kSelfLoops: those in the list are left out.
template <class I, bool kSelfLoops>
struct CooEdges {
  const I *src, *dst;
  int64_t num_edges, num_src, num_dst;

  struct Loaded {
    I src, dst;
  };
  struct Cursor {
    __device__ __forceinline__ int64_t other(int64_t, int64_t loaded) const { return loaded; }
  };

  __device__ __forceinline__ int64_t end() const { return INT64_MAX; }
  __device__ __forceinline__ Loaded load(int64_t e) const { return {src[e], dst[e]}; }
  __device__ __forceinline__ int64_t key(const Loaded& e, bool& bad) const {
    if constexpr (kSelfLoops) return full_key(e, bad);
    bad = !in_range(e.dst, num_dst);
    return bad ? -1 : static_cast<int64_t>(e.dst);
  }
  __device__ __forceinline__ int64_t full_key(const Loaded& e, bool& bad) const {
    bad = !in_range(e.dst, num_dst) || !in_range(e.src, num_src);
    return bad || (kSelfLoops && e.src == e.dst) ? -1 : static_cast<int64_t>(e.dst);
  }
  __device__ __forceinline__ int64_t loaded_other(const Loaded& e, bool& bad) const {
    bad = !in_range(e.src, num_src);
    return e.src;
  }
  __device__ __forceinline__ Cursor cursor(int64_t) const { return {}; }
  __device__ __forceinline__ int64_t other(int64_t e) const { return e < num_edges ? src[e] : e - num_edges; }
};

// By source. Entries at or past rowptr[num_dst] are no edges.
template <class K>
struct CsrEdges {
  const K *rowptr, *col;
  int64_t num_dst, num_src;

  using Loaded = K;

  struct Cursor {
    const CsrEdges& edges;
    int64_t row;  // one that begins at or before the warp's next edge, or 0

    __device__ __forceinline__ int64_t other(int64_t e, int64_t) {
      const int64_t low = find_row_from(edges.rowptr, edges.num_dst, row, e);
      row = __shfl_sync(~0u, low, 0);
      return low;
    }
  };

  __device__ __forceinline__ int64_t end() const { return rowptr[num_dst]; }
  __device__ __forceinline__ Loaded load(int64_t e) const { return col[e]; }
  __device__ __forceinline__ int64_t key(Loaded j, bool&) const {
    return in_range(j, num_src) ? static_cast<int64_t>(j) : -1;
  }
  __device__ __forceinline__ int64_t full_key(Loaded j, bool& bad) const { return key(j, bad); }
  __device__ __forceinline__ int64_t loaded_other(Loaded, bool&) const { return 0; }
  __device__ __forceinline__ int64_t other(int64_t e) const { return last_row(rowptr, 0, num_dst, e); }
  __device__ __forceinline__ Cursor cursor(int64_t e) const { return {*this, warp_find_row(rowptr, num_dst, e)}; }
};

template <class K>
K* array(const MutableIndex& index) {
  return static_cast<K*>(index.data);
}

template <class K, class Source>
cudaError_t sort_edges(const Source& source, const SortedEdges<K>& out, void* workspace, size_t& workspace_bytes,
                       cudaStream_t stream) {
  const auto sort = out.num_edges < kLongList ? cooperative_sort<K, Source> : radix_sort<K, Source>;
  return sort(source, out, workspace, workspace_bytes, stream);
}

template <class K, class I, bool kSelfLoops>
cudaError_t coo_to_csr_of(const CooToCsr& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const CooEdges<I, kSelfLoops> edges{static_cast<const I*>(t.src.data), static_cast<const I*>(t.dst.data), t.num_edges,
                                      t.num_src, t.num_dst};
  const SortedEdges<K> csr{t.num_edges,     t.capacity - t.num_edges, t.num_dst, array<K>(t.rowptr),
                           array<K>(t.col), array<K>(t.eid),          t.stats};
  return sort_edges(edges, csr, workspace, workspace_bytes, stream);
}

template <class K, class I>
cudaError_t coo_to_csr_as(const CooToCsr& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto convert = t.self_loops ? coo_to_csr_of<K, I, true> : coo_to_csr_of<K, I, false>;
  return convert(t, workspace, workspace_bytes, stream);
}

template <class K>
cudaError_t csr_to_csc_as(const CsrToCsc& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const CsrEdges<K> edges{static_cast<const K*>(t.rowptr.data), static_cast<const K*>(t.col.data), t.num_dst,
                          t.num_src};
  const SortedEdges<K> csc{t.capacity, 0, t.num_src, array<K>(t.colptr), array<K>(t.row), array<K>(t.perm), nullptr};
  return sort_edges(edges, csc, workspace, workspace_bytes, stream);
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
