// One call of an attention operator: its arguments under common names, whatever its score and method, and the way
// back from them to the dispatcher. A stage (backend, meta, autograd, autocast) is a struct with
//   static ForwardResult forward(Call);
// and, all but autocast, backward(Call, BackwardInputs) -> CallGradients. `register_forward<Stage>` and
// `register_backward<Stage>` put it behind every operator of the family.
#pragma once

#include <ATen/ATen.h>
#include <torch/library.h>

#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "attention.h"

namespace dfgnn {

using OptTensor = std::optional<at::Tensor>;

enum class Op { smmf, pmf, tile, attention };

// What the caller says about how to run: Op::attention all of it, Op::tile the tiles, the others nothing.
struct Route {
  std::string method = "auto";
  c10::SymInt max_degree = -1, tile_blocks = -1;  // -1: unknown
  OptTensor tiles;
  c10::SymInt tile_nodes = -1, tile_batches = -1;
};

inline Route make_route() { return {}; }
inline Route make_route(const OptTensor& tiles) { return {"tile", -1, -1, tiles}; }
inline Route make_route(std::string_view method, c10::SymInt max_degree, const OptTensor& tiles,
                        c10::SymInt tile_blocks, c10::SymInt tile_nodes, c10::SymInt tile_batches) {
  return {std::string(method), max_degree, tile_blocks, tiles, tile_nodes, tile_batches};
}

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
  Route route;
  bool sum_x = false;  // cosine's backward pass: x_src's gradient is to have x_dst's added, which then is none

  const at::Tensor& value() const { return value_is_src(score) ? b : c; }
};

struct BackwardInputs {
  at::Tensor grad_out;
  OptTensor grad_lse;
  at::Tensor out, lse;
};

// Gradients of a, b, c, a_edge, bias, in this order; the last two have no elements where the call has none, nor the
// first with sum_x.
using CallGradients = std::array<at::Tensor, 5>;
// As all but the additive operators return them: without a_edge.
using Gradients4 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Gradients5 = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

using T = const at::Tensor&;
using O = const OptTensor&;

inline Call make_call(Op op, Score score, T rowptr, T col, O colptr, O row, O perm, T a, T b, T c, O a_edge, O bias,
                      std::optional<double> scale, double parameter, double dropout_p, O seed, Route route) {
  return {op,    score,     rowptr,    col,  colptr,          row, perm, a, b, c, a_edge, bias,
          scale, parameter, dropout_p, seed, std::move(route)};
}

// Operator signatures to Call. Routing is what make_route takes.

template <class Stage, Op op, class... Routing>
struct Entry {
  static ForwardResult dot_fwd(T rowptr, T col, T q, T k, T v, std::optional<double> scale, O bias, double dropout_p,
                               O seed, O colptr, O row, O perm, Routing... route) {
    return Stage::forward(make_call(op, Score::dot, rowptr, col, colptr, row, perm, q, k, v, std::nullopt, bias, scale,
                                    0.0, dropout_p, seed, make_route(route...)));
  }

  static ForwardResult cosine_fwd(T rowptr, T col, T x_dst, T x_src, T beta, O bias, double dropout_p, O seed, O colptr,
                                  O row, O perm, double eps, Routing... route) {
    return Stage::forward(make_call(op, Score::cosine, rowptr, col, colptr, row, perm, x_dst, x_src, beta, std::nullopt,
                                    bias, 1.0, eps, dropout_p, seed, make_route(route...)));
  }

  static ForwardResult additive_fwd(T rowptr, T col, T a_dst, T a_src, T v, double negative_slope, O a_edge, O bias,
                                    double dropout_p, O seed, O colptr, O row, O perm, Routing... route) {
    return Stage::forward(make_call(op, Score::additive, rowptr, col, colptr, row, perm, a_dst, a_src, v, a_edge, bias,
                                    1.0, negative_slope, dropout_p, seed, make_route(route...)));
  }

  static ForwardResult additive_v2_fwd(T rowptr, T col, T x_dst, T x_src, T att, O bias, double dropout_p,
                                       double negative_slope, O seed, O colptr, O row, O perm, Routing... route) {
    return Stage::forward(make_call(op, Score::additive_v2, rowptr, col, colptr, row, perm, x_dst, x_src, att,
                                    std::nullopt, bias, 1.0, negative_slope, dropout_p, seed, make_route(route...)));
  }

  static Gradients4 dot_bwd(T grad_out, O grad_lse, T out, T lse, T rowptr, T col, T colptr, T row, T perm, T q, T k,
                            T v, std::optional<double> scale, O bias, double dropout_p, O seed, Routing... route) {
    auto g = Stage::backward(make_call(op, Score::dot, rowptr, col, colptr, row, perm, q, k, v, std::nullopt, bias,
                                       scale, 0.0, dropout_p, seed, make_route(route...)),
                             BackwardInputs{grad_out, grad_lse, out, lse});
    return {g[0], g[1], g[2], g[4]};
  }

