// What the kernels know of one edge: its source, its logit, its dropout factor.
#pragma once

#include <cmath>

#include "attention.h"
#include "dropout.cuh"
#include "fragment.cuh"

namespace dfgnn::cuda {

// The arguments of a kernel, typed. Node ids fit an int (attention.h), so that a row's address is one multiply-add.
template <class T_>
struct Typed : Attention {
  using T = T_;
  using A = typename Accumulate<T>::type;
  A logit_scale, slope_below_zero;
  bool drops;
  uint32_t last_dropped;  // an edge is dropped where u < p, with u = word / 2^32: where word < ceil(p 2^32)
  A dropout_kept;

  explicit Typed(const Attention& a)
      : Attention(a),
        logit_scale(static_cast<A>(a.scale)),
        slope_below_zero(static_cast<A>(a.negative_slope)),
        drops(a.dropout_p > 0),
        last_dropped(static_cast<uint32_t>(static_cast<uint64_t>(std::ceil(a.dropout_p * 0x1p32)) - drops)),
        dropout_kept(static_cast<A>(a.dropout_p < 1.0 ? 1.0 / (1.0 - a.dropout_p) : 0.0)) {}

  __device__ __forceinline__ int64_t scalar(int64_t node_or_edge, int h) const { return node_or_edge * heads + h; }
  // The same of what pmf keeps of edges, head after head: most of its kernels take one at a time.
  __device__ __forceinline__ int64_t kept(int64_t edge, int h) const { return h * num_edges + edge; }

  // Row of head h of a node in one of the feature arrays.
  __device__ __forceinline__ const T* features(const void* data, int node, int h) const {
    return static_cast<const T*>(data) + (static_cast<int64_t>(node) * (heads * head_dim) + h * head_dim);
  }
  __device__ __forceinline__ T* features(void* data, int node, int h) const {
    return const_cast<T*>(features(static_cast<const void*>(data), node, h));
  }
  __device__ __forceinline__ static A at(const void* data, int64_t i) { return __ldg(static_cast<const A*>(data) + i); }
  __device__ __forceinline__ A beta_of(int h) const { return at(beta, betas == 1 ? 0 : h); }
};

// What lanes read that have no share of a row.
__device__ constexpr uint4 kNoFeatures = {};

// Where a node's row is, from the first node's on. (nvcc would add the upper half of a product in C++, which is 0, by
// an instruction of its own.)
__device__ __forceinline__ uint64_t row_offset(int node, unsigned row_bytes) {
  uint64_t offset;
  asm("mul.wide.u32 %0, %1, %2;" : "=l"(offset) : "r"(node), "r"(row_bytes));
  return offset;
}

// That row, of rows the first of which begins at `first`.
template <class T>
__device__ __forceinline__ const T* row_from(const T* first, int node, unsigned row_bytes) {
  return reinterpret_cast<const T*>(reinterpret_cast<const char*>(first) + row_offset(node, row_bytes));
}

// Gathers rows of one head from a feature array, from `feature` on: the lane's share of node n's row. What does not
// depend on the node is made once, so that a row costs one multiply-add and its loads.
template <class S>
class RowReader {
 public:
  using T = typename S::T;

  __device__ __forceinline__ RowReader(const Typed<T>& a, const void* data, int h, int lane, int feature = 0)
      : base_(reinterpret_cast<const char*>(static_cast<const T*>(data) + h * a.head_dim + feature + lane * S::kVec)),
        row_bytes_(static_cast<unsigned>(a.heads * a.head_dim) * sizeof(T)),
        left_(a.head_dim - feature - lane * S::kVec) {
    if (kAlways && left_ <= 0) {
      base_ = reinterpret_cast<const char*>(&kNoFeatures);
      row_bytes_ = 0;
    }
  }

  __device__ __forceinline__ Packed<S> operator()(int node) const {
    Packed<S> row;
    row.load(reinterpret_cast<const T*>(base_ + row_offset(node, row_bytes_)), 0, kAlways ? S::kFeatures : left_);
    return row;
  }

 private:
  static constexpr bool kAlways = S::kSteps == 1 && !S::kExact;  // a lane reads all of its rows or none

