// forward_cpu and backward_cpu: allocates and runs the kernels' passes.
#include "attention.h"

#include "run.h"

namespace dfgnn {
namespace cpu {
namespace {

Kernels kernels_for(const Attention& a) {
  return instruction_set().kernels(static_cast<Logit>(a.score), type_of(a.value));
}

int64_t width_of(const Attention& a) {
  constexpr int64_t kLogit = 64;  // and its exponential, as elements moved
  return a.heads() * (a.head_dim() + kLogit);
}

Args make_args(const Attention& a) {
  Args args = args_of({a.rowptr, a.col, at::Tensor(), a.num_src()}, a.heads(), a.head_dim());
  args.colptr = data_of(a.colptr);
  args.row = data_of(a.row);
  args.perm = data_of(a.perm);
  args.dst = data_of(a.dst);
  args.src = data_of(a.src);
  args.value = data_of(a.value);
  args.dst_scale = data_of(a.dst_scale);
  args.src_scale = data_of(a.src_scale);
  args.att = data_of(a.att);
  args.a_edge = data_of(a.a_edge);
  args.bias = data_of(a.bias);
  args.scale = a.scale;
  args.negative_slope = a.negative_slope;
  if (a.dropout_p > 0) set_dropout(args, a.dropout_p, a.seed);
  return args;
}

}  // namespace
}  // namespace cpu

ForwardResult forward_cpu(const Attention& a) {
  const auto type = accumulate_type(a.value.scalar_type());
  const auto out = at::empty({a.num_dst(), a.heads(), a.head_dim()}, a.value.options());
  const auto lse = at::empty({a.num_dst(), a.heads()}, a.value.options().dtype(type));
  auto args = cpu::make_args(a);
  args.out = cpu::writable(out);
  args.lse = cpu::writable(lse);
  const auto schedule = cpu::make_schedule(a.rowptr, a.num_edges(), cpu::width_of(a));
  cpu::run(cpu::kernels_for(a).forward, args, schedule, lse.element_size());
  return {out, lse};
}

Gradients backward_cpu(const Attention& a, const Saved& saved) {
  const auto per_edge = a.value.options().dtype(accumulate_type(a.value.scalar_type()));
  const auto rows = cpu::make_schedule(a.rowptr, a.num_edges(), cpu::width_of(a));
  const auto edge_tensor = [&] { return cpu::numbers_of_edges(rows, a.num_edges(), a.heads(), per_edge); };
  const bool additive = a.score == Score::additive;
  const auto weight = edge_tensor(), grad_score = edge_tensor();

  Gradients gradients;
  gradients.dst = at::empty_like(a.dst);
  gradients.src = at::empty_like(a.src);
  gradients.value = at::empty_like(a.value);
  if (a.a_edge.defined()) gradients.a_edge = grad_score;
  if (a.bias.defined()) gradients.bias = additive ? edge_tensor() : grad_score;

  auto args = cpu::make_args(a);
  args.grad_out = cpu::data_of(saved.grad_out);
  args.out = const_cast<void*>(cpu::data_of(saved.out));
  args.lse = const_cast<void*>(cpu::data_of(saved.lse));
  args.grad_lse = cpu::data_of(saved.grad_lse);
  args.weight = cpu::writable(weight);
  args.grad_score = cpu::writable(grad_score);
  args.grad_bias = additive ? cpu::writable(gradients.bias) : nullptr;
  args.grad_dst = cpu::writable(gradients.dst);
  args.grad_src = cpu::writable(gradients.src);
  args.grad_value = cpu::writable(gradients.value);
  const auto kernels = cpu::kernels_for(a);
  cpu::run(kernels.backward_dst, args, rows, weight.element_size());
  const auto columns = cpu::make_schedule(a.colptr, a.num_edges(), cpu::width_of(a));
  cpu::run(kernels.backward_src, args, columns, weight.element_size());
  return gradients;
}

}  // namespace dfgnn
