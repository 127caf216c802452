// Additive_v2's gradients of x_dst, x_src and att on CPU tensors.
#include <ATen/Parallel.h>

#include <algorithm>

#include "../attention.h"
#include "run.h"

namespace dfgnn {
namespace {

// g by att, in its place, plus `added` where it is defined; <x, g> over the nodes, a row for each kRun of them, so that
// it does not depend on the number of threads.
at::Tensor finish(const at::Tensor& x, const at::Tensor& g, const at::Tensor& att, const at::Tensor& added) {
  constexpr int64_t kRun = 256;
  const int64_t nodes = x.size(0), runs = (nodes + kRun - 1) / kRun;
  const auto sums = at::empty({runs, att.size(0), att.size(1)}, att.options());
  cpu::AttArgs args{};
  args.x = cpu::data_of(x);
  args.g = cpu::writable(g);
  args.att = cpu::data_of(att);
  args.added = cpu::data_of(added);
  args.size = att.numel();
  const auto kernel = cpu::instruction_set().att_kernel(cpu::type_of(x));
  auto* all = static_cast<char*>(cpu::writable(sums));
  at::parallel_for(0, runs, 1, [&](int64_t first, int64_t last) {
    for (int64_t r = first; r < last; ++r) {
      kernel(args, r * kRun, std::min(nodes, (r + 1) * kRun), all + r * att.numel() * att.element_size());
    }
  });
  return sums;
}

}  // namespace

std::tuple<at::Tensor, at::Tensor, at::Tensor> att_gradients_cpu(const Attention& a, const Gradients& given) {
  const auto of_dst = finish(a.dst, given.dst, a.att, {}), of_src = finish(a.src, given.src, a.att, given.value);
  return {given.dst, given.src, cpu::sum_of_parts(at::cat({of_dst, of_src}))};
}

}  // namespace dfgnn
