// SpMM of rows of some length, a warp each (row_units.cuh): what neighbours gather lies in the cache of their
// multiprocessor.
#pragma once

#include "row_pass.cuh"
#include "row_sum.cuh"
#include "spmm.cuh"

namespace dfgnn::cuda {

// Of each head by warps of its own.
template <class S, class Sum>
__global__ void __launch_bounds__(block_threads(warps_here<S>(24), kUnitsTogether<S>),
                                  blocks_at_once(warps_here<S>(24), kUnitsTogether<S>))
    spmm_rows_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Spmm<typename S::T> m,
                     RowUnits units) {
  using T = typename S::T;
  using A = typename S::A;
  auto& batch = warp_storage<typename Sum::Batch>();
  const int lane = threadIdx.x, h = blockIdx.y;
  for_units(m.ptr, m.num_rows, a.num_edges, units, [&](int r, const Range& entries, int64_t slot) {
    for (int f = 0; f < (S::kLoop ? a.head_dim : 1); f += S::kFeatures) {
      const typename Sum::Reader row(a, m.x, h, Sum::lane(), f);
      Sum sum(batch);
      // Of the lane's entry of the next batch: on their way, with its weight.
      LoadedNode next_node;
      LoadedIndex next_position;
      int64_t next_entry = 0;
      A next_weight = A(0);
      const auto load = [&](int64_t entry) {  // past the end, the last again
        next_entry = min(entry, entries.end - 1);
        next_node = {m.node, next_entry};
        if (m.position.data) next_position = {m.position, next_entry};
      };
      const auto load_weight = [&] {
        if (m.position.data) next_entry = clamp_to(next_position.value(), a.num_edges - 1);
        next_weight = m.edge_weights[a.scalar(next_entry, h)];
      };
      if (entries.size() > 0) {
        load(entries.begin + lane);
        load_weight();
      }
      for (int64_t first = entries.begin; first < entries.end; first += kWarp) {
        const int count = static_cast<int>(min(int64_t{kWarp}, entries.end - first));
        const int node = next_node.check(m.num_nodes);
        const A weight = node == kNoNode ? A(NAN) : next_weight;
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
        sum.store(a.features(m.result, r, h) + f, a.head_dim - f, m.factor);
      } else {
        sum.store_piece(m.slots + a.scalar(slot, h) * a.head_dim + f, a.head_dim - f, m.factor);
      }
    }
  });
}

// All heads at once (HeadsSum).
template <class S, bool kPositions>
__global__ void __launch_bounds__(RowUnits::kThreads, (S::kSteps == 1 ? warps_here<S>(28) : 1))
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

// By one of these kernels, of `heads` rows of `width` numbers, whose warps have `storage` bytes of dynamic shared
// memory. scratch: of as many bytes as their pass says.
template <class T, class Kernel>
cudaError_t launch_spmm_pass(const Attention& a, Spmm<T> m, void* scratch, int heads, int width, size_t storage,
                             Kernel* kernel, std::type_identity_t<Kernel>* exact, cudaStream_t stream) {
  if (m.num_rows == 0) return cudaSuccess;
  const RowPass pass(m.ptr, m.num_rows, a.num_edges, width, heads);
  m.slots = pass.template slots<typename Accumulate<T>::type>(scratch);
  const auto launch = [&](dim3 grid, const RowUnits& units, auto* chosen) {
    chosen<<<grid, units.block(), units.warps * storage, stream>>>(Typed<T>{a}, m, units);
  };
  const cudaError_t error = pass.launch(scratch, stream, kernel, exact, launch);
  if (error != cudaSuccess) return error;
  Merge<T, false> merge{m.ptr, m.num_rows, a.num_edges, pass.units(), heads, m.slots, width, width};
  merge.rows[merge.results++] = static_cast<T*>(m.result);
  return launch_merge(merge, stream);
}

template <class S>
cudaError_t launch_spmm_rows(const Attention& a, const Spmm<typename S::T>& m, void* scratch, cudaStream_t stream) {
  auto* by_vectors = spmm_rows_kernel<S, VectorSum<S>>;
  if constexpr (kTensorRows<S>) {
    if (has_tensor_sums<S>(a)) {
      auto* by_tensors = spmm_rows_kernel<S, TensorSum<S>>;
      return launch_spmm_pass(a, m, scratch, a.heads, a.head_dim, sum_storage<S>(), by_tensors, by_vectors, stream);
    }
  }
  return launch_spmm_pass(a, m, scratch, a.heads, a.head_dim, sum_storage<S>(), by_vectors, nullptr, stream);
}

// S: the shape of a row of all heads.
template <class S>
cudaError_t launch_spmm_heads_rows(const Attention& a, const Spmm<typename S::T>& m, void* scratch,
                                   cudaStream_t stream) {
  using Wide = typename S::Wide;
  auto* kernel = m.position.data ? spmm_heads_rows_kernel<Wide, true> : spmm_heads_rows_kernel<Wide, false>;
  return launch_spmm_pass(a, m, scratch, 1, a.heads * a.head_dim, 0, kernel, nullptr, stream);
}

}  // namespace dfgnn::cuda
