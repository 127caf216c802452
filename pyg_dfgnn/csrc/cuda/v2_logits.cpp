// additive_v2_logits on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../../../cuda/v2_logits.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <vector>

#include "../attention.h"
#include "../logits.h"
#include "tensors.h"

namespace dfgnn {
namespace {

// x [.., heads, channels] with zeros behind both.
at::Tensor padded(const at::Tensor& x, int64_t heads, int64_t channels) {
  const int64_t no_heads = heads - x.size(-2), no_channels = channels - x.size(-1);
  return no_heads == 0 && no_channels == 0 ? x : at::constant_pad_nd(x, {0, no_channels, 0, no_heads});
}

// x [.., H, C] as [.., parts, channels], and back.
at::Tensor split(const at::Tensor& x, const V2Parts& parts) {
  auto shape = x.sizes().vec();
  shape.end()[-2] = parts.count(), shape.end()[-1] = parts.channels();
  return padded(x, parts.heads(), parts.of_head() * parts.channels()).reshape(shape);
}
at::Tensor join(const at::Tensor& x, const V2Parts& parts) {
  auto shape = x.sizes().vec();
  shape.end()[-2] = parts.heads(), shape.end()[-1] = parts.of_head() * parts.channels();
  return x.reshape(shape).narrow(-1, 0, parts.head_dim());
}

// Numbers [E, H] as those of each part.
at::Tensor spread(const at::Tensor& x, const V2Parts& parts) {
  return x.unsqueeze(-1).expand({-1, -1, parts.of_head()}).reshape({x.size(0), parts.count()}).contiguous();
}

// The operands as kernels read them, x_dst, x_src, att and weight of all parts.
struct Operands {
  at::Tensor rowptr, col, colptr, row, perm, x_dst, x_src, att, features, weight, eid;
  double negative_slope;

  Operands(const V2Operands& o, const V2Parts& parts) : negative_slope(o.negative_slope) {
    const auto contiguous = [](const std::optional<at::Tensor>& t) { return t ? t->contiguous() : at::Tensor(); };
    const auto type = accumulate_type(o.x_src.scalar_type());
    rowptr = o.graph.rowptr.contiguous(), col = o.graph.col.contiguous();
    colptr = contiguous(o.graph.colptr), row = contiguous(o.graph.row), perm = contiguous(o.graph.perm);
    x_dst = aligned(split(o.x_dst, parts).contiguous()), x_src = aligned(split(o.x_src, parts).contiguous());
    att = split(o.att.to(type), parts);
    features = o.features ? aligned(o.features->contiguous()) : at::Tensor(), eid = contiguous(o.eid);
    if (o.edge_dim() > 0) {  // [F, parts, channels]
      weight = split(o.weight->to(type).t().reshape({o.edge_dim(), parts.heads(), parts.head_dim()}), parts);
    }
    check_sizes(x_dst.size(0), x_src.size(0), parts.heads(), parts.of_head() * parts.channels());
    constexpr int64_t kMost = 4 * 65535;  // four and more a block
    TORCH_CHECK(o.edge_dim() <= kMost, "features: expected at most ", kMost, " numbers of an edge on CUDA, got ",
                o.edge_dim());
  }
};

// From this number on.
const void* data_from(const at::Tensor& x, int64_t number) {
  return static_cast<const char*>(x.const_data_ptr()) + number * x.element_size();
}
void* mutable_from(const at::Tensor& x, int64_t number) {
  return static_cast<char*>(x.mutable_data_ptr()) + number * x.element_size();
}

// Of a group.
struct Task {
  at::Tensor att, weight;
  cuda::V2Logits task;

