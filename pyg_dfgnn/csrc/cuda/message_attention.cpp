// Attention over messages on CUDA tensors: allocation, device and stream around its kernels.
#include "../message_attention.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../../../cuda/message_attention.h"
#include "../attention.h"
#include "tensors.h"

namespace dfgnn {
namespace {

MessageAttention align(MessageAttention call) {
  for (auto* t : {&call.q, &call.k, &call.v, &call.features}) *t = aligned(*t);
  return call;
}

cuda::Attention operands_of(const MessageAttention& call) {
  const auto& graph = call.graph;
  check_sizes(graph.num_rows(), graph.num_nodes, call.q.size(1), call.q.size(2));
  const auto& q = call.q;
  auto a = cuda::operands_of(cuda::Products{type_of(q),
                                            graph.num_rows(),
                                            graph.num_nodes,
                                            graph.num_edges(),
                                            static_cast<int>(q.size(1)),
                                            static_cast<int>(q.size(2)),
                                            index_of(graph.ptr),
                                            index_of(graph.node),
                                            {}});
  a.dst = data_of(q);
  a.src = data_of(call.k);
  a.value = data_of(call.v);
  a.scale = call.scale;
  a.dropout_p = call.dropout_p;
  a.seed = static_cast<const int64_t*>(data_of(call.seed));
  return a;
}

cuda::MessageFeatures features_of(const MessageAttention& call) {
  const auto& features = call.features;
  check_sizes(call.graph.num_rows(), features.size(0), call.q.size(1), features.size(1));
  return {index_of(call.eid), features.size(0), static_cast<int>(features.size(1)), data_of(features),
          data_of(call.weights)};
}

at::TensorOptions numbers_of(const MessageAttention& call) {
  return call.q.options().dtype(accumulate_type(call.q.scalar_type()));
}

}  // namespace

MessageResults message_attention_fwd_cuda(const MessageAttention& given) {
  const c10::cuda::CUDAGuard guard(given.q.device());
  const auto call = align(given);
  MessageResults results{at::empty(call.q.sizes(), call.q.options()),
                         at::empty({call.q.size(0), call.q.size(1)}, numbers_of(call))};
  const auto operands = operands_of(call);
  const auto scratch = scratch_of(cuda::message_attention_fwd_scratch(operands), call.q);
  C10_CUDA_CHECK(cuda::message_attention_fwd(operands, features_of(call),
                                             {writable(results.out), writable(results.lse)}, writable(scratch),
                                             c10::cuda::getCurrentCUDAStream()));
  return results;
}

MessageGradients message_attention_bwd_cuda(const MessageAttention& given, const MessageBackwardInputs& inputs) {
  const c10::cuda::CUDAGuard guard(given.q.device());
  const auto call = align(given);
  const auto grad_out = aligned(inputs.grad_out), out = aligned(inputs.out);
  const auto& q = call.q;
  const auto of_edges = [&] {
    return results_of_edges(call.graph.num_edges(), q.size(1), call.graph.num_rows(), numbers_of(call));
  };
  const auto of_nodes = [&] {
    return inputs.of_projection ? at::empty({q.size(0), q.size(1), call.features.size(1)}, q.options())
                                : at::empty({0}, q.options());
  };
  MessageGradients gradients{at::empty(q.sizes(), q.options()),
                             of_edges(),
                             of_edges(),
                             of_nodes(),
                             of_nodes(),
                             inputs.of_features ? at::zeros_like(call.features) : at::empty({0}, q.options())};
  const auto where_wanted = [](bool is_wanted, const at::Tensor& t) { return is_wanted ? writable(t) : nullptr; };
  const cuda::MessageGradients pointers{data_of(grad_out),
                                        data_of(out),
                                        data_of(inputs.lse),
                                        writable(gradients.q),
                                        writable(gradients.logits),
                                        writable(gradients.weights),
                                        where_wanted(inputs.of_projection, gradients.by_logits),
                                        where_wanted(inputs.of_projection, gradients.by_weights),
                                        where_wanted(inputs.of_features, gradients.features)};
  const auto operands = operands_of(call);
  const auto features = features_of(call);
  const auto scratch = scratch_of(cuda::message_attention_bwd_scratch(operands, features), q);
  C10_CUDA_CHECK(
      cuda::message_attention_bwd(operands, features, pointers, writable(scratch), c10::cuda::getCurrentCUDAStream()));
  return gradients;
}

}  // namespace dfgnn
