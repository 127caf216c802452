// SpMM by rows: weighted sums of the features of a row's nodes.
#pragma once

#include "logit.cuh"
#include "merge.cuh"
#include "row_blocks.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {

// What is summed: the weight alone, the weight times the node's row, or the weight times leaky_relu'(own row + node's
// row), which is additive_v2's derivative.
enum class Term { weight, row, slope };

// result_r = factor * sum over the entries of row r of edge_weights[position, h] * scale[n, h] * x[n, h], n the entry's
// node, or of what else Term says in the place of x; with sum_heads, over the heads too.
template <class T>
struct Spmm {
  using A = typename Accumulate<T>::type;
  Index ptr, node, position;  // position.data null: the entry's own
  int64_t num_rows, num_nodes;
  const A* edge_weights;
  const void *scale, *x;  // scale may be null; x: T [num_nodes, x_heads, head_dim]
  int x_heads;            // as many as the weights have, or 1
  const void* own;        // Term::slope: T [num_rows, heads, head_dim]
  A factor;
  void* result;            // T [num_rows, heads, head_dim]; Term::weight: A [num_rows, heads]
  bool sum_heads = false;  // then T [num_rows, 1, head_dim]
  A* slots = nullptr;      // of pieces of very long rows, as many as spmm_numbers says, or null: rows are not cut

  // Of a row of the result, in a slot.
  __host__ __device__ int slot_heads(const Attention& a) const { return sum_heads ? 1 : a.heads; }
};

// What slots take of a product of a graph of so many entries, whose result has so many numbers a row.
inline int64_t spmm_numbers(int64_t num_entries, int64_t numbers) {
  return cut_rows(num_entries, numbers).slots() * numbers;
}

// The heads of a lane's vectors, where heads lie side by side, and where in a row of x these vectors are.
template <class S>
struct Places {
  int head[S::kSteps], offset[S::kSteps];

  __device__ __forceinline__ Places(int f, int lane, int head_dim, int x_heads) {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      const int feature = f + (s * S::kLanes + lane) * S::kVec;
      head[s] = feature / head_dim;
      offset[s] = x_heads == 1 ? feature - head[s] * head_dim : feature;
    }
  }
};

// Entries of a row by lanes of a warp, 32 at a time: the node of each and, where the product has positions, its place
// among the weights.
template <class T, bool kPositions>
class LaneEntries {
 public:
  using A = typename Accumulate<T>::type;

  __device__ __forceinline__ LaneEntries(const Spmm<T>& m, int64_t num_edges, const Range& entries)
      : m_(m), num_edges_(num_edges), first_(entries.begin), end_(entries.end) {
    load();
    advance();
  }

  __device__ __forceinline__ bool any() const { return first_ < end_; }
  __device__ __forceinline__ int count() const { return static_cast<int>(min(end_ - first_, int64_t{kWarp})); }

  // Of the j-th: its node; all lanes ask at a time.
  __device__ __forceinline__ int node(int j) const { return __shfl_sync(kAllLanes, node_, j % kWarp); }
  // The weights of all its heads.
  __device__ __forceinline__ const A* weights(int j, int heads) const {
    if constexpr (kPositions) {
      return m_.edge_weights + static_cast<int64_t>(__shfl_sync(kAllLanes, place_, j % kWarp)) * heads;
    } else {
      return m_.edge_weights + first_ * heads + j * heads;
    }
  }

  // To the next ones, which are on their way.
  __device__ __forceinline__ void next() {
    first_ += kWarp;
    advance();
  }

 private:
  __device__ __forceinline__ void load() {
    if (next_ >= end_) return;
    const int64_t c = min(next_ + threadIdx.x % kWarp, end_ - 1);
    next_node_ = {m_.node, c};
    if constexpr (kPositions) next_place_ = {m_.position, c};
  }

  __device__ __forceinline__ void advance() {
    node_ = next_ + threadIdx.x % kWarp < end_ ? next_node_.check(m_.num_nodes) : kNoNode;
    if constexpr (kPositions) place_ = clamp_to(next_place_.value(), num_edges_ - 1);
    next_ += kWarp;
    load();
  }

  const Spmm<T>& m_;
  int64_t num_edges_, first_, end_, next_ = first_;
  int node_ = kNoNode;
  long long place_ = 0;
  LoadedNode next_node_;
  LoadedIndex next_place_;
};

// All heads at once: S is the shape of a row of them, `width` numbers. A vector is of one head.
template <class S, bool kPositions>
class HeadsSum {
 public:
  using T = typename S::T;
  using A = typename S::A;

  __device__ __forceinline__ HeadsSum(const Typed<T>& a, const Spmm<T>& m)
      : a_(a), m_(m), row_bytes_(m.x_heads * a.head_dim * sizeof(T)), first_(0, lane(), a.head_dim, m.x_heads) {}

