// Softmax and SpMM over blocks of rows, with the logits made here (SMMF) or read from memory (PMF).
//
// A block takes kRows-like runs of rows. Its short rows share a tile of shared memory: the warps make the tile's logits
// balanced over its edges, then each takes rows: maximum, exponentials (taken once, kept in shared memory: the paper's
// redundancy-free softmax), and the vectorised SpMM. A row too long to share is cut into one slice a warp, each of
// which goes over its slice in tiles with an online softmax (Milakov & Gimelshein 2018); the slices' states (max, sum,
// out) are merged in the order of the warps, so that the result is the same bits run after run.
#pragma once

#include "sddmm.cuh"

namespace dfgnn::cuda {

struct ForwardPlan {
  int rows_per_block;
  int heads_per_block;  // blockIdx.y takes the others

  static constexpr int kThreads = 256;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kTile = 2048;  // logits of a tile, all heads of the block
  static constexpr int kMaxRows = 64;
  static constexpr int kMaxHeads = 16;
  static constexpr int kLongRow = 256;  // edges from which on a row has the block to itself
};

// Where logits come from.
template <Score score, class S>
struct ComputedLogits {
  template <class Walk, class Store>
  __device__ __forceinline__ void operator()(const Typed<typename S::T>& a, int64_t begin, int64_t end, int head,
                                             int num_heads, Walk walk, const Store& store) const {
    warp_logits<score, S>(a, begin, end, head, num_heads, walk, store);
  }
};

template <class A>
struct StoredLogits {
  const A* scores;  // [num_edges, heads]

