// GATv2's scores of edges that have features on tensor cores, of eight edges of a warp at a time: z is a matrix
// [channels, edges], of which lane 4 g + q has, of edges 2 q and 2 q + 1, what lane g of eight has of a row. W f is
// added by products with eight features at a time, in TF32 with low parts (tf32.cuh), which 16-bit numbers do not
// have. All that the backward pass needs of z is where it is positive, a bit for each number.
#pragma once

#include "edges.cuh"
#include "mma.cuh"
#include "shapes.cuh"
#include "shared_sums.cuh"
#include "tf32.cuh"
#include "v2_terms.cuh"

namespace dfgnn::cuda {

constexpr int kV2Octet = 8;  // edges, and features of a product

// S: the shape of a row of all heads, by eight lanes, which is that of no more channels.
template <class S>
class V2Octet {
 public:
  static_assert(S::kLanes == 8 && S::kVec % 4 == 0);
  using T = typename S::T;
  static constexpr int kSlots = S::kSteps * S::kVec, kTiles = kSlots / 2;  // channels of a lane, and products of 16
  static constexpr bool kSplit = sizeof(T) == 4;                           // W and features have low parts
  // Where z of a lane's channels is positive. Signs are [edges, 8]: of an edge, a word of each lane of eight.
  using Signs = std::conditional_t<(S::kFeatures > 64), uint16_t, uint8_t>;
  static_assert(kSlots <= 8 * static_cast<int>(sizeof(Signs)));

  // W [channels, features] as a factor, of eight features after another: its numbers and their low parts.
  using Factor = uint4[kTiles][kSplit ? 2 : 1][kWarp];
  __device__ __forceinline__ static int chunks(const V2Terms<S>& terms) {
    return (terms.edge_dim + kV2Octet - 1) / kV2Octet;
  }
  // By all threads of a block; for others to see behind a barrier.
  __device__ __forceinline__ static void put(Factor* to, const V2Terms<S>& terms) {
    for (int i = threadIdx.x; i < chunks(terms) * kTiles * kWarp; i += blockDim.x) {
      const int lane = i % kWarp, tile = i / kWarp % kTiles, chunk = i / kWarp / kTiles;
      uint32_t x[4];
#pragma unroll
      for (int n = 0; n < 4; ++n) {
        x[n] = weight(terms, chunk * kV2Octet + lane % 4 * 2 + n / 2, channel(2 * tile + n % 2, lane / 4));
      }
      to[chunk][tile][0][lane] = {x[0], x[1], x[2], x[3]};
      if constexpr (kSplit) {
        to[chunk][tile][1][lane] = {low_part(x[0]), low_part(x[1]), low_part(x[2]), low_part(x[3])};
      }
    }
  }
  // W's number of a feature and a channel; 0 where there is none.
  __device__ __forceinline__ static uint32_t weight(const V2Terms<S>& terms, int f, int channel) {
    return f < terms.edge_dim ? static_cast<const uint32_t*>(terms.weight)[f * S::kFeatures + channel] : 0;
  }
  // The channel of a slot of lanes 4 g to 4 g + 3.
  __device__ __forceinline__ static int channel(int slot, int g) {
    return (slot / S::kVec * S::kLanes + g) * S::kVec + slot % S::kVec;
  }

  // Where the sign of a channel is: whose word, and its place there.
  __device__ __forceinline__ static int group_of(int channel) { return channel / S::kVec % S::kLanes; }
  __device__ __forceinline__ static int slot_of(int channel) {
    return channel / S::kVec / S::kLanes * S::kVec + channel % S::kVec;
  }

  // Number f of the features at `offset`; 0 where there is none.
  __device__ __forceinline__ static float feature(const V2Terms<S>& terms, int64_t offset, int f) {
    if (offset < 0 || f >= terms.edge_dim) return 0;
    return to_accumulate(static_cast<const T*>(terms.features)[offset + f]);
  }

  float z[kTiles][4];

  __device__ __forceinline__ float& at(int slot, int u) { return z[slot / 2][slot % 2 * 2 + u]; }