  // Calls store(sum, f) with the sums of a row from feature f on.
  template <class Store>
  __device__ __forceinline__ void row(const Range& range, const Store& store) const {
    for (int f = 0; f < (S::kLoop ? a_.heads * a_.head_dim : 1); f += S::kFeatures) {
      const Places<S> at = S::kLoop && f > 0 ? Places<S>(f, lane(), a_.head_dim, m_.x_heads) : first_;
      Fragment<S> sum;
      sum.zero();
      for (LaneEntries<T, kPositions> entries(m_, a_.num_edges, range); entries.any(); entries.next()) {
        const int count = entries.count();
        for (int base = 0; base < count; base += kUnroll * S::kGroups) add(sum, entries, base, count, at);
      }
      __syncwarp();
      store(sum, f);
    }
  }

 private:
  using Vector = Packed<Shape<T, S::kVec, 1, 1>>;
  static constexpr int kUnroll = 4;

  __device__ __forceinline__ static int lane() { return threadIdx.x % S::kLanes; }

  __device__ __forceinline__ void add(Fragment<S>& sum, const LaneEntries<T, kPositions>& entries, int base, int count,
                                      const Places<S>& at) const {
    const int group = threadIdx.x % kWarp / S::kLanes;
    Vector x[kUnroll][S::kSteps];
    A weight[kUnroll][S::kSteps];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int j = base + u * S::kGroups + group;
      const int n = entries.node(j);
      const A* weights = entries.weights(j, a_.heads);
      const T* row = row_from(static_cast<const T*>(m_.x), n, row_bytes_);
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
        weight[u][s] = j < count ? A(NAN) : A(0);
        x[u][s] = {};
        if (j >= count || n == kNoNode || at.head[s] >= a_.heads) continue;
        weight[u][s] = weights[at.head[s]];
        x[u][s].load(row + at.offset[s], 0, S::kVec);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
#pragma unroll
        for (int v = 0; v < S::kVec; ++v) sum.x[s * S::kVec + v] += weight[u][s] * x[u][s][v];
      }
    }
  }

  const Typed<T>& a_;
  const Spmm<T>& m_;
  const unsigned row_bytes_;
  const Places<S> first_;
};

template <class S, bool kPositions>
__global__ void __launch_bounds__(RowPlan::kThreads)
    spmm_heads_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Spmm<typename S::T> m,
                      RowPlan plan) {
  using T = typename S::T;
  using A = typename S::A;
  __shared__ SliceSums<S> sums;
  const HeadsSum<S, kPositions> heads(a, m);
  const int width = a.heads * a.head_dim;
  for_rows<true>(m.ptr, m.num_rows, a.num_edges, plan, [&](int r, const Range& range, bool is_slice, int slot) {
    heads.row(range, [&](Fragment<S>& sum, int f) {
      T* result = static_cast<T*>(m.result) + static_cast<int64_t>(r) * width + f;
      A* piece = slot == kWhole ? nullptr : m.slots + int64_t{slot} * width + f;
      store_row_sum(sum, result, width - f, m.factor, is_slice, sums, piece);
    });
  });
}

// Blocks a multiprocessor.
template <Term term, class S>
constexpr int spmm_blocks() {
  constexpr bool is_small = term == Term::row && S::kSteps == 1 && !S::kLoop && sizeof(typename S::A) == 4;
  return blocks_here(!is_small ? 1 : S::kVec == 4 ? 9 : 8);
}

