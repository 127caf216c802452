// SpMM of long rows, a warp each (row_units.cuh): what neighbours gather lies in the cache of their multiprocessor.
#pragma once

#include "row_sum.cuh"
#include "spmm.cuh"

namespace dfgnn::cuda {

// One head.
template <class S, class Sum>
__global__ void __launch_bounds__(RowUnits::kThreads, sizeof(typename S::A) == 8 ? 1 : 24)
    spmm_rows_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Spmm<typename S::T> m,
                     RowUnits units) {
  using T = typename S::T;
  using A = typename S::A;
  __shared__ typename Sum::Batch batch;
  const int lane = threadIdx.x;
  for_units(m.ptr, m.num_rows, a.num_edges, units, [&](int r, const Range& entries, int64_t slot) {
    for (int f = 0; f < (S::kLoop ? a.head_dim : 1); f += S::kFeatures) {
      const typename Sum::Reader row(a, m.x, 0, Sum::lane(), f);
      Sum sum;
      // Of the lane's entry of a batch, and of the next one, whose weight is on its way.
      int node = 0, next_node = 0;
      int64_t next_place = 0;
      A weight = A(0), next_weight = A(0);
      const auto load = [&](int64_t entry) {  // past the end, the last again
        entry = min(entry, entries.end - 1);
        next_node = checked_node(m.node[entry], m.num_nodes);
        next_place = m.position.data ? clamp_to(m.position[entry], a.num_edges - 1) : entry;
      };
      const auto load_weight = [&] { next_weight = m.edge_weights[next_place]; };
      const auto advance = [&] {
        node = next_node;
        weight = next_node == kNoNode ? A(NAN) : next_weight;
      };
      if (entries.size() > 0) {
        load(entries.begin + lane);
        load_weight();
      }
      for (int64_t first = entries.begin; first < entries.end; first += kWarp) {
        const int count = static_cast<int>(min(int64_t{kWarp}, entries.end - first));
        advance();
        load(first + kWarp + lane);
        __syncwarp();
        batch.node[lane] = max(node, 0);
        __syncwarp();
        sum.load(batch, count, row);
        batch.put(lane, sum.fit(lane < count ? weight : A(0)));
        load_weight();
        __syncwarp();
        sum.add(batch, count, row);
      }
      if (!sum.is_exact()) *units.inexact = 1;
      if (slot == kWhole) {
        sum.store(static_cast<T*>(m.result) + static_cast<int64_t>(r) * a.head_dim + f, a.head_dim - f, m.factor);
      } else {
        sum.store_piece(m.slots + slot * a.head_dim + f, a.head_dim - f, m.factor);
      }
    }
  });
}

// All heads at once (HeadsSum).
template <class S, bool kPositions>
__global__ void __launch_bounds__(RowUnits::kThreads, sizeof(typename S::A) == 4 && S::kSteps == 1 ? 28 : 1)
    spmm_heads_rows_kernel(const __grid_constant__ Typed<typename S::T> a,
                           const __grid_constant__ Spmm<typename S::T> m, RowUnits units) {
  using T = typename S::T;
  const HeadsSum<S, kPositions> heads(a, m);
  const int width = a.heads * a.head_dim;
  for_units(m.ptr, m.num_rows, a.num_edges, units, [&](int r, const Range& entries, int64_t slot) {
    heads.row(entries, [&](Fragment<S>& sum, int f) {
      if (slot == kWhole) {
        store_sum(sum, static_cast<T*>(m.result) + static_cast<int64_t>(r) * width + f, width - f, m.factor);
      } else {
        store_sum_piece(sum, m.slots + slot * width + f, width - f, m.factor);
      }
    });
  });
}

// The graph as units see it: one head of `width` numbers.
inline Attention one_head(const Attention& a, int64_t width) {
  Attention one = a;
  one.heads = 1;
  one.head_dim = static_cast<int>(width);
  return one;
}

inline RowUnits plan_spmm_rows(const Attention& a, int64_t num_rows, int64_t width) {
  return plan_units(one_head(a, width), num_rows, width);
}

inline size_t spmm_rows_bytes(const Attention& a, int64_t num_rows, int64_t width) {
  const RowUnits units = plan_spmm_rows(a, num_rows, width);
  const auto numbers = static_cast<int>(width);
  return a.type == Type::f64 ? UnitScratch<double>::bytes(units, 1, numbers)
                             : UnitScratch<float>::bytes(units, 1, numbers);
}

// By one of these kernels, in m.slots' memory, of as many bytes.
template <class T, class Kernel>
cudaError_t launch_spmm_units(const Attention& a, Spmm<T> m, int width, Kernel* kernel,
                              std::type_identity_t<Kernel>* exact, cudaStream_t stream) {
  if (m.num_rows == 0) return cudaSuccess;
  const Attention one = one_head(a, width);
  RowUnits units = plan_spmm_rows(a, m.num_rows, width);
  const UnitScratch<typename Accumulate<T>::type> scratch(m.slots, 1, units);
  m.slots = scratch.slots;
  cudaError_t error = order_rows(units, m.ptr, a.num_edges, scratch.order, stream);
  if (error != cudaSuccess) return error;
  const auto launch = [&](dim3 grid, const RowUnits& with, auto* chosen) {
    chosen<<<grid, RowUnits::kThreads, 0, stream>>>(Typed<T>{a}, m, with);
  };
  error = launch_units(units, one, m.num_rows, 1, scratch.counters, stream, kernel, exact, launch);
  if (error != cudaSuccess) return error;
  Merge<T, false> merge{m.ptr, m.num_rows, a.num_edges, units, 1, scratch.slots, width, width};
  merge.rows[merge.results++] = static_cast<T*>(m.result);
  return launch_merge(merge, stream);
}

template <class S>
cudaError_t launch_spmm_rows(const Attention& a, const Spmm<typename S::T>& m, cudaStream_t stream) {
  auto* by_vectors = spmm_rows_kernel<S, VectorSum<S>>;
  if constexpr (kTensorRows<S>) {
    if (has_tensor_sums<S>(a)) {
      return launch_spmm_units(a, m, a.head_dim, spmm_rows_kernel<S, TensorSum<S>>, by_vectors, stream);
    }
  }
  return launch_spmm_units(a, m, a.head_dim, by_vectors, nullptr, stream);
}

// S: the shape of a row of all heads.
template <class S>
cudaError_t launch_spmm_heads_rows(const Attention& a, const Spmm<typename S::T>& m, cudaStream_t stream) {
  using Wide = typename S::Wide;
  auto* kernel = m.position.data ? spmm_heads_rows_kernel<Wide, true> : spmm_heads_rows_kernel<Wide, false>;
  return launch_spmm_units(a, m, a.heads * a.head_dim, kernel, nullptr, stream);
}

}  // namespace dfgnn::cuda
