// Additive_v2's gradients of x_dst, x_src and att on CPU tensors.
#include "../attention.h"
#include "run.h"

namespace dfgnn {
namespace {

// g by att, in its place, plus `added` where it is defined; <x, g> of runs of nodes.
at::Tensor finish(const at::Tensor& x, const at::Tensor& g, const at::Tensor& att, const at::Tensor& added) {
  cpu::AttArgs args{};
  args.x = cpu::data_of(x);
  args.g = cpu::writable(g);
  args.att = cpu::data_of(att);
  args.added = cpu::data_of(added);
  args.size = att.numel();
  const auto kernel = cpu::instruction_set().att_kernel(cpu::type_of(x));
  return cpu::parts_of_nodes(x.size(0), att.sizes(), att.options(),
                             [&](int64_t first, int64_t last, void* part) { kernel(args, first, last, part); });
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> att_gradients_cpu(const Attention& a, const Gradients& given) {
  const auto of_dst = finish(a.dst, given.dst, a.att, {}), of_src = finish(a.src, given.src, a.att, given.value);
  return {given.dst, given.src, cpu::sum_of_parts(at::cat({of_dst, of_src}))};
}

}  // namespace dfgnn
