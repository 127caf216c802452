// What sorts read (the Source of sorted_edges.cuh): edges as two lists of their ends, and those of a CSR.
#pragma once

#include "find_row.cuh"
#include "graph.h"
#include "sorted_edges.cuh"

namespace dfgnn::cuda {

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
  // The same of what is read once, and should not displace what is in the L2 cache.
  __device__ __forceinline__ Loaded load_once(int64_t e) const { return {__ldcs(src + e), __ldcs(dst + e)}; }
  __device__ __forceinline__ int64_t key(const Loaded& e, bool& bad) const {
    if constexpr (kSelfLoops) return full_key(e, bad);
    bad = !in_range(e.dst, num_dst);
    return bad ? -1 : static_cast<int64_t>(e.dst);
  }
  __device__ __forceinline__ int64_t full_key(const Loaded& e, bool& bad) const {
    const bool is_dropped = kSelfLoops && e.src == e.dst;  // wherever it is
    bad = !is_dropped && (!in_range(e.dst, num_dst) || !in_range(e.src, num_src));
    return is_dropped || bad ? -1 : static_cast<int64_t>(e.dst);
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

template <class I, bool kSelfLoops>
CooEdges<I, kSelfLoops> coo_edges(const CooToCsr& t) {
  return {static_cast<const I*>(t.src.data), static_cast<const I*>(t.dst.data), t.num_edges, t.num_src, t.num_dst};
}

template <class K>
CsrEdges<K> csr_edges(const CsrToCsc& t) {
  return {static_cast<const K*>(t.rowptr.data), static_cast<const K*>(t.col.data), t.num_dst, t.num_src};
}

template <class K>
K* array(const MutableIndex& index) {
  return static_cast<K*>(index.data);
}

// What becomes of them.
template <class K>
SortedEdges<K> sorted_edges(const CooToCsr& t) {
  return {t.num_edges,     t.capacity - t.num_edges, t.num_dst, array<K>(t.rowptr),
          array<K>(t.col), array<K>(t.eid),          t.stats};
}

template <class K>
SortedEdges<K> sorted_edges(const CsrToCsc& t) {
  return {t.capacity, 0, t.num_src, array<K>(t.colptr), array<K>(t.row), array<K>(t.perm), nullptr};
}

}  // namespace dfgnn::cuda
