// additive_v2_logits, [E, heads], for layers that need them outside of an attention operator:
//   s_e = <att, leaky_relu(x_dst_i + x_src_j + W f_e)>
// of edge features f: which no product of sums is, so that the terms of the leaky_relu are made, and made again in the
// backward pass. Of heads that have no kernels on CUDA it is some edges at a time: only chunks of [E, heads, channels]
// exist.
//
// Entries of col that no row has get 0, edges of a node or of features that are out of range NaN, and their gradient
// goes nowhere.
#include "logits.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "attention.h"
#include "autocast.h"
#include "call.h"
#include "checks.h"
#include "find_operator.h"
#include "saved.h"

namespace dfgnn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// What all edges of a chunk, begin .. begin + size - 1, need.
struct Chunk {
  int64_t begin, size;
  at::Tensor row, col, eid;
  at::Tensor is_edge, is_known;  // [size, 1]; known: in range, as no edge is not
  at::Tensor features;           // accumulate type [size, F]
  at::Tensor terms;              // accumulate type [size, H, C], before leaky_relu
};

// Rows of x and sums of rows, the derivative of one another. On CUDA, where index_add_ sums in any order and
// index_put_ in that of a stable sort, it is the latter; unsafe, as it would else wait for the device to see that the
// index is in range.
at::Tensor take_rows(const at::Tensor& x, const at::Tensor& index) {
  return x.is_cuda() ? at::index(x, {index}) : x.index_select(0, index);
}

void add_rows(at::Tensor sums, const at::Tensor& index, const at::Tensor& rows) {
  if (sums.is_cuda()) {
    at::_index_put_impl_(sums, {index}, rows, /*accumulate=*/true, /*unsafe=*/true);
  } else {
    sums.index_add_(0, index, rows);
  }
}

// Numbers of a chunk's [size, H, C].
int64_t chunk_numel(const at::Device& device) { return device.is_cuda() ? int64_t(1) << 22 : int64_t(1) << 18; }

Chunk make_chunk(const V2Operands& o, int64_t begin, int64_t size) {
  Chunk chunk{begin, size, {}, {}, {}, {}, {}, {}, {}};
  const auto positions = at::arange(begin, begin + size, o.graph.rowptr.options());
  const auto row = at::searchsorted(o.graph.rowptr, positions, /*out_int32=*/false, /*right=*/true) - 1;
  const auto is_edge = row.ge(0).logical_and(row.lt(o.x_dst.size(0)));
  // What is no edge takes rows in turn, as a sum of very many is slow.
  at::Tensor is_known = is_edge;
  const auto turns = positions.to(at::kLong);
  const auto in_range = [&](const at::Tensor& index, const at::Tensor& x) {
    const auto wide = index.to(at::kLong);
    is_known = is_known.logical_and(wide.ge(0)).logical_and_(wide.lt(x.size(0)));
    return at::where(is_known, wide, turns.remainder(x.size(0)));
  };
  chunk.row = in_range(row, o.x_dst);
  chunk.col = in_range(o.graph.col.narrow(0, begin, size), o.x_src);
  const auto type = accumulate_type(o.x_src.scalar_type());
  chunk.terms = take_rows(o.x_dst, chunk.row).to(type) + take_rows(o.x_src, chunk.col).to(type);
  if (o.features.has_value()) {
    chunk.eid = in_range(o.eid->narrow(0, begin, size), *o.features);
    chunk.features = take_rows(*o.features, chunk.eid).to(type);
    chunk.terms += at::linear(chunk.features, o.weight->to(type)).view(chunk.terms.sizes());
  }
  chunk.is_edge = is_edge.unsqueeze(1);
  chunk.is_known = is_known.unsqueeze(1);
  return chunk;
}

// The logits of a chunk, of what its leaky_relu and att sum up to.
at::Tensor of_edges(const Chunk& c, const at::Tensor& s) {
  return s.masked_fill(c.is_known.logical_not(), NAN).masked_fill(c.is_edge.logical_not(), 0);
}

