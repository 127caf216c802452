#include "padding.h"

#include "../method.h"

namespace dfgnn {

namespace {

// Whether the caller asks for a method that takes heads of that size alone.
bool is_asked_for(const Call& call, const Attention& a, int64_t head_dim) {
  return (call.route.method == "tile" && tile_takes_heads(a, head_dim)) ||
         (call.route.method == "resident" && resident_takes_heads(a, head_dim));
}

}  // namespace

Attention with_whole_vectors(const Call& call, Attention a) {
  const int64_t head_dim = in_whole_vectors(a.value);
  if (a.head_dim() == head_dim) return a;
  const bool is_worth_it = a.num_edges() * a.heads() >= kWorthItsCopies && a.num_edges() >= a.num_dst() + a.num_src();
  if (!is_worth_it && !is_asked_for(call, a, head_dim)) return a;
  const bool same_value = a.src.is_same(a.value), same_dst = a.dst.is_same(a.src);
  a.value = with_head_dim(a.value, head_dim);
  a.src = same_value ? a.value : with_head_dim(a.src, head_dim);
  a.dst = same_dst ? a.src : with_head_dim(a.dst, head_dim);
  if (a.att.defined()) a.att = at::constant_pad_nd(a.att, {0, head_dim - a.att.size(1)});
  return a;
}

int64_t in_whole_vectors(const at::Tensor& features) {
  return in_whole_vectors(features.element_size(), features.size(2));
}

int64_t in_whole_vectors(int64_t number_bytes, int64_t head_dim) {
  const int64_t numbers = 16 / number_bytes;
  return number_bytes == 8 ? head_dim : (head_dim + numbers - 1) / numbers * numbers;
}

at::Tensor with_head_dim(const at::Tensor& features, int64_t head_dim) {
  if (features.dim() != 3 || features.size(2) == head_dim) return features;
  if (features.size(2) > head_dim) return features.narrow(2, 0, head_dim).contiguous();
  return at::constant_pad_nd(features, {0, head_dim - features.size(2)});
}

}  // namespace dfgnn
