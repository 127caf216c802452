// One call of an attention operator: its arguments under common names, whatever its score and method, and the way
// back from them to the dispatcher. A stage (backend, meta, autograd, autocast) is a struct with
//   static ForwardResult forward(Call);
// and, below autograd, backward(Call, BackwardInputs) -> CallGradients. `register_forward<Stage>` and
// `register_backward<Stage>` put it behind every operator of the family.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>

#include "attention.h"

namespace dfgnn {

using OptTensor = std::optional<at::Tensor>;

enum class Op { smmf, pmf, attention };

struct Call {
  Op op;
  Score score;
  at::Tensor rowptr, col;
  OptTensor colptr, row, perm;
  at::Tensor a, b,
      c;  // dot: q, k, v;  cosine: x_dst, x_src, beta;  additive: a_dst, a_src, v;  additive_v2: x_dst, x_src, att
  OptTensor a_edge, bias;
  std::optional<double> scale;
  double parameter;  // cosine: eps, additive and additive_v2: negative_slope
  double dropout_p;
  OptTensor seed;
  std::string method;  // of Op::attention
  c10::SymInt max_degree;

  const at::Tensor& value() const { return value_is_src(score) ? b : c; }
};

struct BackwardInputs {
  at::Tensor grad_out;
  OptTensor grad_lse;
  at::Tensor out, lse;
};

// Gradients of a, b, c, a_edge, bias, in this order; the last two have no elements where the call has none.
using CallGradients = std::array<at::Tensor, 5>;
// As all but the additive operators return them: without a_edge.
using Gradients4 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Gradients5 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

using T = const at::Tensor&;
using O = const OptTensor&;

inline Call make_call(Op op, Score score, T rowptr, T col, O colptr, O row, O perm, T a, T b, T c, O a_edge, O bias,
                      std::optional<double> scale, double parameter, double dropout_p, O seed,
                      std::string_view method = "auto", c10::SymInt max_degree = -1) {
  return {op,
          score,
          rowptr,
          col,
          colptr,
          row,
          perm,
          a,
          b,
          c,
          a_edge,
          bias,
          scale,
          parameter,
          dropout_p,
          seed,
          std::string(method),
          max_degree};
}

// Operator signatures to Call. Route is (method, max_degree) for Op::attention and nothing for the others.

template <class Stage, Op op, class... Route>
struct Entry {
  static ForwardResult dot_fwd(T rowptr, T col, T q, T k, T v, std::optional<double> scale, O bias, double dropout_p,
                               O seed, O colptr, O row, O perm, Route... route) {
    return Stage::forward(make_call(op, Score::dot, rowptr, col, colptr, row, perm, q, k, v, std::nullopt, bias, scale,
                                    0.0, dropout_p, seed, route...));
  }

  static ForwardResult cosine_fwd(T rowptr, T col, T x_dst, T x_src, T beta, O bias, double dropout_p, O seed, O colptr,
                                  O row, O perm, double eps, Route... route) {
    return Stage::forward(make_call(op, Score::cosine, rowptr, col, colptr, row, perm, x_dst, x_src, beta, std::nullopt,
                                    bias, 1.0, eps, dropout_p, seed, route...));
  }

  static ForwardResult additive_fwd(T rowptr, T col, T a_dst, T a_src, T v, double negative_slope, O a_edge, O bias,
                                    double dropout_p, O seed, O colptr, O row, O perm, Route... route) {
    return Stage::forward(make_call(op, Score::additive, rowptr, col, colptr, row, perm, a_dst, a_src, v, a_edge, bias,
                                    1.0, negative_slope, dropout_p, seed, route...));
  }

  static ForwardResult additive_v2_fwd(T rowptr, T col, T x_dst, T x_src, T att, O bias, double dropout_p,
                                       double negative_slope, O seed, O colptr, O row, O perm, Route... route) {
    return Stage::forward(make_call(op, Score::additive_v2, rowptr, col, colptr, row, perm, x_dst, x_src, att,
                                    std::nullopt, bias, 1.0, negative_slope, dropout_p, seed, route...));
  }

  static Gradients4 dot_bwd(T grad_out, O grad_lse, T out, T lse, T rowptr, T col, T colptr, T row, T perm, T q, T k,
                            T v, std::optional<double> scale, O bias, double dropout_p, O seed, Route... route) {
    auto g = Stage::backward(make_call(op, Score::dot, rowptr, col, colptr, row, perm, q, k, v, std::nullopt, bias,
                                       scale, 0.0, dropout_p, seed, route...),
                             BackwardInputs{grad_out, grad_lse, out, lse});
    return {g[0], g[1], g[2], g[4]};
  }

  static Gradients4 cosine_bwd(T grad_out, O grad_lse, T out, T lse, T rowptr, T col, T colptr, T row, T perm, T x_dst,
                               T x_src, T beta, O bias, double dropout_p, O seed, double eps, Route... route) {
    auto g = Stage::backward(make_call(op, Score::cosine, rowptr, col, colptr, row, perm, x_dst, x_src, beta,
                                       std::nullopt, bias, 1.0, eps, dropout_p, seed, route...),
                             BackwardInputs{grad_out, grad_lse, out, lse});
    return {g[0], g[1], g[2], g[4]};
  }