template <class F>
void for_each_chunk(const V2Operands& o, F visit) {
  const int64_t width = std::max<int64_t>(1, o.att.numel());
  const int64_t size = std::max<int64_t>(1, chunk_numel(o.x_src.device()) / width);
  for (int64_t begin = 0; begin < o.num_edges() && o.x_dst.size(0) > 0; begin += size) {
    visit(make_chunk(o, begin, std::min(size, o.num_edges() - begin)));
  }
}

void check(const V2Operands& o) {
  check_value(o.x_src, "x_src");
  check_features(o.x_dst, "x_dst", o.x_src, "x_src");
  const auto heads = o.x_src.size(1), channels = o.x_src.size(2);
  TORCH_CHECK(o.x_dst.sizes().slice(1) == o.x_src.sizes().slice(1), "x_dst: expected the heads and head size of x_src ",
              o.x_src.sizes(), ", got shape ", o.x_dst.sizes());
  check_logit_term(o.att, "att", o.x_src, {heads, channels}, "[heads, head size]");
  check_index(o.graph.rowptr, "rowptr", o.graph.rowptr, o.x_src.device());
  check_index(o.graph.col, "col", o.graph.rowptr, o.x_src.device());
  check_csc(o.graph, o.x_src.size(0), o.x_src.device());
  TORCH_CHECK(o.graph.rowptr.numel() == o.x_dst.size(0) + 1, "rowptr: expected [N_dst + 1] = ", o.x_dst.size(0) + 1,
              " entries, got ", o.graph.rowptr.numel());
  const bool has_edges = o.num_edges() > 0 && o.x_dst.size(0) > 0;
  TORCH_CHECK(!has_edges || o.x_src.size(0) > 0, "x_src: expected the nodes that edges come from, got none");
  const int given = o.features.has_value() + o.weight.has_value() + o.eid.has_value();
  TORCH_CHECK(given == 0 || given == 3, "features, weight, eid: expected all three of them or none, got ", given);
  if (given == 0) return;
  check_index(*o.eid, "eid", o.graph.rowptr, o.x_src.device());
  TORCH_CHECK(o.eid->numel() == o.num_edges(), "eid: expected [E] = ", o.num_edges(), " entries, got ", o.eid->numel());
  TORCH_CHECK(o.features->dim() == 2 && o.weight->dim() == 2, "features, weight: expected two dimensions, got shapes ",
              o.features->sizes(), " and ", o.weight->sizes());
  TORCH_CHECK(!has_edges || o.features->size(0) > 0, "features: expected those of edges, got none");
  check_shape(*o.weight, "weight", {heads * channels, o.features->size(1)}, "[heads * head size, edge features]");
  for (const auto& [t, name] : {std::pair(*o.features, "features"), std::pair(*o.weight, "weight")}) {
    TORCH_CHECK(t.scalar_type() == o.x_src.scalar_type(), name, ": expected the dtype of x_src (",
                o.x_src.scalar_type(), "), got ", t.scalar_type());
    check_device(t, name, o.x_src.device());
  }
}

at::Tensor forward(T rowptr, T col, T x_dst, T x_src, T att, O features, O weight, O eid, double negative_slope,
                   O colptr, O row, O perm) {
  const NoAutocast guard;
  const V2Operands o{{rowptr, col, colptr, row, perm}, x_dst, x_src, att, features, weight, eid, negative_slope};
  check(o);
  if (x_src.is_cpu() && o.num_edges() > 0 && x_dst.size(0) > 0) return v2_logits_cpu(o);
#ifdef DFGNN_WITH_CUDA
  if (v2_takes_cuda(o)) return v2_logits_cuda(o);
#endif
  const auto type = accumulate_type(x_src.scalar_type());
  const auto logits = at::zeros({col.numel(), att.size(0)}, x_src.options().dtype(type));
  for_each_chunk(o, [&, att = att.to(type)](const Chunk& c) {
    const auto s = (at::leaky_relu(c.terms, negative_slope) * att).sum(-1);
    logits.narrow(0, c.begin, c.size).copy_(of_edges(c, s));
  });
  return logits;
}

