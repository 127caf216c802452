// Lanes share the channels of all heads of an edge, so that those of a head are neighbours. Several edges are on their
// way at a time, for which a number of W is read once.
#include <algorithm>
#include <type_traits>

#include "column_sums.h"
#include "edges.cuh"
#include "merge.cuh"
#include "row_blocks.cuh"
#include "row_groups.cuh"
#include "shapes.cuh"
#include "v2_logits.h"

namespace dfgnn::cuda {
namespace {

// S: the shape of a row of all heads, without loop.
template <class S>
constexpr int kSize = S::kSteps * S::kVec;
template <class S>
constexpr int kEdges = kSize<S> > 4 ? 2 : 4;  // on their way at a time

template <class S>
struct Terms : V2Logits {
  using T = typename S::T;
  using A = typename S::A;
  int width, lanes;  // of a row of all heads; that have a head

  explicit Terms(const V2Logits& task) : V2Logits(task), width(heads * channels), lanes(channels / S::kVec) {}

  // The lane's channels in a row of A [width].
  __device__ __forceinline__ Fragment<S> numbers(const void* row, int lane) const {
    Fragment<S> x;
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      const int f = (s * S::kLanes + lane) * S::kVec;
      const A* from = static_cast<const A*>(row) + f;
#pragma unroll
      for (int v = 0; v < S::kVec; v += kWide) {
        if constexpr (kWide == 4) {
          const float4 four = f < width ? __ldg(reinterpret_cast<const float4*>(from + v)) : float4{};
          x.x[s * S::kVec + v] = four.x, x.x[s * S::kVec + v + 1] = four.y;
          x.x[s * S::kVec + v + 2] = four.z, x.x[s * S::kVec + v + 3] = four.w;
        } else {
          x.x[s * S::kVec + v] = f < width ? __ldg(from + v) : A(0);
        }
      }
    }
    return x;
  }
  __device__ __forceinline__ Fragment<S> weights(int f, int lane) const {
    return numbers(static_cast<const A*>(weight) + static_cast<int64_t>(f) * width, lane);
  }
  __device__ __forceinline__ const T* node(const void* x, int n) const {
    return static_cast<const T*>(x) + static_cast<int64_t>(n) * width;
  }
  // Of features from f on.
  template <int kCount>
  __device__ __forceinline__ Fragment<Shape<T, kCount, 1, 1>> some_features(int64_t offset, int f) const {
    Fragment<Shape<T, kCount, 1, 1>> some;
    some.load(static_cast<const T*>(features) + offset + f, 0, kCount);
    return some;
  }
  __device__ __forceinline__ int head(int s, int lane) const { return (s * S::kLanes + lane) * S::kVec / channels; }

  // Where the features of the edge at position e begin: 0 where there are none, -1 where they are out of range.
  __device__ __forceinline__ int64_t offset_of_features(int64_t e) const {
    if (edge_dim == 0) return 0;
    const int64_t found = eid[e];
    return static_cast<uint64_t>(found) < static_cast<uint64_t>(num_features) ? found * edge_dim : -1;
  }

  // Calls visit(the number of features, f) so that all are visited, some at a time where rows of them are whole
  // vectors.
  template <class Visit>
  __device__ __forceinline__ void for_features(int first, int last, const Visit& visit) const {
    constexpr int kMany = sizeof(A) == 8 ? 2 : 4;
    if (edge_dim % kMany == 0) {
      for (int f = first; f < last; f += kMany) visit(std::integral_constant<int, kMany>(), f);
    } else {
      for (int f = first; f < last; ++f) visit(std::integral_constant<int, 1>(), f);
    }
  }

  // Adds W f to what edges have.
  template <int kCount>
  __device__ __forceinline__ void add_features(Fragment<S> (&z)[kCount], const int64_t (&offsets)[kCount],
                                               int lane) const {
    for_features(0, edge_dim, [&](auto count, int f) {
      constexpr int kAtOnce = decltype(count)::value;
      Fragment<Shape<T, kAtOnce, 1, 1>> some[kCount];
#pragma unroll
      for (int u = 0; u < kCount; ++u) some[u] = some_features<kAtOnce>(max(offsets[u], int64_t{0}), f);
#pragma unroll
      for (int j = 0; j < kAtOnce; ++j) {
        const auto w = weights(f + j, lane);
#pragma unroll
        for (int u = 0; u < kCount; ++u) z[u].add(some[u][j], w);
      }
    });
  }

