// Rows of narrow heads, several of which lie side by side in a warp (warp_heads.cuh), step by step: a step has the same
// few entries of each group of lanes, whose rows are in flight at once. Steps are whole, past the end the last entry
// again, so that there are no branches; but those of short rows may be halves. What is a number for each entry is made
// by one lane.
#pragma once

#include "dropout.cuh"
#include "logit.cuh"
#include "shared_sums.cuh"
#include "warp_heads.cuh"

namespace dfgnn::cuda {

// Whether kernels that gather two rows an edge take listed units by blocks (row_units.cuh); of one row it is no gain.
template <class S>
constexpr bool kNarrowTogether = kUnitsTogether<S> && S::kSteps == 1;

// Node ids of a row's entries, kNoNode where they are out of range: of 64-bit ones first the lower words.
class EntryNodes {
 public:
  __device__ __forceinline__ EntryNodes(const Index& nodes, int64_t begin, int64_t num_nodes)
      : first_(static_cast<const char*>(nodes.from(begin).data)),
        bytes_(nodes.wide ? 8 : 4),
        count_(static_cast<unsigned>(num_nodes)) {}

  __device__ __forceinline__ int operator[](int entry) const {
    const int* words = reinterpret_cast<const int*>(first_ + static_cast<int64_t>(entry) * bytes_);
    int node = __ldg(words);
    if (bytes_ == 8 && __ldg(words + 1) != 0) node = kNoNode;
    return static_cast<unsigned>(node) < count_ ? node : kNoNode;
  }

 private:
  const char* first_;
  int bytes_;
  unsigned count_;
};

// What dropout makes of the weights of a lane's entries, and what their edges bring to the logits. It is asked for
// while rows are on their way, in a branch, behind which compilers do not put off loads of rows.
template <Score score, class A, int kSlots>
struct EntryTerms {
  A keep[kSlots], bias[kSlots] = {}, edge[kSlots] = {};

  // position_of(x): the place of the lane's entry x in the order of the rows.
  template <class T, class PositionOf>
  __device__ __forceinline__ EntryTerms(const Typed<T>& a, const Dropout<A>& dropout, int h,
                                        const PositionOf& position_of) {
#pragma unroll
    for (A& factor : keep) factor = A(1);
    if (!dropout.active() && !a.bias && !a.a_edge) return;
#pragma unroll
    for (int x = 0; x < kSlots; ++x) {
      const int64_t position = position_of(x);
      keep[x] = dropout.factor(position, h);
      if (a.bias) bias[x] = a.at(a.bias, a.scalar(position, h));
      if (score == Score::additive && a.a_edge) edge[x] = a.at(a.a_edge, a.scalar(position, h));
    }
  }
};

// Numbers that stay in registers as they are: else what they were made of would, and they be made again.
template <class S>
__device__ __forceinline__ void keep_numbers(Fragment<S>& x) {
  if constexpr (sizeof(typename S::T) == 2) {
#pragma unroll
    for (auto& number : x.x) asm volatile("" : "+f"(number));
  }
}

// sum += weight * row, if so: without a branch.
template <class S>
__device__ __forceinline__ void add_if(bool adds, Fragment<S>& sum, float weight, const Packed<S>& row) {
#pragma unroll
  for (int x = 0; x < Fragment<S>::kSize; x += 4) {
    asm("{.reg .pred p; setp.ne.b32 p, %9, 0; @p fma.rn.f32 %0, %4, %5, %0; @p fma.rn.f32 %1, %4, %6, %1; "
        "@p fma.rn.f32 %2, %4, %7, %2; @p fma.rn.f32 %3, %4, %8, %3;}"
        : "+f"(sum.x[x]), "+f"(sum.x[x + 1]), "+f"(sum.x[x + 2]), "+f"(sum.x[x + 3])
        : "f"(weight), "f"(row[x]), "f"(row[x + 1]), "f"(row[x + 2]), "f"(row[x + 3]), "r"(static_cast<int>(adds)));
  }
}

// kOneRow: whether an entry has one row to gather, and not two.
template <class S, bool kOwnRows, bool kOneRow>
struct NarrowSteps {
  static constexpr int kStep = kOneRow && S::kLanes == 8 && S::kVec == 4 ? 8 : 4;  // entries of a group
  static constexpr int kOwners = S::kLanes < kStep ? S::kLanes : kStep;  // lanes of it with entries of their own,
  static constexpr int kSlots = kStep / kOwners;                         // each so many
  const WarpHeads<S, kOwnRows>& heads;

  // Entries of a row in a step; the place in the step of the lane's entry x, and of the group's u-th.
  __device__ __forceinline__ int entries() const { return heads.groups() * kStep; }
  __device__ __forceinline__ int own(int x) const { return heads.entry(x * kOwners + heads.lane % kOwners); }
  __device__ __forceinline__ int of_group(int u) const { return heads.entry(u); }

  // Whether the group's u-th is in a step that is whole, or half a one.
  __device__ __forceinline__ static bool has(int u, bool is_whole) { return u < kStep / 2 || is_whole; }

  // Nodes of the lane's entries of the step that begins with entry `first`; past the row's last, that one again.
  __device__ __forceinline__ void load(const EntryNodes& nodes, int first, int last, int (&next)[kSlots]) const {
#pragma unroll
    for (int x = 0; x < kSlots; ++x) next[x] = nodes[min(first + own(x), last)];
  }

  // What the lane has whose entry is the group's u-th.
  template <class X>
  __device__ __forceinline__ X of(const X (&x)[kSlots], int u) const {
    return heads.of_round(x[u / kOwners], u % kOwners);
  }

  // Of the lane's entries, product(u) of the group's u-th, summed up over the lanes.
  template <class A, class Product>
  __device__ __forceinline__ static void sum_lanes(A (&sums)[kSlots], const Product& product) {
#pragma unroll
    for (int x = 0; x < kSlots; ++x) {
      A parts[kOwners];
#pragma unroll
      for (int i = 0; i < kOwners; ++i) parts[i] = product(x * kOwners + i);
      sums[x] = transposed_sum<S::kLanes>(parts);
    }
  }
};

}  // namespace dfgnn::cuda
