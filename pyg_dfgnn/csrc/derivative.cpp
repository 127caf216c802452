#include "derivative.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <string>

#include "checks.h"
#include "find_operator.h"
#include "operands.h"
#include "products.h"

#ifdef DFGNN_WITH_CUDA
#include "cuda/padding.h"
#include "cuda/tensors.h"
#endif

namespace dfgnn {
namespace {

using ThreeGradients = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

#ifdef DFGNN_WITH_CUDA
Call call_of(T rowptr, T col, O colptr, O row, O perm, T a_dst, T a_src, T v, double negative_slope, O a_edge, O bias,
             double dropout_p, O seed, const c10::SymInt& max_degree) {
  auto call = make_call(Op::attention, Score::additive, rowptr, col, colptr, row, perm, a_dst, a_src, v, a_edge, bias,
                        1.0, negative_slope, dropout_p, seed, make_route());
  call.route.max_degree = max_degree;
  return call;
}

// The operands of heads of whole vectors, where that is worth it.
Attention operands_of(const Call& call, const Attention& given) {
  auto attention = with_whole_vectors(call, given);
  const auto heads = static_cast<int>(attention.heads()), head_dim = static_cast<int>(attention.head_dim());
  TORCH_CHECK(cuda::additive_heads(type_of(attention.value), heads, head_dim) != cuda::AdditiveHeads::none,
              "v: expected heads whose rows fit into a warp's registers, or of which a warp takes two to eight side by "
              "side, got ",
              heads, " of ", given.head_dim(), " features");
  return attention;
}

DerivativeResult forward(T rowptr, T col, T a_dst, T a_src, T v, double negative_slope, O a_edge, O bias,
                         double dropout_p, O seed, O colptr, O row, O perm, c10::SymInt max_degree) {
  const auto call = call_of(rowptr, col, colptr, row, perm, a_dst, a_src, v, negative_slope, a_edge, bias, dropout_p,
                            seed, max_degree);
  const auto given = make_attention(call);
  auto [out, lse, derivative] = forward_with_derivative_cuda(operands_of(call, given));
  resize_heads({&out, &derivative}, given.head_dim());
  return {out, lse, derivative};
}

ThreeGradients backward(T grad_out, T out, T lse, T derivative, T rowptr, T col, T colptr, T row, T perm, T a_dst,
                        T a_src, T v, double negative_slope, O a_edge, O bias, double dropout_p, O seed) {
  auto call =
      call_of(rowptr, col, colptr, row, perm, a_dst, a_src, v, negative_slope, a_edge, bias, dropout_p, seed, -1);
  const auto given = make_attention(call);
  auto saved = make_saved(call, {grad_out, std::nullopt, out, lse}, given);
  check_features(derivative, "derivative", v, "the value");
  check_shape(derivative, "derivative", out.sizes(), "[N_dst, heads, head size]");
  auto attention = operands_of(call, given);
  auto whole_derivative = derivative.contiguous();
  resize_heads({&saved.grad_out, &saved.out, &whole_derivative}, attention.head_dim());
  auto gradients = backward_from_derivative_cuda(std::move(attention), saved, whole_derivative);
  resize_heads({&gradients.value}, given.head_dim());
  call.a_edge.reset();  // which have no gradient
  call.bias.reset();
  const auto all = finish_gradients(call, given, gradients);
  return {all[0], all[1], all[2]};
}
#endif

DerivativeResult forward_meta(T rowptr, T col, T a_dst, T a_src, T v, double, O a_edge, O bias, double, O seed,
                              O colptr, O row, O perm, c10::SymInt) {
  check_on_meta({{"rowptr", rowptr},
                 {"col", col},
                 {"a_dst", a_dst},
                 {"a_src", a_src},
                 {"v", v},
                 {"a_edge", a_edge},
                 {"bias", bias},
                 {"seed", seed},
                 {"colptr", colptr},
                 {"row", row},
                 {"perm", perm}});
  const auto num_dst = a_dst.sym_size(0), heads = v.sym_size(1), head_dim = v.sym_size(2);
  const auto features = [&] { return at::empty_symint({num_dst, heads, head_dim}, v.options()); };
  const auto type = accumulate_type(v.scalar_type());
  return {features(), at::empty_symint({num_dst, heads}, v.options().dtype(type)), features()};
}

ThreeGradients backward_meta(T grad_out, T out, T lse, T derivative, T rowptr, T col, T colptr, T row, T perm, T a_dst,
                             T a_src, T v, double, O a_edge, O bias, double, O seed) {
  check_on_meta({{"grad_out", grad_out},
                 {"out", out},
                 {"lse", lse},
                 {"derivative", derivative},
                 {"rowptr", rowptr},
                 {"col", col},
                 {"colptr", colptr},
                 {"row", row},
                 {"perm", perm},
                 {"a_dst", a_dst},
                 {"a_src", a_src},
                 {"v", v},
                 {"a_edge", a_edge},
                 {"bias", bias},
                 {"seed", seed}});
  const auto like = [](const at::Tensor& t) { return at::empty_like(t, at::MemoryFormat::Contiguous); };
  return {like(a_dst), like(a_src), like(v)};
}

}  // namespace

DerivativeResult dispatch_forward_with_derivative(const Call& c) {
  static const auto op = find_operator<DerivativeResult(T, T, T, T, T, double, O, O, double, O, O, O, O, c10::SymInt)>(
      "dfgnn::additive_derivative_fwd");
  return op.call(c.rowptr, c.col, c.a, c.b, c.c, c.parameter, c.a_edge, c.bias, c.dropout_p, c.seed, c.colptr, c.row,
                 c.perm, c.route.max_degree);
}

std::array<at::Tensor, 3> dispatch_backward_from_derivative(const Call& c, const BackwardInputs& in,
                                                            const at::Tensor& derivative) {
  static const auto op = find_operator<ThreeGradients(T, T, T, T, T, T, T, T, T, T, T, T, double, O, O, double, O)>(
      "dfgnn::additive_derivative_bwd");
  const auto [grad_a, grad_b, grad_c] =
      op.call(in.grad_out, in.out, in.lse, derivative, c.rowptr, c.col, *c.colptr, *c.row, *c.perm, c.a, c.b, c.c,
              c.parameter, c.a_edge, c.bias, c.dropout_p, c.seed);
  return {grad_a, grad_b, grad_c};
}

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  const std::string operands =
      "Tensor a_dst, Tensor a_src, Tensor v, float negative_slope=0.2, Tensor? a_edge=None, Tensor? bias=None, "
      "float dropout_p=0.0, Tensor? seed=None";
  m.def(("additive_derivative_fwd(Tensor rowptr, Tensor col, *, " + operands + ", " + kCscArguments +
         ", SymInt max_degree=-1) -> (Tensor out, Tensor lse, Tensor derivative)")
            .c_str());
  m.def(("additive_derivative_bwd(Tensor grad_out, Tensor out, Tensor lse, Tensor derivative, Tensor rowptr, "
         "Tensor col, Tensor colptr, Tensor row, Tensor perm, *, " +
         operands + ") -> (Tensor grad_a_dst, Tensor grad_a_src, Tensor grad_v)")
            .c_str());
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  m.impl("additive_derivative_fwd", forward);
  m.impl("additive_derivative_bwd", backward);
}
#endif

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) {
  m.impl("additive_derivative_fwd", forward_meta);
  m.impl("additive_derivative_bwd", backward_meta);
}

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  m.impl("additive_derivative_fwd", torch::autograd::autogradNotImplementedFallback());
  m.impl("additive_derivative_bwd", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace dfgnn
