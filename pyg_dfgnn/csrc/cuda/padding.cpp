#include "padding.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <c10/util/SmallVector.h>

#include "../../../cuda/resize_heads.h"
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
  resize_heads({&a.value, &a.src, &a.dst}, head_dim);
  if (a.att.defined()) a.att = at::constant_pad_nd(a.att, {0, head_dim - a.att.size(1)});
  return a;
}

int64_t in_whole_vectors(const at::Tensor& features) {
  return in_whole_vectors(features.element_size(), features.size(2));
}

int64_t in_whole_vectors(int64_t number_bytes, int64_t head_dim) {
  if (number_bytes == 8 || head_dim * number_bytes % 16 == 0) return head_dim;
  const int64_t numbers = (head_dim * number_bytes > 128 ? 32 : 16) / number_bytes;
  return (head_dim + numbers - 1) / numbers * numbers;
}

void resize_heads(std::initializer_list<at::Tensor*> features, int64_t head_dim) {
  c10::SmallVector<at::Tensor, cuda::ResizeHeads::kMost> given, contiguous, made;
  cuda::ResizeHeads task{};
  for (at::Tensor* t : features) {
    if (!t->defined() || t->dim() != 3 || t->size(2) == head_dim) continue;
    size_t i = 0;
    while (i < given.size() && !given[i].is_same(*t)) ++i;
    if (i == given.size()) {
      const bool is_alike = i == 0 || (t->scalar_type() == given[0].scalar_type() && t->size(2) == given[0].size(2));
      TORCH_INTERNAL_ASSERT(is_alike && i < cuda::ResizeHeads::kMost && t->element_size() <= 4);
      given.push_back(*t);
      contiguous.push_back(t->contiguous());
      made.push_back(at::empty({t->size(0), t->size(1), head_dim}, t->options()));
      task.heads[i] = t->size(0) * t->size(1);
      task.x[i] = contiguous[i].const_data_ptr();
      task.y[i] = made[i].mutable_data_ptr();
    }
    *t = made[i];
  }
  if (given.empty()) return;
  task.number_bytes = static_cast<int>(given[0].element_size());
  task.from = static_cast<int>(given[0].size(2));
  task.to = static_cast<int>(head_dim);
  task.count = static_cast<int>(given.size());
  const c10::cuda::CUDAGuard guard(given[0].device());
  C10_CUDA_CHECK(cuda::resize_heads(task, c10::cuda::getCurrentCUDAStream()));
}

at::Tensor with_head_dim(at::Tensor features, int64_t head_dim) {
  resize_heads({&features}, head_dim);
  return features;
}

}  // namespace dfgnn
