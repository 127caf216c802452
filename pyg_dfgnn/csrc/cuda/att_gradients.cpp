// Additive_v2's gradients on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../../../cuda/att_gradients.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../attention.h"
#include "tensors.h"

namespace dfgnn {

std::tuple<at::Tensor, at::Tensor, at::Tensor> att_gradients_cuda(const Attention& a, const Gradients& g) {
  const c10::cuda::CUDAGuard guard(a.value.device());
  const auto x_dst = aligned(a.dst), x_src = a.dst.is_same(a.src) ? x_dst : aligned(a.src);
  const auto grad_att = at::empty_like(a.att);
  cuda::AttGradients task{type_of(a.value),
                          a.heads() * a.head_dim(),
                          data_of(a.att),
                          {{a.num_dst(), data_of(x_dst), data_of(g.dst), nullptr, g.dst.mutable_data_ptr()},
                           {a.num_src(), data_of(x_src), data_of(g.src), data_of(g.value), g.src.mutable_data_ptr()}},
                          nullptr,
                          grad_att.mutable_data_ptr()};
  const auto partial = at::empty({cuda::att_partial(task)}, a.att.options());
  task.partial = partial.mutable_data_ptr();
  C10_CUDA_CHECK(cuda::att_gradients(task, c10::cuda::getCurrentCUDAStream()));
  return {g.dst, g.src, grad_att};
}

}  // namespace dfgnn
