// The overloads of dfgnn::attention as operators whose arguments need no names: Python takes as long to bind a dozen
// keyword arguments as the whole rest of a call. They dispatch to the overload, whose arguments come in the same order.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "attention.h"

namespace dfgnn {
namespace {

template <Score score>
void call_overload(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  constexpr const char* kNames[] = {"dot", "cosine", "additive", "additive_v2"};
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("dfgnn::attention", kNames[static_cast<int>(score)]);
  op.callBoxed(stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(dfgnn, CompositeImplicitAutograd, m) {
  m.impl("dot_attention", torch::CppFunction::makeFromBoxedFunction<&call_overload<Score::dot>>());
  m.impl("cosine_attention", torch::CppFunction::makeFromBoxedFunction<&call_overload<Score::cosine>>());
  m.impl("additive_attention", torch::CppFunction::makeFromBoxedFunction<&call_overload<Score::additive>>());
  m.impl("additive_v2_attention", torch::CppFunction::makeFromBoxedFunction<&call_overload<Score::additive_v2>>());
}

}  // namespace dfgnn
