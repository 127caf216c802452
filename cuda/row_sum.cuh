// Weighted sums of gathered rows by one warp: sum += weight_t * row(node_t), batches of up to 32 entries at a time; or
// two sums of the same rows with weights of their own.
//
// 16-bit rows go through tensor cores with no conversion and coalesced: a lane loads the same few features of every
// row. Of an mma D[16 x 8] = A[16 x 16] B[16 x 8], lane 4 g + t supplies rows g and g + 8 of A at four places of the
// sum that are its own; so it puts a feature of four entries there, another in row g + 8, and B, with the four weights
// at the places of t in column t and zeros elsewhere, keeps the lanes' sums apart: D[g][t] is that of lane 4 g + t.
// Columns 4 to 7 do the same with what is left of the weights after rounding them to 16 bits, so that they count to
// 2^-16 of them in bfloat16, and in float16, where fit() keeps a row's largest in range, to 2^-22 of the larger ones.
#pragma once

#include <algorithm>

#include "logit.cuh"
#include "mma.cuh"
#include "sddmm.cuh"
#include "warp_heads.cuh"

namespace dfgnn::cuda {

// Stores factor * (sum of the groups' fragments) as a row; the second, as what a piece adds to its row. Once: the
// fragments are used up.
template <class S>
__device__ __forceinline__ void store_sum(Fragment<S>& fragment, typename S::T* row, int features, typename S::A factor,
                                          int apart = S::kLanes, bool live = true) {
  const GroupSum<S> total(fragment, apart);
  constexpr int kCount = GroupSum<S>::kCount;
  if (total.writes && live)
    fragment.template store<kCount>(row, threadIdx.x % S::kLanes, features, total.first, factor);
}

template <class S>
__device__ __forceinline__ void store_sum_piece(Fragment<S>& fragment, typename S::A* piece, int features,
                                                typename S::A factor, int apart = S::kLanes, bool live = true) {
  const GroupSum<S> total(fragment, apart);
  if (!total.writes || !live) return;
#pragma unroll
  for (int i = 0; i < GroupSum<S>::kCount * S::kVec; ++i) {
    const int vector = (total.first + i / S::kVec) * S::kLanes + static_cast<int>(threadIdx.x) % S::kLanes;
    const int f = vector * S::kVec + i % S::kVec;
    if (S::kExact || f < features) piece[f] = fragment.x[i] * factor;
  }
}

// from -= factor * what.
template <class A, int kCount>
__device__ __forceinline__ void subtract_times(A (&from)[kCount], A factor, const A (&what)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) from[i] -= factor * what[i];
}

// A sum in registers of each group of lanes, of heads side by side; of one row, or, kOwnRows, of a row a group.
template <class S, bool kOwnRows>
struct HeadSum {
  Fragment<S>& sum;
  const WarpHeads<S, kOwnRows>& heads;

  __device__ __forceinline__ void store(typename S::T* row, int features, typename S::A factor) {
    if constexpr (kOwnRows) {
      if (heads.live) sum.template store<S::kSteps>(row, heads.lane, features, 0, factor);
    } else {
      store_sum(sum, row, features, factor, heads.apart(), heads.live);
    }
  }
  __device__ __forceinline__ void subtract(typename S::A factor, const HeadSum& other) {
    subtract_times(sum.x, factor, other.sum.x);
  }
  __device__ __forceinline__ void store_piece(typename S::A* piece, int features, typename S::A factor) {
    if constexpr (!kOwnRows) store_sum_piece(sum, piece, features, factor, heads.apart(), heads.live);
  }
};

// A sum in registers of a warp all of whose lanes share a row.
template <class S>
struct WarpSum {
  Fragment<S>& sum;

  __device__ __forceinline__ void store(typename S::T* row, int features, typename S::A factor) const {
    store_sum(sum, row, features, factor);
  }
  __device__ __forceinline__ void store_piece(typename S::A* piece, int features, typename S::A factor) const {
    store_sum_piece(sum, piece, features, factor);
  }
};

// Starts to load the rows of nodes that lie one after another.
template <class S, int kCount>
__device__ __forceinline__ void load_rows(Packed<S> (&rows)[kCount], const int* nodes, const RowReader<S>& row) {
  int of_rows[kCount];
  load_numbers(of_rows, nodes);
#pragma unroll
  for (int u = 0; u < kCount; ++u) rows[u] = row(of_rows[u]);
}

// What a sum has of a row: the row.
template <class S>
struct Rows {
  __device__ __forceinline__ static void add(Fragment<S>& sum, typename S::A weight, const Packed<S>& row) {
    sum.add(weight, row);
  }
  __device__ __forceinline__ static void complete(Fragment<S>&) {}
};

// Or leaky_relu'(own row + row).
template <class S>
struct RowSlopes {
  using A = typename S::A;
  Slopes<A> slopes;
  Fragment<S> own;
  A weights = A(0);

