#include "operands.h"

#include <cmath>
#include <vector>

#include "../../cuda/tile_geometry.h"
#include "casts.h"
#include "checks.h"
#include "graph.h"
#include "normalize.h"

namespace dfgnn {
namespace {

void set_cosine(Attention& attention, const Call& call) {
  const auto type = accumulate_type(attention.value.scalar_type());
  const auto& beta = call.c;
  check_device(beta, "beta", attention.value.device());
  TORCH_CHECK(beta.is_floating_point(), "beta: expected a floating point tensor, got ", beta.scalar_type());
  TORCH_CHECK(call.parameter > 0.0, "eps: expected a number > 0, got ", call.parameter);
  TORCH_CHECK(beta.numel() == 1 || beta.numel() == attention.heads(), "beta: expected 1 element or one a head (",
              attention.heads(), "), got shape ", beta.sizes());
  attention.beta = beta.dim() == 1 ? beta.contiguous() : beta.reshape({beta.numel()});
  if (attention.beta.scalar_type() != type) attention.beta = attention.beta.to(type);
  attention.eps = call.parameter;
}

// Of x_dst, x_src and the terms of beta's sum over nodes.
std::tuple<at::Tensor, at::Tensor, at::Tensor> cosine_gradients(const Attention& a, const Gradients& g, bool sum_x,
                                                                By by) {
  const auto none = at::empty({0}, a.dst.options());
  if (g.by_beta.defined()) return {none, g.value, g.by_beta};
  if (sum_x && a.dst.is_same(a.src)) {
    const auto [grad_x, by_beta] = normalize_backward(a.src, g.dst, a.beta, g.src, g.value, a.eps, by);
    return {none, grad_x, by_beta};
  }
  const auto [grad_dst, by_beta] = normalize_backward(a.dst, g.dst, a.beta, {}, {}, a.eps, by);
  const auto grad_src = std::get<0>(normalize_backward(a.src, g.src, {}, {}, g.value, a.eps, by));
  if (sum_x) return {none, grad_dst + grad_src, by_beta};
  return {grad_dst, grad_src, by_beta};
}

at::Tensor empty_gradient(const OptTensor& operand, const at::Tensor& gradient, const at::Tensor& value) {
  return operand.has_value() ? gradient.to(operand->scalar_type()) : at::empty({0}, value.options());
}

// x.sum(0), of nodes. By torch's operators, whose sums of one element give each thread a part, of runs of nodes.
at::Tensor sum_of_nodes(const at::Tensor& x, By by) {
#ifdef DFGNN_WITH_CUDA
  if (by == By::kernels && x.is_cuda()) return sum_of_scalars_cuda(x);
#endif
  if (by == By::kernels) return sum_of_scalars_cpu(x);
  constexpr int64_t kRun = 1024;
  const int64_t nodes = x.size(0), whole = nodes / kRun * kRun;
  if (nodes <= kRun || x.is_cuda()) return x.sum(0);
  std::vector<int64_t> runs = {nodes / kRun, kRun};
  runs.insert(runs.end(), x.sizes().begin() + 1, x.sizes().end());
  return sum_of_nodes(x.narrow(0, 0, whole).reshape(runs).sum(1), by) + x.narrow(0, whole, nodes - whole).sum(0);
}

// Additive_v2's, of x_dst, x_src and att.
std::tuple<at::Tensor, at::Tensor, at::Tensor> att_gradients(const Attention& a, const Gradients& g, By by) {
#ifdef DFGNN_WITH_CUDA
  if (by == By::kernels && a.value.is_cuda()) return att_gradients_cuda(a, g);
#endif
  if (by == By::kernels) return att_gradients_cpu(a, g);
  const auto type = accumulate_type(a.value.scalar_type());
  const auto x_dst = a.dst.to(type), g_dst = g.dst.to(type), x_src = a.src.to(type), g_src = g.src.to(type);
  return {a.att * g_dst, a.att * g_src + g.value, sum_of_nodes(x_dst * g_dst, by) + sum_of_nodes(x_src * g_src, by)};
}

}  // namespace

Names names_of(Score score) {
  switch (score) {
    case Score::dot:
      return {"q", "k", "v"};
    case Score::cosine:
      return {"x_dst", "x_src", "beta"};
    case Score::additive_v2:
      return {"x_dst", "x_src", "att"};
    default:
      return {"a_dst", "a_src", "v"};
  }
}

Attention make_attention(const Call& call, By by) {
  const auto names = names_of(call.score);
  const bool additive = call.score == Score::additive;
  Attention attention;
  attention.score = call.score;

  const auto& value = call.value();
  const char* value_name = value_is_src(call.score) ? names.b : names.c;
  check_value(value, value_name);
  const auto device = value.device();
  check_csr(call.rowptr, call.col, device);
  attention.rowptr = call.rowptr.contiguous();
  attention.col = call.col.contiguous();
  attention.value = value.contiguous();

  const auto num_dst = attention.num_dst(), num_src = value.size(0), heads = value.size(1), head_dim = value.size(2);
  if (additive) {
    check_logit_term(call.a, names.a, value, {num_dst, heads}, "[rowptr.numel() - 1, heads]");
    check_logit_term(call.b, names.b, value, {num_src, heads}, "[N_src, heads]");
    const auto type = accumulate_type(value.scalar_type());
    std::tie(attention.dst, attention.src) = cast_both(call.a, type, call.b, type, by);
  } else {
    check_features(call.a, names.a, value, value_name);
    check_features(call.b, names.b, value, value_name);
    check_shape(call.a, names.a, {num_dst, heads, head_dim}, "[rowptr.numel() - 1, heads, head size]");
    check_shape(call.b, names.b, {num_src, heads, head_dim}, "[N_src, heads, head size]");
    attention.dst = call.a.contiguous();
    attention.src = value_is_src(call.score) ? attention.value : call.b.contiguous();
    if (value_is_src(call.score) && call.a.is_same(call.b)) attention.dst = attention.src;
  }
  if (call.score == Score::cosine) set_cosine(attention, call);
  if (call.score == Score::additive_v2) {
    attention.att = logit_term(call.c, names.c, value, {heads, head_dim}, "[heads, head size]");
  }

  const auto num_edges = call.col.numel();
  TORCH_CHECK(num_src > 0 || num_edges == 0, "col: expected no entries where there are no source nodes, got ",
              num_edges);
  if (call.a_edge.has_value()) {
    attention.a_edge = logit_term(*call.a_edge, "a_edge", value, {num_edges, heads}, "[E, heads]");
  }
  if (call.bias.has_value()) {
    attention.bias = logit_term(*call.bias, "bias", value, {num_edges, heads}, "[E, heads]");
  }
  if (check_csc(call, num_src, device)) {
    attention.colptr = call.colptr->contiguous();
    attention.row = call.row->contiguous();
    attention.perm = call.perm->contiguous();
  }
  attention.max_degree = call.route.max_degree.guard_int(__FILE__, __LINE__);
  attention.tile_nodes = call.route.tile_nodes.guard_int(__FILE__, __LINE__);
  attention.tile_batches = call.route.tile_batches.guard_int(__FILE__, __LINE__);
  if (call.route.tiles.has_value()) {
    const auto& tiles = *call.route.tiles;
    check_index(tiles, "tiles", tiles, device);
    TORCH_CHECK(cuda::tile::parts_of(tiles.numel(), num_dst).is_valid, "tiles: expected the ",
                cuda::tile::boundaries_of(num_dst), " entries of find_tiles for ", num_dst, " nodes, or ",
                cuda::tile::size_with_masks(num_dst), " of with_masks, perhaps with the list of tiles behind, or ",
                cuda::tile::boundaries_of(num_dst) + cuda::tile::size_of_orders(num_dst), " of with_orders, got ",
                tiles.numel());
    attention.tiles = tiles.contiguous();
  }
  attention.scale = call.scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
  attention.negative_slope = call.parameter;

  check_probability(call.dropout_p);
  attention.dropout_p = call.dropout_p;
  if (call.dropout_p > 0.0) {
    attention.seed = *with_seed(call).seed;
    check_seed(attention.seed, device);
  }
  return attention;
}

void set_scales(Attention& a, By by) {
  if (a.score != Score::cosine) return;
  const bool is_one = a.dst.is_same(a.src);
  auto [norm, scaled] = reciprocal_norms(a.dst, a.beta, a.eps, by, is_one);
  a.dst_scale = std::move(scaled);
  a.src_scale = is_one ? std::move(norm) : reciprocal_norms(a.src, {}, a.eps, by).reciprocal;
}

Saved make_saved(const Call& call, const BackwardInputs& inputs, const Attention& attention) {
  const auto& value = attention.value;
  const auto type = accumulate_type(value.scalar_type());
  const std::array<int64_t, 3> features = {attention.num_dst(), attention.heads(), attention.head_dim()};
  const std::array<int64_t, 2> scalars = {attention.num_dst(), attention.heads()};
  check_features(inputs.grad_out, "grad_out", value, "the value");
  check_features(inputs.out, "out", value, "the value");
  check_shape(inputs.grad_out, "grad_out", features, "[N_dst, heads, head size]");
  check_shape(inputs.out, "out", features, "[N_dst, heads, head size]");
  check_shape(inputs.lse, "lse", scalars, "[N_dst, heads]");
  check_device(inputs.lse, "lse", value.device());
  check_floating_point(inputs.lse, "lse");
  TORCH_CHECK(call.dropout_p == 0.0 || call.seed.has_value(),
              "seed: expected the seed of the forward pass, got None with dropout_p = ", call.dropout_p);

  TORCH_CHECK(!call.sum_x || call.a.sizes() == call.b.sizes(), "sum_x: expected x_dst and x_src of one shape, got ",
              call.a.sizes(), " and ", call.b.sizes());

  Saved saved;
  saved.sum_x = call.sum_x;
  saved.grad_out = inputs.grad_out.contiguous();
  saved.out = inputs.out.contiguous();
  saved.lse = to_accumulate(inputs.lse, type);
  if (inputs.grad_lse.has_value()) {
    check_shape(*inputs.grad_lse, "grad_lse", scalars, "[N_dst, heads]");
    check_device(*inputs.grad_lse, "grad_lse", value.device());
    check_floating_point(*inputs.grad_lse, "grad_lse");
    saved.grad_lse = to_accumulate(*inputs.grad_lse, type);
  }
  return saved;
}

CallGradients finish_gradients(const Call& call, const Attention& attention, const Gradients& gradients, By by) {
  const auto& value = attention.value;
  const auto grad_a_edge = empty_gradient(call.a_edge, gradients.a_edge, value);
  const auto grad_bias = empty_gradient(call.bias, gradients.bias, value);
  if (!value_is_src(call.score)) {
    const auto [grad_a, grad_b] =
        cast_both(gradients.dst, call.a.scalar_type(), gradients.src, call.b.scalar_type(), by);
    return {grad_a, grad_b, gradients.value, grad_a_edge, grad_bias};
  }
  at::Tensor grad_x_dst, grad_x_src, grad_c;
  if (call.score == Score::additive_v2) {
    std::tie(grad_x_dst, grad_x_src, grad_c) = att_gradients(attention, gradients, by);
  } else {
    at::Tensor by_beta;
    std::tie(grad_x_dst, grad_x_src, by_beta) = cosine_gradients(attention, gradients, call.sum_x, by);
    grad_c = sum_of_nodes(call.c.numel() == 1 ? by_beta.reshape({by_beta.numel(), 1}) : by_beta, by);
  }
  return {grad_x_dst.to(value.scalar_type()), grad_x_src.to(value.scalar_type()),
          grad_c.reshape(call.c.sizes()).to(call.c.scalar_type()), grad_a_edge, grad_bias};
}

}  // namespace dfgnn
