// SDDMM by rows: a row's dot products with the rows of its edges' nodes, by a warp, on vectors or on tensor cores.
#pragma once

#include "mma.cuh"
#include "row_units.cuh"
#include "warp_heads.cuh"

namespace dfgnn::cuda {

// What becomes of a dot product: the edge's logit.
template <Score score, class T>
struct StoreLogit {
  typename Typed<T>::A* logits;

  __device__ __forceinline__ void operator()(const Typed<T>& a, typename Typed<T>::A dot, int i, int node, int64_t e,
                                             int h) const {
    logits[a.scalar(e, h)] = logit<score>(a, dot, i, node, e, h).value;
  }
};

// kCount sums at once over each group of kLanes lanes: lane l of a group has that of number l % kCount.
template <int kLanes, int kCount, class A>
__device__ __forceinline__ A transposed_sum(A (&x)[kCount]) {
  static_assert(kCount <= kLanes && (kCount & (kCount - 1)) == 0);
#pragma unroll
  for (int half = kCount / 2; half > 0; half /= 2) {
    const bool upper = threadIdx.x & half;
#pragma unroll
    for (int i = 0; i < half; ++i) {
      const A sent = upper ? x[i] : x[i + half], kept = upper ? x[i + half] : x[i];
      x[i] = kept + __shfl_xor_sync(kAllLanes, sent, half);
    }
  }
  A sum = x[0];
#pragma unroll
  for (int offset = kCount; offset < kLanes; offset *= 2) sum += __shfl_xor_sync(kAllLanes, sum, offset);
  return sum;
}

// How a warp gathers rows of the wide shape W for products with one row: each group of lanes has kRows in flight,
// kVectors a lane, for consecutive entries; of these, one is a lane's own where there is a number each.
template <class W, int kVectors = 8>
struct RowGroups {
  static constexpr int kRows = rounds_of_vectors<W>(kVectors);
  static constexpr int kStep = kRows * W::kGroups;  // entries of a warp at once
  int lane = threadIdx.x % W::kLanes, first = static_cast<int>(threadIdx.x) / W::kLanes * kRows;

  __device__ __forceinline__ int own() const { return first + lane % kRows; }
  __device__ __forceinline__ bool is_first() const { return lane < kRows; }  // of the lanes with the same entry

  // What the lane has whose own entry is the group's number u.
  template <class X>
  __device__ __forceinline__ X of_row(X x, int u) const {
    return __shfl_sync(kAllLanes, x, static_cast<int>(threadIdx.x) - lane + u);
  }

  // The own entry's row times a row that all groups have.
  template <class Row>
  __device__ __forceinline__ typename W::A dot(const Fragment<W>& row, const Row (&rows)[kRows]) const {
    typename W::A sums[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) sums[u] = row.dot(rows[u]);
    return transposed_sum<W::kLanes>(sums);
  }
};

// Whether passes go by rows, a warp each: of 16-bit heads of 64 or 128 features, else where rows are long and heads do
// not lie side by side.
template <class S>
bool goes_by_rows(const Attention& a) {
  return tensor_rows<S>(a.head_dim) || (a.head_dim <= S::kFeatures && log_heads_side_by_side<S>(a.heads) == 0 &&
                                        rows_are_long(a.num_dst, a.num_edges));
}

template <class S, class Store>
__global__ void __launch_bounds__(RowUnits::kThreads, sizeof(typename S::A) == 8 ? 1 : 24)
    row_dots_kernel(const __grid_constant__ Typed<typename S::T> a, const void* own_rows, const void* other_rows,
                    Store store, RowUnits units) {
  using A = typename S::A;
  using W = typename S::Wide;
  using Groups = RowGroups<W>;
  __shared__ int nodes[kWarp];
  __shared__ A dots[kWarp];
  const int lane = threadIdx.x, h = blockIdx.y;
  const Groups groups;
  const RowReader<W> other_row(a, other_rows, h, groups.lane);
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t) {
    if (edges.size() == 0) return;
    Fragment<W> own;
    own.load(a.features(own_rows, i, h), groups.lane, a.head_dim);
    const auto load_node = [&](int64_t e) {  // past the end, the last again
      return checked_node(a.col[min(e, edges.end - 1)], a.num_src);
    };
    int next_node = load_node(edges.begin + lane);
    for (int64_t first = edges.begin; first < edges.end; first += kWarp) {
      const int count = static_cast<int>(min(static_cast<int64_t>(kWarp), edges.end - first)), node = next_node;
      __syncwarp();
      nodes[lane] = max(node, 0);
      next_node = load_node(first + kWarp + lane);
      __syncwarp();
#pragma unroll 1
      for (int base = 0; base < count; base += Groups::kStep) {
        Packed<W> rows[Groups::kRows];
#pragma unroll
        for (int u = 0; u < Groups::kRows; ++u) rows[u] = other_row(nodes[base + groups.first + u]);
        const A dot = groups.dot(own, rows);
        if (groups.is_first()) dots[base + groups.own()] = dot;
      }
      __syncwarp();
      if (lane < count) store(a, dots[lane], i, node, first + lane, h);
    }
  });
}

