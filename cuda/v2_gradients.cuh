// The gradients of GATv2's scores of edges, by rows of either compressed form.
#pragma once

#include "row_blocks.cuh"
#include "row_groups.cuh"
#include "v2_terms.cuh"

namespace dfgnn::cuda {

// Features of which a block adds up W's gradients at a time, in shared memory; the others are for other blocks (y).
template <class S>
constexpr int kFeaturesOfBlock = sizeof(typename S::A) == 8 ? 4 : 64 / kV2Size<S>;

// Of a thread each, vector by vector.
template <class S>
struct GradientSums {
  using A = typename S::A;
  static constexpr int kVec = kV2Size<S> % 4 == 0 ? 4 : 1;
  struct alignas(kVec * sizeof(A) > 16 ? 16 : kVec * sizeof(A)) Vector {
    A x[kVec];
  };
  Vector of_weights[kFeaturesOfBlock<S>][kV2Size<S> / kVec][RowPlan::kThreads];

  __device__ __forceinline__ void set(int f, const Fragment<S>& numbers) {
#pragma unroll
    for (int i = 0; i < kV2Size<S>; ++i) of_weights[f][i / kVec][threadIdx.x].x[i % kVec] = numbers[i];
  }
  __device__ __forceinline__ void add(int f, const Fragment<S>& numbers) {
#pragma unroll
    for (int i = 0; i < kV2Size<S> / kVec; ++i) {
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
template <class S, bool by_destination>
constexpr int gradient_blocks() {
  if (S::kSteps > 1 || S::kVec == 1 || sizeof(typename S::A) == 8) return 1;
  constexpr int kBySource = S::kVec == 4 ? 5 : 4;
  return blocks_here(by_destination ? kBySource - 1 : kBySource);
}

// The gradients of the nodes that rows are of, and, by destination, those of att, W and features.
template <class S, bool by_destination>
__global__ void __launch_bounds__(RowPlan::kThreads, (gradient_blocks<S, by_destination>()))
    v2_gradients_kernel(V2Terms<S> terms, V2Gradients g, RowPlan plan, typename S::A* partial, typename S::A* slots) {
  using T = typename S::T;
  using A = typename S::A;
  using Entries = V2Entries<S, by_destination>;
  __shared__ SliceSums<S> slices;
  __shared__ std::conditional_t<by_destination, GradientSums<S>, int> sums;
  __shared__ struct {
    int64_t edges[kWarp], offsets[kWarp];
    int nodes[kWarp];
  } batches[RowPlan::kWarps];
  auto& batch = batches[threadIdx.x / kWarp];
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const int first_feature = blockIdx.y * kFeaturesOfBlock<S>;
  const int last_feature = min(first_feature + kFeaturesOfBlock<S>, terms.edge_dim);
  const Index ptr = by_destination ? terms.rowptr : terms.colptr;
  const int64_t num_rows = by_destination ? terms.num_dst : terms.num_src;
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
      const auto take = [&](auto number, int base) {
        constexpr int kCount = decltype(number)::value;
        static_assert(kWarp % (kCount * S::kGroups) == 0);  // of one batch, as `base` is a multiple
        Fragment<S> z[kCount];
        A ds[kCount][S::kSteps];
        int64_t offsets[kCount];
        // Loads without a branch between them, all under way at a time: past the end of the row, of some node and edge.
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
          const int t = base + u * S::kGroups + group;
          offsets[u] = batch.offsets[t];
          Packed<S> other;
          other.load(terms.node(other_x, max(batch.nodes[t], 0)), lane, terms.width);
#pragma unroll
          for (int i = 0; i < kV2Size<S>; ++i) z[u].x[i] = own[i] + other[i];
          const A* const grads = static_cast<const A*>(g.grad) + batch.edges[t] * terms.stride;
#pragma unroll
          for (int s = 0; s < S::kSteps; ++s) {
            const A grad = __ldg(grads + min(heads[s], terms.heads - 1));
            ds[u][s] = offsets[u] >= 0 && heads[s] < terms.heads ? grad : A(0);
          }
        }
        terms.add_features(z, offsets, lane);
#pragma unroll
        for (int u = 0; u < kCount; ++u) {
#pragma unroll
          for (int i = 0; i < kV2Size<S>; ++i) {
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
                if (g.features) of_features[u * kAtOnce + j] = z[u].dot(w);
                of_weights.add(some[u][j], z[u]);
              }
              sums.add(f + j - first_feature, of_weights);
            }
            if (!g.features) return;
            constexpr int kTogether = kCount * kAtOnce < S::kLanes ? kCount * kAtOnce : S::kLanes;
#pragma unroll
            for (int first = 0; first < kCount * kAtOnce; first += kTogether) {
              const A total = transposed_sum<S::kLanes>(reinterpret_cast<A(&)[kTogether]>(of_features[first]));
              const int u = (first + lane) / kAtOnce, j = (first + lane) % kAtOnce;
              int64_t offset = offsets[0];
#pragma unroll
              for (int v = 1; v < kCount; ++v) offset = u == v ? offsets[v] : offset;
              if (lane >= kTogether || offset < 0) continue;
              terms.put_feature(g, offset + f + j, total);
            }
          });
        }
      };
      constexpr int kMost = kV2Edges<S>, kFew = kMost / 2;
      Entries ahead(terms, entries);
      for (int64_t first = entries.begin; first < entries.end; first += kWarp) {
        const int count = static_cast<int>(min(int64_t{kWarp}, entries.end - first));
        const typename Entries::Entry entry = ahead.take(first);
        __syncwarp();
        batch.nodes[threadIdx.x % kWarp] = entry.node;
        batch.edges[threadIdx.x % kWarp] = entry.edge;
        batch.offsets[threadIdx.x % kWarp] = entry.offset;
        __syncwarp();
        for (int base = 0; base < count;) {
          if (count - base <= kFew * S::kGroups) {  // one after the other: less than for kMost
            take(std::integral_constant<int, 1>(), base);
            base += S::kGroups;
          } else {
            take(std::integral_constant<int, kMost>(), base);
            base += kMost * S::kGroups;
          }
        }
      }
      __syncwarp();
      if (by_destination && blockIdx.y > 0) return;
      T* result = static_cast<T*>(by_destination ? g.x_dst : g.x_src) + r * terms.pitch;
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

}  // namespace dfgnn::cuda
