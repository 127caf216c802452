// What operators make of their operands in autocast.
#pragma once

#include <ATen/autocast_mode.h>

namespace dfgnn {

// Autocast of what is called: all kernels of its keys begin with one, and so do gradients, whose precision the results
// say, whatever the mode of who asks for them.
struct NoAutocast {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::autocast_dispatch_keyset};
};

// Features: to the autocast dtype of their device, once for a leaf.
inline at::Tensor autocast_features(const at::Tensor& t) {
  const auto device = t.device().type();
  if (!at::autocast::is_autocast_available(device)) return t;
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
}

// Numbers that are few, as those of edges and heads: from half precision, which may be another one than autocast's.
inline at::Tensor to_full_precision(const at::Tensor& t) {
  return c10::isReducedFloatingType(t.scalar_type()) ? t.to(at::kFloat) : t;
}

}  // namespace dfgnn
