// Which heads the kernels of additive_fwd and additive_bwd take: one head at a time, whose row fits into a warp's
// registers, or several narrow ones side by side.
#pragma once

#include "narrow_softmax.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda {

template <class S>
AdditiveHeads additive_heads_of(const Attention& a) {
  if (log_heads_side_by_side<S>(a.heads) == 0) {
    return a.head_dim <= S::kFeatures ? AdditiveHeads::apart : AdditiveHeads::none;
  }
  return kNarrowSoftmax<S> && takes_narrow_softmax<S>(a) ? AdditiveHeads::side_by_side : AdditiveHeads::none;
}

}  // namespace dfgnn::cuda
