// sddmm, spmm and their like on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../../../cuda/products.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "../../../cuda/edge_softmax.h"
#include "../attention.h"
#include "../products.h"
#include "padding.h"
#include "tensors.h"

namespace dfgnn {
namespace {

cuda::Products products_of(const Compressed& graph, const at::Tensor& x, int64_t heads) {
  check_sizes(graph.num_rows(), graph.num_nodes, heads, x.size(2));
  return {type_of(x),          graph.num_rows(),        graph.num_nodes,
          graph.num_edges(),   static_cast<int>(heads), static_cast<int>(x.size(2)),
          index_of(graph.ptr), index_of(graph.node),    index_of(graph.position)};
}

cuda::Features features_of(const at::Tensor& x, bool one_node = false) {
  return {x.const_data_ptr(), static_cast<int>(x.size(1)), one_node};
}

// Of numbers of edges [E, H] or nodes [N, H].
cuda::Products products_of(const Compressed& graph, const at::Tensor& numbers) {
  return products_of(graph, numbers.unsqueeze(2), numbers.size(1));
}

at::Tensor of_edges(const Compressed& graph, int64_t heads, const at::TensorOptions& options) {
  return results_of_edges(graph.num_edges(), heads, graph.num_rows(), options);
}

at::Tensor sddmm_with(const Compressed& graph, const at::Tensor& a, const at::Tensor& b,
                      const cuda::FeaturesOfEdges* edges) {
  const c10::cuda::CUDAGuard guard(a.device());
  const auto x = aligned(a), y = aligned(b);
  const int64_t heads = std::max(x.size(1), y.size(1));
  auto result = of_edges(graph, heads, x.options().dtype(accumulate_type(x.scalar_type())));
  const auto product = products_of(graph, x, heads);
  const auto scratch = scratch_of(cuda::sddmm_scratch(product), x);
  C10_CUDA_CHECK(cuda::sddmm(product, features_of(x, x.size(0) == 1), features_of(y), edges, result.mutable_data_ptr(),
                             writable(scratch), c10::cuda::getCurrentCUDAStream()));
  return result;
}

}  // namespace

at::Tensor sddmm_cuda(const Compressed& graph, const at::Tensor& a, const at::Tensor& b) {
  return sddmm_with(graph, a, b, nullptr);
}

at::Tensor sddmm_of_both_cuda(const Compressed& graph, const at::Tensor& a, const at::Tensor& b, const at::Tensor& eid,
                              const at::Tensor& given_projected, const at::Tensor& given_features) {
  const c10::cuda::CUDAGuard guard(a.device());
  const auto projected = aligned(given_projected), features = aligned(given_features);
  check_rows("features", features.size(0), projected.size(1), features.size(1));
  const cuda::FeaturesOfEdges edges{index_of(eid), features.size(0), static_cast<int>(features.size(1)),
                                    features.const_data_ptr(), projected.const_data_ptr()};
  return sddmm_with(graph, a, b, &edges);
}

at::Tensor spmm_cuda(const Compressed& graph, const at::Tensor& weight, const at::Tensor& given, bool sum_heads) {
  const c10::cuda::CUDAGuard guard(given.device());
  const int64_t heads = weight.size(1), head_dim = in_whole_vectors(given);
  const bool is_worth_it =
      graph.num_edges() * heads >= kWorthItsCopies && 2 * graph.num_edges() >= given.size(0) + graph.num_rows();
  const bool is_padded = head_dim != given.size(2) && is_worth_it;
  const auto x = aligned(is_padded ? with_head_dim(given, head_dim) : given);
  auto result = at::empty({graph.num_rows(), sum_heads ? 1 : heads, x.size(2)}, x.options());
  const auto product = products_of(graph, x, heads);
  const auto scratch = scratch_of(cuda::spmm_scratch(product, sum_heads), x);
  C10_CUDA_CHECK(cuda::spmm(product, weight.const_data_ptr(), features_of(x), sum_heads, result.mutable_data_ptr(),
                            writable(scratch), c10::cuda::getCurrentCUDAStream()));
  return with_head_dim(result, given.size(2));
}

at::Tensor edge_spmm_t_cuda(const Compressed& graph, const at::Tensor& weight, const at::Tensor& a) {
  const c10::cuda::CUDAGuard guard(a.device());
  const auto x = aligned(a);
  auto result = at::zeros({graph.num_nodes, x.size(2)}, x.options());
  C10_CUDA_CHECK(cuda::edge_spmm_t(products_of(graph, x, weight.size(1)), weight.const_data_ptr(),
                                   features_of(x, x.size(0) == 1), result.mutable_data_ptr(),
                                   c10::cuda::getCurrentCUDAStream()));
  return result;
}

at::Tensor add_ends_cuda(const Compressed& graph, const at::Tensor& a, const at::Tensor& b) {
  const c10::cuda::CUDAGuard guard(a.device());
  auto result = of_edges(graph, a.size(1), a.options());
  C10_CUDA_CHECK(cuda::add_ends(products_of(graph, a), a.const_data_ptr(), b.const_data_ptr(),
                                result.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return result;
}

at::Tensor sum_edges_cuda(const Compressed& graph, const at::Tensor& values) {
  const c10::cuda::CUDAGuard guard(values.device());
  auto result = at::empty({graph.num_rows(), values.size(1)}, values.options());
  const auto product = products_of(graph, values);
  const auto scratch = scratch_of(cuda::edge_scratch(product), values);
  C10_CUDA_CHECK(cuda::sum_edges(product, values.const_data_ptr(), result.mutable_data_ptr(), writable(scratch),
                                 c10::cuda::getCurrentCUDAStream()));
  return result;
}

at::Tensor edge_softmax_cuda(const Compressed& graph, const at::Tensor& logits, double scale) {
  const c10::cuda::CUDAGuard guard(logits.device());
  auto result = of_edges(graph, logits.size(1), logits.options());
  const auto product = products_of(graph, logits);
  const auto scratch = scratch_of(cuda::edge_scratch(product), logits);
  C10_CUDA_CHECK(cuda::edge_softmax(product, logits.const_data_ptr(), scale, result.mutable_data_ptr(),
                                    writable(scratch), c10::cuda::getCurrentCUDAStream()));
  return result;
}

at::Tensor edge_softmax_bwd_cuda(const Compressed& graph, const at::Tensor& grad, const at::Tensor& alpha,
                                 double scale) {
  const c10::cuda::CUDAGuard guard(grad.device());
  auto result = of_edges(graph, grad.size(1), grad.options());
  const auto product = products_of(graph, grad);
  const auto scratch = scratch_of(cuda::edge_scratch(product), grad);
  C10_CUDA_CHECK(cuda::edge_softmax_backward(product, grad.const_data_ptr(), alpha.const_data_ptr(), scale,
                                             result.mutable_data_ptr(), writable(scratch),
                                             c10::cuda::getCurrentCUDAStream()));
  return result;
}

}  // namespace dfgnn
