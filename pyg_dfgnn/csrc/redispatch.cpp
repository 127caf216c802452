#include "call.h"
#include "dropout.h"
#include "find_operator.h"

namespace dfgnn {
namespace {

// EntryOf<Declared, op> is used for the types of its functions alone.
struct Declared {
  static ForwardResult forward(Call call);
  static CallGradients backward(Call call, BackwardInputs inputs);
};

template <Op op, class Handle, class... Args>
auto call_with_route(const Call& call, const Handle& handle, const Args&... args) {
  if constexpr (op == Op::attention) {
    return handle.call(args..., call.route.method, call.route.max_degree, call.route.tiles, call.route.tile_blocks,
                       call.route.tile_nodes, call.route.tile_batches);
  } else if constexpr (op == Op::tile) {
    return handle.call(args..., call.route.tiles);
  } else {
    return handle.call(args...);
  }
}

template <Op op>
ForwardResult forward(const Call& c) {
  using E = EntryOf<Declared, op>;
  static const auto name = std::string("dfgnn::") + forward_name(op);
  static const auto dot = find_operator<decltype(E::dot_fwd)>(name.c_str(), "dot");
  static const auto cosine = find_operator<decltype(E::cosine_fwd)>(name.c_str(), "cosine");
  static const auto additive = find_operator<decltype(E::additive_fwd)>(name.c_str(), "additive");
  static const auto additive_v2 = find_operator<decltype(E::additive_v2_fwd)>(name.c_str(), "additive_v2");
  switch (c.score) {
    case Score::dot:
      return call_with_route<op>(c, dot, c.rowptr, c.col, c.a, c.b, c.c, c.scale, c.bias, c.dropout_p, c.seed, c.colptr,
                                 c.row, c.perm);
    case Score::cosine:
      return call_with_route<op>(c, cosine, c.rowptr, c.col, c.a, c.b, c.c, c.bias, c.dropout_p, c.seed, c.colptr,
                                 c.row, c.perm, c.parameter);
    case Score::additive_v2:
      return call_with_route<op>(c, additive_v2, c.rowptr, c.col, c.a, c.b, c.c, c.bias, c.dropout_p, c.parameter,
                                 c.seed, c.colptr, c.row, c.perm);
    default:
      return call_with_route<op>(c, additive, c.rowptr, c.col, c.a, c.b, c.c, c.parameter, c.a_edge, c.bias,
                                 c.dropout_p, c.seed, c.colptr, c.row, c.perm);
  }
}

template <Op op>
CallGradients backward(const Call& c, const BackwardInputs& in) {
  using E = EntryOf<Declared, op>;
  static const auto name = std::string("dfgnn::") + backward_name(op);
  static const auto dot = find_operator<decltype(E::dot_bwd)>(name.c_str(), "dot");
  static const auto cosine = find_operator<decltype(E::cosine_bwd)>(name.c_str(), "cosine");
  static const auto additive = find_operator<decltype(E::additive_bwd)>(name.c_str(), "additive");
  static const auto additive_v2 = find_operator<decltype(E::additive_v2_bwd)>(name.c_str(), "additive_v2");
  const auto with_head = [&c, &in](const auto& handle, const auto&... rest) {
    return call_with_route<op>(c, handle, in.grad_out, in.grad_lse, in.out, in.lse, c.rowptr, c.col, *c.colptr, *c.row,
                               *c.perm, c.a, c.b, c.c, rest...);
  };
  const auto without_a_edge = [](const Gradients4& g) -> CallGradients {
    return {std::get<0>(g), std::get<1>(g), std::get<2>(g), at::Tensor(), std::get<3>(g)};
  };
  switch (c.score) {
    case Score::dot:
      return without_a_edge(with_head(dot, c.scale, c.bias, c.dropout_p, c.seed));
    case Score::cosine:
      return without_a_edge(with_head(cosine, c.bias, c.dropout_p, c.seed, c.parameter, c.sum_x));
    case Score::additive_v2:
      return without_a_edge(with_head(additive_v2, c.bias, c.dropout_p, c.parameter, c.seed));
    default: {
      const Gradients5 g = with_head(additive, c.parameter, c.a_edge, c.bias, c.dropout_p, c.seed);
      return {std::get<0>(g), std::get<1>(g), std::get<2>(g), std::get<3>(g), std::get<4>(g)};
    }
  }
}

}  // namespace

ForwardResult dispatch_forward(const Call& call) {
  return with_op(call.op, [&]<Op op>() { return forward<op>(call); });
}

CallGradients dispatch_backward(const Call& call, const BackwardInputs& inputs) {
  return with_op(call.op, [&]<Op op>() { return backward<op>(call, inputs); });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> dispatch_csr_to_csc(T rowptr, T col, c10::SymInt num_src) {
  static const auto op =
      find_operator<std::tuple<at::Tensor, at::Tensor, at::Tensor>(T, T, c10::SymInt)>("dfgnn::csr_to_csc");
  return op.call(rowptr, col, num_src);
}

Call with_seed(Call call) {
  if (call.dropout_p > 0.0 && !call.seed.has_value()) call.seed = draw_seed(call.value());
  return call;
}

}  // namespace dfgnn
