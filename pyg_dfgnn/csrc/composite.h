// The gradients of an attention call as a composite of differentiable operators, for derivatives of higher order.
#pragma once

#include "call.h"

namespace dfgnn {

// What the backward operators compute, from sddmm, spmm and torch's operators, in memory O(E H) (additive_v2: O(E H
// D)).
CallGradients backward_composite(const Call& call, const BackwardInputs& inputs);

}  // namespace dfgnn
