// sddmm by runs of edges, spmm by rows.
#include "edges.cuh"
#include "products.h"
#include "spmm.cuh"

namespace dfgnn::cuda {
namespace {

Attention operands_of(const Products& graph) {
  Attention a{};
  a.type = graph.type;
  a.num_dst = graph.num_rows;
  a.num_src = graph.num_nodes;
  a.num_edges = graph.num_edges;
  a.heads = graph.heads;
  a.head_dim = graph.head_dim;
  a.rowptr = graph.ptr;
  a.col = graph.node;
  return a;
}

template <class T>
__device__ __forceinline__ const T* row_of(const Features& x, int node, int h, int head_dim) {
  const int64_t row = static_cast<int64_t>(node) * x.heads + (x.heads == 1 ? 0 : h);
  return static_cast<const T*>(x.data) + row * head_dim;
}

// Groups of lanes take the edges of a batch in turn.
template <class S>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    sddmm_kernel(Typed<typename S::T> graph, Features a, Features b, typename S::A* result, EdgePlan plan) {
  using T = typename S::T;
  using A = typename S::A;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int features = graph.head_dim;

  for_edge_batches(graph, plan, batch, [&](int64_t first, int count) {
    for (int h = 0; h < graph.heads; ++h) {
      for (int base = 0; base < count; base += S::kGroups) {
        const int t = min(base + group, count - 1);  // past the end, the last again: a load more, and no branch
        const int node = batch.source[t];
        const T* x = row_of<T>(a, batch.row[t], h, features);
        const T* y = row_of<T>(b, max(node, 0), h, features);
        A dot = A(0);
        for (int f = 0; f < (S::kLoop ? features : 1); f += S::kFeatures) {
          Packed<S> own, other;
          own.load(x + f, lane, features - f);
          other.load(y + f, lane, features - f);
          dot += own.dot(other);
        }
        dot = lanes_sum<S::kLanes>(dot);
        if (base + group < count && lane == 0) result[graph.scalar(first + t, h)] = node == kNoNode ? A(NAN) : dot;
      }
    }
  });
}

}  // namespace

cudaError_t sddmm(const Products& graph, const Features& a, const Features& b, void* result, cudaStream_t stream) {
  if (graph.num_edges == 0 || graph.num_rows == 0) return cudaSuccess;
  const Attention operands = operands_of(graph);
  return for_type_and_shape(graph.type, graph.head_dim, [&]<class S>() {
    const EdgePlan plan = plan_edges(graph.num_edges);
    sddmm_kernel<S><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(Typed<typename S::T>{operands}, a, b,
                                                                    static_cast<typename S::A*>(result), plan);
    return cudaGetLastError();
  });
}

cudaError_t spmm(const Products& graph, const void* weight, const Features& x, bool sum_heads, void* result,
                 cudaStream_t stream) {
  const Attention operands = operands_of(graph);
  return for_type_and_shape(graph.type, graph.head_dim, [&]<class S>() {
    using A = typename S::A;
    Spmm<typename S::T> product{};
    product.ptr = graph.ptr;
    product.node = graph.node;
    product.position = graph.position;
    product.num_rows = graph.num_rows;
    product.num_nodes = graph.num_nodes;
    product.edge_weights = static_cast<const A*>(weight);
    product.x = x.data;
    product.x_heads = x.heads;
    product.factor = A(1);
    product.term = Term::row;
    product.result = result;
    product.sum_heads = sum_heads;
    return launch_spmm<S>(operands, product, stream);
  });
}

}  // namespace dfgnn::cuda
