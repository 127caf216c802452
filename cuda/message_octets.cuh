// What tensor cores make of features of edges, for eight edges of a row and up to eight heads at a time: products with
// rows of heads, weighted sums, and gradients. Lane 4 g + c has of products of edges and heads those of head g and of
// edges 2 c and 2 c + 1, of sums those of heads 2 c and 2 c + 1; numbers of float32 are two in TF32 (tf32.cuh). Lanes
// have features four, a quad, at a time: those of edge g, 16 u + 4 c on, as factors of products; those of edges 2 c and
// 2 c + 1, 32 t + 4 g on, as terms of sums.
#pragma once

#include "async_copy.cuh"
#include "message_rows.cuh"
#include "mma.cuh"
#include "tf32.cuh"

namespace dfgnn::cuda {

constexpr int kOctet = 8;  // edges, and heads at the most
static_assert(kOctet == kOctetHeads && kOctetPiece == 32);

// Numbers of a warp's heads and of its octet's edges.
using OctetNumbers = float[kOctet][kOctet];

// kPieces: of 32 features, as many as an edge has at the most.
template <class T_, int kPieces>
class FeatureOctet {
 public:
  using T = T_;
  static constexpr bool kSplit = sizeof(T) == 4;  // numbers have low parts
  static constexpr int kQuads = 8 * kPieces, kTiles = 2 * kPieces;
  using Quad = Packed<Shape<T, 4, 1, 1>>;

  // Of heads, in shared memory; zeros where there is none. Quads are where neither lanes that take one as a factor of
  // products nor those that sum up rows meet in a bank.
  struct alignas(16) Rows {
    static constexpr int kPitch = kSplit || kPieces > 1 ? kQuads : 2 * kQuads;
    Quad quads[kOctet][kPitch];

    __device__ __forceinline__ Quad& at(int row, int quad) {
      return quads[row][quad ^ (kSplit ? (row >> 1 ^ (row & 1) << 1) << 1 : ((row & 3) ^ row >> 2) << 2)];
    }
    __device__ __forceinline__ const Quad& at(int row, int quad) const {
      return const_cast<Rows&>(*this).at(row, quad);
    }
  };

  // A row, of head g or of edge g, as a factor; and rows of edges 2 c and 2 c + 1 as terms of sums.
  struct Factor {
    Quad quads[2 * kPieces];
  };
  struct Terms {
    Quad quads[2][kPieces];
  };

  // Of heads 2 c and 2 c + 1: [0] and [2] are two features of the first, [1] and [3] of the second.
  using Sums = float[kTiles][4];

  __device__ __forceinline__ FeatureOctet(const MessageFeatures& edges, int heads)
      : features_(static_cast<const T*>(edges.features)), width_(edges.width), heads_(heads) {}

  __device__ __forceinline__ static int g() { return lane_group(); }
  __device__ __forceinline__ static int c() { return lane_in_group(); }

  // Begins to copy those of node i's heads, of x, T [nodes, heads, width].
  __device__ __forceinline__ void copy_heads(Rows& to, const void* x, int i) const {
    const T* const from = of_node(x, i);
#pragma unroll
    for (int n = 0; n < kOctet * kQuads; n += kWarp) {
      const int head = (n + threadIdx.x) / kQuads, quad = (n + threadIdx.x) % kQuads;
      const bool is_there = head < heads_ && 4 * quad < width_;
      copy_async<sizeof(Quad)>(shared_address(&to.at(head, quad)), is_there ? from + head * width_ + 4 * quad : from,
                               is_there);
    }
    commit_copies();
  }

