#include "../dropout.h"

#include <ATen/Parallel.h>

#include "run.h"

namespace dfgnn {

at::Tensor dropout_mask_cpu(const at::Tensor& seed, int64_t num_edges, int64_t heads, double dropout_p) {
  const auto mask = at::empty({num_edges, heads}, seed.options().dtype(at::kBool));
  cpu::Args args{};
  args.heads = heads;
  cpu::set_dropout(args, dropout_p, seed);
  const auto fill = cpu::instruction_set().dropout_mask;
  bool* data = mask.mutable_data_ptr<bool>();
  at::parallel_for(0, num_edges, 1024, [&](int64_t begin, int64_t end) { fill(args, begin, end, data); });
  return mask;
}

}  // namespace dfgnn
