// SDDMM by rows: a row's dot products with the rows of its edges' nodes, by a warp, on vectors or on tensor cores.
#pragma once

#include "row_groups.cuh"
#include "row_units.cuh"
#include "warp_heads.cuh"

namespace dfgnn::cuda {

// What becomes of a dot product: the edge's logit.
template <Score score, class T>
struct StoreLogit {
  typename Typed<T>::A* logits;

  __device__ __forceinline__ void operator()(const Typed<T>& a, typename Typed<T>::A dot, int i, int node, int64_t e,
                                             int h) const {
    logits[a.kept(e, h)] = logit<score>(a, dot, i, node, e, h).value;
  }

  __device__ __forceinline__ void begin(const Typed<T>&) const {}
};

// Whether passes go by rows, a warp each: of 16-bit heads of 64 or 128 features, else where rows are long, or, with
// GATv2's scores, fill a warp, and heads do not lie side by side.
template <Score score, class S>
bool goes_by_rows(const Attention& a) {
  const bool are_long =
      score == Score::additive_v2 ? rows_fill_warps(a.num_dst, a.num_edges) : rows_are_long(a.num_dst, a.num_edges);
  return tensor_rows<S>(a.head_dim) ||
         (a.head_dim <= S::kFeatures && log_heads_side_by_side<S>(a.heads) == 0 && are_long);
}

// By times with 128 features; of very long heads, as many as registers leave room for.
template <class S>
constexpr int row_dots_warps() {
  return warps_here<S>(S::kLoop ? 16 : 28);
}

// A batch's nodes, and their dot products.
template <class A>
struct DotsStorage {
  alignas(16) int nodes[kWarp];
  A dots[kWarp];
};

template <class S, class Groups, class Store>
__global__ void __launch_bounds__(block_threads(row_dots_warps<S>(), kUnitsTogether<S>),
                                  blocks_at_once(row_dots_warps<S>(), kUnitsTogether<S>))
    row_dots_kernel(const __grid_constant__ Typed<typename S::T> a, const void* own_rows, const void* other_rows,
                    Store store, RowUnits units) {
  using A = typename S::A;
  using W = typename Groups::W;
  auto& [nodes, dots] = warp_storage<DotsStorage<A>>();
  const int lane = threadIdx.x, h = blockIdx.y;
  const Groups groups;
  const RowReader<W> other_row(a, other_rows, h, groups.lane);
  store.begin(a);
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t) {
    if (edges.size() == 0) return;
    typename Groups::Own own;
    own.load(a.features(own_rows, i, h), groups.lane, a.head_dim);
    const int size = static_cast<int>(edges.size());  // what is longer comes in pieces
    const Index col = a.col.from(edges.begin);
    const auto load_node = [&](int t) { return LoadedNode(col, min(t, size - 1)); };
    LoadedNode next = load_node(lane);
    for (int first = 0; first < size; first += kWarp) {
      const int count = min(kWarp, size - first), node = next.check(a.num_src);
      __syncwarp();
      nodes[lane] = max(node, 0);
      next = load_node(first + kWarp + lane);
      __syncwarp();
#pragma unroll 1
      for (int base = 0; base < count; base += Groups::kStep) {
        Packed<W> rows[Groups::kRows];
        groups.load(rows, groups.nodes_of(nodes + base), other_row);
        const A dot = groups.dot(own, rows);
        if (groups.is_first()) dots[base + groups.own()] = dot;
      }
      __syncwarp();
      if (lane < count) store(a, dots[lane], i, node, edges.begin + first + lane, h);
    }
  });
}

// Where goes_by_rows().
template <class S, class Store>
cudaError_t launch_row_dots(const Attention& a, const void* own_rows, const void* other_rows, const Store& store,
                            const RowUnits& units, unsigned* counters, cudaStream_t stream) {
  const auto launch = [&](dim3 grid, const RowUnits& with, auto* kernel) {
    kernel<<<grid, with.block(), with.warps * sizeof(DotsStorage<typename S::A>), stream>>>(
        Typed<typename S::T>{a}, own_rows, other_rows, store, with);
  };
  return for_row_groups<Score::dot, S>(a.head_dim, [&]<class Groups>() {
    return launch_units(units, a, a.num_dst, a.heads, counters, stream, row_dots_kernel<S, Groups, Store>, nullptr,
                        launch);
  });
}

}  // namespace dfgnn::cuda
