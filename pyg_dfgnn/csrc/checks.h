// Checks of operators' arguments: each names the argument, what it is and what it should be.
#pragma once

#include <ATen/ATen.h>

#include <initializer_list>
#include <optional>

#include "attention.h"

namespace dfgnn {

// Tensors that have to be given: None comes as an undefined one, of which autograd says no more than that it has no
// device.
struct Given {
  const char* name;
  const at::Tensor& tensor;
};
inline void check_given(std::initializer_list<Given> arguments) {
  for (const auto& [name, tensor] : arguments) TORCH_CHECK(tensor.defined(), name, ": expected a tensor, got None");
}

inline void check_index(const at::Tensor& t, const char* name) {
  TORCH_CHECK(t.dim() == 1, name, ": expected a 1-dimensional tensor, got shape ", t.sizes());
  TORCH_CHECK(t.scalar_type() == at::kInt || t.scalar_type() == at::kLong, name,
              ": expected an int32 or int64 tensor, got ", t.scalar_type());
}

inline void check_index(const at::Tensor& t, const char* name, const at::Tensor& like, const at::Device& device) {
  check_index(t, name);
  TORCH_CHECK(t.scalar_type() == like.scalar_type(), name, ": expected the dtype of rowptr (", like.scalar_type(),
              "), got ", t.scalar_type());
  TORCH_CHECK(t.device() == device, name, ": expected a tensor on ", device, ", got one on ", t.device());
}

inline void check_csr(const at::Tensor& rowptr, const at::Tensor& col, const at::Device& device) {
  check_index(rowptr, "rowptr", rowptr, device);
  check_index(col, "col", rowptr, device);
  TORCH_CHECK(rowptr.numel() >= 1, "rowptr: expected [N_dst + 1] entries, got none");
}

inline void check_shape(const at::Tensor& t, const char* name, at::IntArrayRef shape, const char* meaning) {
  TORCH_CHECK(t.sizes() == shape, name, ": expected shape ", meaning, " = ", shape, ", got ", t.sizes());
}

inline void check_device(const at::Tensor& t, const char* name, const at::Device& device) {
  TORCH_CHECK(t.device() == device, name, ": expected a tensor on ", device, ", got one on ", t.device());
}

inline void check_floating_point(const at::Tensor& t, const char* name) {
  TORCH_CHECK(t.is_floating_point(), name, ": expected floating point, got ", t.scalar_type());
}

// Of all tensors that a kernel of the meta device gets: it is called where any of them is there.
struct NamedTensor {
  const char* name;
  std::optional<at::Tensor> tensor;
};
inline void check_on_meta(std::initializer_list<NamedTensor> arguments) {
  for (const auto& [name, tensor] : arguments) {
    TORCH_CHECK(!tensor.has_value() || tensor->is_meta(), name, ": expected a tensor on meta, like others, got one on ",
                tensor->device());
  }
}

// There, where other sizes may be symbols.
inline void check_dimensions(const at::Tensor& t, const char* name, int64_t expected) {
  TORCH_CHECK(t.dim() == expected, name, ": expected ", expected, " dimensions, got shape ", t.sym_sizes());
}

inline void check_like(const at::Tensor& t, const char* name, const at::Tensor& like, const char* like_name) {
  TORCH_CHECK(t.scalar_type() == like.scalar_type(), name, ": expected the dtype of ", like_name, " (",
              like.scalar_type(), "), got ", t.scalar_type());
  check_device(t, name, like.device());
}

inline void check_features(const at::Tensor& t, const char* name, const at::Tensor& like, const char* like_name) {
  TORCH_CHECK(t.dim() == 3, name, ": expected a 3-dimensional tensor [nodes, heads, head size], got shape ",
              t.sym_sizes());
  check_like(t, name, like, like_name);
}

inline void check_type_of_features(const at::Tensor& x, const char* name) {
  const auto type = x.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kHalf || type == at::kBFloat16 || type == at::kDouble, name,
              ": expected float32, float16, bfloat16 or float64, got ", type);
}

// Features that say the dtype, the heads and the head size; their numbers may be symbols.
inline void check_value(const at::Tensor& x, const char* name) {
  check_type_of_features(x, name);
  check_features(x, name, x, name);
  TORCH_CHECK(x.sym_size(1) >= 1 && x.sym_size(2) >= 1, name,
              ": expected at least one head of size at least 1, got shape ", x.sym_sizes());
}