  __device__ __forceinline__ void add(Fragment<S>& sum, A weight, const Packed<S>& row) {
    slopes.add(sum, weight, own, row);
    weights += weight;
  }
  __device__ __forceinline__ void complete(Fragment<S>& sum) const { slopes.complete(sum, weights); }
};

// Adds the rows of a group's step, entries from `first` on, times their weights: those before `count`. Of whole steps
// no entry asks whether it is there.
template <class S, int kCount, class Terms>
__device__ __forceinline__ void add_step(Fragment<S>& sum, const typename S::A (&weights)[kCount],
                                         const Packed<S> (&rows)[kCount], bool is_whole, int first, int count,
                                         Terms& terms) {
  if (is_whole) {
#pragma unroll
    for (int u = 0; u < kCount; ++u) terms.add(sum, weights[u], rows[u]);
  } else {
#pragma unroll
    for (int u = 0; u < kCount; ++u) {
      if (first + u < count) terms.add(sum, weights[u], rows[u]);
    }
  }
}

// Sum of weights times rows, or what else Terms make of these, in float (or double) registers, a row spread over the
// lanes of the wide shape.
template <class S, int kCount = 1, template <class> class Terms = Rows>
class VectorSum {
 public:
  static constexpr int kSums = kCount;
  using W = typename S::Wide;
  using T = typename S::T;
  using A = typename S::A;
  using Reader = RowReader<W>;

  struct Batch {
    alignas(16) A weight[kSums][kWarp];
    alignas(16) int node[kWarp];
    __device__ __forceinline__ void put(int t, A w, int k = 0) { weight[k][t] = w; }
  };

  __device__ __forceinline__ explicit VectorSum(Batch&, const Terms<W>& terms = {}) : terms_(terms) {
#pragma unroll
    for (auto& sum : sum_) sum.zero();
  }

  // A weight of the next batch, this lane's or 0, as batches want it. All lanes come.
  __device__ __forceinline__ static A fit(A weight) { return weight; }

  __device__ __forceinline__ static int lane() { return threadIdx.x % W::kLanes; }

  // Whether this lane's part of the sum is what it should be.
  __device__ __forceinline__ static constexpr bool is_exact() { return true; }

  __device__ __forceinline__ void scale(A factor) {
#pragma unroll
    for (auto& sum : sum_) {
#pragma unroll
      for (A& x : sum.x) x *= factor;
    }
  }

  // Of two sums: takes so many of the first from the second.
  __device__ __forceinline__ void subtract_first(A factor) { subtract_times(sum_[1].x, factor, sum_[0].x); }

  // Starts to load the first rows of a batch, whose nodes are there; then add() the batch, whose weights are there too.
  // Of `count` entries, but all 32 have a node that can be read.
  __device__ __forceinline__ void load(const Batch& batch, int, const Reader& row) { load_from(batch, 0, row); }
  __device__ __forceinline__ void add(const Batch& batch, int count, const Reader& row) {
    add_from(batch, 0, count);
    for (int base = kStep; base < count; base += kStep) {
      load_from(batch, base, row);
      add_from(batch, base, count);
    }
  }

  // Of one of the sums: what this lane has of <sum, row>; or stores it, once.
  __device__ __forceinline__ A dot(const T* row, int features, int k) const {
    Packed<W> other;
    other.load(row, lane(), features);
    return sum_[k].dot(other);
  }
  __device__ __forceinline__ void store(T* row, int features, A factor, int k = 0) {
    terms_.complete(sum_[k]);
    store_sum(sum_[k], row, features, factor);
  }
  __device__ __forceinline__ void store_piece(A* piece, int features, A factor, int k = 0) {
    terms_.complete(sum_[k]);
    store_sum_piece(sum_[k], piece, features, factor);
  }

 private:
  static constexpr int kInFlight = W::kSteps >= 4 ? 2 : W::kSteps >= 2 ? 4 : 8;
  static constexpr int kUnroll = kInFlight < W::kLanes ? kInFlight : W::kLanes;  // no more entries than a batch has
  static constexpr int kStep = kUnroll * W::kGroups;

  // The group's first entry of a step.
  __device__ __forceinline__ static int entry(int base) {
    return base + static_cast<int>(threadIdx.x) % kWarp / W::kLanes * kUnroll;
  }

  __device__ __forceinline__ void load_from(const Batch& batch, int base, const Reader& row) {
    load_rows(rows_, batch.node + entry(base), row);
  }

  __device__ __forceinline__ void add_from(const Batch& batch, int base, int count) {
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
      A weights[kUnroll];
      load_numbers(weights, batch.weight[k] + entry(base));
      add_step(sum_[k], weights, rows_, base + kStep <= count, entry(base), count, terms_);
    }
  }

  Terms<W> terms_;
  Packed<W> rows_[kUnroll];
  Fragment<W> sum_[kSums];
};

