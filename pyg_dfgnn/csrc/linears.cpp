// What is around attention in a layer:
//   linears(x, weights, biases)   x W^T + b of several linear layers of one x, whose gradients of x are summed up by
//                                 the products that make them
//   add_features(x, y, dtype)     x + y in that type, y a bias or as x is, without a copy of either
//   feature_sums(x)               [F], sums of x [N, F] over nodes in the accumulation type, as gradients of
//                                 biases are; of several x at once, .list, [xs, F]
// Gradients of x and sums over nodes by torch's operators are up to half of the time of a layer on a GPU.
#include "linears.h"

#include <torch/csrc/autograd/autograd_not_implemented_fallback.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/library.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "autocast.h"
#include "call.h"
#include "checks.h"
#include "find_operator.h"

namespace dfgnn {
namespace {

using T = const at::Tensor&;
using Biases = const c10::List<OptTensor>&;
using torch::autograd::AutogradContext;
using torch::autograd::Variable;
using torch::autograd::variable_list;

void check_matrix(T x, const char* name = "x") {
  check_dimensions(x, name, 2);
  check_floating_point(x, name);
}

void check_matrices(at::TensorList xs) {
  for (const auto& x : xs) {
    check_matrix(x, "xs");
    TORCH_CHECK(x.sym_sizes() == xs[0].sym_sizes() && x.scalar_type() == xs[0].scalar_type(),
                "xs: expected tensors of the first one's shape and dtype, ", xs[0].sym_sizes(), " and ",
                xs[0].scalar_type(), ", got ", x.sym_sizes(), " and ", x.scalar_type());
    check_device(x, "xs", xs[0].device());
  }
}

at::Tensor feature_sums_of(T x) { return x.sum({0}, false, accumulate_type(x.scalar_type())); }

at::Tensor feature_sums_cpu(T x) {
  check_matrix(x);
  return feature_sums_of(x);
}

at::Tensor feature_sums_of_list(at::TensorList xs) {
  check_matrices(xs);
  std::vector<at::Tensor> sums;
  for (const auto& x : xs) sums.push_back(feature_sums_of(x));
  return at::stack(sums);
}

#ifdef DFGNN_WITH_CUDA
at::Tensor feature_sums_on_cuda(T x) {
  check_matrix(x);
  return feature_sums_cuda(x).squeeze(0);
}

at::Tensor feature_sums_of_list_on_cuda(at::TensorList xs) {
  check_matrices(xs);
  return feature_sums_cuda(xs);
}
#endif

at::Tensor feature_sums_meta(T x) {
  check_matrix(x);
  return at::empty_symint({x.sym_size(1)}, x.options().dtype(accumulate_type(x.scalar_type())));
}

at::Tensor feature_sums_of_list_meta(at::TensorList xs) {
  check_matrices(xs);
  const auto count = static_cast<int64_t>(xs.size());
  return at::empty_symint({count, xs[0].sym_size(1)}, xs[0].options().dtype(accumulate_type(xs[0].scalar_type())));
}

// Gradients of biases, the sums of `grads`, one of which at least there is.
variable_list gradients_of_biases(const variable_list& grads) {
  constexpr int64_t kFew = 1 << 18;  // numbers that one launch of torch's sums up as fast
  const auto by_torch = [](T grad) { return at::GradMode::is_enabled() || !grad.is_cuda() || grad.sym_numel() < kFew; };
  const auto is_alike = [&](T grad) {
    return grad.sym_sizes() == grads[0].sym_sizes() && grad.scalar_type() == grads[0].scalar_type();
  };
  if (!by_torch(grads[0]) && std::all_of(grads.begin(), grads.end(), is_alike)) {
    static const auto op = find_operator<at::Tensor(at::TensorList)>("dfgnn::feature_sums", "list");
    const at::AutoDispatchBelowADInplaceOrView guard;  // gradients that are no views for autograd
    return op.call(grads).unbind();
  }
  variable_list sums;
  for (const auto& grad : grads) {
    static const auto op = find_operator<at::Tensor(T)>("dfgnn::feature_sums");
    sums.push_back(by_torch(grad) ? feature_sums_of(grad) : op.call(grad));
  }
  return sums;
}

void check_layers(T x, at::TensorList weights, Biases biases) {
  TORCH_CHECK(biases.size() == weights.size(), "biases: expected as many as weights (", weights.size(), "), got ",
              biases.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const auto& weight = weights[i];
    TORCH_CHECK(weight.dim() == 2 && weight.sym_size(1) == x.sym_size(1), "weights: expected shape [results, ",
                x.sym_size(1), "] for the features of x, got ", weight.sym_sizes());
    TORCH_CHECK(weight.scalar_type() == x.scalar_type(), "weights: expected the dtype of x (", x.scalar_type(),
                "), got ", weight.scalar_type());
    check_device(weight, "weights", x.device());
    const OptTensor bias = biases[i];
    if (!bias) continue;
    check_device(*bias, "biases", x.device());
    TORCH_CHECK(bias->dim() == 1 && bias->sym_size(0) == weight.sym_size(0), "biases: expected shape [",
                weight.sym_size(0), "] of a weight's results, got ", bias->sym_sizes());
    check_floating_point(*bias, "biases");
  }
}

std::vector<at::Tensor> linears(T x, at::TensorList weights, Biases biases) {
  check_matrix(x);
  check_layers(x, weights, biases);
  std::vector<at::Tensor> results;
  for (size_t i = 0; i < weights.size(); ++i) {
    const OptTensor bias = biases[i];
    results.push_back(at::linear(x, weights[i], bias ? OptTensor(bias->to(x.scalar_type())) : std::nullopt));
  }
  return results;
}

std::vector<at::Tensor> dispatch(T x, at::TensorList weights, Biases biases) {
  static const auto op = find_operator<std::vector<at::Tensor>(T, at::TensorList, Biases)>("dfgnn::linears");
  return op.call(x, weights, biases);
}

// For autograd, those biases that are there come as a list of their own.
struct Linears : torch::autograd::Function<Linears> {
  static variable_list forward(AutogradContext* ctx, const Variable& x, at::TensorList weights,
                               at::TensorList /*given*/, Biases biases) {
    at::AutoDispatchBelowADInplaceOrView guard;
    // No more than gradients need, as torch's: nobody may change it in place until then.
    variable_list saved(weights.size() + 1);
    if (x.requires_grad()) std::copy(weights.begin(), weights.end(), saved.begin());
    const auto needs_gradient = [](T weight) { return weight.requires_grad(); };
    if (std::any_of(weights.begin(), weights.end(), needs_gradient)) saved.back() = x;
    ctx->save_for_backward(saved);
    std::vector<int64_t> types;  // of biases; -1 where there is none
    for (const OptTensor& bias : biases) types.push_back(bias ? static_cast<int64_t>(bias->scalar_type()) : -1);
    ctx->saved_data["types"] = types;
    ctx->set_materialize_grads(false);
    return dispatch(x, weights, biases);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const NoAutocast guard;
    const auto saved = ctx->get_saved_variables();
    const auto types = ctx->saved_data["types"].toIntVector();
    const auto& x = saved.back();
    variable_list of_weights(grads.size()), of_biases, summed;
    std::vector<std::pair<size_t, at::ScalarType>> places;  // of the sums among of_biases
    at::Tensor of_x;
    for (size_t i = 0; i < grads.size(); ++i) {
      const auto &grad = grads[i], &weight = saved[i];
      if (grad.defined() && ctx->needs_input_grad(0)) {
        if (!of_x.defined()) {
          of_x = at::mm(grad, weight);
        } else if (at::GradMode::is_enabled()) {
          of_x = at::addmm(of_x, grad, weight);
        } else {
          of_x.addmm_(grad, weight);
        }
      }
      if (grad.defined() && ctx->needs_input_grad(1 + i)) of_weights[i] = at::mm(grad.t(), x);
      if (types[i] < 0) continue;
      if (grad.defined() && ctx->needs_input_grad(1 + grads.size() + of_biases.size())) {
        places.emplace_back(of_biases.size(), static_cast<at::ScalarType>(types[i]));
        summed.push_back(grad);
      }
      of_biases.emplace_back();
    }
    if (!summed.empty()) {
      const auto sums = gradients_of_biases(summed);
      for (size_t k = 0; k < sums.size(); ++k) of_biases[places[k].first] = sums[k].to(places[k].second);
    }
    variable_list results{of_x};
    results.insert(results.end(), of_weights.begin(), of_weights.end());
    results.insert(results.end(), of_biases.begin(), of_biases.end());
    results.emplace_back();  // for the list of biases
    return results;
  }
};

std::vector<at::Tensor> linears_autograd(T x, at::TensorList weights, Biases biases) {
  check_given({{"x", x}});
  std::vector<at::Tensor> given;
  for (const OptTensor& bias : biases) {
    if (bias) given.push_back(*bias);
  }
  return Linears::apply(x, weights, at::TensorList(given), biases);
}

// Biases keep their type, and so have gradients that are sums of it.
std::vector<at::Tensor> linears_autocast(T x, at::TensorList weights, Biases biases) {
  const NoAutocast guard;
  std::vector<at::Tensor> cast;
  for (const auto& weight : weights) cast.push_back(autocast_features(weight));
  return dispatch(autocast_features(x), cast, biases);
}

void check_sum(T x, T y, at::ScalarType dtype) {
  check_matrix(x);
  const bool is_row = y.dim() == 1 && y.sym_size(0) == x.sym_size(1);
  TORCH_CHECK(is_row || y.sym_sizes() == x.sym_sizes(),
              "y: expected shape [features] or [nodes, features] = ", x.sym_sizes(), ", got ", y.sym_sizes());
  check_floating_point(y, "y");
  TORCH_CHECK(at::isFloatingType(dtype), "dtype: expected floating point, got ", dtype);
}

at::Tensor add_features(T x, T y, at::ScalarType dtype) {
  check_sum(x, y, dtype);
  return x.to(dtype) + y.to(dtype);
}

#ifdef DFGNN_WITH_CUDA
at::Tensor add_features_on_cuda(T x, T y, at::ScalarType dtype) {
  check_sum(x, y, dtype);
  return dtype == at::kFloat && widening_add_takes(x, y) ? widening_add_cuda(x, y) : x.to(dtype) + y.to(dtype);
}
#endif

at::Tensor dispatch(T x, T y, at::ScalarType dtype) {
  static const auto op = find_operator<at::Tensor(T, T, at::ScalarType)>("dfgnn::add_features");
  return op.call(x, y, dtype);
}

struct AddFeatures : torch::autograd::Function<AddFeatures> {
  static Variable forward(AutogradContext* ctx, const Variable& x, const Variable& y, at::ScalarType dtype) {
    at::AutoDispatchBelowADInplaceOrView guard;
    ctx->saved_data["types"] =
        std::vector<int64_t>{static_cast<int64_t>(x.scalar_type()), static_cast<int64_t>(y.scalar_type())};
    ctx->saved_data["is_row"] = y.dim() == 1;
    return dispatch(x, y, dtype);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const auto types = ctx->saved_data["types"].toIntVector();
    const auto of_x = static_cast<at::ScalarType>(types[0]), of_y = static_cast<at::ScalarType>(types[1]);
    const auto grad_x = ctx->needs_input_grad(0) ? grads[0].to(of_x) : at::Tensor();
    if (!ctx->needs_input_grad(1)) return {grad_x, {}, {}};
    if (ctx->saved_data["is_row"].toBool()) return {grad_x, gradients_of_biases(grads)[0].to(of_y), {}};
    return {grad_x, grad_x.defined() && of_x == of_y ? grad_x : grads[0].to(of_y), {}};
  }
};

at::Tensor add_features_autograd(T x, T y, at::ScalarType dtype) {
  check_given({{"x", x}, {"y", y}});
  return AddFeatures::apply(x, y, dtype);
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  m.def("linears(Tensor x, Tensor[] weights, Tensor?[] biases) -> Tensor[]");
  m.def("add_features(Tensor x, Tensor y, ScalarType dtype) -> Tensor");
  m.def("feature_sums(Tensor x) -> Tensor");
  m.def("feature_sums.list(Tensor[] xs) -> Tensor");
}

TORCH_LIBRARY_IMPL(dfgnn, CompositeExplicitAutograd, m) { m.impl("linears", linears); }

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) {
  m.impl("add_features", add_features);
  m.impl("feature_sums", feature_sums_cpu);
  m.impl("feature_sums.list", feature_sums_of_list);
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  m.impl("add_features", add_features_on_cuda);
  m.impl("feature_sums", feature_sums_on_cuda);
  m.impl("feature_sums.list", feature_sums_of_list_on_cuda);
}
#endif

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) {
  m.impl("add_features", add_features);
  m.impl("feature_sums", feature_sums_meta);
  m.impl("feature_sums.list", feature_sums_of_list_meta);
}

TORCH_LIBRARY_IMPL(dfgnn, Autograd, m) {
  m.impl("linears", linears_autograd);
  m.impl("add_features", add_features_autograd);
  m.impl("feature_sums", torch::autograd::autogradNotImplementedFallback());
  m.impl("feature_sums.list", torch::autograd::autogradNotImplementedFallback());
}

TORCH_LIBRARY_IMPL(dfgnn, AutocastCPU, m) { m.impl("linears", linears_autocast); }

TORCH_LIBRARY_IMPL(dfgnn, AutocastCUDA, m) { m.impl("linears", linears_autocast); }

}  // namespace dfgnn