 private:
  static constexpr int kWide = S::kVec % 4 == 0 && sizeof(A) == 4 ? 4 : 1;
};

template <class S>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    logits_kernel(Terms<S> terms, typename S::A* logits, EdgePlan plan) {
  using A = typename S::A;
  constexpr int kCount = kEdges<S>;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const A slope = static_cast<A>(terms.negative_slope);
  const auto att = terms.numbers(terms.att, lane);
  const bool is_first = lane % terms.lanes == 0;  // of a head
  int heads[S::kSteps];
#pragma unroll
  for (int s = 0; s < S::kSteps; ++s) heads[s] = terms.head(s, lane);

  clear_no_edges(terms, logits);
  for_edge_batches(terms, plan, batch, [&](int64_t first, int count) {
    // Of all edges of the batch at a time, as what a load is asked for at once is waited for.
    const int64_t lane_offset = terms.offset_of_features(first + min(static_cast<int>(threadIdx.x) % kWarp, count - 1));
    for (int base = 0; base < count; base += kCount * S::kGroups) {
      Fragment<S> z[kCount];
      int at[kCount];
      int64_t offsets[kCount];
      bool is_known[kCount];
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        at[u] = min(base + u * S::kGroups + group, count - 1);  // past the end, the last again
        const int node = batch.source[at[u]];
        offsets[u] = __shfl_sync(kAllLanes, lane_offset, at[u]);
        is_known[u] = node != kNoNode && offsets[u] >= 0;
        Packed<S> own, other;
        own.load(terms.node(terms.x_dst, batch.row[at[u]]), lane, terms.width);
        other.load(terms.node(terms.x_src, max(node, 0)), lane, terms.width);
#pragma unroll
        for (int i = 0; i < kSize<S>; ++i) z[u].x[i] = own[i] + other[i];
      }
      terms.add_features(z, offsets, lane);
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
#pragma unroll
        for (int s = 0; s < S::kSteps; ++s) {
          A dot = A(0);
#pragma unroll
          for (int i = s * S::kVec; i < (s + 1) * S::kVec; ++i) {
            dot += att[i] * (z[u][i] > A(0) ? z[u][i] : slope * z[u][i]);
          }
          dot = lanes_sum(dot, terms.lanes);
          if (base + u * S::kGroups + group >= count || !is_first || heads[s] >= terms.heads) continue;
          logits[(first + at[u]) * terms.heads + heads[s]] = is_known[u] ? dot : A(NAN);
        }
      }
    }
  });
}

// Features of which a block adds up W's gradients at a time, in shared memory; the others are for other blocks (y).
template <class S>
constexpr int kFeaturesOfBlock = sizeof(typename S::A) == 8 ? 4 : 64 / kSize<S>;

// Of a thread each, vector by vector.
template <class S>
struct GradientSums {
  using A = typename S::A;
  static constexpr int kVec = kSize<S> % 4 == 0 ? 4 : 1;
  struct alignas(kVec * sizeof(A) > 16 ? 16 : kVec * sizeof(A)) Vector {
    A x[kVec];
  };
  Vector of_weights[kFeaturesOfBlock<S>][kSize<S> / kVec][RowPlan::kThreads];

  __device__ __forceinline__ void set(int f, const Fragment<S>& numbers) {
#pragma unroll
    for (int i = 0; i < kSize<S>; ++i) of_weights[f][i / kVec][threadIdx.x].x[i % kVec] = numbers[i];
  }
  __device__ __forceinline__ void add(int f, const Fragment<S>& numbers) {
#pragma unroll
    for (int i = 0; i < kSize<S> / kVec; ++i) {
      Vector sum = of_weights[f][i][threadIdx.x];
#pragma unroll
      for (int v = 0; v < kVec; ++v) sum.x[v] += numbers[i * kVec + v];
      of_weights[f][i][threadIdx.x] = sum;
    }
  }
  // Of channel k, over the threads of the block that have it.
  __device__ __forceinline__ A total(int f, int k) const {
    const int vector = k / S::kVec, i = vector / S::kLanes * S::kVec + k % S::kVec;
    A sum = A(0);
    for (int t = vector % S::kLanes; t < RowPlan::kThreads; t += S::kLanes)
      sum += of_weights[f][i / kVec][t].x[i % kVec];
    return sum;
  }
};

