#include "method.h"

#include <cstdio>
#include <cstdlib>

#ifdef DFGNN_WITH_CUDA
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <cuda_runtime_api.h>
#endif

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

bool is_capturing([[maybe_unused]] const at::Tensor& t) {
#ifdef DFGNN_WITH_CUDA
  if (t.is_cuda()) return c10::cuda::currentStreamCaptureStatusMayInitCtx() != c10::cuda::CaptureStatus::None;
#endif
  return false;
}

int64_t read_max_degree(const at::Tensor& rowptr) {
  if (rowptr.numel() < 2) return 0;
  return rowptr.diff().max().item<int64_t>();
}

Method choose_automatically(const Call& call, const Attention& attention, Pass pass) {
  if (pass == Pass::backward) return Method::smmf;
  const int64_t threshold = kSharedMemoryPerBlock / attention.value.element_size();
  int64_t max_degree = call.max_degree.guard_int(__FILE__, __LINE__);
  // Only dot scores have a choice, and on the CPU both methods are one kernel: no need to look further, but to log.
  const bool matters = attention.score == Score::dot && (attention.value.is_cuda() || log_enabled());
  if (max_degree < 0 && matters && !is_capturing(attention.rowptr)) {
    max_degree = read_max_degree(attention.rowptr);
  }
  const bool super_node = max_degree >= threshold;
  const auto method = super_node && attention.score == Score::dot ? Method::pmf : Method::smmf;
  if (log_enabled()) {
    std::fprintf(stderr, "dfgnn: method=%s: max_degree %lld %s %lld scores in shared memory, score %s\n",
                 method == Method::pmf ? "pmf" : "smmf", static_cast<long long>(max_degree), super_node ? ">=" : "<",
                 static_cast<long long>(threshold),
                 attention.score == Score::dot ? "dot" : (attention.score == Score::cosine ? "cosine" : "additive"));
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
