// sddmm and what is made of edges like it, by runs of edges; spmm by rows.
#include "edges.cuh"
#include "products.h"
#include "spmm.cuh"

namespace dfgnn::cuda {
namespace {

template <class T>
__device__ __forceinline__ const T* row_of(const Features& x, int node, int h, int head_dim) {
  const int64_t row = static_cast<int64_t>(x.one_node ? 0 : node) * x.heads + (x.heads == 1 ? 0 : h);
  return static_cast<const T*>(x.data) + row * head_dim;
}

// Where products of edges go: in the place of what is there, or added to it.
template <class A>
struct Results {
  A* data;
  bool adds;

  __device__ __forceinline__ void put(int64_t at, A product) const {
    data[at] = adds ? data[at] + product : product;
  }

  template <class Graph>
  __device__ __forceinline__ void clear_no_edges(const Graph& graph) const {
    if (!adds) cuda::clear_no_edges(graph, data);
  }
};

// Groups of lanes take the edges of a batch in turn.
template <class S>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    sddmm_kernel(Typed<typename S::T> graph, Features a, Features b, Results<typename S::A> result, EdgePlan plan) {
  using T = typename S::T;
  using A = typename S::A;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int features = graph.head_dim;

  result.clear_no_edges(graph);
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
        if (base + group < count && lane == 0) {
          result.put(graph.scalar(first + t, h), node == kNoNode ? A(NAN) : dot);
        }
      }
    }
  });
}

// The same for all heads at once: S is the shape of a row of them, of which `lanes` neighbouring ones, a power of two,
// have a head. Several edges are on their way at a time.
template <class S>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    sddmm_heads_kernel(Typed<typename S::T> graph, const typename S::T* a, const typename S::T* b,
                       Results<typename S::A> result, int lanes, EdgePlan plan) {
  using A = typename S::A;
  constexpr int kUnroll = S::kSteps > 2 ? 2 : 4;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int width = graph.heads * graph.head_dim;
  const bool is_first = lane % lanes == 0;  // of a head
  int first_heads[S::kSteps];
#pragma unroll
  for (int s = 0; s < S::kSteps; ++s) first_heads[s] = (s * S::kLanes + lane) * S::kVec / graph.head_dim;

  result.clear_no_edges(graph);
  for_edge_batches(graph, plan, batch, [&](int64_t first, int count) {
    for (int base = 0; base < count; base += kUnroll * S::kGroups) {
      for (int f = 0; f < (S::kLoop ? width : 1); f += S::kFeatures) {
        Packed<S> own[kUnroll], other[kUnroll];
        int at[kUnroll];
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
          at[u] = min(base + u * S::kGroups + group, count - 1);  // past the end, the last again
          own[u].load(a + static_cast<int64_t>(batch.row[at[u]]) * width + f, lane, width - f);
          other[u].load(b + static_cast<int64_t>(max(batch.source[at[u]], 0)) * width + f, lane, width - f);
        }
#pragma unroll
        for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
          for (int s = 0; s < S::kSteps; ++s) {
            A dot = A(0);
#pragma unroll
            for (int v = 0; v < S::kVec; ++v) dot += own[u][s * S::kVec + v] * other[u][s * S::kVec + v];
            dot = lanes_sum(dot, lanes);
            const int head = first_heads[s] + f / graph.head_dim;
            if (base + u * S::kGroups + group >= count || !is_first || head >= graph.heads) continue;
            result.put(graph.scalar(first + at[u], head), batch.source[at[u]] == kNoNode ? A(NAN) : dot);
          }
        }
      }
    }
  });
}

// Calls visit(t, k) with the pairs of a batch's edges and of `width` things of each that are this lane's: neighbouring
// lanes have neighbouring things.
template <class Visit>
__device__ __forceinline__ void for_pairs(int count, int width, const Visit& visit) {
  const int lane = threadIdx.x % kWarp;
  int t = lane / width, k = lane % width;
  while (t < count) {
    visit(t, k);
    t += kWarp / width;
    k += kWarp % width;
    if (k >= width) {
      k -= width;
      ++t;
    }
  }
}