// GATv2's gradient of src, without att.
template <class S>
using SlopeSum = VectorSum<S, 1, RowSlopes>;

// Whether there are so many edges that tensor cores make up for the kernel that follows, in case sums are inexact.
template <class S>
bool has_tensor_sums(const Attention& a) {
  constexpr int64_t kMany = 1 << 20;  // times heads
  return tensor_rows<S>(a.head_dim) && a.num_edges * a.heads >= kMany;
}

// The same on tensor cores, for rows of kFeatures 16-bit features, 16 entries at a time.
template <class S, int kCount = 1>
class TensorSum {
 public:
  static constexpr int kSums = kCount;
  using T = typename S::T;
  using A = float;
  using L = Shape<T, S::kFeatures / kWarp, kWarp, 1, false, true>;  // features of a lane
  using Reader = RowReader<L>;

  struct Batch {
    alignas(16) T weight[kSums][2][kWarp];  // rounded, and what is left
    alignas(16) int node[kWarp];
    T padding[kWarp / 2];       // so that zeros and both kinds of an entry's weights lie in different banks
    alignas(16) T none[kWarp];  // zeros for lanes that supply no weights

    __device__ __forceinline__ void put(int t, A w, int k = 0) {
      weight[k][0][t] = rounded(w);
      weight[k][1][t] = rounded(w - to_accumulate(rounded(w)));
    }

   private:
    // By the conversion of two numbers, which is the faster one.
    __device__ __forceinline__ static T rounded(A w) {
      const uint32_t word = pack<T>(w, 0);
      return reinterpret_cast<const T&>(word);
    }
  };

  __device__ __forceinline__ explicit TensorSum(Batch& batch) {
    __syncwarp();  // the row before may still be read
    batch.none[lane()] = from_accumulate<T>(0);
  }

  __device__ __forceinline__ static int lane() { return threadIdx.x % kWarp; }

  // float16 has numbers from 6e-8 to 65504: weights are multiplied by a power of two that brings the largest of those
  // so far near 2^12; where it has to change, the sums change with it. (Of two sums, the second's weights are no
  // larger.)
  __device__ __forceinline__ A fit(A weight) {
    if constexpr (std::is_same_v<T, __half>) {
      const float largest = warp_max(fabsf(weight));
      if (largest > 0 && largest < INFINITY && (scale_ == 0 || largest * scale_ > 0x1p15f)) {
        const float before = scale_;
        scale_ = exp2f(fminf(12 - ilogbf(largest), 120));
        if (before != 0) scale(scale_ / before);
      }
      return weight * scale_;
    }
    return weight;
  }

  // False where a number is not finite: what a lane's own rows have of these has made NaNs of its neighbours' sums too.
  // (Of two sums in both, as their rows are the same.)
  __device__ __forceinline__ bool is_exact() const {
    bool finite = true;
#pragma unroll
    for (const auto& tile : sum_[0]) {
#pragma unroll
      for (const float x : tile) finite &= isfinite(x);
    }
    return finite;
  }

  __device__ __forceinline__ void scale(A factor) {
#pragma unroll
    for (auto& sum : sum_) {
#pragma unroll
      for (auto& tile : sum) {
#pragma unroll
        for (float& x : tile) x *= factor;
      }
    }
  }

