// The gradients of GATv2's scores of edges that have features on tensor cores, by rows of either compressed form.
// With d = ds leaky_relu'(z), of which z's gradient is att times, and which takes the sign of z alone (v2_octets.cuh),
// d of eight edges is, as it lies in the lanes, a factor of W's gradient, whose sums over edges stay in registers; as a
// matrix in shared memory it is one of the features' gradients, and summed up over rows, of which an octet may have
// several. As leaky_relu(z) is leaky_relu'(z) z, and z a sum, att's gradient is made of sums of d: those of a node
// times its row of x, and those times features times W.
#pragma once

#include "row_pass.cuh"
#include "v2_octets.cuh"

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

// The sum of d over a row's edges: in the lanes as octets have it, or, with kSeveral, of octets that may have several
// rows' edges, by way of the matrix. In the end a lane has kEach neighbouring channels, for store(row, channel, x).
template <class S, bool kSeveral>
struct V2RowSum {
  using Octet = V2Octet<S>;
  static constexpr int kEach = S::kFeatures / kWarp;
  int row;
  float x[kSeveral ? kEach : Octet::kSlots] = {};

  // A number of the lane's edge.
  __device__ __forceinline__ void add(int slot, float d) {
    if constexpr (!kSeveral) x[slot] += d;
  }
  // Those of the octet's edges, whose rows ascend, and shares of att's gradient with the rows' own numbers.
  template <class Own, class Store>
  __device__ __forceinline__ void add(const V2Matrix<S>& matrix, const int* rows, float (&of_att)[kEach],
                                      const Own& own_of, const Store& store) {
    int of_edges[kV2Octet];
    load_numbers(of_edges, rows);
    float d[kV2Octet][kEach];
#pragma unroll
    for (int e = 0; e < kV2Octet; ++e) load_numbers(d[e], &matrix.d[e][first_channel()]);
    if (of_edges[kV2Octet - 1] == row) {
      const auto own = own_of(row);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        float total = d[0][i];
#pragma unroll
        for (int e = 1; e < kV2Octet; ++e) total += d[e][i];
        x[i] += total;
        add_share(of_att[i], total, own[i]);
      }
      return;
    }
    decltype(own_of(row)) own[kV2Octet];
#pragma unroll
    for (int e = 0; e < kV2Octet; ++e) own[e] = own_of(of_edges[e]);
#pragma unroll
    for (int e = 0; e < kV2Octet; ++e) {
      go_to(of_edges[e], store);
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        x[i] += d[e][i];
        add_share(of_att[i], d[e][i], own[e][i]);
      }
    }
  }

  // Where nothing came back to a node it has no share, even if it is infinite.
  __device__ __forceinline__ static void add_share(float& of_att, float d, float own) {
    if (d != 0) of_att += d * own;
  }

  // Of the lane's channels in the end.
  __device__ __forceinline__ static int first_channel() {
    if constexpr (kSeveral) return threadIdx.x % kWarp * kEach;
    return Octet::channel(lane_in_group() * (Octet::kSlots / 4), lane_group());
  }

  // Stores what is left of rows up to this one.
  template <class Own, class Store>
  __device__ __forceinline__ void end(int last_row, float (&of_att)[kEach], const Own& own_of, const Store& store) {
    if constexpr (kSeveral) {
      go_to(last_row, store);
    } else {
      const auto own = own_of(row);
      share_sums<2, 1>(x);
      static_assert(shared_sums(2, 1, Octet::kSlots) == kEach);
#pragma unroll
      for (int i = 0; i < kEach; ++i) add_share(of_att[i], x[i], own[i]);
      store(row, first_channel(), x);
    }
  }

 private:
  template <class Store>
  __device__ __forceinline__ void go_to(int next, const Store& store) {
#pragma unroll 1
    for (; row < next; ++row) {
      store(row, first_channel(), x);
#pragma unroll
      for (float& y : x) y = 0;
    }
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

// Warps of a block, which stays until there are no rows.
struct V2Octets {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarp;
  // Of a multiprocessor; chunks: eights of features of which a block by destination adds up W's gradients.
  static constexpr int blocks(int width, bool by_destination, int chunks, bool takes_several) {
    return (by_destination ? 4 - chunks : takes_several ? 4 : 5) + (width < 128 ? 1 : 0);
  }
};

// Shared memory of a block.
template <class S, bool by_destination, int kChunks, bool kSeveral>
constexpr int v2_gradients_bytes() {
  constexpr size_t kOfFeatures = by_destination ? sizeof(V2FeaturesFactor<S, kChunks>) : 0;
  constexpr size_t kMatrices = by_destination || kSeveral ? V2Octets::kWarps * sizeof(V2Matrix<S>) : 0;
  return static_cast<int>(kOfFeatures + kMatrices);
}

// The gradients of the nodes that rows are of, a share of att's, and, by destination, those of W and features, of
// 8 kChunks features a block (y). kSeveral: rows are so short that a warp takes all of a unit's at once, eight of their
// edges at a time.
template <class S, bool by_destination, int kChunks, bool kSeveral>
__global__ void __launch_bounds__(V2Octets::kThreads, blocks_here(V2Octets::blocks(S::kFeatures, by_destination, kChunks, kSeveral)))
    v2_octet_gradients_kernel(V2Terms<S> terms, V2Gradients g, RowUnits units, float* partial, float* slots) {
  using T = typename S::T;
  using Octet = V2Octet<S>;
  using FeaturesFactor = V2FeaturesFactor<S, kChunks>;
  using RowSum = V2RowSum<S, kSeveral>;
  using Batches = V2Batches<S, by_destination>;
  constexpr int kSlots = Octet::kSlots;
  extern __shared__ uint4 memory[];
  __shared__ typename Batches::Storage batches[V2Octets::kWarps];
  __shared__ alignas(16) int rows_of_warps[kSeveral ? V2Octets::kWarps : 1][kWarp];
  __shared__ float att_sums[V2Octets::kWarps][S::kFeatures];
  const int warp = threadIdx.x / kWarp, group = lane_group(), q = lane_in_group();
  auto& batch = batches[warp];
  auto& rows = rows_of_warps[kSeveral ? warp : 0];
  auto* const of_features = reinterpret_cast<FeaturesFactor*>(memory);
  auto* const matrices = reinterpret_cast<V2Matrix<S>*>(of_features + (by_destination ? 1 : 0));
  const int first_feature = blockIdx.y * kChunks * kV2Octet;
  const bool sums_rows = !by_destination || blockIdx.y == 0;  // the first block of several
  const Index ptr = by_destination ? terms.rowptr : terms.colptr;
  const int64_t num_rows = by_destination ? terms.num_dst : terms.num_src;
  const void* const own_x = by_destination ? terms.x_dst : terms.x_src;
  const auto* const signs = static_cast<const typename Octet::Signs*>(g.signs);
  const auto* const att = static_cast<const float*>(terms.att);
  const auto slope = static_cast<float>(terms.negative_slope);
  int heads[S::kSteps];
  bool is_head[S::kSteps];  // with zeros behind heads
#pragma unroll
  for (int s = 0; s < S::kSteps; ++s) {
    heads[s] = Octet::channel(s * S::kVec, group) / terms.channels;
    is_head[s] = heads[s] < terms.heads;
  }
  float of_att[RowSum::kEach] = {}, of_weights[kChunks][Octet::kTiles][4] = {};
  if constexpr (by_destination) of_features->put(terms, first_feature);
  __syncthreads();

  const auto own_of = [&](int r) {
    Packed<Shape<T, RowSum::kEach, 1, 1>> own;
    own.load(static_cast<const T*>(own_x) + int64_t{r} * S::kFeatures + RowSum::first_channel(), 0, RowSum::kEach);
    return own;
  };
  // Of the entries of rows [first_row, last_row): of a piece of one, if there is a slot.
  const auto take = [&](int first_row, int last_row, const Range& entries, int64_t slot) {
    const auto store = [&](int r, int k, const auto& sum) {
      Fragment<Shape<T, RowSum::kEach, 1, 1>> result;
#pragma unroll
      for (int i = 0; i < RowSum::kEach; ++i) result.x[i] = sum[i] * __ldg(att + k + i);
      if (slot == kWhole) {
        T* const x = static_cast<T*>(by_destination ? g.x_dst : g.x_src) + int64_t{r} * S::kFeatures;
        result.template store<1>(x + k, 0, RowSum::kEach, 0);
      } else {
#pragma unroll
        for (int i = 0; i < RowSum::kEach; ++i) slots[slot * S::kFeatures + k + i] = result.x[i];
      }
    };
    RowSum sum{first_row};
    Batches ahead(terms, entries, batch);
    int64_t row = first_row;
    for (int64_t first = entries.begin; first < entries.end; first += kWarp) {
      const int count = static_cast<int>(min(int64_t{kWarp}, entries.end - first)), lane = threadIdx.x % kWarp;
      ahead.take(first);
      if constexpr (kSeveral) {
        if (last_row - first_row > 1) row = find_row_from(ptr, last_row, row, min(first + lane, entries.end - 1));
        rows[lane] = static_cast<int>(row);
        __syncwarp();
      }
      // Of edges 2 q and 2 q + 1 of an octet: the lane's signs, gradients of its heads, and its features. On their way
      // while the octet before is worked on.
      struct {
        unsigned positive[2];
        float ds[2][S::kSteps];
        uint32_t f[kChunks][2];
      } next;
      const auto load = [&](int base) {
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          const int t = base + 2 * q + u;
          const int64_t offset = batch.offsets[t], edge = batch.edges[t];
          const float* const grads = static_cast<const float*>(g.grad) + edge * terms.stride;
          next.positive[u] = __ldg(signs + edge * kV2Octet + group);
#pragma unroll
          for (int s = 0; s < S::kSteps; ++s) {
            next.ds[u][s] = 0;
            if (offset >= 0 && is_head[s]) next.ds[u][s] = __ldg(grads + heads[s]);
          }
#pragma unroll
          for (int c = 0; c < kChunks; ++c) {
            if constexpr (by_destination) {
              next.f[c][u] =
                  __float_as_uint(Octet::feature(terms, offset, first_feature + c * kV2Octet + group));
            }
          }
        }
      };
      load(0);
#pragma unroll 1
      for (int base = 0; base < count; base += kV2Octet) {
        const auto now = next;
        if (base + kV2Octet < count) load(base + kV2Octet);
        Octet octet;  // d
#pragma unroll
        for (int u = 0; u < 2; ++u) {
#pragma unroll
          for (int s = 0; s < S::kSteps; ++s) {
            const float ds = now.ds[u][s], less = slope * ds;
#pragma unroll
            for (int i = s * S::kVec; i < (s + 1) * S::kVec; ++i) {
              octet.at(i, u) = now.positive[u] >> i & 1 ? ds : less;
              sum.add(i, octet.at(i, u));
            }
          }
        }
        if ((kSeveral && sums_rows) || (by_destination && g.features)) matrices[warp].put(octet);
        if constexpr (by_destination) {
          if (terms.edge_dim > 0) {
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
                mma_tf32(products, d_low, now.f[c][0], now.f[c][1]);
                if constexpr (Octet::kSplit) mma_tf32(products, d, low_part(now.f[c][0]), low_part(now.f[c][1]));
                mma_tf32(products, d, now.f[c][0], now.f[c][1]);
                // Added here, as tensor cores cut off what is below a sum's last bit, whose errors would add up.
#pragma unroll
                for (int x = 0; x < 4; ++x) of_weights[c][t][x] += products[x];
              }
            }
            if (g.features) {
              float sums[kChunks][2];
              of_features->multiply(sums, matrices[warp]);
#pragma unroll
              for (int c = 0; c < kChunks; ++c) {
                const int number = first_feature + c * kV2Octet + group;
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                  const int64_t offset = batch.offsets[base + 2 * q + u];
                  if (offset < 0 || number >= terms.edge_dim) continue;
                  static_cast<T*>(g.features)[offset + number] = from_accumulate<T>(sums[c][u]);
                }
              }
            }
          }
        }
        if constexpr (kSeveral) {
          if (sums_rows) sum.add(matrices[warp], rows + base, of_att, own_of, store);
        }
      }
    }
    __syncwarp();
    if (sums_rows) sum.end(last_row, of_att, own_of, store);
  };
  for (unsigned unit = blockIdx.x * V2Octets::kWarps + warp; unit < units.count; unit += gridDim.x * V2Octets::kWarps) {
    const int lane = threadIdx.x % kWarp;
    if constexpr (kSeveral) {  // at once, if they are all for the unit
      const int64_t first = (int64_t{unit} - units.segments) * units.rows_per_unit;
      const int64_t last = min(first + units.rows_per_unit, num_rows), own = first + lane;
      const bool is_there = first >= 0 && own < last;
      const bool is_whole =
          units.segments == 0 || row_range(ptr, is_there ? own : 0, terms.num_edges).size() <= units.segment;
      if (__all_sync(kAllLanes, first >= 0 && (!is_there || is_whole))) {
        const Range entries{clamp_to(ptr[first], terms.num_edges), clamp_to(ptr[last], terms.num_edges)};
        take(static_cast<int>(first), static_cast<int>(last), entries, kWhole);
        continue;
      }
    }
    for_unit(ptr, num_rows, terms.num_edges, units, unit, lane,
             [&](int r, const Range& entries, int64_t slot) { take(r, r + 1, entries, slot); });
  }

  // Sums over warps, in their order, by a thread for each channel. Those of block x by destination are a row of
  // partial: the shares of att's gradient of all y, and W's. By source there is one share alone.
  const int first = RowSum::first_channel(), k = threadIdx.x;
#pragma unroll
  for (int i = 0; i < RowSum::kEach; ++i) att_sums[warp][first + i] = of_att[i];
  const int shares = by_destination ? gridDim.y : 1;
  float* const to = partial + int64_t{blockIdx.x} * (by_destination ? shares + terms.edge_dim : 1) * S::kFeatures + k;
  const auto over_warps = [](const auto& number_of) {
    float total = 0;
#pragma unroll
    for (int w = 0; w < V2Octets::kWarps; ++w) total += number_of(w);
    return total;
  };
  float share = 0;
  if constexpr (by_destination) {
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
        const float total = over_warps([&](int w) { return matrices[w].d[f][k]; });
        if (total != 0) share += total * __uint_as_float(Octet::weight(terms, before + f, k));
        to[(shares + before + f) * S::kFeatures] = total * att[k];
      }
    }
  }
  __syncthreads();
  if (k < S::kFeatures) to[blockIdx.y * S::kFeatures] = share + over_warps([&](int w) { return att_sums[w][k]; });
}

}  // namespace dfgnn::cuda
