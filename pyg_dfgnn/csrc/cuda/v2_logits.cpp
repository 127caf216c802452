// additive_v2_logits on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../../../cuda/v2_logits.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../attention.h"
#include "../logits.h"
#include "tensors.h"

namespace dfgnn {
namespace {

// Channels of which a head is a power of two of whole vectors.
int64_t padded_channels(const at::Tensor& x) {
  int64_t channels = x.element_size() == 8 ? 1 : 16 / x.element_size();
  while (channels < x.size(2)) channels *= 2;
  return channels;
}

at::Tensor padded(const at::Tensor& x, int64_t channels) {
  const int64_t missing = channels - x.size(-1);
  return aligned((missing == 0 ? x : at::constant_pad_nd(x, {0, missing})).contiguous());
}

// The operands as kernels read them, and what they are of.
struct Task {
  at::Tensor rowptr, col, colptr, row, perm, x_dst, x_src, att, features, weight, eid;
  cuda::V2Logits task;

  explicit Task(const V2Operands& o) {
    const auto contiguous = [](const std::optional<at::Tensor>& t) { return t ? t->contiguous() : at::Tensor(); };
    const int64_t heads = o.att.size(0), channels = padded_channels(o.x_src);
    const auto type = accumulate_type(o.x_src.scalar_type());
    rowptr = o.graph.rowptr.contiguous(), col = o.graph.col.contiguous();
    colptr = contiguous(o.graph.colptr), row = contiguous(o.graph.row), perm = contiguous(o.graph.perm);
    x_dst = padded(o.x_dst, channels), x_src = padded(o.x_src, channels), att = padded(o.att.to(type), channels);
    features = o.features ? aligned(o.features->contiguous()) : at::Tensor(), eid = contiguous(o.eid);
    const int64_t edge_dim = features.defined() ? features.size(1) : 0;
    if (edge_dim > 0) {  // [F, H, C]
      weight = padded(o.weight->to(type).t().reshape({edge_dim, heads, o.x_src.size(2)}), channels);
    }
    check_sizes(x_dst.size(0), x_src.size(0), heads, channels);
    constexpr int64_t kMost = 4 * 65535;  // four and more a block
    TORCH_CHECK(edge_dim <= kMost, "features: expected at most ", kMost, " numbers of an edge on CUDA, got ", edge_dim);
    task = {type_of(x_src),
            x_dst.size(0),
            x_src.size(0),
            col.numel(),
            static_cast<int>(heads),
            static_cast<int>(channels),
            index_of(rowptr),
            index_of(col),
            index_of(colptr),
            index_of(row),
            index_of(perm),
            data_of(x_dst),
            data_of(x_src),
            data_of(att),
            o.negative_slope,
            static_cast<int>(edge_dim),
            features.defined() ? features.size(0) : 0,
            index_of(eid),
            data_of(features),
            data_of(weight)};
  }
};

}  // namespace

bool v2_takes_cuda(const V2Operands& o) {
  return o.x_src.is_cuda() &&
         cuda::v2_takes(type_of(o.x_src), static_cast<int>(o.att.size(0)), static_cast<int>(padded_channels(o.x_src)));
}

at::Tensor v2_logits_cuda(const V2Operands& o) {
  const c10::cuda::CUDAGuard guard(o.x_src.device());
  const Task t(o);
  const auto logits = results_of_edges(o.num_edges(), o.att.size(0), t.task.num_dst, t.att.options());
  C10_CUDA_CHECK(cuda::v2_logits(t.task, logits.mutable_data_ptr(), c10::cuda::getCurrentCUDAStream()));
  return logits;
}

V2GradientTensors v2_gradients_cuda(const at::Tensor& grad, const V2Operands& o, bool of_features) {
  const c10::cuda::CUDAGuard guard(o.x_src.device());
  const Task t(o);
  const int64_t channels = o.x_src.size(2), edge_dim = t.task.edge_dim;
  const auto x_dst = at::empty_like(t.x_dst), x_src = at::empty_like(t.x_src);
  const bool has_features = of_features && o.features.has_value();
  const auto features = has_features ? at::zeros_like(t.features) : at::zeros({0}, o.x_src.options());
  const auto terms = at::empty({1 + edge_dim, t.task.heads, t.task.channels}, t.att.options());
  const auto partial = at::empty({cuda::v2_partial(t.task)}, t.att.options());
  const auto weights = grad.contiguous();
  const cuda::V2Gradients gradients{data_of(weights),         x_dst.mutable_data_ptr(),
                                    x_src.mutable_data_ptr(), has_features ? features.mutable_data_ptr() : nullptr,
                                    terms.mutable_data_ptr(), partial.mutable_data_ptr()};
  C10_CUDA_CHECK(cuda::v2_gradients(t.task, gradients, c10::cuda::getCurrentCUDAStream()));
  const auto unpadded = [&](const at::Tensor& x) { return x.narrow(-1, 0, channels).contiguous(); };
  const auto of_att = terms[0].narrow(-1, 0, channels).clone(at::MemoryFormat::Contiguous);
  const auto of_numbers = terms.narrow(0, 1, edge_dim).narrow(-1, 0, channels);  // [F, H, C]
  const auto of_weight = o.weight ? of_numbers.permute({1, 2, 0}).clone(at::MemoryFormat::Contiguous).view_as(*o.weight)
                                  : at::zeros({0}, t.att.options());
  return {unpadded(x_dst), unpadded(x_src), of_att, features, of_weight};
}

}  // namespace dfgnn
