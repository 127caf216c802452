// GAT's scores of nodes, and their gradients, on CPU tensors.
#include "../node_scores.h"

#include <algorithm>

#include "run.h"

namespace dfgnn {
namespace {

cpu::NodeArgs make_args(const at::Tensor& x, const at::Tensor& att, const at::Tensor& other) {
  cpu::NodeArgs args{};
  args.x = cpu::data_of(x);
  args.heads = x.size(1);
  args.head_dim = x.size(2);
  args.att[0] = cpu::data_of(att);
  args.att[1] = cpu::data_of(other);
  return args;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> node_scores_cpu(const at::Tensor& x, const at::Tensor& att,
                                                   const at::Tensor& other) {
  constexpr int64_t kNumbers = 32768;  // of x, for a thread at the least
  const auto make = [&] { return at::empty(x.sizes().slice(0, 2), att.options()); };
  const auto scores = make(), others = other.defined() ? make() : at::empty({0}, att.options());
  auto args = make_args(x, att, other);
  args.scores[0] = cpu::writable(scores);
  args.scores[1] = cpu::writable(others);
  const auto kernel = cpu::instruction_set().node_kernels(cpu::type_of(x)).scores;
  const int64_t grain = std::max<int64_t>(kNumbers / std::max<int64_t>(att.numel(), 1), 1);
  at::parallel_for(0, x.size(0), grain, [&](int64_t first, int64_t last) { kernel(args, first, last); });
  return {scores, others};
}

std::tuple<at::Tensor, at::Tensor> node_scores_bwd_cpu(const at::Tensor& grad, const at::Tensor& grad_other,
                                                       const at::Tensor& x, const at::Tensor& att,
                                                       const at::Tensor& other) {
  const auto grad_x = at::empty_like(x);
  auto args = make_args(x, att, other);
  args.grad[0] = cpu::data_of(grad);
  args.grad[1] = cpu::data_of(grad_other);
  args.grad_x = cpu::writable(grad_x);
  const auto kernel = cpu::instruction_set().node_kernels(cpu::type_of(x)).gradients;
  const auto sums =
      cpu::parts_of_nodes(x.size(0), {other.defined() ? 2 : 1, x.size(1), x.size(2)}, att.options(),
                          [&](int64_t first, int64_t last, void* part) { kernel(args, first, last, part); });
  return {grad_x, cpu::sum_of_parts(sums)};
}

}  // namespace dfgnn