// Short heads, by one lane for each edge and head.
template <class T, int kVec>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    sddmm_short_kernel(Typed<T> graph, Features a, Features b, Results<typename Accumulate<T>::type> result,
                       EdgePlan plan) {
  using A = typename Accumulate<T>::type;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  const int features = graph.head_dim;

  result.clear_no_edges(graph);
  for_edge_batches(graph, plan, batch, [&](int64_t first, int count) {
    for_pairs(count, graph.heads, [&](int t, int h) {
      const int node = batch.source[t];
      const T* x = row_of<T>(a, batch.row[t], h, features);
      const T* y = row_of<T>(b, max(node, 0), h, features);
      A dot = A(0);
#pragma unroll 4
      for (int f = 0; f < features; f += kVec) {
        Packed<Shape<T, kVec, 1, 1>> own, other;
        own.load(x + f, 0, kVec);
        other.load(y + f, 0, kVec);
        dot += own.dot(other);
      }
      result.put(graph.scalar(first + t, h), node == kNoNode ? A(NAN) : dot);
    });
  });
}

// A row of the result for each edge, at graph.col, vector by vector.
template <class T, int kVec>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    edge_spmm_t_kernel(Typed<T> graph, const typename Accumulate<T>::type* weight, Features a, T* result,
                       EdgePlan plan) {
  using A = typename Accumulate<T>::type;
  using S = Shape<T, kVec, 1, 1>;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  const int features = graph.head_dim;

  for_edge_batches(graph, plan, batch, [&](int64_t first, int count) {
    for_pairs(count, features / kVec, [&](int t, int v) {
      const int target = batch.source[t];
      if (target == kNoNode) return;
      const A* weights = weight + graph.scalar(first + t, 0);
      Fragment<S> sum;
      sum.zero();
#pragma unroll 4
      for (int h = 0; h < graph.heads; ++h) {
        Packed<S> x;
        x.load(row_of<T>(a, batch.row[t], h, features) + v * kVec, 0, kVec);
        sum.add(weights[h], x);
      }
      sum.template store<1>(result + static_cast<int64_t>(target) * features + v * kVec, 0, kVec, 0);
    });
  });
}

template <class A>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    add_ends_kernel(Typed<A> graph, const A* a, const A* b, A* result, EdgePlan plan) {
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  clear_no_edges(graph, result);
  for_edge_batches(graph, plan, batch, [&](int64_t first, int count) {
    for_pairs(count, graph.heads, [&](int t, int h) {
      const int node = batch.source[t];
      const A sum = a[graph.scalar(batch.row[t], h)] + b[graph.scalar(max(node, 0), h)];
      result[graph.scalar(first + t, h)] = node == kNoNode ? A(NAN) : sum;
    });
  });
}

template <class T>
Spmm<T> spmm_of(const Products& graph, const void* weight, const Features& x, bool sum_heads, void* result,
                void* scratch) {
  using A = typename Accumulate<T>::type;
  Spmm<T> product{};
  product.ptr = graph.ptr;
  product.node = graph.node;
  product.position = graph.position;
  product.num_rows = graph.num_rows;
  product.num_nodes = graph.num_nodes;
  product.edge_weights = static_cast<const A*>(weight);
  product.x = x.data;
  product.x_heads = x.heads;
  product.factor = A(1);
  product.result = result;
  product.sum_heads = sum_heads;
  product.slots = static_cast<A*>(scratch);
  return product;
}

template <class T>
Results<typename Accumulate<T>::type> results_of(void* data, bool adds) {
  return {static_cast<typename Accumulate<T>::type*>(data), adds};
}

int size_of(Type type) { return type == Type::f64 ? 8 : type == Type::f32 ? 4 : 2; }

// Two vectors, or numbers that are read one by one.
bool is_short(const Products& graph) {
  const int bytes = graph.head_dim * size_of(graph.type);
  return bytes <= 32 || (graph.head_dim <= 64 && (bytes % 16 != 0 || graph.type == Type::f64));
}

}  // namespace