inline at::Tensor to_accumulate(const at::Tensor& t, at::ScalarType type) { return t.to(type).contiguous(); }

// A term of the logits that is smaller than the features: the value's dtype or float32.
inline void check_logit_term(const at::Tensor& t, const char* name, const at::Tensor& value, at::IntArrayRef shape,
                             const char* meaning) {
  check_shape(t, name, shape, meaning);
  check_device(t, name, value.device());
  TORCH_CHECK(t.scalar_type() == value.scalar_type() || t.scalar_type() == at::kFloat, name,
              ": expected the value's dtype (", value.scalar_type(), ") or float32, got ", t.scalar_type());
}

// The same as the kernels read it.
inline at::Tensor logit_term(const at::Tensor& t, const char* name, const at::Tensor& value, at::IntArrayRef shape,
                             const char* meaning) {
  check_logit_term(t, name, value, shape, meaning);
  return to_accumulate(t, accumulate_type(value.scalar_type()));
}

// The weights of edges and heads of sums of features, `like`, as the kernels read them.
inline at::Tensor weights_of_edges(const at::Tensor& weight, int64_t num_edges, const at::Tensor& like,
                                   const char* like_name) {
  TORCH_CHECK(weight.dim() == 2 && weight.size(0) == num_edges && weight.size(1) >= 1,
              "weight: expected shape [E, heads] with E = ", num_edges, ", got ", weight.sizes());
  TORCH_CHECK(weight.scalar_type() == like.scalar_type() || weight.scalar_type() == at::kFloat,
              "weight: expected the dtype of ", like_name, " (", like.scalar_type(), ") or float32, got ",
              weight.scalar_type());
  check_device(weight, "weight", like.device());
  return to_accumulate(weight, accumulate_type(like.scalar_type()));
}

inline void check_probability(double dropout_p) {
  TORCH_CHECK(dropout_p >= 0.0 && dropout_p <= 1.0, "dropout_p: expected a probability in [0, 1], got ", dropout_p);
}

inline void check_seed(const at::Tensor& seed, const at::Device& device) {
  TORCH_CHECK(seed.scalar_type() == at::kLong && seed.numel() == 1, "seed: expected one int64 element, got ",
              seed.scalar_type(), " of shape ", seed.sizes());
  check_device(seed, "seed", device);
}

// Whether a call has the graph by source too.
template <class Call>
bool check_csc(const Call& call, const c10::SymInt& num_src, const at::Device& device) {
  const int given = call.colptr.has_value() + call.row.has_value() + call.perm.has_value();
  TORCH_CHECK(given == 0 || given == 3,
              "colptr, row, perm: expected all three of the CSC's tensors or none of them, got ", given);
  if (given == 0) return false;
  check_index(*call.colptr, "colptr", call.rowptr, device);
  check_index(*call.row, "row", call.rowptr, device);
  check_index(*call.perm, "perm", call.rowptr, device);
  TORCH_CHECK(call.colptr->sym_numel() == num_src + 1, "colptr: expected [N_src + 1] = ", num_src + 1,
              " entries, as there are ", num_src, " rows of source nodes, got ", call.colptr->sym_numel(),
              ": is the graph of other nodes?");
  TORCH_CHECK(call.row->sym_numel() == call.col.sym_numel(), "row: expected [E] = ", call.col.sym_numel(),
              " entries, got ", call.row->sym_numel());
  TORCH_CHECK(call.perm->sym_numel() == call.col.sym_numel(), "perm: expected [E] = ", call.col.sym_numel(),
              " entries, got ", call.perm->sym_numel());
  return true;
}

// Of products with the transpose; where sizes may be symbols, too.
template <class Call>
void check_transposable(const Call& call) {
  TORCH_CHECK(call.colptr.has_value() && call.row.has_value() && call.perm.has_value(),
              "colptr, row, perm: expected all three of the CSC's tensors with transpose=True, got ",
              call.colptr.has_value() + call.row.has_value() + call.perm.has_value());
  TORCH_CHECK(call.colptr->sym_numel() > 0, "colptr: expected [N_src + 1] entries, got none");
}

}  // namespace dfgnn
