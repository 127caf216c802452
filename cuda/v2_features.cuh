// The gradients of W and of features of edges, of GATv2's scores of edges by octets, from signs (v2_octets.cuh), on
// tensor cores. With d = ds leaky_relu'(z), of which z's gradient is att times, d of eight edges is, as it lies in the
// lanes, a factor of W's gradient, whose sums over edges stay in registers; as a matrix in shared memory it is one of
// the features' gradients.
#pragma once

#include "v2_staging.cuh"

namespace dfgnn::cuda {

// d of an octet, [edges, channels]: rows are in other banks.
template <class S>
struct V2Matrix {
  float d[kV2Octet][S::kFeatures + 4];

  // By a warp, all of which has read what was there.
  __device__ __forceinline__ void put(V2Octet<S>& octet) {
    const int g = lane_group(), q = lane_in_group();
    __syncwarp();
#pragma unroll
    for (int u = 0; u < 2; ++u) {
#pragma unroll
      for (int i = 0; i < V2Octet<S>::kSlots; i += 4) {
        const float4 four = {octet.at(i, u), octet.at(i + 1, u), octet.at(i + 2, u), octet.at(i + 3, u)};
        *reinterpret_cast<float4*>(&d[2 * q + u][V2Octet<S>::channel(i, g)]) = four;
      }
    }
    __syncwarp();
  }
};

// Factors of eight features each [features, channels], of which numbers are att W, so that d is what they are
// multiplied with. The factor's other eight rows are the low parts: a lane has high, low, high, low.
template <class S, int kChunks>
struct V2FeaturesFactor {
  static constexpr int kPasses = S::kFeatures / 16;
  using Octet = V2Octet<S>;
  uint4 x[2 * kPasses][kChunks][kWarp];

  // The channel that a lane's first number of the n-th four is of.
  __device__ __forceinline__ static int channel(int n, int q) { return 4 * (2 * q + n % 2 + n / 2 * 8); }

  // Of features from `first` on, by all threads of a block.
  __device__ __forceinline__ void put(const V2Terms<S>& terms, int first) {
    for (int i = threadIdx.x; i < 2 * kPasses * kChunks * kWarp; i += blockDim.x) {
      const int lane = i % kWarp, chunk = i / kWarp % kChunks, product = i / kWarp / kChunks;
      uint32_t numbers[2];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        const int k = channel(product / 2, lane % 4) + product % 2 * 2 + n;
        const float att = static_cast<const float*>(terms.att)[k];
        const uint32_t weight = Octet::weight(terms, first + chunk * kV2Octet + lane / 4, k);
        numbers[n] = __float_as_uint(att * __uint_as_float(weight));
      }
      x[product][chunk][lane] = {numbers[0], low_part(numbers[0]), numbers[1], low_part(numbers[1])};
    }
  }

  // The products with d: of edges 2 q and 2 q + 1 and feature g of each eight.
  __device__ __forceinline__ void multiply(float (&sums)[kChunks][2], const V2Matrix<S>& matrix) const {
    const int g = lane_group(), q = lane_in_group();
    float high[kChunks][2][4] = {}, low[kChunks][2][4] = {};  // side by side, as products wait for the sum before
#pragma unroll
    for (int n = 0; n < kPasses; ++n) {
      uint32_t b[4];
      load_numbers(b, reinterpret_cast<const uint32_t*>(&matrix.d[g][channel(n, q)]));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          const uint4 words = x[2 * n + half][c][threadIdx.x % kWarp];
          const uint32_t a[4] = {words.x, words.y, words.z, words.w};
          mma_tf32(low[c][half], a, low_part(b[2 * half]), low_part(b[2 * half + 1]));
          mma_tf32(high[c][half], a, b[2 * half], b[2 * half + 1]);
        }
      }
    }
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const auto total = [u](const float (&x)[2][4]) { return (x[0][2 + u] + x[1][2 + u]) + (x[0][u] + x[1][u]); };
        sums[c][u] = total(low[c]) + total(high[c]);
      }
    }
  }
};