  template <class T, class Walk, class Store>
  __device__ __forceinline__ void operator()(const Typed<T>& a, int64_t begin, int64_t end, int head, int num_heads,
                                             Walk, const Store& store) const {
    const int64_t units = (end - begin) * num_heads;
    for (int64_t u = threadIdx.x % kWarp; u < units; u += kWarp) {
      const int64_t e = begin + u / num_heads;
      const int h = head + static_cast<int>(u % num_heads);
      store(e, h, scores[e * a.heads + h]);
    }
  }
};

// Turns `count` logits in shared memory into exp(s - max), dropout applied, and returns their max and sum (before
// dropout). All lanes of a warp; `first` is the CSR position of s[0].
template <class A>
__device__ __forceinline__ void warp_exponentials(A* s, int count, int64_t first, int h, const Dropout& dropout, A& m,
                                                  A& sum) {
  const int lane = threadIdx.x % kWarp;
  A largest = -INFINITY;
  for (int e = lane; e < count; e += kWarp) largest = max(largest, s[e]);
  m = max(m, warp_max(largest));
  sum = A(0);
  for (int e = lane; e < count; e += kWarp) {
    const A p = exp_difference(s[e], m);
    sum += p;
    s[e] = dropout.active() ? p * dropout.template factor<A>(first + e, h) : p;
  }
  sum = lanes_sum<kWarp>(sum);
  __syncwarp();
}

// out += sum over `count` edges of weight * value row, features from `feature` on. W is the wide shape.
template <class W>
__device__ __forceinline__ void warp_spmm(const Typed<typename W::T>& a, const typename W::A* weights, int count,
                                          int64_t first, int h, int feature, Fragment<W>& out) {
  constexpr int kUnroll = 4;
  const int lane = threadIdx.x % W::kLanes, group = (threadIdx.x % kWarp) / W::kLanes;
  for (int base = group; base < count; base += kUnroll * W::kGroups) {
    Fragment<W> rows[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int e = base + u * W::kGroups;
      if (e < count) {
        bool ok;  // where not, the weight is NaN already
        rows[u].load(a.value_row(a.source(first + e, ok), h) + feature, lane, a.head_dim - feature);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int e = base + u * W::kGroups;
      if (e < count) out.add(weights[e], rows[u]);
    }
  }
}

template <class S, class Logits>
__global__ void __launch_bounds__(ForwardPlan::kThreads, sizeof(typename S::A) == 4 ? 2 : 1)
    forward_rows_kernel(Typed<typename S::T> a, Logits logits, Outputs outputs, ForwardPlan plan) {
  using T = typename S::T;
  using A = typename S::A;
  using W = typename S::Wide;
  constexpr int kWarps = ForwardPlan::kWarps, kTile = ForwardPlan::kTile;
  __shared__ int64_t bounds[ForwardPlan::kMaxRows + 1];
  __shared__ A tile[kTile];
  __shared__ A states[kWarps][2];                            // a slice's max and sum
  __shared__ __align__(16) A partial[kWarps][W::kFeatures];  // and its out

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int64_t first_row = static_cast<int64_t>(blockIdx.x) * plan.rows_per_block;
  const int num_rows = static_cast<int>(min(static_cast<int64_t>(plan.rows_per_block), a.num_dst - first_row));
  const int head = blockIdx.y * plan.heads_per_block;
  const int num_heads = min(plan.heads_per_block, a.heads - head);
  const Dropout dropout(a);

  for (int r = threadIdx.x; r <= num_rows; r += blockDim.x) bounds[r] = clamp_to(a.rowptr[first_row + r], a.num_edges);
  __syncthreads();
  bool decreasing = false;
  for (int r = threadIdx.x; r < num_rows; r += blockDim.x) decreasing |= bounds[r + 1] < bounds[r];
  if (__syncthreads_or(decreasing)) {  // a rowptr that is none: keep it from being read out of bounds
    if (threadIdx.x == 0) {
      for (int r = 0; r < num_rows; ++r) bounds[r + 1] = max(bounds[r + 1], bounds[r]);
    }
    __syncthreads();
  }

  const int tile_edges = kTile / num_heads;
  const int long_row = min(tile_edges, ForwardPlan::kLongRow);
  const auto is_long = [&](int r) { return bounds[r + 1] - bounds[r] > long_row; };
  const auto out_row = [&](int r, int h) { return static_cast<T*>(outputs.out) + a.features(first_row + r, h); };
  const auto store_lse = [&](int r, int h, A m, A sum) {
    static_cast<A*>(outputs.lse)[(first_row + r) * a.heads + h] = m + log(sum);
  };
  // A view of `bounds` for walks: ends of rows, counted from the graph's first.
  struct Ends {
    const int64_t* bounds;
    int64_t first_row;
    __device__ __forceinline__ int64_t operator[](int64_t r) const { return bounds[r - first_row + 1]; }
  };
  const Ends ends{bounds, first_row};
  const auto walk_from = [&](int r) { return RowWalk<Ends>{ends, first_row + r, first_row + num_rows}; };

  for (int r = 0; r < num_rows;) {
    if (is_long(r)) {
      ++r;
      continue;
    }
    int last = r + 1;
    while (last < num_rows && !is_long(last) && bounds[last + 1] - bounds[r] <= tile_edges) ++last;
    const int64_t begin = bounds[r];
    const int edges = static_cast<int>(bounds[last] - begin);

    const int slice = (edges + kWarps - 1) / kWarps;
    const int64_t slice_begin = begin + min(warp * slice, edges), slice_end = begin + min((warp + 1) * slice, edges);
    logits(a, slice_begin, slice_end, head, num_heads, walk_from(r),
           [&](int64_t e, int h, A s) { tile[(h - head) * tile_edges + (e - begin)] = s; });
    __syncthreads();

    for (int t = warp; t < (last - r) * num_heads; t += kWarps) {
      const int row = r + t / num_heads, h = t % num_heads;
      const int64_t first = bounds[row];
      const int count = static_cast<int>(bounds[row + 1] - first);
      A* s = tile + h * tile_edges + (first - begin);
      A m = -INFINITY, sum;
      warp_exponentials(s, count, first, head + h, dropout, m, sum);
      if (lane == 0) store_lse(row, head + h, m, sum);
      const A scale = sum == A(0) ? A(0) : A(1) / sum;
      for (int f = 0; f < (W::kLoop ? a.head_dim : 1); f += W::kFeatures) {
        Fragment<W> out;
        out.zero();
        warp_spmm(a, s, count, first, head + h, f, out);
        const GroupSum<W> total(out);
        if (total.writes) {
          out.template store<GroupSum<W>::kCount>(out_row(row, head + h) + f, lane % W::kLanes, a.head_dim - f,
                                                  total.first, scale);
        }
      }
    }
    __syncthreads();
    r = last;
  }

  constexpr int kSliceTile = kTile / kWarps;
  A* slice_tile = tile + warp * kSliceTile;
  for (int t = 0; t < num_rows * num_heads; ++t) {
    const int row = t / num_heads, h = head + t % num_heads;
    if (!is_long(row)) continue;
    const int64_t count = bounds[row + 1] - bounds[row], slice = (count + kWarps - 1) / kWarps;
    const int64_t begin = bounds[row] + min(warp * slice, count), end = bounds[row] + min((warp + 1) * slice, count);
    for (int f = 0; f < (W::kLoop ? a.head_dim : 1); f += W::kFeatures) {
      Fragment<W> out;
      out.zero();
      A m = -INFINITY, sum = A(0);
      for (int64_t first = begin; first < end; first += kSliceTile) {
        const int tile_count = static_cast<int>(min(static_cast<int64_t>(kSliceTile), end - first));
        logits(a, first, first + tile_count, h, 1, walk_from(row),
               [&](int64_t e, int, A s) { slice_tile[e - first] = s; });
        __syncwarp();
        const A before = m;
        A tile_sum;
        warp_exponentials(slice_tile, tile_count, first, h, dropout, m, tile_sum);
        const A fade = exp_difference(before, m);
        sum = sum * fade + tile_sum;
#pragma unroll
        for (int i = 0; i < W::kSteps * W::kVec; ++i) out.x[i] *= fade;
        warp_spmm(a, slice_tile, tile_count, first, h, f, out);
        __syncwarp();
      }
      const GroupSum<W> total(out);
      if (total.writes) {
#pragma unroll
        for (int i = 0; i < GroupSum<W>::kCount * W::kVec; ++i) {
          const int step = total.first + i / W::kVec;
          partial[warp][(step * W::kLanes + lane % W::kLanes) * W::kVec + i % W::kVec] = out.x[i];
        }
      }
      if (lane == 0) {
        states[warp][0] = m;
        states[warp][1] = sum;
      }
      __syncthreads();
      A row_max = -INFINITY, row_sum = A(0);
      for (int w = 0; w < kWarps; ++w) row_max = max(row_max, states[w][0]);
      A factors[kWarps];
#pragma unroll
      for (int w = 0; w < kWarps; ++w) {
        factors[w] = exp_difference(states[w][0], row_max);
        row_sum += factors[w] * states[w][1];
      }
      const A scale = row_sum == A(0) ? A(0) : A(1) / row_sum;
      for (int i = threadIdx.x; i < min(W::kFeatures, a.head_dim - f); i += blockDim.x) {
        A x = A(0);
#pragma unroll
        for (int w = 0; w < kWarps; ++w) x += factors[w] * partial[w][i];
        out_row(row, h)[f + i] = from_accumulate<T>(x * scale);
      }
      if (threadIdx.x == 0 && f == 0) store_lse(row, h, row_max, row_sum);
      __syncthreads();
    }
  }
}

// Rows a block takes: about a thousand edges, but enough blocks to fill the device.
inline ForwardPlan plan_forward(const Attention& a) {
  constexpr int64_t kEdges = 1024, kBlocks = 1024;
  int rows = ForwardPlan::kMaxRows;
  while (rows > 1 && (rows * a.num_edges > kEdges * a.num_dst || a.num_dst < kBlocks * rows)) rows /= 2;
  return {rows, a.heads < ForwardPlan::kMaxHeads ? a.heads : ForwardPlan::kMaxHeads};
}

template <class S, class Logits>
cudaError_t launch_forward_rows(const Attention& a, const Logits& logits, const Outputs& outputs, cudaStream_t stream) {
  if (a.num_dst == 0) return cudaSuccess;
  const ForwardPlan plan = plan_forward(a);
  const dim3 grid(static_cast<unsigned>((a.num_dst + plan.rows_per_block - 1) / plan.rows_per_block),
                  static_cast<unsigned>((a.heads + plan.heads_per_block - 1) / plan.heads_per_block));
  forward_rows_kernel<S><<<grid, ForwardPlan::kThreads, 0, stream>>>(Typed<typename S::T>{a}, logits, outputs, plan);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
