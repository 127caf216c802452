// The kernels of this machine's instruction set, and how their passes run in parallel.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "../products.h"
#include "kernels.h"
#include "schedule.h"

namespace dfgnn::cpu {

struct InstructionSet {
  Kernels (*kernels)(Logit, Type);
  ProductKernels (*product_kernels)(Type);
  NormKernels (*norm_kernels)(Type);
  AttKernel (*att_kernel)(Type);
  NodeKernels (*node_kernels)(Type);
  V2Kernels (*v2_kernels)(Type);
  DropoutMask dropout_mask;
};

// The widest of this machine, or a narrower one that ATEN_CPU_CAPABILITY (torch's own variable, read once, as torch
// does) asks for.
const InstructionSet& instruction_set();

void run(const Pass& pass, const Args& args, const Schedule& schedule, int64_t element_size);

// Of a pass over the rows of a compressed form.
Args args_of(const Compressed& graph, int64_t heads, int64_t head_dim);

// A [E, H] that the schedule's rows are going to write: 0 where some entries belong to none.
at::Tensor numbers_of_edges(const Schedule& schedule, int64_t num_edges, int64_t heads, at::TensorOptions options);

// parts.sum(0) of float32 or float64, pairwise, in an order that does not depend on the number of threads, as torch's
// does.
at::Tensor sum_of_parts(const at::Tensor& parts);

// [runs, ...sizes]: what visit(first, last, part) writes for each run of nodes, which are cut in the same way whatever
// the number of threads.
template <class Visit>
at::Tensor parts_of_nodes(int64_t nodes, at::IntArrayRef sizes, at::TensorOptions options, const Visit& visit) {
  constexpr int64_t kRun = 256;
  std::vector<int64_t> all = {(nodes + kRun - 1) / kRun};
  all.insert(all.end(), sizes.begin(), sizes.end());
  const auto parts = at::empty(all, options);
  auto* first_part = static_cast<char*>(parts.mutable_data_ptr());
  const int64_t bytes = c10::multiply_integers(sizes) * parts.element_size();
  at::parallel_for(0, all[0], 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      visit(r * kRun, std::min(nodes, (r + 1) * kRun), first_part + r * bytes);
    }
  });
  return parts;
}

// seed: int64 [1].
void set_dropout(Args& args, double dropout_p, const at::Tensor& seed);

inline Type type_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kDouble:
      return Type::f64;
    case at::kHalf:
      return Type::f16;
    case at::kBFloat16:
      return Type::bf16;
    default:
      return Type::f32;
  }
}

inline const void* data_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }
inline void* writable(const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

}  // namespace dfgnn::cpu
