// Rows and columns by their numbers of edges, from which the kernels by runs deal (row_runs.cuh): by the sort of edges,
// each of them an edge from itself to what it is sorted by.
#include "cooperative.cuh"
#include "graph.h"
#include "logit.cuh"
#include "tile_geometry.h"

namespace dfgnn::cuda {
namespace {

constexpr int kSideKeys = tile::kMostOrderEdges + 1;

// Of blocks that take rows, and of those that take columns, which come second in all arrays.
__device__ __forceinline__ int side() { return static_cast<int>(blockIdx.y); }

__device__ __forceinline__ Range edges_of(const OrderRows& t, int64_t node) {
  return row_range(side() == 0 ? t.rowptr : t.colptr, node, t.num_edges);
}

__global__ void __launch_bounds__(kGridThreads)
    order_keys_kernel(const __grid_constant__ OrderRows t, int* nodes, int* keys) {
  const int64_t node = grid_thread(), at = side() * t.num_nodes + node;
  if (node >= t.num_nodes) return;
  const auto edges = static_cast<int>(min(edges_of(t, node).size(), int64_t{tile::kMostOrderEdges}));
  nodes[at] = static_cast<int>(node);
  keys[at] = side() * kSideKeys + tile::kMostOrderEdges - edges;
}

__global__ void __launch_bounds__(kGridThreads) ordered_edges_kernel(const __grid_constant__ OrderRows t) {
  const int64_t rank = grid_thread(), at = side() * t.num_nodes + rank;
  if (rank >= t.num_nodes) return;
  const Range edges = edges_of(t, t.orders[at]);
  t.orders[at + 2 * t.num_nodes] = static_cast<int>(edges.begin);
  t.orders[at + 4 * t.num_nodes] = static_cast<int>(edges.size());
}

}  // namespace

cudaError_t order_rows(const OrderRows& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const int64_t count = 2 * t.num_nodes;
  int *nodes = nullptr, *keys = nullptr, *pointers = nullptr, *items = nullptr;
  int64_t* stats = nullptr;
  char* of_sort = nullptr;
  Workspace places(workspace);
  places.place(nodes, count);
  places.place(keys, count);
  places.place(pointers, 2 * kSideKeys + 1);
  places.place(items, count);
  places.place(stats, 2);
  const CooToCsr sort{{nodes},           {keys},         count, t.num_nodes,
                      2 * kSideKeys,     false,          count, {pointers, false},
                      {t.orders, false}, {items, false}, stats};
  size_t sort_bytes = 0;
  cudaError_t error = coo_to_csr(sort, nullptr, sort_bytes, stream);
  if (error != cudaSuccess) return error;
  places.place(of_sort, static_cast<int64_t>(sort_bytes));
  if (workspace == nullptr) {
    workspace_bytes = places.bytes();
    return cudaSuccess;
  }
  if (count == 0) return cudaSuccess;
  const dim3 blocks(static_cast<unsigned>(ceil_div(t.num_nodes, kGridThreads)), 2);
  order_keys_kernel<<<blocks, kGridThreads, 0, stream>>>(t, nodes, keys);
  error = coo_to_csr(sort, of_sort, sort_bytes, stream);
  if (error != cudaSuccess) return error;
  ordered_edges_kernel<<<blocks, kGridThreads, 0, stream>>>(t);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
