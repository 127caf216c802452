// The two passes of attention over messages that are kernels' (message_attention.cpp has the rest, and the formulas):
//   message_attention_fwd   y, and the logarithm of the softmax's sum
//   message_attention_bwd   dq; ds and alpha of every edge and head; and, where they are wanted, dW and df
// of features of as many numbers as kernels take.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>
#include <string>
#include <tuple>
#include <utility>

#include "../../cuda/message_geometry.h"
#include "attention.h"
#include "call.h"
#include "checks.h"
#include "message_attention.h"

namespace dfgnn {
namespace {

using ForwardTensors = std::tuple<at::Tensor, at::Tensor>;
using BackwardTensors = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

// W [H D, F] in the order in which lanes read it.
at::Tensor weights_of_lanes(T projection, int64_t heads, int64_t head_dim) {
  const auto bytes = static_cast<int>(projection.element_size());
  const int64_t vector = cuda::message_vector(bytes, head_dim), term = cuda::message_term(bytes);
  const int64_t row_lanes = cuda::message_row_lanes(heads * head_dim / vector),
                lanes = std::min<int64_t>(row_lanes, 32);
  const auto padding = row_lanes * vector - heads * head_dim;
  const auto rows = padding > 0 ? at::constant_pad_nd(projection, {0, 0, 0, padding}) : projection.contiguous();
  const auto by_lanes =
      rows.view({row_lanes / lanes, lanes, vector, projection.size(1) / term, term}).permute({0, 2, 3, 1, 4});
  auto weights = at::empty(by_lanes.sizes(), rows.options().dtype(accumulate_type(rows.scalar_type())));
  return weights.copy_(by_lanes);
}

// Of CUDA's kernels; {} where there are none for features of so many numbers, on the CPU either.
std::optional<cuda::MessageShape> shape_of(T q, int64_t width) {
  if (width == 0) return {};
  if (!q.is_cuda()) {
    return fits_cpu_kernels(q.size(1), q.size(2), width) ? std::optional(cuda::MessageShape{}) : std::nullopt;
  }
  const auto bytes = static_cast<int>(q.element_size());
  const auto shape = cuda::message_shape(bytes, q.size(1), q.size(2), width);
  const bool fits = shape.lanes > 0 && cuda::whole_width(bytes, shape, width) == width;
  return fits ? std::optional(shape) : std::nullopt;
}

MessageAttention operands_of(T rowptr, T col, T eid, T q, T k, T v, T features, T projection, double scale,
                             double dropout_p, O seed) {
  check_value(q, "q");
  check_csr(rowptr, col, q.device());
  check_index(eid, "eid", rowptr, q.device());
  TORCH_CHECK(eid.numel() == col.numel(), "eid: expected [E] = ", col.numel(), " entries, got ", eid.numel());
  TORCH_CHECK(q.size(0) == rowptr.numel() - 1, "q: expected rowptr.numel() - 1 = ", rowptr.numel() - 1,
              " nodes, got shape ", q.sizes());
  check_features(k, "k", q, "q");
  TORCH_CHECK(k.sizes().slice(1) == q.sizes().slice(1), "k: expected as many heads as q, of the same size, ",
              q.sizes().slice(1), ", got shape ", k.sizes());
  TORCH_CHECK(k.size(0) > 0 || col.numel() == 0, "k: expected the nodes that edges come from, got none");
  check_features(v, "v", q, "q");
  check_shape(v, "v", k.sizes(), "that of k");
  check_like(features, "features", q, "q");
  check_dimensions(features, "features", 2);
  const auto shape = shape_of(q, features.size(1));
  TORCH_CHECK(shape.has_value(), "features: expected shape [rows, F] with an F that there are kernels for, got ",
              features.sizes());
  TORCH_CHECK(features.size(0) > 0 || eid.numel() == 0, "features: expected those of edges, got none");
  check_like(projection, "projection", q, "q");
  check_shape(projection, "projection", {q.size(1) * q.size(2), features.size(1)}, "[heads * head size, F]");
  check_probability(dropout_p);
  TORCH_CHECK(dropout_p == 0 || seed.has_value(), "seed: expected one with dropout_p > 0, got none");
  if (seed) check_seed(*seed, q.device());
  return {{rowptr.contiguous(), col.contiguous(), at::Tensor(), k.size(0)},
          eid.contiguous(),
          q.contiguous(),
          k.contiguous(),
          v.contiguous(),
          features.contiguous(),
          projection.contiguous(),
          shape->pieces,
          !q.is_cuda() || shape->pieces > 0 ? at::Tensor() : weights_of_lanes(projection, q.size(1), q.size(2)),
          scale,
          dropout_p,
          dropout_p > 0 ? *seed : at::Tensor()};
}

template <auto backend>
ForwardTensors forward(T rowptr, T col, T eid, T q, T k, T v, T features, T projection, double scale, double dropout_p,
                       O seed) {
  const auto [out, lse] = backend(operands_of(rowptr, col, eid, q, k, v, features, projection, scale, dropout_p, seed));
  return {out, lse};
}

template <auto backend>
BackwardTensors backward(T grad_out, T out, T lse, T rowptr, T col, T eid, T q, T k, T v, T features, T projection,
                         double scale, double dropout_p, O seed, bool of_projection, bool of_features) {
  const auto call = operands_of(rowptr, col, eid, q, k, v, features, projection, scale, dropout_p, seed);
  for (const auto& [name, t] : {std::pair<const char*, T>{"grad_out", grad_out}, {"out", out}}) {
    check_like(t, name, q, "q");
    check_shape(t, name, q.sizes(), "that of q");
  }
  check_device(lse, "lse", q.device());
  check_shape(lse, "lse", q.sizes().slice(0, 2), "[N_dst, heads]");
  const auto type = accumulate_type(q.scalar_type());
  TORCH_CHECK(lse.scalar_type() == type, "lse: expected ", type, ", got ", lse.scalar_type());
  const auto g = backend(call, {grad_out.contiguous(), out.contiguous(), lse.contiguous(), of_projection, of_features});
  return {g.q, g.logits, g.weights, g.projection, g.features};
}

ForwardTensors forward_meta(T rowptr, T col, T eid, T q, T k, T v, T features, T projection, double, double, O) {
  check_on_meta({{"rowptr", rowptr}, {"col", col}, {"eid", eid}, {"q", q}, {"k", k}, {"v", v}});
  check_on_meta({{"features", features}, {"projection", projection}});
  check_dimensions(q, "q", 3);
  return {at::empty_symint(q.sym_sizes(), q.options()),
          at::empty_symint({q.sym_size(0), q.sym_size(1)}, q.options().dtype(accumulate_type(q.scalar_type())))};
}

BackwardTensors backward_meta(T grad_out, T out, T lse, T rowptr, T col, T eid, T q, T k, T v, T features, T projection,
                              double, double, O, bool of_projection, bool of_features) {
  check_on_meta({{"rowptr", rowptr}, {"col", col}, {"eid", eid}, {"q", q}, {"k", k}, {"v", v}});
  check_on_meta({{"features", features}, {"projection", projection}, {"lse", lse}});
  check_on_meta({{"grad_out", grad_out}, {"out", out}});
  check_dimensions(q, "q", 3);
  check_dimensions(features, "features", 2);
  const auto of_edges = [&] {
    return at::empty_symint({col.sym_numel(), q.sym_size(1)}, q.options().dtype(accumulate_type(q.scalar_type())));
  };
  const auto where_wanted = [&](bool is_wanted, T like) {
    return is_wanted ? at::empty_symint(like.sym_sizes(), q.options()) : at::empty({0}, q.options());
  };
  return {at::empty_symint(q.sym_sizes(), q.options()), of_edges(), of_edges(), where_wanted(of_projection, projection),
          where_wanted(of_features, features)};
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  const std::string call =
      "Tensor rowptr, Tensor col, *, Tensor eid, Tensor q, Tensor k, Tensor v, Tensor features, Tensor projection, "
      "float scale, float dropout_p=0.0, Tensor? seed=None";
  m.def(("message_attention_fwd(" + call + ") -> (Tensor out, Tensor lse)").c_str());
  m.def(("message_attention_bwd(Tensor grad_out, Tensor out, Tensor lse, " + call +
         ", bool of_projection=True, bool of_features=True) -> (Tensor grad_q, Tensor grad_logits, Tensor weights, "
         "Tensor grad_projection, Tensor grad_features)")
            .c_str());
}

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) {
  m.impl("message_attention_fwd", forward<message_attention_fwd_cpu>);
  m.impl("message_attention_bwd", backward<message_attention_bwd_cpu>);
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  m.impl("message_attention_fwd", forward<message_attention_fwd_cuda>);
  m.impl("message_attention_bwd", backward<message_attention_bwd_cuda>);
}
#endif

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) {
  m.impl("message_attention_fwd", forward_meta);
  m.impl("message_attention_bwd", backward_meta);
}

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  m.impl("message_attention_fwd", torch::autograd::autogradNotImplementedFallback());
  m.impl("message_attention_bwd", torch::autograd::autogradNotImplementedFallback());
}

}  // namespace dfgnn
