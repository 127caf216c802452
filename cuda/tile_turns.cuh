// What a block of the tile kernels takes, one after another.
#pragma once

#include "tile_rows.cuh"
#include "tile_window.cuh"

namespace dfgnn::cuda::tile {

// How blocks share what there is room for: the first `at_once`, which are at work at a time, take every at_once-th
// window of half of it, and the others one each, so that all end at about the same time. (Half of the room is filled,
// as it is for two windows every 64 nodes, and no window has more of them.)
struct Sharing {
  int at_once, rounds;
  unsigned blocks;

  static Sharing one_each(int64_t room) { return {1, 1, static_cast<unsigned>(room)}; }
  static Sharing several(int64_t room, int at_once) {
    const int rounds = room >= 4 * at_once ? static_cast<int>(room / (2 * at_once)) : 1;
    return {at_once, rounds, static_cast<unsigned>(room - static_cast<int64_t>(rounds - 1) * at_once)};
  }
};

// Whether blocks take several windows, where that was measured to pay: those of large heads in 16 bits wait for copies.
// What others wait for are instructions, of which this takes some; and where something depends on the place of an edge,
// registers are short.
template <class S, bool kPositions>
constexpr bool kTakesSeveral = sizeof(typename S::T) == 2 && S::kHeadFeatures >= 128 && S::kParts == 1 && !kPositions;

// The windows of a block, one after another. With kSeveral the next one is known, and can be on its way, before what is
// at work has ended.
template <WindowOrder kOrder, bool kSeveral>
class Turns {
 public:
  struct Storage {
    int4 windows[kSeveral ? 2 : 1];  // this one and the one after it, by turns
  };

  // All threads of the block come.
  __device__ __forceinline__ Turns(const Attention& a, Storage& storage, const Sharing& sharing)
      : a_(a), windows_(storage.windows), step_(sharing.at_once) {
    const int block = static_cast<int>(blockIdx.x), more = kSeveral ? sharing.rounds - 1 : 0;
    const bool takes_one = block >= step_;
    place_ = takes_one ? block + more * step_ : block;
    left_ = takes_one ? 0 : more;
    first_ = __ldg(window_at<kOrder>(a, place_));
    if (window_of(a, first_).count <= 0) left_ = -1;
    if (!kSeveral || left_ < 0) return;
    if (threadIdx.x == 0) windows_[left_ & 1] = first_;
    __syncthreads();
    fetch_next();
  }

  // Whether there is one, and which.
  __device__ __forceinline__ explicit operator bool() const { return left_ >= 0; }
  __device__ __forceinline__ BlockWindow window() const {
    return window_of(a_, kSeveral ? windows_[left_ & 1] : first_);
  }

  // Goes on, with kSeveral, and calls start(window) where there is one more: empty ones come after all others. To be
  // called when copies that were under way have arrived, by all threads, none of which looks at what is in shared
  // memory.
  template <class Start>
  __device__ __forceinline__ void go_on(const Start& start) {
    __syncthreads();
    place_ += step_;
    if (--left_ >= 0 && window().count <= 0) left_ = -1;
    fetch_next();
    if (left_ >= 0) start(window());
  }

 private:
  // Starts to copy the window after this one.
  __device__ __forceinline__ void fetch_next() const {
    if (threadIdx.x == 0 && left_ > 0) {
      copy_async(shared_address(windows_ + (left_ - 1 & 1)), window_at<kOrder>(a_, place_ + step_), true);
    }
  }

  const Attention& a_;
  int4* const windows_;
  const int step_;
  int place_, left_;  // of this window, and how many come after it, each step_ places further; -1: there is none
  int4 first_;
};

}  // namespace dfgnn::cuda::tile
