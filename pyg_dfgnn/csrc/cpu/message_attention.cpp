// Attention over messages on CPU tensors: allocation around its passes.
#include "../message_attention.h"

#include <algorithm>
#include <tuple>

#include "../attention.h"
#include "../projection.h"
#include "run.h"

namespace dfgnn {
namespace {

constexpr int64_t kSums = int64_t(1) << 19;  // numbers of sums at a time

// A call's operands as kernels read them.
class Task {
 public:
  explicit Task(const MessageAttention& call) : call_(call) {
    const auto& [graph, eid, q, k, v, features, w] =
        std::tie(call.graph, call.eid, call.q, call.k, call.v, call.features, call.projection);
    const auto by_head = w.to(numbers().dtype()).view({q.size(1), q.size(2), features.size(1)});
    projection_ = by_head.contiguous();
    transposed_ = by_head.mT().contiguous();
    args = cpu::args_of(graph, q.size(1), q.size(2));
    args.eid = cpu::data_of(eid);
    args.num_features = features.size(0);
    args.edge_dim = features.size(1);
    args.dst = cpu::data_of(q);
    args.src = cpu::data_of(k);
    args.value = cpu::data_of(v);
    args.features = cpu::data_of(features);
    args.projection = cpu::data_of(projection_);
    args.transposed_projection = cpu::data_of(transposed_);
    args.scale = call.scale;
    if (call.dropout_p > 0) cpu::set_dropout(args, call.dropout_p, call.seed);
  }

  at::TensorOptions numbers() const { return call_.q.options().dtype(accumulate_type(call_.q.scalar_type())); }

  // Of these rows.
  cpu::Schedule schedule(const at::Tensor& ptr) const {
    constexpr int64_t kLogit = 64;  // and its exponential, as elements moved
    const int64_t width = args.heads * (args.head_dim + args.edge_dim + kLogit);
    return cpu::make_schedule(ptr, args.num_edges, width);
  }

  cpu::Kernels kernels() const { return cpu::instruction_set().kernels(cpu::Logit::message, cpu::type_of(call_.q)); }

  cpu::Args args{};

 private:
  const MessageAttention& call_;
  at::Tensor projection_, transposed_;
};

}  // namespace

MessageResults message_attention_fwd_cpu(const MessageAttention& call) {
  Task task(call);
  const MessageResults results{at::empty_like(call.q), at::empty(call.q.sizes().slice(0, 2), task.numbers())};
  task.args.out = cpu::writable(results.out);
  task.args.lse = cpu::writable(results.lse);
  cpu::run(task.kernels().forward, task.args, task.schedule(call.graph.ptr), results.lse.element_size());
  return results;
}

MessageGradients message_attention_bwd_cpu(const MessageAttention& call, const MessageBackwardInputs& inputs) {
  Task task(call);
  const auto &q = call.q, &ptr = call.graph.ptr;
  const auto& all = task.args;
  const int64_t rows = all.num_dst, numbers = std::max<int64_t>(all.heads * all.edge_dim, 1);
  const auto whole = task.schedule(ptr);
  const auto of_edges = [&] { return cpu::numbers_of_edges(whole, all.num_edges, all.heads, task.numbers()); };
  const auto none = [&] { return at::empty({0}, q.options()); };
  MessageGradients gradients{at::empty_like(q), of_edges(), of_edges(), none(),
                             inputs.of_features ? at::zeros_like(call.features) : none()};
  // W's gradient is made of two sums of features a row, of so many rows at a time: all would be fresh memory, which
  // takes longer than the sums.
  const int64_t most = inputs.of_projection ? std::max<int64_t>(kSums / numbers, 1) : rows;
  const auto sums = [&] {
    return inputs.of_projection ? at::empty({std::min(rows, most), all.heads, all.edge_dim}, task.numbers())
                                : at::Tensor();
  };
  const auto by_logits = sums(), by_weights = sums(), w = call.projection.to(task.numbers().dtype());
  auto of_projection = inputs.of_projection ? at::zeros_like(w) : none();
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    const auto read = [&](const at::Tensor& x) { return cpu::data_of(x.narrow(0, first, count)); };
    auto args = all;
    args.num_dst = count;
    args.rowptr = cpu::data_of(ptr.narrow(0, first, count + 1));
    args.dst = read(q);
    args.grad_out = read(inputs.grad_out);
    args.out = const_cast<void*>(read(inputs.out));
    args.lse = const_cast<void*>(read(inputs.lse));
    args.grad_dst = cpu::writable(gradients.q.narrow(0, first, count));
    args.weight = cpu::writable(gradients.weights);
    args.grad_score = cpu::writable(gradients.logits);
    args.grad_features = inputs.of_features ? cpu::writable(gradients.features) : nullptr;
    args.grad_sums = cpu::writable(by_logits);
    args.weight_sums = cpu::writable(by_weights);
    cpu::run(task.kernels().backward_dst, args, count == rows ? whole : task.schedule(ptr.narrow(0, first, count + 1)),
             gradients.logits.element_size());
    if (!inputs.of_projection) continue;
    const auto add = [&](const at::Tensor& x, const at::Tensor& z) {
      const auto nodes = x.narrow(0, first, count).to(w.dtype());
      of_projection += Projection(w, nodes).gradient(nodes, z.narrow(0, 0, count));
    };
    add(q, by_logits);
    add(inputs.grad_out, by_weights);
  }
  if (inputs.of_projection) gradients.projection = of_projection.to(q.dtype());
  return gradients;
}

}  // namespace dfgnn
