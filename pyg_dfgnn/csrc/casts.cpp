#include "casts.h"

namespace dfgnn {

std::pair<at::Tensor, at::Tensor> cast_both(const at::Tensor& a, at::ScalarType a_type, const at::Tensor& b,
                                            at::ScalarType b_type, [[maybe_unused]] By by) {
#ifdef DFGNN_WITH_CUDA
  const auto is_narrow = [](at::ScalarType type) { return type == at::kHalf || type == at::kBFloat16; };
  const auto from = a.scalar_type();
  const bool is_cast = (is_narrow(from) && a_type == at::kFloat) || (from == at::kFloat && is_narrow(a_type));
  const bool alike = b.scalar_type() == from && a_type == b_type && b.device() == a.device();
  if (by == By::kernels && a.is_cuda() && is_cast && alike && a.is_contiguous() && b.is_contiguous()) {
    return cast_both_cuda(a, b, a_type);
  }
#endif
  return {a.to(a_type).contiguous(), b.to(b_type).contiguous()};
}

}  // namespace dfgnn
