#include "method.h"

#include <cstdio>
#include <cstdlib>
#include <string>

namespace dfgnn {
namespace {

// What a block gets without asking for more, on every CUDA device so far; the paper's threshold follows from it.
constexpr int64_t kSharedMemoryPerBlock = 48 * 1024;

bool log_enabled() {
  static const bool enabled = [] {
    const char* value = std::getenv("DFGNN_LOG");
    return value != nullptr && value[0] == '1';
  }();
  return enabled;
}

Method choose_automatically(const Call& call, const Attention& attention, Pass pass) {
  if (pass == Pass::backward) return Method::smmf;
  const int64_t threshold = kSharedMemoryPerBlock / attention.value.element_size();
  const int64_t max_degree = call.max_degree.guard_int(__FILE__, __LINE__);
  const bool dot = attention.score == Score::dot;
  const auto method = dot && max_degree >= threshold ? Method::pmf : Method::smmf;
  if (log_enabled()) {
    const auto why = !dot ? std::string("only dot scores have a choice")
                     : max_degree < 0
                         ? std::string("max_degree unknown")
                         : "max_degree " + std::to_string(max_degree) + (max_degree >= threshold ? " >= " : " < ") +
                               std::to_string(threshold) + " scores in shared memory";
    std::fprintf(stderr, "dfgnn: method=%s: %s\n", method == Method::pmf ? "pmf" : "smmf", why.c_str());
  }
  return method;
}

}  // namespace

Method choose_method(const Call& call, const Attention& attention, Pass pass) {
  if (call.op == Op::smmf) return Method::smmf;
  if (call.op == Op::pmf) return Method::pmf;
  if (call.method == "smmf") return Method::smmf;
  if (call.method == "pmf") return Method::pmf;
  TORCH_CHECK(call.method == "auto", "method: expected 'auto', 'smmf' or 'pmf', got '", call.method, "'");
  return choose_automatically(call, attention, pass);
}

}  // namespace dfgnn
