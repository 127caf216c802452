// sddmm and spmm of messages x_j + W f_e, from the source j and the features f of an edge e into i (x goes by the name
// of b in the first):
//   message_sddmm   s[e, h] = <a[i, h], x[j, h] + W_h f_e>
//   message_spmm    y[i, h] = sum over the edges of i of w[e, h] (x[j, h] + W_h f_e)
// with W, "projection", [H D, F], of which W_h [D, F] is head h's. Messages are never made: W meets what nodes have,
//   s = <a, x> + <W^T a, f>,   y = sum of w x + W (sum of w f).
// The derivatives are these two and sums by source:
//   da = message_spmm(ds),  dx = spmm^T(ds, a),  df = edge_spmm_t(ds, W^T a),  dW = sum over nodes of a (sum of ds f)^T
//   dw = message_sddmm(dy), dx = spmm^T(w, dy),  df = edge_spmm_t(w, W^T dy),  dW = sum over nodes of dy (sum of w f)^T
// Each is one node of autograd, as its parts by themselves would be ten.
#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <string>
#include <utility>

#include "autocast.h"
#include "call.h"
#include "checks.h"
#include "find_operator.h"
#include "products.h"
#include "projection.h"
#include "saved.h"

namespace dfgnn {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

// What the operators that this is made of cannot know, or would call by other names; they check the rest.
void check_messages(const Structure& g, T eid, T x, const char* name, T features, T projection) {
  check_type_of_features(x, name);
  check_dimensions(x, name, 3);
  check_dimensions(eid, "eid", 1);
  TORCH_CHECK(eid.sym_numel() == g.col.sym_numel(), "eid: expected [E] = ", g.col.sym_numel(), " entries, got ",
              eid.sym_numel());
  check_dimensions(features, "features", 2);
  check_dimensions(projection, "projection", 2);
  TORCH_CHECK(projection.sym_size(0) == x.sym_size(1) * x.sym_size(2) && projection.sym_size(1) == features.sym_size(1),
              "projection: expected shape [heads * head size, F] = [", x.sym_size(1) * x.sym_size(2), ", ",
              features.sym_size(1), "], got ", projection.sym_sizes());
  for (const auto& [t, its_name] : {std::pair<T, const char*>(features, "features"), {projection, "projection"}}) {
    check_like(t, its_name, x, name);
  }
}

void check_message_sddmm(const Structure& g, T eid, T a, T b, T features, T projection) {
  check_messages(g, eid, a, "a", features, projection);
  check_dimensions(b, "b", 3);
  TORCH_CHECK(b.sym_size(1) == a.sym_size(1), "b: expected as many heads as a (", a.sym_size(1), "), got shape ",
              b.sym_sizes());
}

void check_message_spmm(const Structure& g, T eid, T weight, T x, T features, T projection) {
  check_messages(g, eid, x, "x", features, projection);
  check_dimensions(weight, "weight", 2);
  TORCH_CHECK(x.sym_size(1) == weight.sym_size(1), "x: expected as many heads as weight (", weight.sym_size(1),
              "), got shape ", x.sym_sizes());
}

// sddmm(a, b) + edge_sddmm(projected, features)
template <auto backend>
at::Tensor sddmm_of_both(T rowptr, T col, T eid, T a, T b, T projected, T features, O colptr, O row, O perm) {
  check_sddmm({rowptr, col, colptr, row, perm}, a, b);
  check_edge_sddmm(rowptr, eid, projected, "projected", features);
  TORCH_CHECK(eid.numel() == col.numel(), "eid: expected [E] = ", col.numel(), " entries, got ", eid.numel());
  TORCH_CHECK(b.size(1) == a.size(1), "b: expected as many heads as a (", a.size(1), "), got shape ", b.sizes());
  TORCH_CHECK(projected.sizes().slice(0, 2) == a.sizes().slice(0, 2) && projected.scalar_type() == a.scalar_type(),
              "projected: expected ", a.scalar_type(), " of the nodes and heads of a, ", a.sizes(), ", got ",
              projected.scalar_type(), " of shape ", projected.sizes());
  return backend({rowptr.contiguous(), col.contiguous(), at::Tensor(), b.size(0)}, a.contiguous(), b.contiguous(),
                 eid.contiguous(), projected.contiguous(), features.contiguous());
}

at::Tensor sddmm_of_both_meta(T rowptr, T col, T eid, T a, T b, T projected, T features, O colptr, O row, O perm) {
  check_on_meta({{"rowptr", rowptr}, {"col", col}, {"colptr", colptr}, {"row", row}, {"perm", perm}});
  check_on_meta({{"eid", eid}, {"a", a}, {"b", b}, {"projected", projected}, {"features", features}});
  return at::empty_symint({col.sym_numel(), a.sym_size(1)}, a.options().dtype(accumulate_type(a.scalar_type())));
}

using Signature = at::Tensor(T, T, T, T, T, T, T, O, O, O);

// The two, of W^T a and of the sums of features.
at::Tensor sddmm_of(const Structure& g, T eid, T a, T b, T projected, T features) {
  if (at::GradMode::is_enabled()) {
    return dispatch_sddmm(g, a, b) + dispatch_edge_sddmm(g.rowptr, eid, projected, features);
  }
  static const auto op = find_operator<Signature>("dfgnn::sddmm_of_both");
  return op.call(g.rowptr, g.col, eid, a, b, projected, features, g.colptr, g.row, g.perm);
}

at::Tensor spmm_of(const Structure& g, T weight, T x, const Projection& projection, T summed) {
  return projection.add_to(dispatch_spmm(g, weight, x, false, false), summed);
}

at::Tensor by_source(const Structure& g, T weight, T x, const c10::SymInt& num_src) {
  return dispatch_spmm(with_csc(g, num_src), weight, x, true, false);
}

// A result, and what was made of W and by it on the way.
struct Made {
  at::Tensor result, matrix, product;
};

Made make_sddmm(const Structure& g, T eid, T a, T b, T features, T w) {
  check_message_sddmm(g, eid, a, b, features, w);
  const Projection projection(w, a);
  const auto projected = projection.of(a);
  return {sddmm_of(g, eid, a, b, projected, features), projection.made(), projected};
}

Made make_spmm(const Structure& g, T eid, T weight, T x, T features, T w) {
  check_message_spmm(g, eid, weight, x, features, w);
  const Projection projection(w, x);
  const auto summed = dispatch_edge_spmm(g.rowptr, eid, weight, features);
  return {spmm_of(g, weight, x, projection, summed), projection.made(), summed};
}

// What backward passes need of a call: its operands, the first two of which are a and b or weight and x, and what was
// made on the way; the product only where it `is_needed`.
struct SavedCall {
  Structure g;
  at::Tensor eid, first, second, features, w, matrix, product;

