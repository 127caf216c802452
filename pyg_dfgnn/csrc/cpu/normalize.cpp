// Norms of rows on CPU tensors.
#include "../normalize.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "run.h"

namespace dfgnn {
namespace {

using Rows = void (*)(const cpu::NormArgs&, int64_t begin, int64_t end);

cpu::NormArgs make_args(const at::Tensor& x, double eps) {
  cpu::NormArgs args{};
  args.x = cpu::data_of(x);
  args.size = x.size(2);
  args.eps = eps;
  return args;
}

void run(Rows rows, const cpu::NormArgs& args, int64_t num_rows) {
  constexpr int64_t kFeatures = 1 << 14;  // of a thread, at the least
  const int64_t grain = std::max<int64_t>(kFeatures / std::max<int64_t>(args.size, 1), 1);
  at::parallel_for(0, num_rows, grain, [&](int64_t begin, int64_t end) { rows(args, begin, end); });
}

}  // namespace

at::Tensor reciprocal_norm_cpu(const at::Tensor& x, double eps) {
  const auto reciprocal = empty_scalars(x);
  auto args = make_args(x, eps);
  args.reciprocal = cpu::writable(reciprocal);
  run(cpu::instruction_set().norm_kernels(cpu::type_of(x)).reciprocal_norm, args, reciprocal.numel());
  return reciprocal;
}

std::tuple<at::Tensor, at::Tensor> normalize_backward_cpu(const at::Tensor& x, const at::Tensor& g, double eps,
                                                          const at::Tensor& beta, const at::Tensor& added) {
  const auto grad = at::empty_like(x), projection = empty_scalars(x);
  auto args = make_args(x, eps);
  args.g = cpu::data_of(g);
  args.added = cpu::data_of(added);
  args.beta = cpu::data_of(beta);
  args.heads = beta.defined() ? beta.numel() : 1;
  args.grad = cpu::writable(grad);
  args.projection = cpu::writable(projection);
  run(cpu::instruction_set().norm_kernels(cpu::type_of(x)).normalize_backward, args, projection.numel());
  return {grad, projection};
}

at::Tensor sum_of_scalars_cpu(const at::Tensor& x) { return cpu::sum_of_parts(x); }

}  // namespace dfgnn
