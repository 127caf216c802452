// What operators make of their operands in autocast.
#pragma once

#include <ATen/autocast_mode.h>

namespace dfgnn {

// Features: to the autocast dtype of the device, once for a leaf.
template <c10::DeviceType device>
at::Tensor autocast_features(const at::Tensor& t) {
  return at::autocast::cached_cast(at::autocast::get_autocast_dtype(device), t, device);
}

// Numbers that are few, as those of edges and heads: from half precision, which may be another one than autocast's.
inline at::Tensor to_full_precision(const at::Tensor& t) {
  return c10::isReducedFloatingType(t.scalar_type()) ? t.to(at::kFloat) : t;
}

}  // namespace dfgnn