  static void save(AutogradContext* ctx, const Structure& g, const variable_list& operands, const Made& made,
                   bool is_needed) {
    auto all = with_structure(g, operands);
    all.push_back(made.matrix);
    all.push_back(is_needed ? made.product : at::Tensor());
    ctx->save_for_backward(std::move(all));
  }

  static SavedCall of(AutogradContext* ctx) {
    const auto saved = ctx->get_saved_variables();
    const auto* of_call = saved.data() + kStructure;
    return {saved_structure(saved), of_call[0], of_call[1], of_call[2], of_call[3], of_call[4], of_call[5], of_call[6]};
  }
};

struct MessageSddmm : torch::autograd::Function<MessageSddmm> {
  static Variable forward(AutogradContext* ctx, T eid, const Variable& a, const Variable& b, const Variable& features,
                          const Variable& w, const Structure& g) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto made = make_sddmm(g, eid, a, b, features, w);
    SavedCall::save(ctx, g, {eid, a, b, features, w}, made, features.requires_grad());
    return made.result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NoAutocast guard;
    const auto [g, eid, a, b, features, w, matrix, known] = SavedCall::of(ctx);
    const auto& ds = grads[0];
    const Projection projection(w, a, matrix);
    variable_list result(6);
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(4)) {
      const auto summed = dispatch_edge_spmm(g.rowptr, eid, ds, features);
      if (ctx->needs_input_grad(1)) result[1] = spmm_of(g, ds, b, projection, summed);
      if (ctx->needs_input_grad(4)) result[4] = projection.gradient(a, summed);
    }
    if (ctx->needs_input_grad(2)) result[2] = by_source(g, ds, a, b.sym_size(0));
    if (ctx->needs_input_grad(3)) {
      const auto projected = at::GradMode::is_enabled() ? projection.of(a) : known;
      result[3] = dispatch_edge_spmm_t(g.rowptr, eid, ds, projected, features.sym_size(0));
    }
    return result;
  }
};

