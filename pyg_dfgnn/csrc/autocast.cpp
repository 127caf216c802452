// Autocast: features are cast to the autocast dtype, and the call runs below autocast. The scalars of the additive
// score keep their precision: they are small, and the kernels accumulate logits in float32 anyway.
#include <ATen/autocast_mode.h>
#include <torch/library.h>

#include "call.h"

namespace dfgnn {
namespace {

template <c10::DispatchKey key, c10::DeviceType device>
struct Autocast {
  static ForwardResult forward(Call call) {
    c10::impl::ExcludeDispatchKeyGuard guard(key);
    const auto type = at::autocast::get_autocast_dtype(device);
    const auto cast = [type](const at::Tensor& t) { return at::autocast::cached_cast(type, t, device); };
    if (call.score == Score::additive) {
      call.c = cast(call.c);
    } else {
      call.a = cast(call.a);
      call.b = cast(call.b);
      if (call.score == Score::dot) call.c = cast(call.c);
    }
    return dispatch_forward(call);
  }
};

}  // namespace

TORCH_LIBRARY_IMPL(dfgnn, AutocastCPU, m) {
  register_forward<Autocast<c10::DispatchKey::AutocastCPU, c10::DeviceType::CPU>>(m);
}

TORCH_LIBRARY_IMPL(dfgnn, AutocastCUDA, m) {
  register_forward<Autocast<c10::DispatchKey::AutocastCUDA, c10::DeviceType::CUDA>>(m);
}

}  // namespace dfgnn