  static Gradients5 additive_bwd(T grad_out, O grad_lse, T out, T lse, T rowptr, T col, T colptr, T row, T perm,
                                 T a_dst, T a_src, T v, double negative_slope, O a_edge, O bias, double dropout_p,
                                 O seed, Route... route) {
    auto g = Stage::backward(make_call(op, Score::additive, rowptr, col, colptr, row, perm, a_dst, a_src, v, a_edge,
                                       bias, 1.0, negative_slope, dropout_p, seed, route...),
                             BackwardInputs{grad_out, grad_lse, out, lse});
    return {g[0], g[1], g[2], g[3], g[4]};
  }

  static Gradients4 additive_v2_bwd(T grad_out, O grad_lse, T out, T lse, T rowptr, T col, T colptr, T row, T perm,
                                    T x_dst, T x_src, T att, O bias, double dropout_p, double negative_slope, O seed,
                                    Route... route) {
    auto g = Stage::backward(make_call(op, Score::additive_v2, rowptr, col, colptr, row, perm, x_dst, x_src, att,
                                       std::nullopt, bias, 1.0, negative_slope, dropout_p, seed, route...),
                             BackwardInputs{grad_out, grad_lse, out, lse});
    return {g[0], g[1], g[2], g[4]};
  }
};

template <class Stage, Op op>
struct EntryOf : Entry<Stage, op> {};
template <class Stage>
struct EntryOf<Stage, Op::attention> : Entry<Stage, Op::attention, std::string_view, c10::SymInt> {};

template <class Stage>
void register_forward(torch::Library& m) {
  m.impl("smmf_fwd.dot", &EntryOf<Stage, Op::smmf>::dot_fwd);
  m.impl("smmf_fwd.cosine", &EntryOf<Stage, Op::smmf>::cosine_fwd);
  m.impl("smmf_fwd.additive", &EntryOf<Stage, Op::smmf>::additive_fwd);
  m.impl("smmf_fwd.additive_v2", &EntryOf<Stage, Op::smmf>::additive_v2_fwd);
  m.impl("pmf_fwd.dot", &EntryOf<Stage, Op::pmf>::dot_fwd);
  m.impl("pmf_fwd.cosine", &EntryOf<Stage, Op::pmf>::cosine_fwd);
  m.impl("pmf_fwd.additive", &EntryOf<Stage, Op::pmf>::additive_fwd);
  m.impl("pmf_fwd.additive_v2", &EntryOf<Stage, Op::pmf>::additive_v2_fwd);
  m.impl("attention.dot", &EntryOf<Stage, Op::attention>::dot_fwd);
  m.impl("attention.cosine", &EntryOf<Stage, Op::attention>::cosine_fwd);
  m.impl("attention.additive", &EntryOf<Stage, Op::attention>::additive_fwd);
  m.impl("attention.additive_v2", &EntryOf<Stage, Op::attention>::additive_v2_fwd);
}

template <class Stage>
void register_backward(torch::Library& m) {
  m.impl("smmf_bwd.dot", &EntryOf<Stage, Op::smmf>::dot_bwd);
  m.impl("smmf_bwd.cosine", &EntryOf<Stage, Op::smmf>::cosine_bwd);
  m.impl("smmf_bwd.additive", &EntryOf<Stage, Op::smmf>::additive_bwd);
  m.impl("smmf_bwd.additive_v2", &EntryOf<Stage, Op::smmf>::additive_v2_bwd);
  m.impl("pmf_bwd.dot", &EntryOf<Stage, Op::pmf>::dot_bwd);
  m.impl("pmf_bwd.cosine", &EntryOf<Stage, Op::pmf>::cosine_bwd);
  m.impl("pmf_bwd.additive", &EntryOf<Stage, Op::pmf>::additive_bwd);
  m.impl("pmf_bwd.additive_v2", &EntryOf<Stage, Op::pmf>::additive_v2_bwd);
  m.impl("attention_bwd.dot", &EntryOf<Stage, Op::attention>::dot_bwd);
  m.impl("attention_bwd.cosine", &EntryOf<Stage, Op::attention>::cosine_bwd);
  m.impl("attention_bwd.additive", &EntryOf<Stage, Op::attention>::additive_bwd);
  m.impl("attention_bwd.additive_v2", &EntryOf<Stage, Op::attention>::additive_v2_bwd);
}

// Call back to the dispatcher (redispatch.cpp).
ForwardResult dispatch_forward(const Call& call);
CallGradients dispatch_backward(const Call& call, const BackwardInputs& inputs);
std::tuple<at::Tensor, at::Tensor, at::Tensor> dispatch_csr_to_csc(T rowptr, T col, c10::SymInt num_src);

// The call with `seed` set: drawn from torch's generator where dropout asks for one and the caller gave none.
Call with_seed(Call call);

}  // namespace dfgnn