  // Those of node i's head g, of which lanes of no head have zeros; of these; and of edge g, of which `rows` says where
  // it is among the features of edges.
  __device__ __forceinline__ Factor factor(const void* x, int i) const {
    return factor_of(of_node(x, i) + g() * width_, g() < heads_ ? width_ : 0);
  }
  __device__ __forceinline__ static Factor factor(const Rows& rows) {
    Factor factor;
#pragma unroll
    for (int u = 0; u < 2 * kPieces; ++u) factor.quads[u] = rows.at(g(), 4 * u + c());
    return factor;
  }
  __device__ __forceinline__ Factor factor(const int* rows) const { return factor_of(of_edge(rows[g()]), width_); }

  // Of edges behind the first `count`, which are none, zeros: their weights are 0, which an infinite number makes NaN
  // of.
  __device__ __forceinline__ Terms terms(const int* rows, int count) const {
    Terms terms;
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const T* const row = of_edge(rows[2 * c() + u]);
      const int width = 2 * c() + u < count ? width_ : 0;
#pragma unroll
      for (int t = 0; t < kPieces; ++t) {
        const int f = 32 * t + 4 * g();
        terms.quads[u][t].load(row + f, 0, width - f);
      }
    }
    return terms;
  }

  // Products of head g's row, or its two, with features of edges 2 c and 2 c + 1.
  template <int kRows>
  __device__ __forceinline__ static void dots(const Factor (&heads)[kRows], const Factor& edge, float (&x)[kRows][2]) {
    float d[4] = {}, low[2][4] = {};  // the products of low parts, which need not wait for others
#pragma unroll
    for (int u = 0; u < 2 * kPieces; ++u) {
      const Quad &f = edge.quads[u], &first = heads[0].quads[u], &second = heads[kRows - 1].quads[u];
      if constexpr (kSplit) {
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
          const uint32_t f0 = bits(f[n]), f1 = bits(f[n + 1]);
          if constexpr (kRows == 1) {  // the row and, in the place of a second one, its low part
            const uint32_t a[4] = {bits(first[n]), low_part(bits(first[n])), bits(first[n + 1]),
                                   low_part(bits(first[n + 1]))};
            mma_tf32(low[0], a, low_part(f0), low_part(f1));
            mma_tf32(d, a, f0, f1);
          } else {
            const uint32_t a[4] = {bits(first[n]), bits(second[n]), bits(first[n + 1]), bits(second[n + 1])};
            const uint32_t b[4] = {low_part(a[0]), low_part(a[1]), low_part(a[2]), low_part(a[3])};
            mma_tf32(low[0], a, low_part(f0), low_part(f1));
            mma_tf32(low[1], b, f0, f1);
            mma_tf32(d, a, f0, f1);
          }
        }
      } else {
        const uint32_t a[4] = {word(first, 0), kRows == 1 ? 0 : word(second, 0), word(first, 1),
                               kRows == 1 ? 0 : word(second, 1)};
        mma_half<T>(d, a, word(f, 0), word(f, 1));
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) d[i] += low[0][i] + low[1][i];
    if constexpr (kRows == 1) {
      x[0][0] = kSplit ? d[0] + d[2] : d[0];
      x[0][1] = kSplit ? d[1] + d[3] : d[1];
    } else {
      x[0][0] = d[0], x[0][1] = d[1], x[1][0] = d[2], x[1][1] = d[3];
    }
  }

  // Adds terms by their weights of head g to sums that are scaled first, those of head 2 c and of head 2 c + 1. An
  // octet's products begin with 0: tensor cores cut off what they add.
  template <int kSums>
  __device__ __forceinline__ static void add(Sums (&sums)[kSums], const float (&weights)[kSums][2], const Terms& terms,
                                             const float2& scale) {
#pragma unroll
    for (int t = 0; t < kPieces; ++t) {
      const Quad &x = terms.quads[0][t], &y = terms.quads[1][t];
#pragma unroll
      for (int n = 0; n < 4; n += 2) {
        const uint32_t a[4] = {bits(x[n]), bits(x[n + 1]), bits(y[n]), bits(y[n + 1])};
#pragma unroll
        for (int s = 0; s < kSums; ++s) {
          float d[4] = {};
          product(d, a, bits(weights[s][0]), bits(weights[s][1]));
          float (&sum)[4] = sums[s][2 * t + n / 2];
#pragma unroll
          for (int i = 0; i < 4; ++i) sum[i] = sum[i] * (i % 2 == 0 ? scale.x : scale.y) + d[i];
        }
      }
    }
  }

