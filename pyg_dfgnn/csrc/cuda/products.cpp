// sddmm and spmm on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../../../cuda/products.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "../attention.h"
#include "../products.h"
#include "tensors.h"

namespace dfgnn {
namespace {

cuda::Products products_of(const Compressed& graph, const at::Tensor& x, int64_t heads) {
  check_sizes(graph.num_rows(), graph.num_nodes, heads, x.size(2));
  return {type_of(x),          graph.num_rows(),        graph.num_nodes,
          graph.num_edges(),   static_cast<int>(heads), static_cast<int>(x.size(2)),
          index_of(graph.ptr), index_of(graph.node),    index_of(graph.position)};
}

cuda::Features features_of(const at::Tensor& x) { return {x.const_data_ptr(), static_cast<int>(x.size(1))}; }

}  // namespace

at::Tensor sddmm_cuda(const Compressed& graph, const at::Tensor& a, const at::Tensor& b) {
  const c10::cuda::CUDAGuard guard(a.device());
  const auto x = aligned(a), y = aligned(b);
  const int64_t heads = std::max(x.size(1), y.size(1));
  // Entries of col past the last edge are no edges, and their products are 0.
  auto result = at::zeros({graph.num_edges(), heads}, x.options().dtype(accumulate_type(x.scalar_type())));
  C10_CUDA_CHECK(cuda::sddmm(products_of(graph, x, heads), features_of(x), features_of(y), result.mutable_data_ptr(),
                             c10::cuda::getCurrentCUDAStream()));
  return result;
}

at::Tensor spmm_cuda(const Compressed& graph, const at::Tensor& weight, const at::Tensor& given, bool sum_heads) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto x = aligned(given);
  const int64_t heads = weight.size(1);
  auto result = at::empty({graph.num_rows(), sum_heads ? 1 : heads, x.size(2)}, x.options());
  C10_CUDA_CHECK(cuda::spmm(products_of(graph, x, heads), weight.const_data_ptr(), features_of(x), sum_heads,
                            result.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return result;
}

}  // namespace dfgnn
