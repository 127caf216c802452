// Scores of nodes on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../node_scores.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../../../cuda/node_scores.h"
#include "tensors.h"

namespace dfgnn {
namespace {

cuda::NodeScores task_of(const at::Tensor& x, const at::Tensor& att, const at::Tensor& other) {
  check_rows("x", x.size(0), x.size(1), x.size(2));
  return {type_of(x),
          x.size(0),
          static_cast<int>(x.size(1)),
          static_cast<int>(x.size(2)),
          data_of(x),
          {data_of(att), data_of(other)}};
}

}  // namespace

std::tuple<at::Tensor, at::Tensor> node_scores_cuda(const at::Tensor& given, const at::Tensor& att,
                                                    const at::Tensor& other) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto x = aligned(given);
  const auto scores = at::empty({x.size(0), x.size(1)}, att.options());
  const auto others = other.defined() ? at::empty_like(scores) : at::empty({0}, att.options());
  C10_CUDA_CHECK(cuda::node_scores(task_of(x, att, other), {scores.mutable_data_ptr(), others.mutable_data_ptr()},
                                   c10::cuda::getCurrentCUDAStream()));
  return {scores, others};
}

std::tuple<at::Tensor, at::Tensor> node_scores_bwd_cuda(const at::Tensor& grad, const at::Tensor& grad_other,
                                                        const at::Tensor& given, const at::Tensor& att,
                                                        const at::Tensor& other) {
  const c10::cuda::CUDAGuard guard(given.device());
  const auto x = aligned(given), grad_x = at::empty_like(x);
  const auto grad_att = at::empty({other.defined() ? 2 : 1, att.size(0), att.size(1)}, att.options());
  const auto task = task_of(x, att, other);
  const auto partial = at::empty({cuda::node_scores_partial(task)}, att.options());
  const cuda::NodeScoresGradients gradients{{data_of(grad), data_of(grad_other)},
                                            grad_x.mutable_data_ptr(),
                                            grad_att.mutable_data_ptr(),
                                            partial.mutable_data_ptr()};
  C10_CUDA_CHECK(cuda::node_scores_gradients(task, gradients, c10::cuda::getCurrentCUDAStream()));
  return {grad_x, grad_att};
}

}  // namespace dfgnn