  // Stores sums as those of node i, T [nodes, heads, width], scaled; and as numbers `at` on of each head of a slot, of
  // which it has so many.
  __device__ __forceinline__ void store(const Sums& sums, void* x, int i, const float2& scale) const {
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int head = 2 * c() + u;
      if (head >= heads_) continue;
      T* const row = static_cast<T*>(x) + (static_cast<int64_t>(i) * heads_ + head) * width_;
#pragma unroll
      for (int t = 0; t < kPieces; ++t) put(sums, t, u, row, u == 0 ? scale.x : scale.y);
    }
  }
  __device__ __forceinline__ void store_piece(const Sums& sums, float* slot, int numbers, int at) const {
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      const int head = 2 * c() + u;
      if (head >= heads_) continue;
      float* const to = slot + head * numbers + at;
#pragma unroll
      for (int t = 0; t < kPieces; ++t) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          const int f = 32 * t + 4 * g() + n;
          if (f < width_) to[f] = sums[2 * t + n / 2][n % 2 * 2 + u];
        }
      }
    }
  }

  // The octet's gradients of features: sums over heads of numbers of edges times rows, for each pair of these. Stores
  // those of edges 2 c and 2 c + 1 where `to` is not null: their rows.
  template <int kRows>
  __device__ __forceinline__ void store_gradients(const OctetNumbers (&numbers)[kRows], const Rows (&rows)[kRows],
                                                  T* const (&to)[2]) const {
    uint32_t b[kRows][2];
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int n = 0; n < 2; ++n) b[r][n] = bits(numbers[r][c() + 4 * n][g()]);
    }
#pragma unroll
    for (int t = 0; t < kPieces; ++t) {
      float d[2][4] = {};
#pragma unroll
      for (int r = 0; r < kRows; ++r) {
        const Quad x = rows[r].at(c(), 8 * t + g()), y = rows[r].at(c() + 4, 8 * t + g());
#pragma unroll
        for (int n = 0; n < 4; n += 2) {
          const uint32_t a[4] = {bits(x[n]), bits(x[n + 1]), bits(y[n]), bits(y[n + 1])};
          product(d[n / 2], a, b[r][0], b[r][1]);
        }
      }
#pragma unroll
      for (int u = 0; u < 2; ++u) {
        if (!to[u]) continue;
        const float x[4] = {d[0][u], d[0][2 + u], d[1][u], d[1][2 + u]};
        put(x, to[u], t);
      }
    }
  }

 private:
  __device__ __forceinline__ static uint32_t bits(float x) { return __float_as_uint(x); }
  __device__ __forceinline__ static uint32_t word(const Quad& quad, int i) {
    return reinterpret_cast<const uint32_t*>(&quad)[i];
  }
  __device__ __forceinline__ const T* of_node(const void* x, int i) const {
    return static_cast<const T*>(x) + static_cast<int64_t>(i) * (heads_ * width_);
  }

  __device__ __forceinline__ const T* of_edge(int row) const { return row_from(features_, row, width_ * sizeof(T)); }

  __device__ __forceinline__ static Factor factor_of(const T* row, int width) {
    Factor factor;
#pragma unroll
    for (int u = 0; u < 2 * kPieces; ++u) {
      const int f = 16 * u + 4 * c();
      factor.quads[u].load(row + f, 0, width - f);
    }
    return factor;
  }

  // d += a b, of which a has low parts if T has, and b has.
  __device__ __forceinline__ static void product(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    mma_tf32(d, a, low_part(b0), low_part(b1));
    if constexpr (kSplit) {
      const uint32_t low[4] = {low_part(a[0]), low_part(a[1]), low_part(a[2]), low_part(a[3])};
      mma_tf32(d, low, b0, b1);
    }
    mma_tf32(d, a, b0, b1);
  }

  // Piece t of a row's features: these numbers; those of sums of head 2 c + u.
  __device__ __forceinline__ void put(const float (&x)[4], T* row, int t) const {
    const int f = 32 * t + 4 * g();
    Fragment<Shape<T, 4, 1, 1>> fragment;
#pragma unroll
    for (int n = 0; n < 4; ++n) fragment.x[n] = x[n];
    fragment.template store<1>(row + f, 0, width_ - f, 0);
  }
  __device__ __forceinline__ void put(const Sums& sums, int t, int u, T* row, float scale) const {
    const float x[4] = {sums[2 * t][u] * scale, sums[2 * t][2 + u] * scale, sums[2 * t + 1][u] * scale,
                        sums[2 * t + 1][2 + u] * scale};
    put(x, row, t);
  }

  const T* const features_;
  const int width_, heads_;
};