// A row of 16-bit features over eight lanes: what tensor cores multiply. Four rows are the operand of an mma whose row
// (or column) 2 r holds half of row r's features, 2 r + 1 the other half.
template <class S>
using OctetShape = Shape<typename S::T, 8, 8, S::kFeatures / 64, false, true>;

__device__ __forceinline__ int octet() { return threadIdx.x % kWarp / 8; }
__device__ __forceinline__ int lane_in_octet() { return threadIdx.x % 8; }

// Products of the 8 rows `first`, `second` that the octets of lanes hold with the 4 rows b: dots[0] is that of the
// first row of this lane's octet with row b of octet lane_in_group(), dots[1] that of the second.
template <class O>
__device__ __forceinline__ void octet_dots(float (&dots)[2], const Packed<O>& first, const Packed<O>& second,
                                           const Packed<O>& b) {
  float acc[4] = {};
#pragma unroll
  for (int s = 0; s < O::kSteps; ++s) {
#pragma unroll
    for (int k = 0; k < 4; k += 2) {  // in any order of the features, as long as both operands have the same
      const uint32_t a[4] = {word(first.steps[s], k), word(second.steps[s], k), word(first.steps[s], k + 1),
                             word(second.steps[s], k + 1)};
      mma_half<typename O::T>(acc, a, word(b.steps[s], k), word(b.steps[s], k + 1));
    }
  }
  const bool odd = lane_group() & 1;  // the halves' products are where both are even, and where both are odd
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    const float half = odd ? acc[2 * v + 1] : acc[2 * v];
    dots[v] = half + __shfl_xor_sync(kAllLanes, half, 4);
  }
}

// 16 rows that a warp gathers for products with one row: the octets of lanes hold four at a time, those of entries 4 j
// + octet(). `place` is the entry that is a lane's own where there is a number each; lanes of odd groups have the same.
template <class S>
struct OctetRows {
  using O = OctetShape<S>;
  using Reader = RowReader<O>;
  Packed<O> rows[4];

  __device__ __forceinline__ static int place() { return 4 * lane_in_group() + octet(); }

  // The rows of the lanes' own nodes.
  __device__ __forceinline__ void load(int node, const Reader& row) {
#pragma unroll
    for (int j = 0; j < 4; ++j) rows[j] = row(__shfl_sync(kAllLanes, node, 8 * octet() + j));
  }

  // The lane's own entry's row times the other, which all octets have.
  __device__ __forceinline__ float dot(const Packed<O>& other) const {
    float low[2], high[2];
    octet_dots<O>(low, rows[0], rows[1], other);
    octet_dots<O>(high, rows[2], rows[3], other);
    const bool odd = lane_in_group() & 1;
    return lane_in_group() < 2 ? (odd ? low[1] : low[0]) : (odd ? high[1] : high[0]);
  }
};

// On tensor cores.
template <class S, class Store>
__global__ void __launch_bounds__(RowUnits::kThreads, 24)
    tensor_dots_kernel(const __grid_constant__ Typed<typename S::T> a, const void* own_rows, const void* other_rows,
                       Store store, RowUnits units) {
  using Rows = OctetRows<S>;
  const int h = blockIdx.y, place = Rows::place();
  const typename Rows::Reader own_row(a, own_rows, h, lane_in_octet()), other_row(a, other_rows, h, lane_in_octet());
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t) {
    if (edges.size() == 0) return;
    const auto own = own_row(i);
    const auto load_node = [&](int64_t e) { return checked_node(a.col[min(e, edges.end - 1)], a.num_src); };
    int next_node = load_node(edges.begin + place);
    for (int64_t e = edges.begin + place; e - place < edges.end; e += 16) {
      const int node = next_node;
      Rows rows;
      rows.load(max(node, 0), other_row);
      next_node = load_node(e + 16);
      const float dot = rows.dot(own);
      if (e < edges.end && !(lane_group() & 1)) store(a, dot, i, node, e, h);
      __syncwarp();
    }
  });
}

// Where goes_by_rows().
template <class S, class Store>
cudaError_t launch_row_dots(const Attention& a, const void* own_rows, const void* other_rows, const Store& store,
                            const RowUnits& units, unsigned* counters, cudaStream_t stream) {
  auto* kernel = row_dots_kernel<S, Store>;
  if constexpr (kTensorRows<S>) {
    if (tensor_rows<S>(a.head_dim)) kernel = tensor_dots_kernel<S, Store>;
  }
  const auto launch = [&](dim3 grid, const RowUnits& with, auto* chosen) {
    chosen<<<grid, RowUnits::kThreads, 0, stream>>>(Typed<typename S::T>{a}, own_rows, other_rows, store, with);
  };
  return launch_units(units, a, a.num_dst, a.heads, counters, stream, kernel, nullptr, launch);
}

}  // namespace dfgnn::cuda