cudaError_t sddmm(const Products& graph, const Features& a, const Features& b, bool adds, void* result,
                  cudaStream_t stream) {
  if (graph.num_edges == 0 || graph.num_rows == 0) return cudaSuccess;
  const Attention operands = operands_of(graph);
  const EdgePlan plan = plan_edges(graph.num_edges);
  if (is_short(graph)) {
    return for_type_and_vector(graph.type, graph.head_dim, [&]<class T, int kVec>() {
      sddmm_short_kernel<T, kVec><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(
          Typed<T>{operands}, a, b, results_of<T>(result, adds), plan);
      return cudaGetLastError();
    });
  }
  const int lanes = graph.head_dim * size_of(graph.type) / 16;  // a head's, in whole vectors
  const bool by_vectors = graph.head_dim * size_of(graph.type) % 16 == 0 && graph.type != Type::f64;
  if (graph.heads > 1 && a.heads == graph.heads && b.heads == graph.heads && !a.one_node && by_vectors &&
      lanes <= kWarp && (lanes & (lanes - 1)) == 0) {
    return for_type_and_shape(graph.type, graph.heads * graph.head_dim, [&]<class S>() {
      using T = typename S::T;
      sddmm_heads_kernel<typename S::Wide><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(
          Typed<T>{operands}, static_cast<const T*>(a.data), static_cast<const T*>(b.data),
          results_of<T>(result, adds), lanes, plan);
      return cudaGetLastError();
    });
  }
  return for_type_and_shape(graph.type, graph.head_dim, [&]<class S>() {
    sddmm_kernel<S><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(
        Typed<typename S::T>{operands}, a, b, results_of<typename S::T>(result, adds), plan);
    return cudaGetLastError();
  });
}

cudaError_t edge_spmm_t(const Products& graph, const void* weight, const Features& a, void* result,
                        cudaStream_t stream) {
  if (graph.num_edges == 0 || graph.num_rows == 0) return cudaSuccess;
  const Attention operands = operands_of(graph);
  const EdgePlan plan = plan_edges(graph.num_edges);
  return for_type_and_vector(graph.type, graph.head_dim, [&]<class T, int kVec>() {
    edge_spmm_t_kernel<T, kVec><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(
        Typed<T>{operands}, static_cast<const typename Accumulate<T>::type*>(weight), a, static_cast<T*>(result), plan);
    return cudaGetLastError();
  });
}

cudaError_t add_ends(const Products& graph, const void* a, const void* b, void* result, cudaStream_t stream) {
  if (graph.num_edges == 0 || graph.num_rows == 0) return cudaSuccess;
  const Attention operands = operands_of(graph);
  const EdgePlan plan = plan_edges(graph.num_edges);
  const auto launch = [&]<class A>() {
    add_ends_kernel<A><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(
        Typed<A>{operands}, static_cast<const A*>(a), static_cast<const A*>(b), static_cast<A*>(result), plan);
    return cudaGetLastError();
  };
  return graph.type == Type::f64 ? launch.template operator()<double>() : launch.template operator()<float>();
}

size_t spmm_scratch(const Products& graph, bool sum_heads) {
  const int64_t numbers = int64_t{sum_heads ? 1 : graph.heads} * graph.head_dim;
  return spmm_numbers(graph.num_edges, numbers) * (graph.type == Type::f64 ? sizeof(double) : sizeof(float));
}

cudaError_t spmm(const Products& graph, const void* weight, const Features& x, bool sum_heads, void* result,
                 void* scratch, cudaStream_t stream) {
  const Attention operands = operands_of(graph);
  if (graph.heads == 1 || sum_heads) {
    return for_type_and_shape(graph.type, graph.head_dim, [&]<class S>() {
      return launch_spmm<Term::row, S>(operands, spmm_of<typename S::T>(graph, weight, x, sum_heads, result, scratch),
                                       stream);
    });
  }
  // A shape of vectors is for heads that are whole vectors.
  const bool by_vectors = graph.head_dim * size_of(graph.type) % 16 == 0 && graph.type != Type::f64;
  return for_type_and_shape(graph.type, by_vectors ? graph.heads * graph.head_dim : 1, [&]<class S>() {
    return launch_spmm_heads<S>(operands, spmm_of<typename S::T>(graph, weight, x, false, result, scratch), stream);
  });
}

}  // namespace dfgnn::cuda