// Warps of a block, which stays until there are no edges.
struct V2Features {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarp;
  // Of a multiprocessor; chunks: eights of features, of which a block adds up W's gradients.
  static constexpr int blocks(int width, int chunks) {
    return width == 128 ? 5 - chunks : width == 64 ? 7 - 2 * chunks : 8 - 2 * chunks;
  }
  // Shared memory of a block.
  __host__ __device__ static constexpr int factor_bytes(int width, int chunks) { return width * chunks * 64; }
  __host__ __device__ static constexpr int matrix_bytes(int width) {
    return kV2Octet * (width + 4) * static_cast<int>(sizeof(float));
  }
  static int bytes(const V2Logits& task, int chunks) {
    return factor_bytes(task.width, chunks) + kWarps * (matrix_bytes(task.width) + V2Staged::of_warp(task));
  }
};

// Of 8 kChunks features a block (y). Of each x, partial [blocks, y + features, width] gets for all y a share of att's
// gradient, W's gradient times W (v2_nodes.cuh), and W's gradients.
template <class S, int kChunks>
__global__ void __launch_bounds__(V2Features::kThreads, blocks_here(V2Features::blocks(S::kFeatures, kChunks)))
    v2_features_kernel(V2Terms<S> terms, V2Gradients g, float* partial) {
  using Octet = V2Octet<S>;
  using FeaturesFactor = V2FeaturesFactor<S, kChunks>;
  static_assert(sizeof(FeaturesFactor) == V2Features::factor_bytes(S::kFeatures, kChunks));
  static_assert(sizeof(V2Matrix<S>) == V2Features::matrix_bytes(S::kFeatures));
  constexpr int kSlots = Octet::kSlots;
  extern __shared__ uint4 memory[];
  __shared__ int64_t offsets_of_warps[V2Features::kWarps][2][kWarp];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, group = lane_group(), q = lane_in_group();
  auto& offsets_of_stages = offsets_of_warps[warp];
  auto* const of_features = reinterpret_cast<FeaturesFactor*>(memory);
  auto* const matrices = reinterpret_cast<V2Matrix<S>*>(of_features + 1);
  const int first_feature = blockIdx.y * kChunks * kV2Octet;
  const V2Staging<S> staging(terms, g, matrices + V2Features::kWarps);
  const auto slope = static_cast<float>(terms.negative_slope);
  int heads[S::kSteps];
  bool is_head[S::kSteps];  // with zeros behind heads
#pragma unroll
  for (int s = 0; s < S::kSteps; ++s) {
    heads[s] = Octet::channel(s * S::kVec, group) / terms.channels;
    is_head[s] = heads[s] < terms.heads;
  }
  float of_weights[kChunks][Octet::kTiles][4] = {};
  of_features->put(terms, first_feature);
  __syncthreads();

  // A run of edges for each warp.
  const Range all{clamp_to(terms.rowptr[0], terms.num_edges), clamp_to(terms.rowptr[terms.num_dst], terms.num_edges)};
  const int64_t warps = int64_t{gridDim.x} * V2Features::kWarps;
  const int64_t run = (all.size() + warps * kWarp - 1) / (warps * kWarp) * kWarp;
  const int64_t begin = min(all.begin + (int64_t{blockIdx.x} * V2Features::kWarps + warp) * run, all.end);
  const Range edges{begin, min(begin + run, all.end)};
  V2Entries<S, true> ahead(terms, edges);
  const auto start = [&](int stage, int64_t first) {
    const auto entry = ahead.take(first);
    offsets_of_stages[stage][lane] = entry.offset;
    staging.start(stage, entry.edge, entry.offset >= 0);
  };
  if (edges.size() > 0) start(0, edges.begin);
  int stage = 0;
#pragma unroll 1
  for (int64_t first = edges.begin; first < edges.end; first += kWarp, stage ^= 1) {
    const int count = static_cast<int>(min(int64_t{kWarp}, edges.end - first));
    if (first + kWarp < edges.end) {
      start(stage ^ 1, first + kWarp);
      staging.template wait<1>();
    } else {
      staging.template wait<0>();
    }
    const int64_t* const offsets = offsets_of_stages[stage];
    // Features of edges 2 q and 2 q + 1 of an octet, on their way while the octet before is worked on.
    uint32_t next[kChunks][2];
    const auto load = [&](int base) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const int64_t offset = offsets[base + 2 * q + u];
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          next[c][u] = __float_as_uint(Octet::feature(terms, offset, first_feature + c * kV2Octet + group));
        }
      }
    };
    load(0);
