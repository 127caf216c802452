// Rows of features that a warp copies to shared memory, where their gathering takes no registers.
#pragma once

#include "async_copy.cuh"
#include "logit.cuh"

namespace dfgnn::cuda {

// Rows of one head of a feature array, of which a lane copies 16 bytes at a time. Features past the head's are zeros.
template <class W>
class RowCopies {
 public:
  using T = typename W::T;
  static constexpr int kBytes = W::kFeatures * static_cast<int>(sizeof(T)), kPieces = kBytes / 16;
  static constexpr int kAtOnce = kPieces < kWarp ? kWarp / kPieces : 1;  // rows

  __device__ __forceinline__ RowCopies(const Typed<T>& a, const void* data, int h)
      : base_(reinterpret_cast<const char*>(a.features(data, 0, h)) + piece() * 16),
        row_bytes_(static_cast<unsigned>(a.heads * a.head_dim) * sizeof(T)),
        left_(a.head_dim * static_cast<int>(sizeof(T)) - piece() * 16) {}

  // Starts to copy the first `count` of kRows rows, `stride` bytes apart; node_of(r) is the node of row r, which is
  // first_of_lane() and every kAtOnce-th from there.
  template <int kRows, class NodeOf>
  __device__ __forceinline__ void start(uint32_t to, int stride, int count, const NodeOf& node_of) const {
    to += piece() * 16;
#pragma unroll
    for (int u = 0; u < kRows; u += kAtOnce) {
      const int r = u + first_of_lane();
      if (r < count) {
        const char* const row = base_ + row_offset(node_of(r), row_bytes_);
#pragma unroll
        for (int at = 0; at < kBytes; at += kWarp * 16) copy_async(to + r * stride + at, row + at, at < left_);
      }
    }
  }

  // The lane's share of a row that is there.
  __device__ __forceinline__ static Packed<W> row(const void* memory) {
    Packed<W> packed;
    packed.load(static_cast<const T*>(memory), threadIdx.x % kWarp, W::kFeatures);
    return packed;
  }

 private:
  __device__ __forceinline__ static int piece() { return threadIdx.x % (kPieces < kWarp ? kPieces : kWarp); }
  __device__ __forceinline__ static int first_of_lane() {
    return kAtOnce == 1 ? 0 : static_cast<int>(threadIdx.x) % kWarp / kPieces;
  }

  const char* base_;
  unsigned row_bytes_;
  int left_;  // bytes of a row from the lane's first piece on
};

}  // namespace dfgnn::cuda
