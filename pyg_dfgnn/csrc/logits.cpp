// additive_v2_logits, [E, heads], for layers that need them outside of an attention operator:
//   s_e = <att, leaky_relu(x_dst_i + x_src_j + W f_e)>
// of edge features f: which no product of sums is, so that the terms of the leaky_relu are made, and made again in the
// backward pass. Second derivatives are of torch's operators, of some edges at a time: only chunks of [E, heads,
// channels] exist.
//
// Entries of col that no row has get 0, edges of a node or of features that are out of range NaN, and their gradient
// goes nowhere.
#include "logits.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/library.h>

#include <algorithm>
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
  at::Tensor is_known;  // [size, 1]: an edge, all of which is in range
  at::Tensor features;  // accumulate type [size, F]
  at::Tensor terms;     // accumulate type [size, H, C], before leaky_relu
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
  Chunk chunk{begin, size, {}, {}, {}, {}, {}, {}};
  const auto positions = at::arange(begin, begin + size, o.graph.rowptr.options());
  const auto row = at::searchsorted(o.graph.rowptr, positions, /*out_int32=*/false, /*right=*/true) - 1;
  // What is no edge takes rows in turn, as a sum of very many is slow.
  at::Tensor is_known = row.ge(0).logical_and(row.lt(o.x_dst.size(0)));
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
  chunk.is_known = is_known.unsqueeze(1);
  return chunk;
}