  // Sets z of the lane's edge u to the sum of two rows.
  __device__ __forceinline__ void set(int u, const Packed<S>& x, const Packed<S>& y) {
#pragma unroll
    for (int k = 0; k < kSlots; ++k) at(k, u) = x[k] + y[k];
  }

  __device__ __forceinline__ Signs signs(int u) {
    unsigned bits = 0;
#pragma unroll
    for (int k = 0; k < kSlots; ++k) bits |= at(k, u) > 0 ? 1u << k : 0u;
    return static_cast<Signs>(bits);
  }

  // The lane's share of row i of x, with zeros behind heads.
  __device__ __forceinline__ static Packed<S> row(const V2Terms<S>& terms, const void* x, int i) {
    Packed<S> packed;
    packed.load(terms.node(x, i), lane_group(), terms.heads * terms.channels);
    return packed;
  }

  // Adds W f, with the features of edge g at `offset`, if that is not negative.
  __device__ __forceinline__ void add_features(const V2Terms<S>& terms, const Factor* factor, int64_t offset) {
    const int count = chunks(terms);
    uint32_t next[2];
    load_pair(next, terms, offset, 2 * lane_in_group());
#pragma unroll 1
    for (int c = 0; c < count; ++c) {
      const uint32_t f[2] = {next[0], next[1]};
      load_pair(next, terms, offset, (c + 1) * kV2Octet + 2 * lane_in_group());
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        uint32_t numbers[4];
        words_of(numbers, factor[c][t][0][threadIdx.x % kWarp]);
        if constexpr (kSplit) {
          uint32_t low[4];
          words_of(low, factor[c][t][1][threadIdx.x % kWarp]);
          mma_tf32(z[t], low, f[0], f[1]);
          mma_tf32(z[t], numbers, low_part(f[0]), low_part(f[1]));
        }
        mma_tf32(z[t], numbers, f[0], f[1]);
      }
    }
  }

 private:
  __device__ __forceinline__ static void words_of(uint32_t (&words)[4], const uint4& x) {
    words[0] = x.x, words[1] = x.y, words[2] = x.z, words[3] = x.w;
  }

  // Numbers f and f + 1 of the features at `offset`; 0 where there are none.
  __device__ __forceinline__ static void load_pair(uint32_t (&pair)[2], const V2Terms<S>& terms, int64_t offset,
                                                   int f) {
    if (terms.edge_dim % 2 == 0) {
      Packed<Shape<T, 2, 1, 1>> both{};
      if (offset >= 0 && f < terms.edge_dim) both.load(static_cast<const T*>(terms.features) + offset + f, 0, 2);
#pragma unroll
      for (int x = 0; x < 2; ++x) pair[x] = __float_as_uint(both[x]);
    } else {
#pragma unroll
      for (int x = 0; x < 2; ++x) pair[x] = __float_as_uint(feature(terms, offset, f + x));
    }
  }
};

// Shared memory of a block: the factor.
template <class S>
int v2_factor_bytes(int edge_dim) {
  return (edge_dim + kV2Octet - 1) / kV2Octet * static_cast<int>(sizeof(typename V2Octet<S>::Factor));
}

// Calls launch.operator()<S>() with the shape of a row by eight lanes.
template <class Launch>
cudaError_t for_octets(const V2Logits& task, const Launch& launch) {
  return for_type(task.type, [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      constexpr int kVec = 16 / sizeof(T);
      switch (task.width / (8 * kVec)) {
        case 1:
          return launch.template operator()<Shape<T, kVec, 8, 1>>();
        case 2:
          return launch.template operator()<Shape<T, kVec, 8, 2>>();
        default:
          if constexpr (kVec == 4) return launch.template operator()<Shape<T, kVec, 8, 4>>();
      }
    }
    return cudaErrorNotSupported;
  });
}

// Calls with.operator()<lanes>() with the lanes of eight that have numbers of a head.
template <class With>
__device__ __forceinline__ void for_lanes_of_head(int lanes, const With& with) {
  if (lanes == 1) {
    with.template operator()<1>();
  } else if (lanes == 2) {
    with.template operator()<2>();
  } else if (lanes == 4) {
    with.template operator()<4>();
  } else {
    with.template operator()<8>();
  }
}

