#include "../products.h"

#include <algorithm>

#include "../attention.h"
#include "run.h"

namespace dfgnn {
namespace {

int64_t width_of(int64_t heads, int64_t head_dim) {
  constexpr int64_t kIndex = 16;  // and number, as elements moved
  return heads * (head_dim + kIndex);
}

}  // namespace

at::Tensor sddmm_cpu(const Compressed& graph, const at::Tensor& a, const at::Tensor& b) {
  const int64_t heads = std::max(a.size(1), b.size(1)), head_dim = a.size(2);
  const auto schedule = cpu::make_schedule(graph.ptr, graph.num_edges(), width_of(heads, head_dim));
  const auto options = a.options().dtype(accumulate_type(a.scalar_type()));
  const auto out = cpu::numbers_of_edges(schedule, graph.num_edges(), heads, options);
  auto args = cpu::args_of(graph, heads, head_dim);
  args.dst = cpu::data_of(a);
  args.dst_heads = a.size(1);
  args.one_dst = a.size(0) == 1;
  args.src = cpu::data_of(b);
  args.src_heads = b.size(1);
  args.out = cpu::writable(out);
  cpu::run(cpu::instruction_set().product_kernels(cpu::type_of(a)).sddmm, args, schedule, out.element_size());
  return out;
}

at::Tensor sddmm_of_both_cpu(const Compressed& graph, const at::Tensor& a, const at::Tensor& b, const at::Tensor& eid,
                             const at::Tensor& projected, const at::Tensor& features) {
  const Compressed edges{graph.ptr, eid, at::Tensor(), features.size(0)};
  return sddmm_cpu(graph, a, b).add_(sddmm_cpu(edges, projected, features.unsqueeze(1)));
}

at::Tensor spmm_cpu(const Compressed& graph, const at::Tensor& weight, const at::Tensor& x, bool sum_heads) {
  const int64_t heads = weight.size(1), head_dim = x.size(2);
  const auto schedule = cpu::make_schedule(graph.ptr, graph.num_edges(), width_of(heads, head_dim));
  const auto out = at::empty({graph.num_rows(), sum_heads ? 1 : heads, head_dim}, x.options());
  auto args = cpu::args_of(graph, heads, head_dim);
  args.weight = const_cast<void*>(cpu::data_of(weight));
  args.src = cpu::data_of(x);
  args.src_heads = x.size(1);
  args.out = cpu::writable(out);
  args.out_heads = out.size(1);
  cpu::run(cpu::instruction_set().product_kernels(cpu::type_of(x)).spmm, args, schedule, weight.element_size());
  return out;
}

at::Tensor edge_spmm_t_cpu(const Compressed& graph, const at::Tensor& weight, const at::Tensor& a) {
  const int64_t heads = weight.size(1), head_dim = a.size(2);
  const auto schedule = cpu::make_schedule(graph.ptr, graph.num_edges(), width_of(heads, head_dim));
  const auto out = at::zeros({graph.num_nodes, head_dim}, a.options());
  auto args = cpu::args_of(graph, heads, head_dim);
  args.weight = const_cast<void*>(cpu::data_of(weight));
  args.dst = cpu::data_of(a);
  args.one_dst = a.size(0) == 1;
  args.out = cpu::writable(out);
  cpu::run(cpu::instruction_set().product_kernels(cpu::type_of(a)).edge_spmm_t, args, schedule, weight.element_size());
  return out;
}

}  // namespace dfgnn