// Blocks a multiprocessor.
template <class S>
constexpr int gradient_blocks() {
  return blocks_here(S::kSteps == 1 && S::kVec == 4 && sizeof(typename S::A) == 4 ? 5 : 1);
}

// The gradients of the nodes that rows are of, and, by destination, those of att, W and features.
template <class S, bool by_destination>
__global__ void __launch_bounds__(RowPlan::kThreads, (gradient_blocks<S>()))
    gradients_kernel(Terms<S> terms, V2Gradients g, RowPlan plan, typename S::A* partial, typename S::A* slots) {
  using T = typename S::T;
  using A = typename S::A;
  __shared__ SliceSums<S> slices;
  __shared__ std::conditional_t<by_destination, GradientSums<S>, int> sums;
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int first_feature = blockIdx.y * kFeaturesOfBlock<S>;
  const int last_feature = min(first_feature + kFeaturesOfBlock<S>, terms.edge_dim);
  const Index ptr = by_destination ? terms.rowptr : terms.colptr, nodes = by_destination ? terms.col : terms.row;
  const int64_t num_rows = by_destination ? terms.num_dst : terms.num_src;
  const int64_t num_nodes = by_destination ? terms.num_src : terms.num_dst;
  const void *own_x = by_destination ? terms.x_dst : terms.x_src, *other_x = by_destination ? terms.x_src : terms.x_dst;
  const A slope = static_cast<A>(terms.negative_slope);
  const auto att = terms.numbers(terms.att, lane);
  Fragment<S> of_att;
  of_att.zero();
  int heads[S::kSteps];
#pragma unroll
  for (int s = 0; s < S::kSteps; ++s) heads[s] = terms.head(s, lane);
  if constexpr (by_destination) {
    for (int f = 0; f < kFeaturesOfBlock<S>; ++f) sums.set(f, of_att);
  }

  for (unsigned block = blockIdx.x; block < plan.blocks; block += gridDim.x) {
    const auto take_row = [&](int r, const Range& entries, bool is_slice, int slot) {
      Packed<S> own;
      own.load(terms.node(own_x, r), lane, terms.width);
      Fragment<S> sum;
      sum.zero();
      const auto take = [&](auto number, int64_t base) {
        constexpr int kCount = decltype(number)::value;
        Fragment<S> z[kCount];
        A ds[kCount][S::kSteps];
        int64_t offsets[kCount];
        int64_t entry[kCount], e[kCount];
        int node[kCount];
        // Loads without a branch between them, all under way at a time: past the end, of the last entry again.
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
          entry[u] = base + u * S::kGroups + group;
          const int64_t c = min(entry[u], entries.end - 1);
          node[u] = checked_node(nodes[c], num_nodes);
          e[u] = by_destination ? c : clamp_to(terms.perm[c], terms.num_edges - 1);
        }
#pragma unroll
        for (int u = 0; u < kCount; ++u) offsets[u] = terms.offset_of_features(e[u]);
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
          if (entry[u] >= entries.end || node[u] == kNoNode) offsets[u] = -1;
          Packed<S> other;
          other.load(terms.node(other_x, max(node[u], 0)), lane, terms.width);
#pragma unroll
          for (int i = 0; i < kSize<S>; ++i) z[u].x[i] = own[i] + other[i];
#pragma unroll
          for (int s = 0; s < S::kSteps; ++s) {
            const A grad = __ldg(static_cast<const A*>(g.grad) + e[u] * terms.heads + min(heads[s], terms.heads - 1));
            ds[u][s] = offsets[u] >= 0 && heads[s] < terms.heads ? grad : A(0);
          }
        }
        terms.add_features(z, offsets, lane);
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
#pragma unroll
          for (int i = 0; i < kSize<S>; ++i) {
            const A x = ds[u][i / S::kVec], own_slope = z[u][i] > A(0) ? A(1) : slope;
            if (offsets[u] >= 0) of_att.x[i] += x * own_slope * z[u][i];
            z[u].x[i] = x * own_slope * att[i];  // the gradient of z
            sum.x[i] += z[u][i];
          }
        }
        if constexpr (by_destination) {
          terms.for_features(first_feature, last_feature, [&](auto count, int f) {
            constexpr int kAtOnce = decltype(count)::value;
            Fragment<Shape<T, kAtOnce, 1, 1>> some[kCount];
            A of_features[kCount * kAtOnce];
#pragma unroll
            for (int u = 0; u < kCount; ++u) {
              some[u].zero();
              if (offsets[u] >= 0) some[u] = terms.template some_features<kAtOnce>(offsets[u], f);
            }
#pragma unroll
            for (int j = 0; j < kAtOnce; ++j) {
              const auto w = terms.weights(f + j, lane);
              Fragment<S> of_weights;
              of_weights.zero();
#pragma unroll
              for (int u = 0; u < kCount; ++u) {
                of_features[u * kAtOnce + j] = z[u].dot(w);
                of_weights.add(some[u][j], z[u]);
              }
              sums.add(f + j - first_feature, of_weights);
            }
            constexpr int kTogether = kCount * kAtOnce < S::kLanes ? kCount * kAtOnce : S::kLanes;
#pragma unroll
            for (int first = 0; first < kCount * kAtOnce; first += kTogether) {
              const A total = transposed_sum<S::kLanes>(reinterpret_cast<A(&)[kTogether]>(of_features[first]));
              const int u = (first + lane) / kAtOnce, j = (first + lane) % kAtOnce;
              int64_t offset = offsets[0];
#pragma unroll
              for (int v = 1; v < kCount; ++v) offset = u == v ? offsets[v] : offset;
              if (lane >= kTogether || offset < 0) continue;
              static_cast<T*>(g.features)[offset + f + j] = from_accumulate<T>(total);
            }
          });
        }
      };
      constexpr int kMost = kEdges<S>, kFew = kMost / 2;
      for (int64_t base = entries.begin; base < entries.end;) {
        if (entries.end - base <= kFew * S::kGroups) {  // one after the other: less than for kMost
          take(std::integral_constant<int, 1>(), base);
          base += S::kGroups;
        } else {
          take(std::integral_constant<int, kMost>(), base);
          base += kMost * S::kGroups;
        }
      }
      __syncwarp();
      if (by_destination && blockIdx.y > 0) return;
      T* result = static_cast<T*>(by_destination ? g.x_dst : g.x_src) + static_cast<int64_t>(r) * terms.width;
      A* piece = slot == kWhole ? nullptr : slots + int64_t{slot} * terms.width;
      store_row_sum(sum, result, terms.width, A(1), is_slice, slices, piece);
    };
    for_rows<true>(ptr, num_rows, terms.num_edges, plan, block, take_row);
  }

  if constexpr (by_destination) {
    // Row 0 of the block's sums is att's, 1 + f that of feature f.
    A* to = partial + static_cast<int64_t>(blockIdx.x) * (1 + terms.edge_dim) * terms.width;
    const auto add_up = [&](int f, int row) {
      for (int k = threadIdx.x; k < terms.width; k += RowPlan::kThreads) {
        to[static_cast<int64_t>(row) * terms.width + k] = sums.total(f, k);
      }
    };
    __syncthreads();
    for (int f = first_feature; f < last_feature; ++f) add_up(f - first_feature, 1 + f);
    if (blockIdx.y > 0) return;
    __syncthreads();
    sums.set(0, of_att);
    __syncthreads();
    add_up(0, 0);
  }
}

