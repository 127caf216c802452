// Attention over messages on CUDA tensors: allocation, device and stream around its kernels.
#include "../message_attention.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../../../cuda/message_attention.h"
#include "../../../cuda/projection_gradient.h"
#include "../attention.h"
#include "../autocast.h"
#include "../projection.h"
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

// projected: W^T q, where the kernels are of octets.
cuda::MessageFeatures features_of(const MessageAttention& call, const at::Tensor& projected) {
  const auto& features = call.features;
  check_rows("features", features.size(0), call.q.size(1), features.size(1));
  return {index_of(call.eid),    features.size(0),  static_cast<int>(features.size(1)), call.pieces, data_of(features),
          data_of(call.weights), data_of(projected)};
}

// W [H D, F] by heads, and what nodes have, [nodes, H, C], as matrices of heads. (What Projection makes of matrices of
// all heads takes twice the time where features are many.)
at::Tensor w_by_head(const MessageAttention& call) {
  return call.projection.view({call.q.size(1), call.q.size(2), call.features.size(1)});
}
at::Tensor by_head(const at::Tensor& x) { return x.transpose(0, 1); }

// W^T x, [nodes, H, F], for kernels of octets, to others an undefined one; and y += W x.
at::Tensor projected_of(const MessageAttention& call, const at::Tensor& x) {
  if (call.pieces == 0) return {};
  const auto projected = at::empty({x.size(0), x.size(1), call.features.size(1)}, x.options());
  auto result = by_head(projected);
  at::bmm_out(result, by_head(x), w_by_head(call));
  return projected;
}
void add_product(const MessageAttention& call, const at::Tensor& y, const at::Tensor& x) {
  by_head(y).baddbmm_(by_head(x), w_by_head(call).mT());
}

at::TensorOptions numbers_of(const MessageAttention& call) {
  return call.q.options().dtype(accumulate_type(call.q.scalar_type()));
}

// W's gradient, the sum over nodes of q (sum of ds f)^T + dy (sum of alpha f)^T for each head.
at::Tensor projection_gradient(const MessageAttention& call, const at::Tensor& q, const at::Tensor& by_logits,
                               const at::Tensor& dy, const at::Tensor& by_weights) {
  const int64_t heads = q.size(1), size = q.size(2), width = by_logits.size(2);
  const Projection projection(call.projection, q);
  const bool by_tensor_cores = q.element_size() == 2 && projection.by_matrix();
  if (by_tensor_cores || q.scalar_type() == at::kDouble || width % 4 != 0) {
    return projection.gradient(q, by_logits) + projection.gradient(dy, by_weights);
  }
  const cuda::ProjectionGradient task{type_of(q),
                                      q.size(0),
                                      static_cast<int>(heads),
                                      static_cast<int>(size),
                                      static_cast<int>(width),
                                      {data_of(q), data_of(dy)},
                                      {data_of(by_logits), data_of(by_weights)}};
  const auto sums = at::empty({cuda::projection_gradient_parts(task), heads * size, width}, numbers_of(call));
  C10_CUDA_CHECK(cuda::projection_gradient(task, writable(sums), c10::cuda::getCurrentCUDAStream()));
  return sums.sum(0).to(q.scalar_type());
}

}  // namespace

MessageResults message_attention_fwd_cuda(const MessageAttention& given) {
  const c10::cuda::CUDAGuard guard(given.q.device());
  const NoAutocast as_given;
  const auto call = align(given);
  MessageResults results{at::empty(call.q.sizes(), call.q.options()),
                         at::empty({call.q.size(0), call.q.size(1)}, numbers_of(call))};
  const auto projected = projected_of(call, call.q);
  const auto sums = projected.defined() ? at::empty_like(projected) : at::Tensor();
  const auto operands = operands_of(call);
  const auto features = features_of(call, projected);
  const auto scratch = scratch_of(cuda::message_attention_fwd_scratch(operands, features), call.q);
  C10_CUDA_CHECK(cuda::message_attention_fwd(operands, features,
                                             {writable(results.out), writable(results.lse), writable(sums)},
                                             writable(scratch), c10::cuda::getCurrentCUDAStream()));
  if (projected.defined()) add_product(call, results.out, sums);
  return results;
}

MessageGradients message_attention_bwd_cuda(const MessageAttention& given, const MessageBackwardInputs& inputs) {
  const c10::cuda::CUDAGuard guard(given.q.device());
  const NoAutocast as_given;
  const auto call = align(given);
  const auto grad_out = aligned(inputs.grad_out), out = aligned(inputs.out);
  const auto& q = call.q;
  const auto projected = projected_of(call, q), grad_projected = projected_of(call, grad_out);
  const auto of_edges = [&] {
    return results_of_edges(call.graph.num_edges(), q.size(1), call.graph.num_rows(), numbers_of(call));
  };
  const auto sums_if = [&](bool are_wanted) {  // of features
    return are_wanted ? at::empty({q.size(0), q.size(1), call.features.size(1)}, q.options()) : at::Tensor();
  };
  const auto none = [&] { return at::empty({0}, q.options()); };
  MessageGradients gradients{at::empty(q.sizes(), q.options()), of_edges(), of_edges(), none(),
                             inputs.of_features ? at::zeros_like(call.features) : none()};
  const auto by_logits = sums_if(inputs.of_projection || projected.defined()),
             by_weights = sums_if(inputs.of_projection);
  const cuda::MessageGradients pointers{
      data_of(grad_out),           data_of(out),
      data_of(inputs.lse),         data_of(grad_projected),
      writable(gradients.q),       writable(gradients.logits),
      writable(gradients.weights), writable(by_logits),
      writable(by_weights),        inputs.of_features ? writable(gradients.features) : nullptr};
  const auto operands = operands_of(call);
  const auto features = features_of(call, projected);
  const auto scratch = scratch_of(cuda::message_attention_bwd_scratch(operands, features), q);
  C10_CUDA_CHECK(
      cuda::message_attention_bwd(operands, features, pointers, writable(scratch), c10::cuda::getCurrentCUDAStream()));
  if (projected.defined()) add_product(call, gradients.q, by_logits);
  if (inputs.of_projection) gradients.projection = projection_gradient(call, q, by_logits, grad_out, by_weights);
  return gradients;
}

}  // namespace dfgnn
