// additive_v2_logits on CPU tensors: runs of edges, which threads take in any order. What they are cut into depends on
// sizes alone, so that results have the same bits with any number of threads.
#include <ATen/Parallel.h>

#include <algorithm>
#include <memory>

#include "../attention.h"
#include "../logits.h"
#include "run.h"

namespace dfgnn {
namespace {

constexpr int64_t kTasks = 256;                 // at the most,
constexpr int64_t kEdges = 1024;                // with so many edges each at the least,
constexpr int64_t kNumbers = int64_t(1) << 22;  // and so many numbers of all their sums at the most

// The operands as kernels read them.
struct Task {
  at::Tensor ptr, node, position, x_dst, x_src, att, features, weight, eid;
  cpu::V2Args args{};

  Task(const V2Operands& o, bool by_destination)
      : ptr((by_destination ? o.graph.rowptr : *o.graph.colptr).contiguous()),
        node((by_destination ? o.graph.col : *o.graph.row).contiguous()),
        x_dst(o.x_dst.contiguous()),
        x_src(o.x_src.contiguous()) {
    if (!by_destination) position = o.graph.perm->contiguous();
    const auto type = accumulate_type(x_src.scalar_type());
    att = o.att.to(type).contiguous();
    if (o.features.has_value() && o.features->size(1) > 0) {
      features = o.features->contiguous();
      weight = o.weight->to(type).t().contiguous();
      eid = o.eid->contiguous();
      args.num_features = features.size(0);
      args.edge_dim = features.size(1);
    }
    args.ptr = cpu::data_of(ptr);
    args.node = cpu::data_of(node);
    args.position = cpu::data_of(position);
    args.eid = cpu::data_of(eid);
    args.wide_index = ptr.scalar_type() == at::kLong;
    args.num_rows = ptr.numel() - 1;
    args.num_nodes = (by_destination ? x_src : x_dst).size(0);
    args.num_edges = node.numel();
    args.heads = x_src.size(1);
    args.channels = x_src.size(2);
    args.own = cpu::data_of(by_destination ? x_dst : x_src);
    args.other = cpu::data_of(by_destination ? x_src : x_dst);
    args.att = cpu::data_of(att);
    args.features = cpu::data_of(features);
    args.weight = cpu::data_of(weight);
    args.negative_slope = o.negative_slope;
    const int64_t of_sums = (1 + args.edge_dim) * std::max<int64_t>(width(), 1);
    args.tasks = std::clamp<int64_t>(std::min(args.num_edges / kEdges, kNumbers / of_sums), 1, kTasks);
  }

  int64_t width() const { return args.heads * args.channels; }

  // Calls visit(first, last, scratch) for parts of `count` things.
  template <class Visit>
  void in_parallel(int64_t count, int64_t grain, const Visit& visit) const {
    const int64_t bytes = cpu::instruction_set().v2_kernels(cpu::type_of(x_src)).scratch(args) * att.element_size();
    at::parallel_for(0, count, grain, [&](int64_t first, int64_t last) {
      const auto scratch = std::make_unique_for_overwrite<char[]>(bytes);
      visit(first, last, scratch.get());
    });
  }
};

// The gradient of the rows' nodes: A [rows, heads, channels].
at::Tensor gradients_of_rows(Task& task, const at::Tensor& grad) {
  auto& args = task.args;
  const auto options = task.att.options();
  args.grad = cpu::data_of(grad);
  const auto rows = at::zeros({args.num_rows, args.heads, args.channels}, options);
  const auto ends = at::zeros({args.tasks, 2, args.heads, args.channels}, options);
  const auto end_rows = at::full({args.tasks, 2}, -1, options.dtype(at::kLong));
  args.grad_own = cpu::writable(rows);
  args.ends = cpu::writable(ends);
  args.end_rows = cpu::writable(end_rows);
  const auto gradients = cpu::instruction_set().v2_kernels(cpu::type_of(task.x_src)).gradients;
  task.in_parallel(args.tasks, 1, [&](int64_t first, int64_t last, void* scratch) {
    for (int64_t t = first; t < last; ++t) gradients(args, t, scratch);
  });
  // Rows that tasks share, in the order of these. Where there is none, nothing is added to the first.
  return rows.index_add_(0, end_rows.flatten().clamp_min_(0), ends.flatten(0, 1));
}

}  // namespace

at::Tensor v2_logits_cpu(const V2Operands& o) {
  Task task(o, true);
  const auto logits = at::zeros({task.args.num_edges, task.args.heads}, task.att.options());
  task.args.logits = cpu::writable(logits);
  const auto kernel = cpu::instruction_set().v2_kernels(cpu::type_of(task.x_src)).logits;
  task.in_parallel(task.args.num_edges, kEdges,
                   [&](int64_t first, int64_t last, void* scratch) { kernel(task.args, first, last, scratch); });
  return logits;
}

V2GradientTensors v2_gradients_cpu(const at::Tensor& grad, const V2Operands& o, bool of_features) {
  const auto weights = grad.contiguous();
  Task by_destination(o, true), by_source(o, false);
  auto& args = by_destination.args;
  const bool has_features = o.features.has_value();
  const auto none = [&] { return at::empty({0}, o.x_src.options()); };
  const auto features = of_features && has_features ? at::zeros(o.features->sizes(), o.features->options()) : none();
  const auto sums = at::empty({args.tasks, 1 + args.edge_dim, by_destination.width()}, by_destination.att.options());
  args.sums = cpu::writable(sums);
  if (of_features && args.edge_dim > 0) args.grad_features = cpu::writable(features);
  const auto d_dst = gradients_of_rows(by_destination, weights), d_src = gradients_of_rows(by_source, weights);
  const auto total = cpu::sum_of_parts(sums);
  const auto d_att = total[0].view(o.att.sizes()).clone();
  const auto d_weight = total.narrow(0, 1, args.edge_dim).t().clone(at::MemoryFormat::Contiguous);
  const auto type = o.x_src.scalar_type();
  return {d_dst.to(type), d_src.to(type), d_att, features, has_features ? d_weight : none()};
}

}  // namespace dfgnn