// logits and signs: which of them there are.
template <class S>
__global__ void __launch_bounds__(EdgePlan::kThreads, blocks_here(3))
    v2_octet_logits_kernel(V2Terms<S> terms, float* logits, typename V2Octet<S>::Signs* signs, EdgePlan plan) {
  using Octet = V2Octet<S>;
  extern __shared__ uint4 memory[];
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  auto* const factor = reinterpret_cast<typename Octet::Factor*>(memory);
  const int g = lane_group(), q = lane_in_group();
  const auto slope = static_cast<float>(terms.negative_slope);
  Octet::put(factor, terms);
  if (logits) clear_no_edges(terms, logits, terms.stride);
  __syncthreads();
  for_edge_batches(terms, plan, batch, [&](int64_t first, int count) {
    const int64_t lane_offset = terms.offset_of_features(first + min(static_cast<int>(threadIdx.x) % kWarp, count - 1));
    for (int base = 0; base < count; base += kV2Octet) {
      Octet octet;
      int at[2];
      bool is_known[2];
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        at[u] = min(base + 2 * q + u, count - 1);  // past the end, the last again
        const int node = batch.source[at[u]];
        const int64_t offset = __shfl_sync(kAllLanes, lane_offset, at[u]);
        is_known[u] = node != kNoNode && offset >= 0;
        octet.set(u, Octet::row(terms, terms.x_dst, batch.row[at[u]]), Octet::row(terms, terms.x_src, max(node, 0)));
      }
      octet.add_features(terms, factor, __shfl_sync(kAllLanes, lane_offset, min(base + g, count - 1)));
      if (signs) {
#pragma unroll
        for (int u = 0; u < 2; ++u) signs[(first + at[u]) * kV2Octet + g] = octet.signs(u);
      }
      if (!logits) continue;
      // att's numbers are loaded for each octet: with registers for them, a multiprocessor has room for fewer warps.
      const float* att = static_cast<const float*>(terms.att) + g * S::kVec;
      asm volatile("" : "+l"(att));
      float dots[2 * S::kSteps];
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
        float of_step[S::kVec];
        load_numbers(of_step, att + s * S::kLanes * S::kVec);
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          float dot = 0;
#pragma unroll
          for (int i = 0; i < S::kVec; ++i) {
            const float z = octet.at(s * S::kVec + i, u);
            dot += of_step[i] * max(z, slope * z);
          }
          dots[2 * s + u] = dot;
        }
      }
      // A head of more than eight lanes is of several steps: its first one's numbers are for all.
      const int log_steps = max(__ffs(terms.lanes / S::kLanes), 1) - 1;
#pragma unroll
      for (int apart = 1; apart < S::kSteps; apart *= 2) {
        if (apart >= 1 << log_steps) break;
#pragma unroll
        for (int s = 0; s < S::kSteps; s += 2 * apart) {
          dots[2 * s] += dots[2 * (s + apart)];
          dots[2 * s + 1] += dots[2 * (s + apart) + 1];
        }
      }
      for_lanes_of_head(terms.lanes, [&]<int kLanes>() {
        constexpr int kHeld = shared_sums(2 * kLanes, 4, 2 * S::kSteps);
        const int number = share_sums<2 * kLanes, 4>(dots);
#pragma unroll
        for (int n = 0; n < kHeld; ++n) {
          const int s = (number + n) / 2;
          const bool u = (kHeld > 1 ? n : number) % 2;
          if (number < 0 || base + 2 * q + u >= count || (s & ((1 << log_steps) - 1))) continue;
          const int head = kLanes < 8 ? (s * S::kLanes + g) / kLanes : s >> log_steps;
          if (head >= terms.heads) continue;
          logits[(first + (u ? at[1] : at[0])) * terms.stride + head] = (u ? is_known[1] : is_known[0]) ? dots[n] : NAN;
        }
      });
    }
  });
}

}  // namespace dfgnn::cuda