template <class Launch>
cudaError_t for_terms(const V2Logits& task, const Launch& launch) {
  return for_type_and_shape(task.type, task.heads * task.channels, [&]<class S>() {
    using Wide = typename S::Wide;
    return launch(Terms<Shape<typename S::T, Wide::kVec, Wide::kLanes, Wide::kSteps>>(task));
  });
}

int width_of(const V2Logits& task) { return task.heads * task.channels; }
RowPlan plan_of(const V2Logits& task, int64_t num_rows) {
  return plan_pieces(num_rows, task.num_edges, width_of(task));
}

// Blocks whose sums are added up in the end: what fills the device, as far as they take 64 MiB.
int64_t blocks_with_sums(const V2Logits& task) {
  const int64_t numbers = int64_t{1 + task.edge_dim} * width_of(task);
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(1024, (int64_t{1} << 24) / numbers));
  return std::min<int64_t>(most, plan_of(task, task.num_dst).blocks);
}

// What they take of the workspace, and the sums over them after it, and what slots of pieces take after that.
int64_t numbers_of_blocks(const V2Logits& task) {
  const int64_t columns = int64_t{1 + task.edge_dim} * width_of(task), rows = blocks_with_sums(task);
  return rows * columns + column_sums_partial(rows, columns);
}

}  // namespace

