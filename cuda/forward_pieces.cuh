// What the forward passes of smmf and pmf leave of pieces of long rows (row_units.cuh), and its sums.
#pragma once

#include "merge.cuh"

namespace dfgnn::cuda {

// Of a slot, for each head: the weighted sum of rows of values, then the maximum and the sum of the softmax.
__host__ __device__ inline int forward_slot_width(const Attention& a) { return a.head_dim + 2; }

inline RowUnits plan_forward(const Attention& a) {
  return plan_units(a.num_dst, a.num_edges, a.heads * forward_slot_width(a), a.max_degree);
}

inline size_t forward_scratch_bytes(const Attention& a, const RowUnits& units) {
  return a.type == Type::f64 ? UnitScratch<double>::bytes(units, a.heads, forward_slot_width(a))
                             : UnitScratch<float>::bytes(units, a.heads, forward_slot_width(a));
}

template <class T>
cudaError_t merge_outputs(const Attention& a, const Outputs& outputs, const RowUnits& units,
                          const typename Accumulate<T>::type* slots, cudaStream_t stream) {
  Merge<T> merge{a.rowptr,   a.num_dst, a.num_edges, units,  a.heads, slots, forward_slot_width(a),
                 a.head_dim, nullptr,   {},          nullptr};
  merge.rows[0] = static_cast<T*>(outputs.out);
  merge.lse = static_cast<typename Merge<T>::A*>(outputs.lse);
  return launch_merge(merge, stream);
}

}  // namespace dfgnn::cuda
