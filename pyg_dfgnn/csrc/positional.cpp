// The overloads of dfgnn::attention as operators whose arguments need no names: Python takes as long to bind a dozen
// keyword arguments as the whole rest of a call. They dispatch to the overload, whose arguments come in the same order.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

namespace dfgnn {
namespace {

enum class Overload { dot, cosine, additive, additive_v2 };

template <Overload overload>
void call_overload(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  constexpr const char* kNames[] = {"dot", "cosine", "additive", "additive_v2"};
  static const auto op =
      c10::Dispatcher::singleton().findSchemaOrThrow("dfgnn::attention", kNames[static_cast<int>(overload)]);
  op.callBoxed(stack);
}

}  // namespace

TORCH_LIBRARY_IMPL(dfgnn, CompositeImplicitAutograd, m) {
  m.impl("dot_attention", torch::CppFunction::makeFromBoxedFunction<&call_overload<Overload::dot>>());
  m.impl("cosine_attention", torch::CppFunction::makeFromBoxedFunction<&call_overload<Overload::cosine>>());
  m.impl("additive_attention", torch::CppFunction::makeFromBoxedFunction<&call_overload<Overload::additive>>());
  m.impl("additive_v2_attention", torch::CppFunction::makeFromBoxedFunction<&call_overload<Overload::additive_v2>>());
}

}  // namespace dfgnn
