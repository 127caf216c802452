// Optional tensors, and graphs, as autograd saves tensors: what is not there is undefined.
#pragma once

#include <torch/csrc/autograd/custom_function.h>

#include "call.h"
#include "products.h"

namespace dfgnn {

inline at::Tensor defined_or_empty(const OptTensor& t) { return t.value_or(at::Tensor()); }

inline OptTensor as_optional(const at::Tensor& t) { return t.defined() ? OptTensor(t) : std::nullopt; }

// The graph's tensors, then others; and the graph of what was saved so, whose first others are behind kStructure.
constexpr size_t kStructure = 5;
inline torch::autograd::variable_list with_structure(const Structure& g,
                                                     const torch::autograd::variable_list& others = {}) {
  torch::autograd::variable_list all{g.rowptr, g.col, defined_or_empty(g.colptr), defined_or_empty(g.row),
                                     defined_or_empty(g.perm)};
  all.insert(all.end(), others.begin(), others.end());
  return all;
}
inline Structure saved_structure(const torch::autograd::variable_list& saved) {
  return {saved[0], saved[1], as_optional(saved[2]), as_optional(saved[3]), as_optional(saved[4])};
}

}  // namespace dfgnn