  const char* base_;
  unsigned row_bytes_;
  int left_;  // features at and after the lane's first
};

// A node id of an edge, kNoNode where it is out of range: what follows becomes NaN, and memory stays safe.
constexpr int kNoNode = -1;

__device__ __forceinline__ int checked_node(int64_t node, int64_t num_nodes) {
  return static_cast<uint64_t>(node) < static_cast<uint64_t>(num_nodes) ? static_cast<int>(node) : kNoNode;
}

// A node id of an edge that is on its way: what a later step of a loop will ask for. (Of a number that is converted as
// soon as it is loaded, code waits where it loads it; so it does of 64 bits.)
class LoadedNode {
 public:
  LoadedNode() = default;
  __device__ __forceinline__ LoadedNode(const Index& index, int64_t i) {
    const char* from = static_cast<const char*>(index.data) + (index.wide ? 8 : 4) * i;
    asm volatile("ld.global.nc.u32 %0, [%1];" : "=r"(id_) : "l"(from));
    if (index.wide) {
      unsigned high;
      asm volatile("ld.global.nc.u32 %0, [%1 + 4];" : "=r"(high) : "l"(from));
      is_long_ = high != 0;
    }
  }

  // As checked_node() has it.
  __device__ __forceinline__ int check(int64_t num_nodes) const {
    return !is_long_ && id_ < static_cast<unsigned>(num_nodes) ? static_cast<int>(id_) : kNoNode;
  }
  // Waits for it.
  __device__ __forceinline__ void wait(int64_t num_nodes) { id_ = static_cast<unsigned>(check(num_nodes)); }

 private:
  unsigned id_ = 0;
  bool is_long_ = false;  // has more than 32 bits
};

// The same of any number of 64 bits, such as an entry's place, or of a node where a register more is there: nothing of
// it is waited for, whatever its width. (A negative number of 32 bits is a large one.)
class LoadedIndex {
 public:
  LoadedIndex() = default;
  __device__ __forceinline__ LoadedIndex(const Index& index, int64_t i) {
    const char* from = static_cast<const char*>(index.data) + (index.wide ? 8 : 4) * i;
    asm volatile(
        "{\n.reg .pred wide;\nsetp.ne.u32 wide, %3, 0;\nmov.u32 %1, 0;\n"
        "ld.global.nc.u32 %0, [%2];\n@wide ld.global.nc.u32 %1, [%2 + 4];\n}"
        : "=&r"(low_), "=&r"(high_)
        : "l"(from), "r"(static_cast<unsigned>(index.wide)));
  }

  __device__ __forceinline__ int64_t value() const { return static_cast<int64_t>(uint64_t{high_} << 32 | low_); }
  __device__ __forceinline__ int check(int64_t num_nodes) const { return checked_node(value(), num_nodes); }