  __device__ __forceinline__ void subtract_first(A factor) {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) subtract_times(sum_[1][i], factor, sum_[0][i]);
  }

  // Weights past `count` are 0.
  __device__ __forceinline__ void load(const Batch& batch, int count, const Reader& row) {
    load_from(batch.node, count, row);
  }
  __device__ __forceinline__ void add(const Batch& batch, int count, const Reader& row) {
    const Weights weights = supplied(batch);
    add_from(weights, 0, count);
    if (count <= kStep) return;
    load_from(batch.node + kStep, count - kStep, row);
    add_from(weights, kStep, count - kStep);
  }

  __device__ __forceinline__ A dot(const T* row, int, int k) const {
    const Total total(*this, k);
    A sum = 0;
#pragma unroll
    for (int i = 0; i < 2 * L::kVec; ++i) {
      if (lane_in_group() < 2) sum += total.x[i] * to_accumulate(row[total.first + i]);
    }
    return sum;
  }
  __device__ __forceinline__ void store(T* row, int, A factor, int k = 0) const {
    const Total total(*this, k);
    if (lane_in_group() >= 2) return;
    alignas(16) uint32_t words[L::kVec];
#pragma unroll
    for (int i = 0; i < L::kVec; ++i) words[i] = pack<T>(total.x[2 * i] * factor, total.x[2 * i + 1] * factor);
    using Words = std::conditional_t<L::kVec == 4, uint4, uint2>;
    *reinterpret_cast<Words*>(row + total.first) = reinterpret_cast<const Words&>(words);
  }
  __device__ __forceinline__ void store_piece(A* piece, int, A factor, int k = 0) const {
    const Total total(*this, k);
#pragma unroll
    for (int i = 0; i < 2 * L::kVec; ++i) {
      if (lane_in_group() < 2) piece[total.first + i] = total.x[i] * factor;
    }
  }

 private:
  static constexpr int kTiles = L::kVec / 2, kStep = 16, kEach = 4;  // entries at a time, and of a lane in an mma

  // The weights that the lane supplies to each sum, or zeros: read without a condition, they can be on their way early.
  struct Weights {
    const T* of[kSums];
  };
  __device__ __forceinline__ static Weights supplied(const Batch& batch) {
    Weights weights;
#pragma unroll
    for (int k = 0; k < kSums; ++k) {
      const T* const supply = lane_group() >= 4 ? batch.weight[k][1] : batch.weight[k][0];
      weights.of[k] = lane_group() % 4 == lane_in_group() ? supply : batch.none;
    }
    return weights;
  }

  // Calls visit(entry) for every kEach of a step's first `count` entries. Of a whole step none asks whether it is
  // there: then a step's loads begin at once, and its products follow one another.
  template <class Visit>
  __device__ __forceinline__ static void for_entries(int count, const Visit& visit) {
    if (count >= kStep) {
#pragma unroll
      for (int e = 0; e < kStep; e += kEach) visit(e);
    } else {
#pragma unroll
      for (int e = 0; e < kStep; e += kEach) {
        if (e >= count) return;
        visit(e);
      }
    }
  }

  __device__ __forceinline__ void load_from(const int* node, int count, const Reader& row) {
    for_entries(count, [&](int e) {
      int nodes[kEach];
      load_numbers(nodes, node + e);
#pragma unroll
      for (int u = 0; u < kEach; ++u) rows_[e + u] = row(nodes[u]);
    });
  }

  __device__ __forceinline__ void add_from(const Weights& supply, int first, int count) {
    for_entries(count, [&](int e) {
      uint2 weights[kSums];
#pragma unroll
      for (int k = 0; k < kSums; ++k) weights[k] = *reinterpret_cast<const uint2*>(supply.of[k] + first + e);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        const auto two = [&](int x) { return reinterpret_cast<const uint32_t*>(rows_[e + x].steps)[i]; };
        const uint32_t a[4] = {__byte_perm(two(0), two(1), 0x5410), __byte_perm(two(0), two(1), 0x7632),
                               __byte_perm(two(2), two(3), 0x5410), __byte_perm(two(2), two(3), 0x7632)};
#pragma unroll
        for (int k = 0; k < kSums; ++k) mma_half<T>(sum_[k][i], a, weights[k].x, weights[k].y);
      }
    });
  }

  // Of lanes with lane_in_group() 0 and 1: features [first, first + 2 kVec) of a sum. All lanes come.
  struct Total {
    float x[2 * L::kVec];
    int first;

    __device__ __forceinline__ Total(const TensorSum& sum, int k) {
      const float factor = sum.scale_ == 0 ? 1 : 1 / sum.scale_;
#pragma unroll
      for (int c = 0; c < 2; ++c) {
#pragma unroll
        for (int i = 0; i < L::kVec; ++i) {
          const float rounded = sum.sum_[k][i / 2][i % 2 * 2 + c], rest = __shfl_down_sync(kAllLanes, rounded, 2);
          x[c * L::kVec + i] = (rounded + rest) * factor;
        }
      }
      first = (4 * lane_group() + 2 * lane_in_group()) * L::kVec;
    }
  };

  Packed<L> rows_[kStep];
  float sum_[kSums][kTiles][4] = {};
  float scale_ = 0;  // of float16's weights; 0 before the first, and of bfloat16
};

// One of several sums, to be stored.
template <class Sum, int k>
struct SumOf {
  Sum& sums;

  __device__ __forceinline__ void subtract(typename Sum::A factor, const SumOf<Sum, 0>&) const {
    sums.subtract_first(factor);
  }

  template <class T, class A>
  __device__ __forceinline__ void store(T* row, int features, A factor) const {
    sums.store(row, features, factor, k);
  }
  template <class A>
  __device__ __forceinline__ void store_piece(A* piece, int features, A factor) const {
    sums.store_piece(piece, features, factor, k);
  }
};

// Bytes of the larger batch of the sums that S has, for kernels of either.
template <class S, int kSums = 1>
constexpr size_t sum_storage() {
  size_t bytes = sizeof(typename VectorSum<S, kSums>::Batch);
  if constexpr (kTensorRows<S>) bytes = std::max(bytes, sizeof(typename TensorSum<S, kSums>::Batch));
  return bytes;
}

}  // namespace dfgnn::cuda