#pragma unroll 1
    for (int base = 0; base < count; base += kV2Octet) {
      uint32_t f[kChunks][2];
#pragma unroll
      for (int c = 0; c < kChunks; ++c) f[c][0] = next[c][0], f[c][1] = next[c][1];
      if (base + kV2Octet < count) load(base + kV2Octet);
      Octet octet;  // d
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        const unsigned positive = staging.signs(stage, base + 2 * q + u)[group];
#pragma unroll
        for (int s = 0; s < S::kSteps; ++s) {
          const float ds = is_head[s] ? staging.grads(stage, base + 2 * q + u)[heads[s]] : 0.0f, less = slope * ds;
#pragma unroll
          for (int i = s * S::kVec; i < (s + 1) * S::kVec; ++i) octet.at(i, u) = positive >> i & 1 ? ds : less;
        }
      }
      if (g.features) matrices[warp].put(octet);
#pragma unroll
      for (int t = 0; t < Octet::kTiles; ++t) {
        uint32_t d[4], d_low[4];
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          d[x] = __float_as_uint(octet.z[t][x / 2 + x % 2 * 2]);
          d_low[x] = low_part(d[x]);
        }
#pragma unroll
        for (int c = 0; c < kChunks; ++c) {
          float products[4] = {};
          mma_tf32(products, d_low, f[c][0], f[c][1]);
          if constexpr (Octet::kSplit) mma_tf32(products, d, low_part(f[c][0]), low_part(f[c][1]));
          mma_tf32(products, d, f[c][0], f[c][1]);
          // Added here, as tensor cores cut off what is below a sum's last bit, whose errors would add up.
#pragma unroll
          for (int x = 0; x < 4; ++x) of_weights[c][t][x] += products[x];
        }
      }
      if (!g.features) continue;
      float sums[kChunks][2];
      of_features->multiply(sums, matrices[warp]);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) {
        const int number = first_feature + c * kV2Octet + group;
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          const int64_t offset = offsets[base + 2 * q + u];
          if (offset < 0 || number >= terms.edge_dim) continue;
          terms.put_feature(g, offset + number, sums[c][u]);
        }
      }
    }
    __syncwarp();
  }

  // Sums over warps, in their order, by a thread for each channel.
  const int k = threadIdx.x, shares = gridDim.y;
  const auto* const att = static_cast<const float*>(terms.att);
  float* const to = partial + int64_t{blockIdx.x} * (shares + terms.edge_dim) * S::kFeatures + k;
  float share = 0;
#pragma unroll
  for (int c = 0; c < kChunks; ++c) {
    const int before = first_feature + c * kV2Octet;
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kSlots; ++i) {
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        matrices[warp].d[2 * q + u][Octet::channel(i, group)] = of_weights[c][i / 2][i % 2 * 2 + u];
      }
    }
    __syncthreads();
    for (int f = 0; k < S::kFeatures && f < min(kV2Octet, terms.edge_dim - before); ++f) {
      float total = 0;
#pragma unroll
      for (int w = 0; w < V2Features::kWarps; ++w) total += matrices[w].d[f][k];
      if (total != 0) share += total * __uint_as_float(Octet::weight(terms, before + f, k));
      to[(shares + before + f) * S::kFeatures] = total * att[k];
    }
  }
  if (k < S::kFeatures) to[blockIdx.y * S::kFeatures] = share;
}

}  // namespace dfgnn::cuda