bool v2_takes(Type type, int heads, int channels) {
  const int vector = type == Type::f64 ? 1 : type == Type::f32 ? 4 : 8, lanes = channels / vector;
  const int64_t width = int64_t{heads} * channels;
  return channels % vector == 0 && lanes <= kWarp && (lanes & (lanes - 1)) == 0 &&
         width <= (type == Type::f64 ? 128 : 512);
}

cudaError_t v2_logits(const V2Logits& task, void* logits, cudaStream_t stream) {
  if (task.num_edges == 0 || task.num_dst == 0) return cudaSuccess;
  const EdgePlan plan = plan_edges(task.num_edges);
  return for_terms(task, [&]<class S>(const Terms<S>& terms) {
    logits_kernel<S><<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(terms, static_cast<typename S::A*>(logits), plan);
    return cudaGetLastError();
  });
}

int64_t v2_partial(const V2Logits& task) {
  return numbers_of_blocks(task) + cut_rows(task.num_edges, width_of(task)).slots() * width_of(task);
}

cudaError_t v2_gradients(const V2Logits& task, const V2Gradients& g, cudaStream_t stream) {
  return for_terms(task, [&]<class S>(const Terms<S>& terms) {
    using A = typename S::A;
    const int64_t blocks = blocks_with_sums(task), width = int64_t{1 + task.edge_dim} * terms.width;
    A *partial = static_cast<A*>(g.partial), *slots = partial + numbers_of_blocks(task);
    const auto launch = [&]<bool by_destination>(int64_t num_rows, const Index& ptr, unsigned num_blocks,
                                                 unsigned feature_blocks, void* result) {
      if (num_rows == 0) return cudaSuccess;
      const RowPlan plan = plan_of(task, num_rows);
      gradients_kernel<S, by_destination>
          <<<dim3(num_blocks, feature_blocks), RowPlan::kThreads, 0, stream>>>(terms, g, plan, partial, slots);
      const cudaError_t error = cudaGetLastError();
      if (error != cudaSuccess) return error;
      using T = typename S::T;
      Merge<T, false> merge{ptr, num_rows, task.num_edges, plan.units, 1, slots, terms.width, terms.width};
      merge.results = 1;
      merge.rows[0] = static_cast<T*>(result);
      return launch_merge(merge, stream);
    };
    constexpr int kOfBlock = kFeaturesOfBlock<S>;
    const int feature_blocks = std::max(1, (task.edge_dim + kOfBlock - 1) / kOfBlock);
    cudaError_t error = launch.template operator()<true>(task.num_dst, task.rowptr, static_cast<unsigned>(blocks),
                                                         feature_blocks, g.x_dst);
    if (error == cudaSuccess) {
      error =
          launch.template operator()<false>(task.num_src, task.colptr, plan_of(task, task.num_src).blocks, 1, g.x_src);
    }
    if (error != cudaSuccess) return error;
    return column_sums(task.type, partial, blocks, width, partial + blocks * width, g.terms, stream);
  });
}

}  // namespace dfgnn::cuda
