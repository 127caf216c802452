// Operators by name, to be called through the dispatcher. Their callers keep what is found (a static variable).
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace dfgnn {

template <class Signature>
auto find_operator(const char* name, const char* overload = "") {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload).typed<Signature>();
}

}  // namespace dfgnn