 private:
  unsigned low_ = 0, high_ = 0;
};

// A logit and its derivative by what the score's operands make it of: the dot product, or additive's sum.
template <class A>
struct Logit {
  A value, slope;
};

// What a node brings to the logits of its edges beside PairScore: cosine's scale, additive's term, dot's scale.
template <Score score, class T>
__device__ __forceinline__ auto dst_term(const Typed<T>& a, int i, int h) {
  using A = typename Typed<T>::A;
  if constexpr (score == Score::dot) return a.logit_scale;
  if constexpr (score == Score::additive_v2) return A(1);
  return A(a.at(score == Score::cosine ? a.dst_scale : a.dst, a.scalar(i, h)));
}

template <Score score, class T>
__device__ __forceinline__ auto src_term(const Typed<T>& a, int j, int h) {
  using A = typename Typed<T>::A;
  if constexpr (score == Score::dot || score == Score::additive_v2) return A(1);
  return A(a.at(score == Score::cosine ? a.src_scale : a.src, a.scalar(j, h)));
}

// What x's gradient has of x itself by way of its norm, whose reciprocal that is, as a factor: from what the gradient
// of x over its norm and x have in common, <g, x> over the norm. A norm below eps, which is replaced, has no part.
template <class T>
__device__ __forceinline__ auto own_share(const Typed<T>& a, typename Typed<T>::A reciprocal,
                                          typename Typed<T>::A projection) {
  using A = typename Typed<T>::A;
  return reciprocal < 1 / static_cast<A>(a.eps) ? -projection * reciprocal * reciprocal : A(0);
}

// The logit from those terms; `dot` is what PairScore made of the edge's two rows, unused by the additive score.
// Without kEdgeTerms there are neither a_edge nor bias. unit: of logits that are products, if not 1, which nodes' terms
// have already.
template <Score score, bool kEdgeTerms = true, class T>
__device__ __forceinline__ auto logit_of(const Typed<T>& a, typename Typed<T>::A dot, typename Typed<T>::A dst,
                                         typename Typed<T>::A src, int64_t e, int h, typename Typed<T>::A unit = 1) {
  using A = typename Typed<T>::A;
  Logit<A> s;
  if constexpr (score == Score::additive) {
    A sum = dst + src;
    if (kEdgeTerms && a.a_edge) sum += a.at(a.a_edge, a.scalar(e, h));
    const A slope = sum > A(0) ? A(1) : a.slope_below_zero;
    s = {sum * slope, slope};
  } else {
    s = {dst * src * dot, A(1)};
  }
  if (kEdgeTerms && a.bias) s.value += unit * a.at(a.bias, a.scalar(e, h));
  return s;
}

template <Score score, class T>
__device__ __forceinline__ auto logit(const Typed<T>& a, typename Typed<T>::A dot, int i, int j, int64_t e, int h) {
  using A = typename Typed<T>::A;
  if (j == kNoNode) return Logit<A>{A(NAN), A(1)};
  return logit_of<score>(a, dot, dst_term<score>(a, i, h), src_term<score>(a, j, h), e, h);
}

constexpr float kLog2e = 1.4426950408889634f, kLn2 = 0.6931471805599453f;

__device__ __forceinline__ float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// How far some online softmaxes let logits be above the maximum that their weights are relative to, before they take a
// larger one and scale what they have summed up: so they seldom do, after a row's first edges. Weights are e^8 at the
// most, or what that rounds to.
constexpr float kMostAbove = 8;

// exp(s - m), m not being -inf.
template <class A>
__device__ __forceinline__ A exp_from(A s, A m) {
  if constexpr (sizeof(A) == 4) {
    return exp2_of((s - m) * kLog2e);
  } else {
    return exp(s - m);
  }
}

// The same, 0 for s = -inf even where m is -inf too (a row whose logits all are); a NaN stays one.
template <class A>
__device__ __forceinline__ A exp_difference(A s, A m) {
  if (sizeof(A) == 8 && s == -INFINITY) return A(0);  // of float32 a branch takes longer than the power
  const A power = exp_from(s, m);
  return s == -INFINITY ? A(0) : power;
}

// Bounds of row r of a compressed form, made safe: within [0, num_entries], never decreasing.
__device__ __forceinline__ int64_t clamp_to(int64_t x, int64_t high) { return x < 0 ? 0 : (x > high ? high : x); }

struct Range {
  int64_t begin, end;
  __device__ __forceinline__ int64_t size() const { return end - begin; }
};

// From at(0) to at(1). In 32 bits it takes a third of the instructions.
template <class At>
__device__ __forceinline__ Range range_in(const At& at, int64_t num_entries) {
  const int most = static_cast<int>(min(num_entries, int64_t{INT32_MAX}));
  const int begin = min(max(at(0), 0), most), end = min(at(1), most);
  return {begin, max(begin, end)};
}
__device__ __forceinline__ Range row_range(const Index& ptr, int64_t r, int64_t num_entries) {
  if (!ptr.wide) {
    const int* from = static_cast<const int*>(ptr.data) + r;
    return range_in([&](int k) { return __ldg(from + k); }, num_entries);
  }
  const int64_t begin = clamp_to(ptr[r], num_entries), end = clamp_to(ptr[r + 1], num_entries);
  return {begin, end < begin ? begin : end};
}
// Of pointers that the kernel may have written.
__device__ __forceinline__ Range row_range(const int* ptr, int64_t r, int64_t num_entries) {
  return range_in([&](int k) { return ptr[r + k]; }, num_entries);
}

}  // namespace dfgnn::cuda
