// Dot products, softmax and SpMM over blocks of rows: SMMF's forward pass.
//
// A block takes a run of rows. Its short rows share tiles of shared memory: the warps make a tile's dot products
// balanced over its edges, then each takes rows: logits, their maximum, exponentials (taken once, kept in shared
// memory: the paper's redundancy-free softmax), and the vectorised SpMM. A row too long to share is cut into one slice
// a warp, each of which goes over its slice in tiles with an online softmax (Milakov & Gimelshein 2018); the slices'
// states (max, sum, out) are merged in the order of the warps, so that the result is the same bits run after run.
#pragma once

#include "sddmm.cuh"

namespace dfgnn::cuda {

struct ForwardPlan {
  int rows_per_block;
  int heads_per_block;  // blockIdx.y takes the others

  static constexpr int kThreads = 128;
  static constexpr int kWarps = kThreads / kWarp;
  static constexpr int kTile = 512;  // edges of a tile
  static constexpr int kMaxRows = 32;
  static constexpr int kLongRow = 96;  // edges from which on a row has the block to itself
};

// Edges in shared memory, a tile's or a warp's part of it.
template <class A>
struct Tile {
  A* score;       // dot product, then logit, then exponential
  int* source;    // kNoNode where out of range
  int64_t first;  // CSR position of entry 0
};

// Logits of entries [begin, end) of the tile, which are edges of row i, then in their place exp(s - max) with dropout
// applied. Takes max from `m` on and returns the sum before dropout. All lanes of a warp.
template <Score score, class T, class A>
__device__ __forceinline__ A warp_softmax(const Typed<T>& a, const Tile<A>& tile, int begin, int end, int i, int h,
                                          const Dropout<A>& dropout, A& m) {
  const int lane = threadIdx.x % kWarp;
  for (int t = begin + lane; t < end; t += kWarp) {
    const A dot = score == Score::additive ? A(0) : tile.score[t];
    const A s = logit<score>(a, dot, i, tile.source[t], tile.first + t, h).value;
    tile.score[t] = s;
    m = max(m, s);
  }
  m = warp_max(m);
  A sum = A(0);
  for (int t = begin + lane; t < end; t += kWarp) {
    const A p = exp_difference(tile.score[t], m);
    sum += p;
    tile.score[t] = p * dropout.factor(tile.first + t, h);
  }
  __syncwarp();
  return lanes_sum<kWarp>(sum);
}

// out += sum over entries [begin, end) of score * value row, features from `feature` on. W is the wide shape.
template <class W>
__device__ __forceinline__ void warp_spmm(const Typed<typename W::T>& a, const Tile<typename W::A>& tile, int begin,
                                          int end, int h, int feature, Fragment<W>& out) {
  using A = typename W::A;
  constexpr int kUnroll = W::kSteps >= 2 ? 2 : 4;
  const int lane = threadIdx.x % W::kLanes, group = threadIdx.x % kWarp / W::kLanes;
  const RowReader<W> value_row(a, a.value, h, lane, feature);
  for (int base = begin + group; base < end; base += kUnroll * W::kGroups) {
    Packed<W> rows[kUnroll];
    A weights[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {  // past the end, the last again, then nothing: all loads are in flight at once
      const int t = min(base + u * W::kGroups, end - 1);
      rows[u] = value_row(max(tile.source[t], 0));
      weights[u] = tile.score[t];
      if (base + u * W::kGroups >= end) {
        rows[u] = {};
        weights[u] = A(0);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) out.add(weights[u], rows[u]);
  }
}

template <Score score, class S>
__global__ void __launch_bounds__(ForwardPlan::kThreads, sizeof(typename S::A) == 8    ? 1
                                                         : score == Score::additive_v2 ? 4
                                                                                       : 6)
    forward_rows_kernel(Typed<typename S::T> a, Outputs outputs, ForwardPlan plan) {
  constexpr bool kNeedsDots = score != Score::additive;
  using T = typename S::T;
  using A = typename S::A;
  using W = typename S::Wide;
  constexpr int kWarps = ForwardPlan::kWarps, kTile = ForwardPlan::kTile;
  __shared__ int64_t bounds[ForwardPlan::kMaxRows + 1];
  __shared__ A scores[kTile];
  __shared__ int sources[kTile];
  __shared__ unsigned char rows[kTile];                      // of the block, by edge of the tile
  __shared__ A states[kWarps][2];                            // a slice's max and sum,
  __shared__ __align__(16) A partial[kWarps][W::kFeatures];  // and its out

  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_row = blockIdx.x * plan.rows_per_block;
  const int num_rows = min(plan.rows_per_block, static_cast<int>(a.num_dst) - first_row);
  const int first_head = blockIdx.y * plan.heads_per_block;
  const int last_head = min(first_head + plan.heads_per_block, a.heads);
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

  const auto is_long = [&](int r) { return bounds[r + 1] - bounds[r] > ForwardPlan::kLongRow; };
  const auto store_lse = [&](int r, int h, A m, A sum) {
    static_cast<A*>(outputs.lse)[a.scalar(first_row + r, h)] = m + log(sum);
  };

  for (int r = 0; r < num_rows;) {
    if (is_long(r)) {
      ++r;
      continue;
    }
    int last = r + 1;
    while (last < num_rows && !is_long(last) && bounds[last + 1] - bounds[r] <= kTile) ++last;
    const Tile<A> tile{scores, sources, bounds[r]};
    const int edges = static_cast<int>(bounds[last] - tile.first);
    for (int t = threadIdx.x; t < edges; t += blockDim.x) sources[t] = checked_node(a.col[tile.first + t], a.num_src);
    if constexpr (kNeedsDots) {
      for (int row = r + warp; row < last; row += kWarps) {
        const int end = static_cast<int>(bounds[row + 1] - tile.first);
        for (int t = static_cast<int>(bounds[row] - tile.first) + lane; t < end; t += kWarp) rows[t] = row;
      }
    }
    __syncthreads();

    for (int h = first_head; h < last_head; ++h) {
      if constexpr (kNeedsDots) {
        const int slice = (edges + kWarps - 1) / kWarps;
        warp_dots<S, score>(
            a, a.dst, a.src, h, min(warp * slice, edges), min((warp + 1) * slice, edges),
            [&](int t) { return first_row + rows[t]; }, [&](int t) { return sources[t]; },
            [&](int t, A dot) { scores[t] = dot; });
        __syncthreads();
      }
      for (int row = r + warp; row < last; row += kWarps) {
        const int begin = static_cast<int>(bounds[row] - tile.first);
        const int end = static_cast<int>(bounds[row + 1] - tile.first);
        A m = -INFINITY;
        const A sum = warp_softmax<score>(a, tile, begin, end, first_row + row, h, dropout, m);
        if (lane == 0) store_lse(row, h, m, sum);
        const A scale = sum == A(0) ? A(0) : A(1) / sum;
        for (int f = 0; f < (W::kLoop ? a.head_dim : 1); f += W::kFeatures) {
          Fragment<W> out;
          out.zero();
          warp_spmm(a, tile, begin, end, h, f, out);
          const GroupSum<W> total(out);
          if (total.writes) {
            out.template store<GroupSum<W>::kCount>(a.features(outputs.out, first_row + row, h) + f, lane % W::kLanes,
                                                    a.head_dim - f, total.first, scale);
          }
        }
      }
      __syncthreads();
    }
    r = last;
  }

  constexpr int kSliceTile = kTile / kWarps;
  for (int r = 0; r < num_rows; ++r) {
    if (!is_long(r)) continue;
    const int64_t count = bounds[r + 1] - bounds[r], slice = (count + kWarps - 1) / kWarps;
    const int64_t begin = bounds[r] + min(warp * slice, count), end = bounds[r] + min((warp + 1) * slice, count);
    Tile<A> tile{scores + warp * kSliceTile, sources + warp * kSliceTile, 0};
    for (int h = first_head; h < last_head; ++h) {
      for (int f = 0; f < (W::kLoop ? a.head_dim : 1); f += W::kFeatures) {
        Fragment<W> out;
        out.zero();
        A m = -INFINITY, sum = A(0);
        for (tile.first = begin; tile.first < end; tile.first += kSliceTile) {
          const int edges = static_cast<int>(min(static_cast<int64_t>(kSliceTile), end - tile.first));
          for (int t = lane; t < edges; t += kWarp) {
            tile.source[t] = checked_node(a.col[tile.first + t], a.num_src);
          }
          __syncwarp();
          if constexpr (kNeedsDots) {
            warp_dots<S, score>(
                a, a.dst, a.src, h, 0, edges, [&](int) { return first_row + r; }, [&](int t) { return tile.source[t]; },
                [&](int t, A dot) { tile.score[t] = dot; });
            __syncwarp();
          }
          const A before = m;
          const A tile_sum = warp_softmax<score>(a, tile, 0, edges, first_row + r, h, dropout, m);
          const A fade = exp_difference(before, m);
          sum = sum * fade + tile_sum;
#pragma unroll
          for (int i = 0; i < W::kSteps * W::kVec; ++i) out.x[i] *= fade;
          warp_spmm(a, tile, 0, edges, h, f, out);
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
        for (int w = 0; w < kWarps; ++w) row_sum += exp_difference(states[w][0], row_max) * states[w][1];
        const A scale = row_sum == A(0) ? A(0) : A(1) / row_sum;
        for (int i = threadIdx.x; i < min(W::kFeatures, a.head_dim - f); i += blockDim.x) {
          A x = A(0);
          for (int w = 0; w < kWarps; ++w) x += exp_difference(states[w][0], row_max) * partial[w][i];
          a.features(outputs.out, first_row + r, h)[f + i] = from_accumulate<T>(x * scale);
        }
        if (threadIdx.x == 0 && f == 0) store_lse(r, h, row_max, row_sum);
        __syncthreads();
      }
    }
  }
}

// Rows a block takes: most of a tile's edges, but enough blocks to fill the device, with the heads' help where needed.
inline ForwardPlan plan_forward(const Attention& a) {
  constexpr int64_t kEdges = ForwardPlan::kTile * 3 / 4, kBlocks = 1024;
  int rows = ForwardPlan::kMaxRows;
  while (rows > 1 && (rows * a.num_edges > kEdges * a.num_dst || a.num_dst < kBlocks * rows)) rows /= 2;
  const bool few_blocks = a.num_dst < kBlocks * rows;
  return {rows, few_blocks ? 1 : a.heads};
}

template <Score score, class S>
cudaError_t launch_forward_rows(const Attention& a, const Outputs& outputs, cudaStream_t stream) {
  if (a.num_dst == 0) return cudaSuccess;
  const ForwardPlan plan = plan_forward(a);
  const dim3 grid(static_cast<unsigned>((a.num_dst + plan.rows_per_block - 1) / plan.rows_per_block),
                  static_cast<unsigned>((a.heads + plan.heads_per_block - 1) / plan.heads_per_block));
  forward_rows_kernel<score, S><<<grid, ForwardPlan::kThreads, 0, stream>>>(Typed<typename S::T>{a}, outputs, plan);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda
