// Heads that a warp takes at once. Where a head is a few lanes wide, heads lie side by side over the warp, so that the
// features of a node are gathered as one row, whatever heads it is divided into; a lane works for one head.
#pragma once

#include "fragment.cuh"

namespace dfgnn::cuda {

// Heads side by side in a warp, as a power of two: as many as there are, or as fit.
template <class S>
__host__ __device__ __forceinline__ int log_heads_side_by_side(int heads) {
  if (S::kSteps > 1 || S::kLoop) return 0;
  int log = 0;
  for (int fits = 2; fits <= S::kGroups; fits *= 2) log += heads > fits / 2;
  return log;
}

// Lanes of the heads side by side.
template <class S>
inline int lanes_of_heads(int heads) {
  return S::kLanes << log_heads_side_by_side<S>(heads);
}

// The grid's second dimension for kernels that take heads so.
template <class S>
inline unsigned head_blocks(int heads) {
  const int log = log_heads_side_by_side<S>(heads);
  return static_cast<unsigned>((heads + (1 << log) - 1) >> log);
}

// What a lane works on. The lanes of a head form groups of S::kLanes, which take the entries (edges) of a row in turn:
// where an entry is a row of features, group g takes entries g, g + groups(), ... in rounds; where it is a number, each
// lane of the group has that of one round. So a warp goes over an edge list in chunks of entries(), S::kLanes rounds
// each. kOwnRows: each group has a row for itself, so that short rows keep all lanes busy; what differs between groups
// then, counts of rounds above all, is made the same for the warp, as lanes exchange numbers in each round.
template <class S, bool kOwnRows = false>
class WarpHeads {
 public:
  int head, lane;
  bool live;  // false where there is nothing for the lane: it computes what another does, and stores nothing

  __device__ __forceinline__ explicit WarpHeads(int heads) : log_side_(log_heads_side_by_side<S>(heads)) {
    const int t = threadIdx.x % kWarp;
    const int own = first() + (t / S::kLanes & ((1 << log_side_) - 1));
    live = own < heads;
    head = live ? own : heads - 1;
    lane = t % S::kLanes;
  }

  // The first of the warp's heads, and how many of `heads` it has.
  __device__ __forceinline__ int first() const { return static_cast<int>(blockIdx.y) << log_side_; }
  __device__ __forceinline__ int count(int heads) const { return min(1 << log_side_, heads - first()); }

  // Lanes from one group of a head to its next.
  __device__ __forceinline__ int apart() const { return S::kLanes << log_side_; }

  __device__ __forceinline__ int groups() const { return kOwnRows ? 1 : S::kGroups >> log_side_; }
  __device__ __forceinline__ int group() const { return kOwnRows ? 0 : threadIdx.x % kWarp / S::kLanes >> log_side_; }
  __device__ __forceinline__ int entries() const { return groups() * S::kLanes; }
  __device__ __forceinline__ int entry(int round) const { return round * groups() + group(); }
  __device__ __forceinline__ bool is_first() const { return live && group() == 0 && lane == 0; }  // of its head's

  // Of the first `count` entries of a chunk: rounds of this group, and those that any group needs.
  __device__ __forceinline__ int own_rounds(int count) const { return rounds_from(count, group()); }
  __device__ __forceinline__ int rounds(int count) const { return kOwnRows ? most(count) : rounds_from(count, 0); }

  // The largest of the groups' numbers.
  __device__ __forceinline__ int most(int x) const {
    if constexpr (kOwnRows) {
      return __reduce_max_sync(kAllLanes, x);
    }
    return x;
  }

  // What the lane has whose number is that of the group's entry of a round.
  template <class X>
  __device__ __forceinline__ X of_round(X x, int round) const {
    return __shfl_sync(kAllLanes, x, static_cast<int>(threadIdx.x) % kWarp - lane + round);
  }

  // x combined over the groups of a row and head, in all of their lanes.
  template <class A, class Combine>
  __device__ __forceinline__ A over_groups(A x, const Combine& combine) const {
    if constexpr (!kOwnRows) {
#pragma unroll
      for (int offset = kWarp / 2; offset >= S::kLanes; offset /= 2) {
        if (offset >= apart()) x = combine(x, __shfl_xor_sync(kAllLanes, x, offset));
      }
    }
    return x;
  }

 private:
  __device__ __forceinline__ int rounds_from(int count, int first_group) const {
    if (kOwnRows) return count;
    static_assert(S::kSteps > 1 || S::kLoop, "whose heads do not lie side by side, so that a head has all groups");
    return static_cast<int>(static_cast<unsigned>(count - first_group + S::kGroups - 1) / S::kGroups);
  }

  int log_side_;
};

}  // namespace dfgnn::cuda