template <Term term, class S>
__global__ void __launch_bounds__(RowPlan::kThreads, (spmm_blocks<term, S>()))
    spmm_kernel(Typed<typename S::T> a, Spmm<typename S::T> m, RowPlan plan) {
  using T = typename S::T;
  using A = typename S::A;
  __shared__ SliceSums<S> sums;
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int first_head = blockIdx.y, last_head = m.sum_heads ? a.heads : first_head + 1;
  const int64_t x_stride = static_cast<int64_t>(m.x_heads) * a.head_dim;
  constexpr bool kFeatures = term != Term::weight;
  constexpr int kUnroll = 4;
  for_rows<true>(m.ptr, m.num_rows, a.num_edges, plan, [&](int r, const Range& entries, bool is_slice, int slot) {
    for (int f = 0; f < (kFeatures && S::kLoop ? a.head_dim : 1); f += S::kFeatures) {
      Fragment<S> sum;
      sum.zero();
      A weight_sum = A(0);
      Packed<S> own;
      if constexpr (term == Term::slope) own.load(a.features(m.own, r, first_head) + f, lane, a.head_dim - f);
      for (int h = first_head; h < last_head; ++h) {
        const T* x_head = static_cast<const T*>(m.x) + (m.x_heads == 1 ? 0 : h * a.head_dim) + f;
        for (int64_t base = entries.begin + group; base < entries.end; base += kUnroll * S::kGroups) {
          Packed<S> x[kUnroll];
          A weight[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const int64_t c = base + u * S::kGroups;
            weight[u] = A(0);
            x[u] = {};
            if (c >= entries.end) continue;
            const int n = checked_node(m.node[c], m.num_nodes);
            if (n == kNoNode) {
              weight[u] = A(NAN);
              continue;
            }
            const int64_t e = m.position.data ? clamp_to(m.position[c], a.num_edges - 1) : c;
            weight[u] = m.edge_weights[a.scalar(e, h)];
            if (m.scale) weight[u] *= a.at(m.scale, a.scalar(n, h));
            if constexpr (kFeatures) x[u].load(x_head + n * x_stride, lane, a.head_dim - f);
          }
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            if constexpr (term == Term::row) {
              sum.add(weight[u], x[u]);
            } else if constexpr (term == Term::slope) {
#pragma unroll
              for (int i = 0; i < Fragment<S>::kSize; ++i) {
                sum.x[i] += weight[u] * (own[i] + x[u][i] > A(0) ? A(1) : a.slope_below_zero);
              }
            } else {
              weight_sum += weight[u];
            }
          }
        }
      }
      __syncwarp();
      const int heads = m.slot_heads(a);
      const int64_t row = static_cast<int64_t>(r) * heads + first_head,
                    row_of_slot = int64_t{slot} * heads + first_head;
      if constexpr (kFeatures) {
        A* piece = slot == kWhole ? nullptr : m.slots + row_of_slot * a.head_dim + f;
        T* result = static_cast<T*>(m.result) + row * a.head_dim + f;
        store_row_sum(sum, result, a.head_dim - f, m.factor, is_slice, sums, piece);
      } else {
        A* result = slot == kWhole ? static_cast<A*>(m.result) + row : m.slots + row_of_slot;
        store_scalar_sum<S>(weight_sum, result, is_slice);
      }
    }
  });
}

template <class T>
RowPlan plan_spmm(const Attention& a, const Spmm<T>& m, int64_t numbers) {
  return m.slots ? plan_pieces(m.num_rows, a.num_edges, numbers) : plan_rows(m.num_rows, a.num_edges);
}

// Adds up pieces of rows that have `heads` sums of `width` numbers, or of one.
template <class T>
cudaError_t merge_pieces(const Attention& a, const Spmm<T>& m, const RowPlan& plan, int heads, int width,
                         bool is_number, cudaStream_t stream) {
  Merge<T, false> merge{m.ptr, m.num_rows, a.num_edges, plan.units, heads, m.slots, width, is_number ? 0 : width};
  if (is_number) {
    merge.number = static_cast<typename Accumulate<T>::type*>(m.result);
  } else {
    merge.results = 1;
    merge.rows[0] = static_cast<T*>(m.result);
  }
  return launch_merge(merge, stream);
}

// Term::row without scale and sum_heads. S: the shape of a row of all heads.
template <class S>
cudaError_t launch_spmm_heads(const Attention& a, const Spmm<typename S::T>& m, cudaStream_t stream) {
  if (m.num_rows == 0) return cudaSuccess;
  const int width = a.heads * a.head_dim;
  const RowPlan plan = plan_spmm(a, m, width);
  const auto launch = [&]<bool kPositions>() {
    spmm_heads_kernel<typename S::Wide, kPositions>
        <<<plan.blocks, RowPlan::kThreads, 0, stream>>>(Typed<typename S::T>{a}, m, plan);
  };
  m.position.data ? launch.template operator()<true>() : launch.template operator()<false>();
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? merge_pieces(a, m, plan, 1, width, false, stream) : error;
}

template <Term term, class S>
cudaError_t launch_spmm(const Attention& a, const Spmm<typename S::T>& m, cudaStream_t stream) {
  if (m.num_rows == 0) return cudaSuccess;
  const int heads = m.slot_heads(a), width = term == Term::weight ? 1 : a.head_dim;
  const RowPlan plan = plan_spmm(a, m, int64_t{heads} * a.head_dim);
  const Typed<typename S::T> typed{a};
  spmm_kernel<term, typename S::Wide><<<dim3(plan.blocks, heads), RowPlan::kThreads, 0, stream>>>(typed, m, plan);
  const cudaError_t error = cudaGetLastError();
  return error == cudaSuccess ? merge_pieces(a, m, plan, heads, width, term == Term::weight, stream) : error;
}

}  // namespace dfgnn::cuda
