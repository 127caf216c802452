// What the nodes of a tile bring to the logits of its edges.
#pragma once

#include "logit.cuh"
#include "resident_slices.cuh"

namespace dfgnn::cuda::resident {

// Nodes are numbered within the tile. norms [nodes]: cosine's, their reciprocals (Chunk::add_to_norms).
template <Score score, class T>
struct NodeTerms {
  const Typed<T>& a;
  const Tile& tile;
  int h;
  const float* norms;

  __device__ __forceinline__ float dst(int node) const {
    if constexpr (score == Score::cosine) return a.beta_of(h) * norms[node];
    return dst_term<score>(a, tile.first + node, h);
  }
  __device__ __forceinline__ float src(int node) const {
    if constexpr (score == Score::cosine) return norms[node];
    return src_term<score>(a, tile.first + node, h);
  }
};

}  // namespace dfgnn::cuda::resident
