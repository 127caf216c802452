// How a warp gathers rows for products with one row: in steps, each group of lanes having a few rows in flight.
//
// A step's entries are consecutive. Where there is a number for each, it is that of a lane's own entry; lanes share
// entries, but the first of each group, as many as it has rows, have them all.
#pragma once

#include "logit.cuh"
#include "mma.cuh"
#include "sddmm.cuh"
#include "shared_sums.cuh"

namespace dfgnn::cuda {

// Rows of shape W, kVectors of a lane in flight.
template <class W_, int kVectors>
struct RowGroups {
  using W = W_;
  static constexpr int kRows = rounds_of_vectors<W>(kVectors);
  static constexpr int kStep = kRows * W::kGroups;  // entries of a warp at once
  int lane = threadIdx.x % W::kLanes, first = static_cast<int>(threadIdx.x) / W::kLanes * kRows;

  __device__ __forceinline__ int own() const { return first + lane % kRows; }
  __device__ __forceinline__ bool is_first() const { return lane < kRows; }  // of the lanes with the same entry

  // What the lane has whose own entry is the group's number u.
  template <class X>
  __device__ __forceinline__ static X of_row(X x, int u) {
    return __shfl_sync(kAllLanes, x, u, W::kLanes);
  }

  // The nodes of the group's rows, of a step's, which are in shared memory, 16-byte aligned.
  struct Nodes {
    int of[kRows];
  };
  __device__ __forceinline__ Nodes nodes_of(const int* step) const {
    Nodes nodes;
    load_numbers(nodes.of, step + first);
    return nodes;
  }

  // Starts to load the rows.
  __device__ __forceinline__ void load(Packed<W> (&rows)[kRows], const Nodes& nodes, const RowReader<W>& row) const {
#pragma unroll
    for (int u = 0; u < kRows; ++u) rows[u] = row(nodes.of[u]);
  }
};

// Products on vectors, of which 32 numbers of a lane are in flight at the most.
template <class S>
struct VectorGroups : RowGroups<typename S::Wide, S::kVec == 8 ? 4 : 8> {
  using Base = typename VectorGroups::RowGroups;
  using W = typename Base::W;
  using Own = Fragment<W>;  // the lane's share of the one row

  // The own entry's row times the one; or what else a PairScore makes of both.
  __device__ __forceinline__ static typename W::A dot(const Own& own, const Packed<W> (&rows)[Base::kRows]) {
    return sum_of(rows, [&](const auto& row) { return own.dot(row); });
  }
  template <class Pair>
  __device__ __forceinline__ static typename W::A dot(const Own& own, const Packed<W> (&rows)[Base::kRows],
                                                      const Pair& pair) {
    return sum_of(rows, [&](const auto& row) { return pair(own, row); });
  }

 private:
  template <class Of>
  __device__ __forceinline__ static typename W::A sum_of(const Packed<W> (&rows)[Base::kRows], const Of& of) {
    typename W::A sums[Base::kRows];
#pragma unroll
    for (int u = 0; u < Base::kRows; ++u) sums[u] = of(rows[u]);
    return transposed_sum<W::kLanes>(sums);
  }
};

// A row of 16-bit features over eight lanes, 16 bytes of each a step: what tensor cores multiply. A lane's 16 bytes of
// a row are its share of an mma's first factor as they are: lanes 0 to 3 of octet r fill rows 2 r and 2 r + 8 of the
// factor, words 0 and 2 the one and words 1 and 3 the other, and lanes 4 to 7 rows 2 r + 1 and 2 r + 9. The second
// factor is the one row, whose words 0 and 2 are in the columns of even octets, and words 1 and 3 in those of odd ones.
template <class S>
using OctetShape = Shape<typename S::T, 8, 8, S::kFeatures / 64, false, true>;

// The same on tensor cores, for tensor_rows().
template <class S>
struct TensorGroups : RowGroups<OctetShape<S>, 4 * OctetShape<S>::kSteps> {
  using Base = typename TensorGroups::RowGroups;
  using W = typename Base::W;
  using Own = Packed<W>;
  using Base::kRows;
  static_assert(kRows == 4);

  __device__ __forceinline__ static float dot(const Own& own, const Packed<W> (&rows)[kRows]) {
    const bool odd_octet = threadIdx.x & 8, odd_half = threadIdx.x & 4, odd = threadIdx.x & 1, upper = threadIdx.x & 2;
    float parts[kRows];
#pragma unroll
    for (int u = 0; u < kRows; ++u) {
      // Of rows 2 r + half, then of those 8 further: the columns of octet lane_in_group(), first and second half.
      float acc[4] = {};
#pragma unroll
      for (int s = 0; s < W::kSteps; ++s) {
        const uint4& x = rows[u].steps[s];
        const uint4& y = own.steps[s];
        const uint32_t a[4] = {x.x, x.y, x.z, x.w};
        mma_half<typename W::T>(acc, a, odd_octet ? y.y : y.x, odd_octet ? y.w : y.z);
      }
      const float even_words = odd_half ? acc[1] : acc[0], odd_words = odd_half ? acc[3] : acc[2];
      parts[u] = odd ? odd_words : even_words;
    }
    // Of neighbours one has the product of even words, one that of odd ones; the next two lanes have the same.
    const float low = (odd ? parts[1] : parts[0]) + __shfl_xor_sync(kAllLanes, odd ? parts[0] : parts[1], 1);
    const float high = (odd ? parts[3] : parts[2]) + __shfl_xor_sync(kAllLanes, odd ? parts[2] : parts[3], 1);
    const float half = upper ? high : low;
    return half + __shfl_xor_sync(kAllLanes, half, 4);
  }
  template <class Pair>
  __device__ __forceinline__ static float dot(const Own& own, const Packed<W> (&rows)[kRows], const Pair&) {
    return dot(own, rows);
  }
};

// Calls launch.operator()<Groups>() with those that take the score's heads of that size.
template <Score score, class S, class Launch>
cudaError_t for_row_groups(int head_dim, const Launch& launch) {
  if constexpr (kTensorRows<S> && score != Score::additive_v2) {
    if (tensor_rows<S>(head_dim)) return launch.template operator()<TensorGroups<S>>();
  }
  return launch.template operator()<VectorGroups<S>>();
}

}  // namespace dfgnn::cuda