// Of torch's operators, which have derivatives of their own.
V2GradientTensors gradients_of(const at::Tensor& grad, const V2Operands& o, bool of_features) {
  const auto type = accumulate_type(o.x_src.scalar_type());
  const auto zeros = [&](const O& t) {
    return t ? at::zeros(t->sizes(), t->options().dtype(type)) : at::zeros({0}, o.x_src.options());
  };
  const auto d_dst = zeros(o.x_dst), d_src = zeros(o.x_src), d_att = zeros(o.att);
  const auto d_features = zeros(of_features ? o.features : std::nullopt), d_weight = zeros(o.weight);
  for_each_chunk(o, [&, att = o.att.to(type)](const Chunk& c) {
    const auto ds = grad.narrow(0, c.begin, c.size).to(type).masked_fill(c.is_known.logical_not(), 0).unsqueeze(-1);
    d_att.add_((ds * at::leaky_relu(c.terms, o.negative_slope)).sum(0));
    const auto d_terms = at::leaky_relu_backward(ds * att, c.terms, o.negative_slope, /*self_is_result=*/false);
    add_rows(d_dst, c.row, d_terms);
    add_rows(d_src, c.col, d_terms);
    if (!o.features.has_value()) return;
    const auto d_linear = d_terms.flatten(1);
    if (of_features) add_rows(d_features, c.eid, d_linear.matmul(o.weight->to(type)));
    d_weight.add_(d_linear.t().matmul(c.features));
  });
  const auto like = [](const at::Tensor& t, const at::Tensor& operand) { return t.to(operand.scalar_type()); };
  return {like(d_dst, o.x_dst), like(d_src, o.x_src), like(d_att, o.att), like(d_features, o.x_src),
          like(d_weight, o.x_src)};
}

// The device's kernels, if it has any for these heads and there are edges.
decltype(&v2_gradients_cpu) gradient_kernels(const V2Operands& o) {
  if (o.num_edges() == 0 || o.x_dst.size(0) == 0) return nullptr;
  if (o.x_src.is_cpu()) return v2_gradients_cpu;
#ifdef DFGNN_WITH_CUDA
  if (v2_takes_cuda(o)) return v2_gradients_cuda;
#endif
  return nullptr;
}

V2GradientTensors backward(T grad, T rowptr, T col, T x_dst, T x_src, T att, O features, O weight, O eid,
                           double negative_slope, O colptr, O row, O perm, bool of_features) {
  const NoAutocast guard;
  const V2Operands o{{rowptr, col, colptr, row, perm}, x_dst, x_src, att, features, weight, eid, negative_slope};
  check(o);
  check_shape(grad, "grad", {o.num_edges(), att.size(0)}, "[edges, heads]");
  check_floating_point(grad, "grad");
  check_device(grad, "grad", x_src.device());
  if (const auto kernels = gradient_kernels(o)) {
    V2Operands both = o;
    both.graph = with_csc(o.graph, x_src.size(0));
    const auto [d_dst, d_src, d_att, d_features, d_weight] =
        kernels(grad.to(accumulate_type(x_src.scalar_type())), both, of_features);
    return {d_dst, d_src, d_att.to(att.scalar_type()), d_features, d_weight.to(x_src.scalar_type())};
  }
  return gradients_of(grad, o, of_features);
}

void check_meta(const V2Operands& o) {
  check_on_meta({{"rowptr", o.graph.rowptr},
                 {"col", o.graph.col},
                 {"colptr", o.graph.colptr},
                 {"row", o.graph.row},
                 {"perm", o.graph.perm},
                 {"x_dst", o.x_dst},
                 {"x_src", o.x_src},
                 {"att", o.att},
                 {"features", o.features},
                 {"weight", o.weight},
                 {"eid", o.eid}});
}

at::Tensor forward_meta(T rowptr, T col, T x_dst, T x_src, T att, O features, O weight, O eid, double slope, O colptr,
                        O row, O perm) {
  check_meta({{rowptr, col, colptr, row, perm}, x_dst, x_src, att, features, weight, eid, slope});
  const auto type = accumulate_type(x_src.scalar_type());
  return at::empty_symint({col.sym_numel(), att.sym_size(0)}, x_src.options().dtype(type));
}

V2GradientTensors backward_meta(T grad, T rowptr, T col, T x_dst, T x_src, T att, O features, O weight, O eid,
                                double slope, O colptr, O row, O perm, bool of_features) {
  check_meta({{rowptr, col, colptr, row, perm}, x_dst, x_src, att, features, weight, eid, slope});
  check_on_meta({{"grad", grad}});
  const auto like = [&](const O& t) {
    return t ? at::empty_symint(t->sym_sizes(), t->options()) : at::empty({0}, x_src.options());
  };
  return {like(x_dst), like(x_src), like(att), like(of_features ? features : std::nullopt), like(weight)};
}

