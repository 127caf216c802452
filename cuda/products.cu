// sddmm and what is made of edges like it, by runs of edges or by rows; spmm by rows.
#include "edges.cuh"
#include "products.h"
#include "row_dots.cuh"
#include "sddmm_rows.cuh"
#include "spmm_rows.cuh"

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

  __device__ __forceinline__ void put(int64_t at, A product) const { data[at] = adds ? data[at] + product : product; }

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

// <x, y> by one lane, vector by vector.
template <class T, int kVec>
__device__ __forceinline__ typename Accumulate<T>::type lane_dot(const T* x, const T* y, int features) {
  typename Accumulate<T>::type dot = 0;
#pragma unroll 4
  for (int f = 0; f < features; f += kVec) {
    Packed<Shape<T, kVec, 1, 1>> own, other;
    own.load(x + f, 0, kVec);
    other.load(y + f, 0, kVec);
    dot += own.dot(other);
  }
  return dot;
}

// Short heads, by one lane for each edge and head; kTerms: with features of edges.
template <class T, int kVec, bool kTerms>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    sddmm_short_kernel(Typed<T> graph, Features a, Features b, FeaturesOfEdges edges,
                       Results<typename Accumulate<T>::type> result, EdgePlan plan) {
  using A = typename Accumulate<T>::type;
  constexpr int kMost = sizeof(T) == 8 ? 1 : 16 / sizeof(T);
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  const int features = graph.head_dim;

  result.clear_no_edges(graph);
  for_edge_batches(graph, plan, batch, [&](int64_t first, int count) {
    for_pairs(count, graph.heads, [&](int t, int h) {
      int node = batch.source[t];
      A dot =
          lane_dot<T, kVec>(row_of<T>(a, batch.row[t], h, features), row_of<T>(b, max(node, 0), h, features), features);
      if constexpr (kTerms) {
        const int of_edge = checked_node(edges.eid[first + t], edges.rows);
        if (of_edge == kNoNode) node = kNoNode;
        const T* x = row_of<T>({edges.projected, graph.heads}, batch.row[t], h, edges.width);
        const T* y = row_of<T>({edges.features, 1}, max(of_edge, 0), h, edges.width);
        dot += edges.width % kMost == 0 ? lane_dot<T, kMost>(x, y, edges.width) : lane_dot<T, 1>(x, y, edges.width);
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
                void* slots) {
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
  product.slots = static_cast<A*>(slots);
  return product;
}

template <class T>
Results<typename Accumulate<T>::type> results_of(void* data, bool adds) {
  return {static_cast<typename Accumulate<T>::type*>(data), adds};
}

int size_of(Type type) { return type == Type::f64 ? 8 : type == Type::f32 ? 4 : 2; }

// Heads for a lane each: of two vectors, or of numbers that are read one by one; of what heads have in common up to
// where rows of neighbouring heads lie in the same banks.
bool is_short(const Products& graph, const Features& b) {
  const int bytes = graph.head_dim * size_of(graph.type);
  if (b.heads < graph.heads && bytes < 128) return true;
  return bytes <= 32 || (graph.head_dim <= 64 && (bytes % 16 != 0 || graph.type == Type::f64));
}

cudaError_t launch_sddmm_short(const Products& graph, const Features& a, const Features& b,
                               const FeaturesOfEdges* edges, bool adds, void* result, cudaStream_t stream) {
  const EdgePlan plan = plan_edges(graph.num_edges);
  return for_type_and_vector(graph.type, graph.head_dim, [&]<class T, int kVec>() {
    const Typed<T> typed{operands_of(graph)};
    const auto to = results_of<T>(result, adds);
    if (edges) {
      sddmm_short_kernel<T, kVec, true><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(typed, a, b, *edges, to, plan);
    } else {
      sddmm_short_kernel<T, kVec, false><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(typed, a, b, {}, to, plan);
    }
    return cudaGetLastError();
  });
}

cudaError_t launch_sddmm(const Products& graph, const Features& a, const Features& b, bool adds, void* result,
                         cudaStream_t stream) {
  const EdgePlan plan = plan_edges(graph.num_edges);
  return for_type_and_shape(graph.type, graph.head_dim, [&]<class S>() {
    sddmm_kernel<S><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(Typed<typename S::T>{operands_of(graph)}, a, b,
                                                                    results_of<typename S::T>(result, adds), plan);
    return cudaGetLastError();
  });
}

// Whether sddmm_heads takes features of edges along.
bool terms_fit(Type type, const FeaturesOfEdges& edges, int lanes) {
  return type == Type::f32 ? FeatureTerms<float, true>::fits(edges.width, lanes)
                           : FeatureTerms<__half, true>::fits(edges.width, lanes);
}

// Heads are whole vectors of 16 bytes.
bool has_vectors(const Products& graph) {
  return graph.head_dim * size_of(graph.type) % 16 == 0 && graph.type != Type::f64;
}

// A pass over rows, whose pieces leave so many numbers of each head, or, of 1, of all at once.
RowPass pass_over(const Products& graph, int64_t numbers, int heads = 1) {
  return {graph.ptr, graph.num_rows, graph.num_edges, numbers, heads};
}

// What either takes, of `numbers` of a head.
template <class A>
size_t bytes_of_pass(const Products& graph, int64_t numbers) {
  return std::max(pass_over(graph, graph.heads * numbers).bytes<A>(),
                  pass_over(graph, numbers, graph.heads).bytes<A>());
}

// Whether warps take long rows of one head: where there is one, and of several where they have so many bytes that
// weights of other heads, which each gathers beside its own, are few (long-rows.md).
bool heads_go_apart(const Products& graph) {
  constexpr int kApart = 256;
  if (graph.num_nodes == 0 || !rows_are_long(graph.num_rows, graph.num_edges)) return false;
  if (graph.heads > 1 && graph.head_dim * size_of(graph.type) < kApart) return false;
  bool by_rows = false;
  for_type_and_shape(graph.type, graph.head_dim, [&]<class S>() {
    by_rows = goes_by_rows<Score::dot, S>(operands_of(graph));
    return cudaSuccess;
  });
  return by_rows;
}

// Whether a warp takes a row, of whose edges results are: what is the row's own is there for all of them.
bool edges_go_by_rows(const Products& graph) {
  return graph.num_nodes > 0 && rows_fill_warps(graph.num_rows, graph.num_edges);
}

cudaError_t launch_sddmm_heads(const Products& graph, const Features& a, const Features& b,
                               const FeaturesOfEdges* edges, void* result, void* scratch, int lanes,
                               cudaStream_t stream) {
  return for_type_and_shape(graph.type, graph.heads * graph.head_dim, [&]<class S>() {
    using T = typename S::T;
    using Wide = typename S::Wide;
    const Typed<T> typed{operands_of(graph)};
    const T *x = static_cast<const T*>(a.data), *y = static_cast<const T*>(b.data);
    const FeaturesOfEdges features = edges ? *edges : FeaturesOfEdges{};
    auto* to = static_cast<typename S::A*>(result);
    const auto launch = [&]<bool kTerms>() {
      if constexpr (takes_heads<Wide>) {
        if (edges_go_by_rows(graph)) {
          const auto launch_rows = [&](dim3 grid, const RowUnits& with, auto* kernel) {
            kernel<<<grid, with.block(), 0, stream>>>(typed, x, y, features, to, lanes, with);
          };
          return pass_over(graph, 0).launch(scratch, stream, sddmm_rows_kernel<Wide, kTerms>, nullptr, launch_rows);
        }
        const EdgePlan plan = plan_edges(graph.num_edges);
        sddmm_heads_kernel<Wide, kTerms>
            <<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(typed, x, y, features, to, lanes, plan);
        return cudaGetLastError();
      } else {
        return cudaErrorNotSupported;
      }
    };
    return edges ? launch.template operator()<true>() : launch.template operator()<false>();
  });
}

// What becomes of a row's dot product with a row that an edge leads to.
template <class T>
struct StoreProduct {
  typename Typed<T>::A* results;

  __device__ __forceinline__ void begin(const Typed<T>& graph) const {
    if (blockIdx.y == 0 && threadIdx.y == 0) clear_no_edges(graph, results);
  }

  __device__ __forceinline__ void operator()(const Typed<T>& graph, typename Typed<T>::A dot, int, int node, int64_t e,
                                             int h) const {
    results[graph.scalar(e, h)] = node == kNoNode ? typename Typed<T>::A(NAN) : dot;
  }
};

// Where heads_go_apart().
cudaError_t launch_sddmm_apart(const Products& graph, const Features& a, const Features& b, void* result, void* memory,
                               cudaStream_t stream) {
  const Attention operands = operands_of(graph);
  return pass_over(graph, 0, graph.heads).launch(memory, stream, [&](const RowUnits& units, unsigned* counters) {
    return for_type_and_shape(graph.type, graph.head_dim, [&]<class S>() {
      const StoreProduct<typename S::T> store{static_cast<typename S::A*>(result)};
      return launch_row_dots<S>(operands, a.data, b.data, store, units, counters, stream);
    });
  });
}

// Whether a warp takes a row: where rows are long, and shorter ones where what is summed up is a vector a lane.
bool goes_by_rows(const Products& graph, bool sum_heads) {
  if (graph.num_nodes == 0 || (graph.heads > 1 && sum_heads)) return false;
  const bool is_vector =
      has_vectors(graph) && int64_t{graph.heads} * graph.head_dim * size_of(graph.type) <= 16 * kWarp;
  return rows_are_long(graph.num_rows, graph.num_edges) ||
         (is_vector && rows_fill_warps(graph.num_rows, graph.num_edges));
}

}  // namespace

size_t sddmm_scratch(const Products& graph) {
  const bool from_counters = edges_go_by_rows(graph) && rows_are_long(graph.num_rows, graph.num_edges);
  return from_counters ? bytes_of_pass<float>(graph, 0) : 0;
}

cudaError_t sddmm(const Products& graph, const Features& a, const Features& b, const FeaturesOfEdges* edges,
                  void* result, void* scratch, cudaStream_t stream) {
  if (graph.num_edges == 0 || graph.num_rows == 0) return cudaSuccess;
  const bool has_own_heads = a.heads == graph.heads && b.heads == graph.heads && !a.one_node;
  if (has_own_heads && !edges && !is_short(graph, b) && heads_go_apart(graph)) {
    return launch_sddmm_apart(graph, a, b, result, scratch, stream);
  }
  const int lanes = graph.head_dim * size_of(graph.type) / 16;  // a head's, in whole vectors
  const bool by_heads = has_own_heads && has_vectors(graph) &&
                        (graph.heads > 1 || (edges_go_by_rows(graph) && lanes >= 8)) && lanes >= 4 && lanes <= kWarp &&
                        (lanes & (lanes - 1)) == 0;
  if (by_heads && (!edges || terms_fit(graph.type, *edges, lanes))) {
    return launch_sddmm_heads(graph, a, b, edges, result, scratch, lanes, stream);
  }
  Products of_edges = graph;
  Features projected{}, features{};
  if (edges) {
    of_edges.num_nodes = edges->rows;
    of_edges.head_dim = edges->width;
    of_edges.node = edges->eid;
    projected = {edges->projected, graph.heads};
    features = {edges->features, 1};
  }
  if (!by_heads && is_short(graph, b) && (!edges || is_short(of_edges, features))) {
    return launch_sddmm_short(graph, a, b, edges, false, result, stream);
  }
  const auto launch = [&](const Products& of, const Features& x, const Features& y, bool adds) {
    return is_short(of, y) ? launch_sddmm_short(of, x, y, nullptr, adds, result, stream)
                           : launch_sddmm(of, x, y, adds, result, stream);
  };
  const cudaError_t error =
      by_heads ? launch_sddmm_heads(graph, a, b, nullptr, result, scratch, lanes, stream) : launch(graph, a, b, false);
  return edges && error == cudaSuccess ? launch(of_edges, projected, features, true) : error;
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
  if (goes_by_rows(graph, sum_heads)) {
    return graph.type == Type::f64 ? bytes_of_pass<double>(graph, graph.head_dim)
                                   : bytes_of_pass<float>(graph, graph.head_dim);
  }
  const int64_t numbers = int64_t{sum_heads ? 1 : graph.heads} * graph.head_dim;
  return spmm_numbers(graph.num_edges, numbers) * (graph.type == Type::f64 ? sizeof(double) : sizeof(float));
}

cudaError_t spmm(const Products& graph, const void* weight, const Features& x, bool sum_heads, void* result,
                 void* scratch, cudaStream_t stream) {
  const Attention operands = operands_of(graph);
  const bool by_rows = goes_by_rows(graph, sum_heads);
  void* const slots = by_rows ? nullptr : scratch;
  const bool go_apart = by_rows && x.heads == graph.heads && heads_go_apart(graph);
  if (graph.heads == 1 || sum_heads || go_apart) {
    return for_type_and_shape(graph.type, graph.head_dim, [&]<class S>() {
      const auto product = spmm_of<typename S::T>(graph, weight, x, sum_heads, result, slots);
      return by_rows ? launch_spmm_rows<S>(operands, product, scratch, stream)
                     : launch_spmm<Term::row, S>(operands, product, stream);
    });
  }
  // A shape of vectors is for heads that are whole vectors.
  return for_type_and_shape(graph.type, has_vectors(graph) ? graph.heads * graph.head_dim : 1, [&]<class S>() {
    const auto product = spmm_of<typename S::T>(graph, weight, x, false, result, slots);
    return by_rows ? launch_spmm_heads_rows<S>(operands, product, scratch, stream)
                   : launch_spmm_heads<S>(operands, product, stream);
  });
}

}  // namespace dfgnn::cuda