template <class F>
void for_each_chunk(const V2Operands& o, F visit) {
  const int64_t width = std::max<int64_t>(1, o.att.numel());
  const int64_t size = std::max<int64_t>(1, chunk_numel(o.x_src.device()) / width);
  for (int64_t begin = 0; o.has_edges() && begin < o.num_edges(); begin += size) {
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
  TORCH_CHECK(!o.has_edges() || o.x_src.size(0) > 0, "x_src: expected the nodes that edges come from, got none");
  const int given = o.features.has_value() + o.weight.has_value() + o.eid.has_value();
  TORCH_CHECK(given == 0 || given == 3, "features, weight, eid: expected all three of them or none, got ", given);
  if (given == 0) return;
  check_index(*o.eid, "eid", o.graph.rowptr, o.x_src.device());
  TORCH_CHECK(o.eid->numel() == o.num_edges(), "eid: expected [E] = ", o.num_edges(), " entries, got ", o.eid->numel());
  TORCH_CHECK(o.features->dim() == 2 && o.weight->dim() == 2, "features, weight: expected two dimensions, got shapes ",
              o.features->sizes(), " and ", o.weight->sizes());
  TORCH_CHECK(!o.has_edges() || o.features->size(0) > 0, "features: expected those of edges, got none");
  check_shape(*o.weight, "weight", {heads * channels, o.features->size(1)}, "[heads * head size, edge features]");
  for (const auto& [t, name] : {std::pair(*o.features, "features"), std::pair(*o.weight, "weight")}) {
    TORCH_CHECK(t.scalar_type() == o.x_src.scalar_type(), name, ": expected the dtype of x_src (",
                o.x_src.scalar_type(), "), got ", t.scalar_type());
    check_device(t, name, o.x_src.device());
  }
}

template <auto* kernels>
at::Tensor forward(T rowptr, T col, T x_dst, T x_src, T att, O features, O weight, O eid, double negative_slope,
                   O colptr, O row, O perm) {
  const NoAutocast guard;
  const V2Operands o{{rowptr, col, colptr, row, perm}, x_dst, x_src, att, features, weight, eid, negative_slope};
  check(o);
  if (o.has_edges()) return kernels(o);
  return at::zeros({o.num_edges(), att.size(0)}, x_src.options().dtype(accumulate_type(x_src.scalar_type())));
}

#ifdef DFGNN_WITH_CUDA
std::tuple<at::Tensor, at::Tensor> forward_with_signs(T rowptr, T col, T x_dst, T x_src, T att, O features, O weight,
                                                      O eid, double negative_slope, O colptr, O row, O perm) {
  const NoAutocast guard;
  const V2Operands o{{rowptr, col, colptr, row, perm}, x_dst, x_src, att, features, weight, eid, negative_slope};
  check(o);
  if (o.has_edges()) return v2_logits_and_signs_cuda(o);
  const auto zeros = [&](int64_t columns, at::ScalarType type) {
    return at::zeros({o.num_edges(), columns}, x_src.options().dtype(type));
  };
  return {zeros(att.size(0), accumulate_type(x_src.scalar_type())), zeros(o.parts(true).sign_bytes(), at::kByte)};
}
#endif

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

template <auto* kernels>
V2GradientTensors backward(T grad, T rowptr, T col, T x_dst, T x_src, T att, O features, O weight, O eid,
                           double negative_slope, O colptr, O row, O perm, bool of_features, O signs) {
  const NoAutocast guard;
  const V2Operands o{{rowptr, col, colptr, row, perm}, x_dst, x_src, att, features, weight, eid, negative_slope, signs};
  check(o);
  check_shape(grad, "grad", {o.num_edges(), att.size(0)}, "[edges, heads]");
  check_floating_point(grad, "grad");
  check_device(grad, "grad", x_src.device());
  if (signs && x_src.is_cuda()) {
    check_shape(*signs, "signs", {o.num_edges(), o.parts(/*with_signs=*/true).sign_bytes()}, "[edges, bytes]");
    TORCH_CHECK(signs->scalar_type() == at::kByte, "signs: expected uint8, got ", signs->scalar_type());
    check_device(*signs, "signs", x_src.device());
  }
  if (!o.has_edges()) return gradients_of(grad, o, of_features);
  V2Operands both = o;
  both.graph = with_csc(o.graph, x_src.size(0));
  const auto [d_dst, d_src, d_att, d_features, d_weight] =
      kernels(grad.to(accumulate_type(x_src.scalar_type())), both, of_features);
  return {d_dst, d_src, d_att.to(att.scalar_type()), d_features, d_weight.to(x_src.scalar_type())};
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

std::tuple<at::Tensor, at::Tensor> forward_with_signs_meta(T rowptr, T col, T x_dst, T x_src, T att, O features,
                                                           O weight, O eid, double slope, O colptr, O row, O perm) {
  const V2Operands o{{rowptr, col, colptr, row, perm}, x_dst, x_src, att, features, weight, eid, slope};
  check_meta(o);
  const auto type = accumulate_type(x_src.scalar_type());
  return {at::empty_symint({col.sym_numel(), att.sym_size(0)}, x_src.options().dtype(type)),
          at::empty_symint({col.sym_numel(), o.parts(true).sign_bytes()}, x_src.options().dtype(at::kByte))};
}

V2GradientTensors backward_meta(T grad, T rowptr, T col, T x_dst, T x_src, T att, O features, O weight, O eid,
                                double slope, O colptr, O row, O perm, bool of_features, O /*signs*/) {
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

std::tuple<at::Tensor, at::Tensor> dispatch_with_signs(const V2Operands& o) {
  static const auto op = find_operator<std::tuple<at::Tensor, at::Tensor>(T, T, T, T, T, O, O, O, double, O, O, O)>(
      "dfgnn::additive_v2_logits_fwd");
  const auto& g = o.graph;
  return op.call(g.rowptr, g.col, o.x_dst, o.x_src, o.att, o.features, o.weight, o.eid, o.negative_slope, g.colptr,
                 g.row, g.perm);
}

V2GradientTensors dispatch_backward(const at::Tensor& grad, const V2Operands& o, bool of_features) {
  static const auto op = find_operator<V2GradientTensors(T, T, T, T, T, T, O, O, O, double, O, O, O, bool, O)>(
      "dfgnn::additive_v2_logits_bwd");
  const auto& g = o.graph;
  return op.call(grad, g.rowptr, g.col, o.x_dst, o.x_src, o.att, o.features, o.weight, o.eid, o.negative_slope,
                 g.colptr, g.row, g.perm, of_features, o.signs);
}

struct LogitsFunction : torch::autograd::Function<LogitsFunction> {
  static Variable forward(AutogradContext* ctx, const Variable& x_dst, const Variable& x_src, const Variable& att,
                          const OptTensor& features, const OptTensor& weight, const V2Operands& o, bool has_backward) {
    at::AutoDispatchBelowADInplaceOrView guard;
    at::Tensor logits, signs;
    if (has_backward && x_src.is_cuda()) {
      std::tie(logits, signs) = dispatch_with_signs(o);
    } else {
      logits = dispatch(o);
    }
    ctx->save_for_backward(with_structure(o.graph, {x_dst, x_src, att, defined_or_empty(features),
                                                    defined_or_empty(weight), defined_or_empty(o.eid), signs}));
    ctx->saved_data["negative_slope"] = o.negative_slope;
    return logits;
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
                       ctx->saved_data["negative_slope"].toDouble(),
                       as_optional(of_call[6])};
    const bool of_features = o.features.has_value() && ctx->needs_input_grad(3);
    const auto gradients = at::GradMode::is_enabled() ? gradients_of : dispatch_backward;
    auto [d_dst, d_src, d_att, d_features, d_weight] = gradients(grads[0], o, of_features);
    if (!of_features) d_features = at::Tensor();
    if (!o.features.has_value()) d_weight = at::Tensor();
    return {d_dst, d_src, d_att, d_features, d_weight, at::Tensor(), at::Tensor()};
  }
};

at::Tensor autograd(T rowptr, T col, T x_dst, T x_src, T att, O features, O weight, O eid, double negative_slope,
                    O colptr, O row, O perm) {
  check_given({{"rowptr", rowptr}, {"col", col}, {"x_dst", x_dst}, {"x_src", x_src}, {"att", att}});
  const V2Operands o{{rowptr, col, colptr, row, perm}, x_dst, x_src, att, features, weight, eid, negative_slope};
  const bool has_backward = torch::autograd::compute_requires_grad(x_dst, x_src, att, features, weight);
  return LogitsFunction::apply(x_dst, x_src, att, features, weight, o, has_backward);
}

// As of attention with additive_v2's score.
at::Tensor autocast(T rowptr, T col, T x_dst, T x_src, T att, O features, O weight, O eid, double negative_slope,
                    O colptr, O row, O perm) {
  const NoAutocast guard;
  const auto cast = [](O t) { return t ? OptTensor(autocast_features(*t)) : std::nullopt; };
  return dispatch({{rowptr, col, colptr, row, perm},
                   autocast_features(x_dst),
                   autocast_features(x_src),
                   to_full_precision(att),
                   cast(features),
                   cast(weight),
                   eid,
                   negative_slope});
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  const std::string operands =
      "Tensor rowptr, Tensor col, *, Tensor x_dst, Tensor x_src, Tensor att, Tensor? features=None, "
      "Tensor? weight=None, Tensor? eid=None, float negative_slope=0.2, " +
      std::string(kCscArguments);
  m.def(("additive_v2_logits(" + operands + ") -> Tensor").c_str());
  m.def(("additive_v2_logits_fwd(" + operands + ") -> (Tensor logits, Tensor signs)").c_str());
  m.def(("additive_v2_logits_bwd(Tensor grad, " + operands +
         ", bool of_features=True, Tensor? signs=None) -> (Tensor grad_x_dst, Tensor grad_x_src, Tensor grad_att, "
         "Tensor grad_features, "
         "Tensor grad_weight)")
            .c_str());
}

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) {
  m.impl("additive_v2_logits", forward<v2_logits_cpu>);
  m.impl("additive_v2_logits_bwd", backward<v2_gradients_cpu>);
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  m.impl("additive_v2_logits", forward<v2_logits_cuda>);
  m.impl("additive_v2_logits_fwd", forward_with_signs);
  m.impl("additive_v2_logits_bwd", backward<v2_gradients_cuda>);
}
#endif

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) {
  m.impl("additive_v2_logits", forward_meta);
  m.impl("additive_v2_logits_fwd", forward_with_signs_meta);
  m.impl("additive_v2_logits_bwd", backward_meta);
}

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  m.impl("additive_v2_logits", autograd);
  m.impl("additive_v2_logits_fwd", torch::autograd::autogradNotImplementedFallback());
  m.impl("additive_v2_logits_bwd", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(dfgnn, AutocastCPU, m) { m.impl("additive_v2_logits", autocast); }

TORCH_LIBRARY_IMPL(dfgnn, AutocastCUDA, m) { m.impl("additive_v2_logits", autocast); }

}  // namespace dfgnn