// Rows of nodes of the octet's edges, of which each group of lanes has some, as lanes have them (message_rows.cuh).
template <class S>
class NodeOctet : public MessageRows<S> {
  using Base = MessageRows<S>;
  using Base::log_lanes_, Base::lane, Base::lane_of_head;

 public:
  using Base::Base, Base::head, Base::live;
  static constexpr int kEdges = kOctet / S::kGroups;
  using Rows = Packed<S>[kEdges];

  __device__ __forceinline__ static int first_edge() { return threadIdx.x / S::kLanes * kEdges; }

  // nodes: of the octet's edges.
  __device__ __forceinline__ static void load(Rows& rows, const RowReader<S>& reader, const int* nodes) {
    int own[kEdges];
    load_numbers(own, nodes + first_edge());
#pragma unroll
    for (int u = 0; u < kEdges; ++u) rows[u] = reader(own[u]);
  }

  // Products of a node's heads with those of rows.
  __device__ __forceinline__ void put_dots(OctetNumbers& to, const Packed<S>& own, const Rows& rows) const {
    constexpr int kAtOnce = kEdges < 4 ? kEdges : 4;  // lanes of a head at the least
    const int part = (1 << log_lanes_) / kAtOnce;
#pragma unroll
    for (int first = 0; first < kEdges; first += kAtOnce) {
#pragma unroll
      for (int s = 0; s < S::kSteps; ++s) {
        float x[kAtOnce];
#pragma unroll
        for (int u = 0; u < kAtOnce; ++u) {
          x[u] = 0;
#pragma unroll
          for (int v = 0; v < S::kVec; ++v) x[u] += own[s * S::kVec + v] * rows[first + u][s * S::kVec + v];
        }
        const float sum = scattered_sum(x, lane(), 1 << log_lanes_);
        if (live[s] && (lane() & (part - 1)) == 0) to[head[s]][first_edge() + first + lane_of_head() / part] = sum;
      }
    }
  }

  // Adds rows of the first `count` edges by weights to a sum that is scaled first, by a number a head, if any.
  __device__ __forceinline__ void add(Fragment<S>& sum, const OctetNumbers& weights, const Rows& rows, int count,
                                      const float* scale = nullptr) const {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      float own[kEdges];
      load_numbers(own, weights[head[s]] + first_edge());
      if (scale) Base::scale(sum, s, scale[head[s]]);
#pragma unroll
      for (int u = 0; u < kEdges; ++u) {
        if (first_edge() + u >= count) continue;
#pragma unroll
        for (int v = 0; v < S::kVec; ++v) sum.x[s * S::kVec + v] += own[u] * rows[u][s * S::kVec + v];
      }
    }
  }
};

}  // namespace dfgnn::cuda
