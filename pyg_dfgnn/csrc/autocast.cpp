// Autocast, and the call runs below it. dot's and additive_v2's features, which come out of matrix products, are cast
// to the autocast dtype, as is additive's value; the scalars of the additive score and the vector of additive_v2's keep
// their precision: they are small, and the kernels accumulate logits in float32 anyway. cosine, which has no matrix
// product before it, promotes to its widest argument.
#include "autocast.h"

#include <torch/library.h>

#include "call.h"

namespace dfgnn {
namespace {

struct Autocast {
  static ForwardResult forward(Call call) {
    const NoAutocast guard;
    const auto cast = autocast_features;
    for (auto* term : {&call.bias, &call.a_edge}) {
      if (term->has_value()) *term = to_full_precision(**term);
    }
    if (call.score == Score::cosine) {
      const auto widest = at::promote_types(call.a.scalar_type(), call.b.scalar_type());
      const bool same = call.a.is_same(call.b);
      call.a = call.a.to(widest);
      call.b = same ? call.a : call.b.to(widest);
    } else if (call.score == Score::additive_v2) {
      call.a = cast(call.a);
      call.b = cast(call.b);
      call.c = to_full_precision(call.c);
    } else {
      call.c = cast(call.c);
      const bool dot = call.score == Score::dot;
      call.a = dot ? cast(call.a) : to_full_precision(call.a);
      call.b = dot ? cast(call.b) : to_full_precision(call.b);
    }
    return dispatch_forward(call);
  }
};

// For scripted code, in which torch.is_autocast_enabled() ends the process while autocast is on.
bool is_autocast(const at::Tensor& t) {
  const auto device = t.device().type();
  return at::autocast::is_autocast_available(device) && at::autocast::is_autocast_enabled(device);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dfgnn, m) { m.def("is_autocast(Tensor t) -> bool", is_autocast); }

TORCH_LIBRARY_IMPL(dfgnn, AutocastCPU, m) { register_forward<Autocast>(m); }

TORCH_LIBRARY_IMPL(dfgnn, AutocastCUDA, m) { register_forward<Autocast>(m); }

}  // namespace dfgnn