struct MessageSpmm : torch::autograd::Function<MessageSpmm> {
  static Variable forward(AutogradContext* ctx, T eid, const Variable& weight, const Variable& x,
                          const Variable& features, const Variable& w, const Structure& g) {
    at::AutoDispatchBelowADInplaceOrView guard;
    const auto made = make_spmm(g, eid, weight, x, features, w);
    SavedCall::save(ctx, g, {eid, weight, x, features, w}, made, w.requires_grad());
    return made.result;
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NoAutocast guard;
    const auto [g, eid, weight, x, features, w, matrix, known] = SavedCall::of(ctx);
    const auto& dy = grads[0];
    const Projection projection(w, x, matrix);
    variable_list result(6);
    if (ctx->needs_input_grad(1) || ctx->needs_input_grad(3)) {
      const auto projected = projection.of(dy);
      if (ctx->needs_input_grad(1)) {
        result[1] = sddmm_of(g, eid, dy, x, projected, features).to(weight.scalar_type());
      }
      if (ctx->needs_input_grad(3)) {
        result[3] = dispatch_edge_spmm_t(g.rowptr, eid, weight, projected, features.sym_size(0));
      }
    }
    if (ctx->needs_input_grad(2)) result[2] = by_source(g, weight, dy, x.sym_size(0));
    if (ctx->needs_input_grad(4)) {
      const bool again = at::GradMode::is_enabled();
      const auto summed = again ? dispatch_edge_spmm(g.rowptr, eid, weight, features) : known;
      result[4] = projection.gradient(dy, summed);
    }
    return result;
  }
};

at::Tensor message_sddmm(T rowptr, T col, T eid, T a, T b, T features, T w, O colptr, O row, O perm) {
  return make_sddmm({rowptr, col, colptr, row, perm}, eid, a, b, features, w).result;
}

at::Tensor message_spmm(T rowptr, T col, T eid, T weight, T x, T features, T w, O colptr, O row, O perm) {
  return make_spmm({rowptr, col, colptr, row, perm}, eid, weight, x, features, w).result;
}

at::Tensor message_sddmm_autograd(T rowptr, T col, T eid, T a, T b, T features, T w, O colptr, O row, O perm) {
  check_given(
      {{"rowptr", rowptr}, {"col", col}, {"eid", eid}, {"a", a}, {"b", b}, {"features", features}, {"projection", w}});
  return MessageSddmm::apply(eid, a, b, features, w, Structure{rowptr, col, colptr, row, perm});
}

at::Tensor message_spmm_autograd(T rowptr, T col, T eid, T weight, T x, T features, T w, O colptr, O row, O perm) {
  check_given({{"rowptr", rowptr},
               {"col", col},
               {"eid", eid},
               {"weight", weight},
               {"x", x},
               {"features", features},
               {"projection", w}});
  return MessageSpmm::apply(eid, weight, x, features, w, Structure{rowptr, col, colptr, row, perm});
}

// As of sddmm and spmm: features are cast to the autocast dtype, weights keep their precision.
at::Tensor message_sddmm_autocast(T rowptr, T col, T eid, T a, T b, T features, T w, O colptr, O row, O perm) {
  const NoAutocast guard;
  static const auto op = find_operator<Signature>("dfgnn::message_sddmm");
  return op.call(rowptr, col, eid, autocast_features(a), autocast_features(b), autocast_features(features),
                 autocast_features(w), colptr, row, perm);
}

at::Tensor message_spmm_autocast(T rowptr, T col, T eid, T weight, T x, T features, T w, O colptr, O row, O perm) {
  const NoAutocast guard;
  static const auto op = find_operator<Signature>("dfgnn::message_spmm");
  return op.call(rowptr, col, eid, to_full_precision(weight), autocast_features(x), autocast_features(features),
                 autocast_features(w), colptr, row, perm);
}

void register_autocast(torch::Library& m) {
  m.impl("message_sddmm", message_sddmm_autocast);
  m.impl("message_spmm", message_spmm_autocast);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  const std::string graph = "(Tensor rowptr, Tensor col, *, Tensor eid, ";
  const std::string csc = std::string(kCscArguments) + ") -> Tensor",
                    features = "Tensor features, Tensor projection, " + csc;
  m.def(("message_sddmm" + graph + "Tensor a, Tensor b, " + features).c_str());
  m.def(("message_spmm" + graph + "Tensor weight, Tensor x, " + features).c_str());
  m.def(("sddmm_of_both" + graph + "Tensor a, Tensor b, Tensor projected, Tensor features, " + csc).c_str());
}

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) { m.impl("sddmm_of_both", sddmm_of_both<sddmm_of_both_cpu>); }

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) { m.impl("sddmm_of_both", sddmm_of_both<sddmm_of_both_cuda>); }
#endif

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) { m.impl("sddmm_of_both", sddmm_of_both_meta); }

TORCH_LIBRARY_IMPL(dfgnn, CompositeExplicitAutograd, m) {
  m.impl("message_sddmm", message_sddmm);
  m.impl("message_spmm", message_spmm);
}

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  m.impl("message_sddmm", message_sddmm_autograd);
  m.impl("message_spmm", message_spmm_autograd);
  m.impl("sddmm_of_both", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(dfgnn, AutocastCPU, m) { register_autocast(m); }

TORCH_LIBRARY_IMPL(dfgnn, AutocastCUDA, m) { register_autocast(m); }

}  // namespace dfgnn