at::Tensor dispatch(const V2Operands& o) {
  static const auto op =
      find_operator<at::Tensor(T, T, T, T, T, O, O, O, double, O, O, O)>("dfgnn::additive_v2_logits");
  const auto& g = o.graph;
  return op.call(g.rowptr, g.col, o.x_dst, o.x_src, o.att, o.features, o.weight, o.eid, o.negative_slope, g.colptr,
                 g.row, g.perm);
}

V2GradientTensors dispatch_backward(const at::Tensor& grad, const V2Operands& o, bool of_features) {
  static const auto op = find_operator<V2GradientTensors(T, T, T, T, T, T, O, O, O, double, O, O, O, bool)>(
      "dfgnn::additive_v2_logits_bwd");
  const auto& g = o.graph;
  return op.call(grad, g.rowptr, g.col, o.x_dst, o.x_src, o.att, o.features, o.weight, o.eid, o.negative_slope,
                 g.colptr, g.row, g.perm, of_features);
}

struct LogitsFunction : torch::autograd::Function<LogitsFunction> {
  static Variable forward(AutogradContext* ctx, const Variable& x_dst, const Variable& x_src, const Variable& att,
                          const OptTensor& features, const OptTensor& weight, const V2Operands& o) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->save_for_backward(with_structure(
        o.graph, {x_dst, x_src, att, defined_or_empty(features), defined_or_empty(weight), defined_or_empty(o.eid)}));
    ctx->saved_data["negative_slope"] = o.negative_slope;
    return dispatch(o);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NoAutocast guard;
    const auto saved = ctx->get_saved_variables();
    const auto* of_call = saved.data() + kStructure;
    const V2Operands o{saved_structure(saved),
                       of_call[0],
                       of_call[1],
                       of_call[2],
                       as_optional(of_call[3]),
                       as_optional(of_call[4]),
                       as_optional(of_call[5]),
                       ctx->saved_data["negative_slope"].toDouble()};
    const bool of_features = o.features.has_value() && ctx->needs_input_grad(3);
    const auto gradients = at::GradMode::is_enabled() ? gradients_of : dispatch_backward;
    auto [d_dst, d_src, d_att, d_features, d_weight] = gradients(grads[0], o, of_features);
    if (!of_features) d_features = at::Tensor();
    if (!o.features.has_value()) d_weight = at::Tensor();
    return {d_dst, d_src, d_att, d_features, d_weight, at::Tensor()};
  }
};

at::Tensor autograd(T rowptr, T col, T x_dst, T x_src, T att, O features, O weight, O eid, double negative_slope,
                    O colptr, O row, O perm) {
  const V2Operands o{{rowptr, col, colptr, row, perm}, x_dst, x_src, att, features, weight, eid, negative_slope};
  return LogitsFunction::apply(x_dst, x_src, att, features, weight, o);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  const std::string operands =
      "Tensor rowptr, Tensor col, *, Tensor x_dst, Tensor x_src, Tensor att, Tensor? features=None, "
      "Tensor? weight=None, Tensor? eid=None, float negative_slope=0.2, " +
      std::string(kCscArguments);
  m.def(("additive_v2_logits(" + operands + ") -> Tensor").c_str());
  m.def(("additive_v2_logits_bwd(Tensor grad, " + operands +
         ", bool of_features=True) -> (Tensor grad_x_dst, Tensor grad_x_src, Tensor grad_att, Tensor grad_features, "
         "Tensor grad_weight)")
            .c_str());
}

TORCH_LIBRARY_IMPL(dfgnn, CompositeExplicitAutograd, m) {
  m.impl("additive_v2_logits", forward);
  m.impl("additive_v2_logits_bwd", backward);
}

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) {
  m.impl("additive_v2_logits", forward_meta);
  m.impl("additive_v2_logits_bwd", backward_meta);
}

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  m.impl("additive_v2_logits", autograd);
  m.impl("additive_v2_logits_bwd", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace dfgnn
