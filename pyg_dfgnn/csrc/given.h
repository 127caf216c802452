// Arguments that have to be given: None comes as an undefined tensor, of which autograd says no more than that it has
// no device.
#pragma once

#include <ATen/ATen.h>

#include <initializer_list>

namespace dfgnn {

struct Given {
  const char* name;
  const at::Tensor& tensor;
};

inline void check_given(std::initializer_list<Given> arguments) {
  for (const auto& [name, tensor] : arguments) TORCH_CHECK(tensor.defined(), name, ": expected a tensor, got None");
}

}  // namespace dfgnn
