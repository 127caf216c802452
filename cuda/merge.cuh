// Adds up what the pieces of long rows left in their slots (row_units.cuh).
#pragma once

#include "row_units.cuh"

namespace dfgnn::cuda {

// What a slot holds of a piece and a head, one after another; sums of row r and head h over its pieces, in a fixed
// order, go to the place (r, h) of each result. Where lse is given, rows of features are weighted sums of a softmax.
template <class T>
struct Merge {
  using A = typename Accumulate<T>::type;
  Index ptr;
  int64_t num_rows, num_entries;
  RowUnits units;
  int heads;
  const A* slots;  // [slots][heads][width]
  int width, features;
  A* number;   // [num_rows][heads] or null: a number,
  T* rows[2];  // [num_rows][heads][features], each or null: rows of features,
  A* lse;      // [num_rows][heads] or null: the softmax's maximum and its sum
};

struct MergePlan {
  static constexpr int kThreads = 256, kWarps = kThreads / kWarp, kVec = 4;
  int rows;  // of a block

  // One after another, so not many where blocks are few.
  explicit MergePlan(int64_t num_rows) : rows(num_rows > (1 << 16) ? kThreads : kWarp) {}
};

template <class T>
__global__ void __launch_bounds__(MergePlan::kThreads) merge_kernel(Merge<T> m, MergePlan plan) {
  using A = typename Accumulate<T>::type;
  constexpr int kWarps = MergePlan::kWarps, kVec = MergePlan::kVec, kFeatures = kWarp * kVec;
  __shared__ A sums[kWarps][kFeatures], states[kWarps][2];
  __shared__ uint32_t long_rows[kWarps];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, h = blockIdx.y;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * plan.rows, mine = first + threadIdx.x;
  const bool is_long =
      threadIdx.x < plan.rows && mine < m.num_rows && row_range(m.ptr, mine, m.num_entries).size() > m.units.segment;
  const uint32_t ballot = __ballot_sync(kAllLanes, is_long);
  if (lane == 0) long_rows[warp] = ballot;
  if (!__syncthreads_or(is_long)) return;

  for (int group = 0; group < plan.rows / kWarp; ++group) {
    for (uint32_t left = long_rows[group]; left != 0; left &= left - 1) {
      const int64_t row = first + group * kWarp + __ffs(left) - 1;
      const Range entries = row_range(m.ptr, row, m.num_entries);
      const int64_t begin = entries.begin / m.units.segment, end = (entries.end - 1) / m.units.segment + 1;
      const auto piece = [&](int64_t s) {
        const int64_t slot = 2 * s + (entries.begin > s * m.units.segment);
        return m.slots + (slot * m.heads + h) * m.width;
      };
      A row_max = A(0), factor = A(1);
      if (m.lse) {
        A largest = -INFINITY, sum = A(0);
        for (int64_t s = begin + threadIdx.x; s < end; s += MergePlan::kThreads) {
          largest = max(largest, piece(s)[m.features]);
        }
        largest = warp_max(largest);
        if (lane == 0) states[warp][0] = largest;
        __syncthreads();
        row_max = states[0][0];
        for (int w = 1; w < kWarps; ++w) row_max = max(row_max, states[w][0]);
        for (int64_t s = begin + threadIdx.x; s < end; s += MergePlan::kThreads) {
          sum += exp_difference(piece(s)[m.features], row_max) * piece(s)[m.features + 1];
        }
        sum = lanes_sum<kWarp>(sum);
        if (lane == 0) states[warp][1] = sum;
        __syncthreads();
        sum = A(0);
        for (int w = 0; w < kWarps; ++w) sum += states[w][1];
        factor = sum == A(0) ? A(0) : A(1) / sum;
        if (threadIdx.x == 0) m.lse[row * m.heads + h] = row_max + log(sum);
      }
      int offset = 0;  // in the slot
      if (m.number) {
        A x = A(0);
        for (int64_t s = begin + lane; s < end; s += kWarp) x += piece(s)[0];
        x = lanes_sum<kWarp>(x);
        if (threadIdx.x == 0) m.number[row * m.heads + h] = x;
        offset = 1;
      }
      for (T* result : m.rows) {
        if (!result) continue;
        for (int f = 0; f < m.features; f += kFeatures) {
          A x[kVec] = {};
#pragma unroll 2
          for (int64_t s = begin + warp; s < end; s += kWarps) {
            const A* from = piece(s);
            const A weight = m.lse ? exp_difference(from[m.features], row_max) : A(1);
#pragma unroll
            for (int v = 0; v < kVec; ++v) {
              const int i = f + v * kWarp + lane;
              if (i < m.features) x[v] += weight * from[offset + i];
            }
          }
#pragma unroll
          for (int v = 0; v < kVec; ++v) sums[warp][v * kWarp + lane] = x[v];
          __syncthreads();
          const int i = f + static_cast<int>(threadIdx.x);
          if (threadIdx.x < kFeatures && i < m.features) {
            A total = A(0);
            for (int w = 0; w < kWarps; ++w) total += sums[w][threadIdx.x];
            result[(row * m.heads + h) * m.features + i] = from_accumulate<T>(total * factor);
          }
          __syncthreads();
        }
        offset += m.features;
      }
    }
  }
}

template <class T>
cudaError_t launch_merge(const Merge<T>& m, cudaStream_t stream) {
  if (m.units.segments == 0) return cudaSuccess;
  const MergePlan plan(m.num_rows);
  const dim3 grid(static_cast<unsigned>((m.num_rows + plan.rows - 1) / plan.rows), m.heads);
  merge_kernel<T><<<grid, MergePlan::kThreads, 0, stream>>>(m, plan);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