  static Gradients4 cosine_bwd(T grad_out, O grad_lse, T out, T lse, T rowptr, T col, T colptr, T row, T perm, T x_dst,
                               T x_src, T beta, O bias, double dropout_p, O seed, double eps, bool sum_x,
                               Routing... route) {
    auto call = make_call(op, Score::cosine, rowptr, col, colptr, row, perm, x_dst, x_src, beta, std::nullopt, bias,
                          1.0, eps, dropout_p, seed, make_route(route...));
    call.sum_x = sum_x;
    auto g = Stage::backward(std::move(call), BackwardInputs{grad_out, grad_lse, out, lse});
    return {g[0], g[1], g[2], g[4]};
  }

  static Gradients5 additive_bwd(T grad_out, O grad_lse, T out, T lse, T rowptr, T col, T colptr, T row, T perm,
                                 T a_dst, T a_src, T v, double negative_slope, O a_edge, O bias, double dropout_p,
                                 O seed, Routing... route) {
    auto g = Stage::backward(make_call(op, Score::additive, rowptr, col, colptr, row, perm, a_dst, a_src, v, a_edge,
                                       bias, 1.0, negative_slope, dropout_p, seed, make_route(route...)),
                             BackwardInputs{grad_out, grad_lse, out, lse});
    return {g[0], g[1], g[2], g[3], g[4]};
  }

  static Gradients4 additive_v2_bwd(T grad_out, O grad_lse, T out, T lse, T rowptr, T col, T colptr, T row, T perm,
                                    T x_dst, T x_src, T att, O bias, double dropout_p, double negative_slope, O seed,
                                    Routing... route) {
    auto g = Stage::backward(make_call(op, Score::additive_v2, rowptr, col, colptr, row, perm, x_dst, x_src, att,
                                       std::nullopt, bias, 1.0, negative_slope, dropout_p, seed, make_route(route...)),
                             BackwardInputs{grad_out, grad_lse, out, lse});
    return {g[0], g[1], g[2], g[4]};
  }
};

template <class Stage, Op op>
struct EntryOf : Entry<Stage, op> {};
template <class Stage>
struct EntryOf<Stage, Op::tile> : Entry<Stage, Op::tile, O> {};
template <class Stage>
struct EntryOf<Stage, Op::attention>
    : Entry<Stage, Op::attention, std::string_view, c10::SymInt, O, c10::SymInt, c10::SymInt, c10::SymInt> {};

// The names of families, each of an overload a score.
constexpr const char* forward_name(Op op) {
  return op == Op::smmf ? "smmf_fwd" : op == Op::pmf ? "pmf_fwd" : op == Op::tile ? "tile_fwd" : "attention";
}
constexpr const char* backward_name(Op op) {
  return op == Op::smmf ? "smmf_bwd" : op == Op::pmf ? "pmf_bwd" : op == Op::tile ? "tile_bwd" : "attention_bwd";
}

// Calls visit.operator()<op>().
template <class Visit>
auto with_op(Op op, const Visit& visit) {
  switch (op) {
    case Op::smmf:
      return visit.template operator()<Op::smmf>();
    case Op::pmf:
      return visit.template operator()<Op::pmf>();
    case Op::tile:
      return visit.template operator()<Op::tile>();
    default:
      return visit.template operator()<Op::attention>();
  }
}
constexpr Op kOps[] = {Op::smmf, Op::pmf, Op::tile, Op::attention};

template <class Stage, Op op>
void register_forward_of(torch::Library& m) {
  const std::string name = forward_name(op);
  m.impl((name + ".dot").c_str(), &EntryOf<Stage, op>::dot_fwd);
  m.impl((name + ".cosine").c_str(), &EntryOf<Stage, op>::cosine_fwd);
  m.impl((name + ".additive").c_str(), &EntryOf<Stage, op>::additive_fwd);
  m.impl((name + ".additive_v2").c_str(), &EntryOf<Stage, op>::additive_v2_fwd);
}

template <class Stage, Op op>
void register_backward_of(torch::Library& m) {
  const std::string name = backward_name(op);
  m.impl((name + ".dot").c_str(), &EntryOf<Stage, op>::dot_bwd);
  m.impl((name + ".cosine").c_str(), &EntryOf<Stage, op>::cosine_bwd);
  m.impl((name + ".additive").c_str(), &EntryOf<Stage, op>::additive_bwd);
  m.impl((name + ".additive_v2").c_str(), &EntryOf<Stage, op>::additive_v2_bwd);
}

template <class Stage>
void register_forward(torch::Library& m) {
  for (const Op op : kOps) with_op(op, [&m]<Op known>() { register_forward_of<Stage, known>(m); });
}

template <class Stage>
void register_backward(torch::Library& m) {
  for (const Op op : kOps) with_op(op, [&m]<Op known>() { register_backward_of<Stage, known>(m); });
}

// Call back to the dispatcher (redispatch.cpp).
ForwardResult dispatch_forward(const Call& call);
CallGradients dispatch_backward(const Call& call, const BackwardInputs& inputs);
std::tuple<at::Tensor, at::Tensor, at::Tensor> dispatch_csr_to_csc(T rowptr, T col, c10::SymInt num_src);

// The call with `seed` set: drawn from torch's generator where dropout asks for one and the caller gave none.
Call with_seed(Call call);

}  // namespace dfgnn
