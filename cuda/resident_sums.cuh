// Sums over edges of weights times the rows of a chunk that the edges lead to.
#pragma once

#include <climits>

#include "resident_chunk.cuh"

namespace dfgnn::cuda::resident {

// Which weights count: all, or those that are not less than 0.
enum Weights : int { kAll = INT_MIN, kFromZero = 0 };

// Stores to rows of a chunk the sums over edges of weights * rows of the chunk in shared memory. kAdds: adds them to
// what the block has stored there, with own_factors [nodes], if there are any, times the nodes' own rows of the chunk.
template <class S, bool kAdds = false>
__device__ __forceinline__ void store_sums(const Slices<S>& edges, const Chunk<S>& chunk, const float* weights,
                                           const Rows& to, const float* own_factors = nullptr, Weights which = kAll) {
  const Pieces<S> pieces;
#pragma unroll 1
  for (int t = threadIdx.x / kWarp; t < edges.count(); t += S::kWarps) {
    const SliceRow row = edges.row(t);
    float sum[S::kNumbers] = {};
    Packed<S> before;
    if constexpr (kAdds) before.load_stored(to, row.node, pieces);
    edges.for_steps(t, [&]<int kBatches>(int place, const uint2(&offsets)[kBatches]) {
      float2 factors[kBatches];
#pragma unroll
      for (int b = 0; b < kBatches; ++b) factors[b] = reinterpret_cast<const float2*>(weights)[place + b * kGroups];
#pragma unroll
      for (int u = 0; u < kBatches * kBatch; ++u) {
        Packed<S> other;
        other.load_shared(chunk.memory + (&offsets[u / kBatch].x)[u % kBatch], pieces);
        const float weight = (&factors[u / kBatch].x)[u % kBatch];
        const float factor = __int_as_float(max(__float_as_int(weight), static_cast<int>(which)));
#pragma unroll
        for (int x = 0; x < S::kNumbers; ++x) sum[x] += factor * other.number(x / S::kVec, x % S::kVec);
      }
    });
    if constexpr (kAdds) {
      Packed<S> own;
      own.load_shared(chunk.memory + row.node * kRowBytes, pieces);
      const float factor = own_factors ? own_factors[row.node] : 0;
#pragma unroll
      for (int x = 0; x < S::kNumbers; ++x) {
        sum[x] += before.number(x / S::kVec, x % S::kVec);
        if (factor != 0) sum[x] += factor * own.number(x / S::kVec, x % S::kVec);
      }
    }
    if (!row.live) continue;
    char* target = to.of(row.node);
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      if (!to.template has<S>(pieces[s])) continue;
      store_vector(reinterpret_cast<typename S::T*>(target + pieces[s]),
                   pack_piece(sum + s * S::kVec, typename S::T{}));
    }
  }
}

}  // namespace dfgnn::cuda::resident