  Task(const Operands& o, const V2Parts::Group& group) {
    const int64_t parts = o.att.size(0), channels = o.att.size(1);
    const auto of_group = [&](const at::Tensor& x) {
      if (!x.defined()) return x;
      return aligned(padded(x.narrow(-2, group.first, group.size), group.width / channels, channels).contiguous());
    };
    att = of_group(o.att), weight = of_group(o.weight);
    task = {type_of(o.x_src),
            o.x_dst.size(0),
            o.x_src.size(0),
            o.col.numel(),
            static_cast<int>(group.size),
            static_cast<int>(channels),
            static_cast<int>(group.width),
            static_cast<int>(parts),
            parts * channels,
            index_of(o.rowptr),
            index_of(o.col),
            index_of(o.colptr),
            index_of(o.row),
            index_of(o.perm),
            data_from(o.x_dst, group.first * channels),
            data_from(o.x_src, group.first * channels),
            data_of(att),
            o.negative_slope,
            weight.defined() ? static_cast<int>(weight.size(0)) : 0,
            o.features.defined() ? o.features.size(0) : 0,
            index_of(o.eid),
            data_of(o.features),
            data_of(weight),
            group.octets};
  }
};

// Calls visit(task, group, the place of its signs): those of groups follow one another.
template <class Visit>
void for_each_group(const Operands& o, const V2Parts& parts, const Visit& visit) {
  int64_t place = 0;
  for (const V2Parts::Group& group : parts.groups()) {
    const Task t(o, group);
    visit(t, group, place);
    place += group.sign_bytes() * t.task.num_edges;
  }
}

at::Tensor empty_signs(const V2Operands& o, const V2Parts& parts) {
  return at::empty({o.num_edges(), parts.sign_bytes()}, o.x_src.options().dtype(at::kByte));
}

// And signs, where there is a tensor for them.
at::Tensor logits_of(const V2Operands& operands, const V2Parts& parts, const at::Tensor& signs) {
  const c10::cuda::CUDAGuard guard(operands.x_src.device());
  const Operands o(operands, parts);
  const auto logits = at::empty({operands.num_edges(), parts.count()}, o.att.options());
  for_each_group(o, parts, [&](const Task& t, const auto& group, int64_t place) {
    void* const of_group = signs.defined() ? mutable_from(signs, place) : nullptr;
    const auto stream = c10::cuda::getCurrentCUDAStream();
    C10_CUDA_CHECK(cuda::v2_logits(t.task, mutable_from(logits, group.first), of_group, stream));
  });
  return parts.of_head() == 1 ? logits : logits.view({-1, parts.heads(), parts.of_head()}).sum(-1);
}

}  // namespace

at::Tensor v2_logits_cuda(const V2Operands& o) { return logits_of(o, o.parts(/*with_signs=*/false), at::Tensor()); }

std::tuple<at::Tensor, at::Tensor> v2_logits_and_signs_cuda(const V2Operands& o) {
  const auto parts = o.parts(/*with_signs=*/true);
  const auto signs = empty_signs(o, parts);
  return {logits_of(o, parts, signs), signs};
}

V2GradientTensors v2_gradients_cuda(const at::Tensor& grad, const V2Operands& operands, bool of_features) {
  const c10::cuda::CUDAGuard guard(operands.x_src.device());
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const auto parts = operands.parts(/*with_signs=*/true);
  const Operands o(operands, parts);
  const int64_t edge_dim = operands.edge_dim();
  const auto ds = spread(grad, parts),
             signs = operands.signs ? aligned(operands.signs->contiguous()) : empty_signs(operands, parts);
  const auto x_dst = at::empty_like(o.x_dst), x_src = at::empty_like(o.x_src);
  std::vector<at::Tensor> att, weight;
  // Groups add up their shares of the gradients of features, which are rounded in the end.
  const bool adds = parts.groups().size() > 1, has_features = of_features && o.features.defined();
  const auto features = has_features ? at::zeros_like(o.features, adds ? o.att.options() : o.features.options())
                                     : at::zeros({0}, o.x_src.options());
  for_each_group(o, parts, [&](const Task& t, const auto& group, int64_t place) {
    if (!operands.signs && group.octets) {
      C10_CUDA_CHECK(cuda::v2_logits(t.task, nullptr, mutable_from(signs, place), stream));
    }
    const int64_t shares = cuda::v2_shares(t.task), heads = t.att.size(0);
    const auto terms = at::empty({shares + edge_dim, heads, parts.channels()}, t.att.options());
    const auto partial = at::empty({cuda::v2_partial(t.task)}, t.att.options());
    const cuda::V2Gradients gradients{data_from(ds, group.first),
                                      data_from(signs, place),
                                      mutable_from(x_dst, group.first * parts.channels()),
                                      mutable_from(x_src, group.first * parts.channels()),
                                      has_features ? features.mutable_data_ptr() : nullptr,
                                      terms.mutable_data_ptr(),
                                      partial.mutable_data_ptr(),
                                      adds};
    C10_CUDA_CHECK(cuda::v2_gradients(t.task, gradients, stream));
    att.push_back(terms.narrow(0, 0, shares).sum(0).narrow(0, 0, group.size));
    weight.push_back(terms.narrow(0, shares, edge_dim).narrow(1, 0, group.size));
  });
  const auto joined = [&](const std::vector<at::Tensor>& groups, int64_t dim) {
    return join(groups.size() == 1 ? groups[0] : at::cat(groups, dim), parts);
  };
  const auto of_weight = joined(weight, 1).permute({1, 2, 0});  // of [F, H, C]
  return {join(x_dst, parts).contiguous(), join(x_src, parts).contiguous(), joined(att, 0).contiguous(),
          features.to(operands.x_src.scalar_type()),
          operands.weight ? of_weight.clone(at::MemoryFormat::Contiguous).view_as(*operands.weight)
                          : at::zeros({0}, o.att.options())};
}

}  // namespace dfgnn
