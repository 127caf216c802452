// The kernels of this machine's instruction set, and how their passes run in parallel.
#pragma once

#include <ATen/ATen.h>

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

// parts.sum(0) of float32 or float64, pairwise, in an order that does not depend on the number of threads, as torch's
// does.
at::Tensor sum_of_parts(const at::Tensor& parts);

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
