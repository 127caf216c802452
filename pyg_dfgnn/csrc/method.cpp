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

void log_choice(Method method, const std::string& why) {
  const char* name = method == Method::smmf ? "smmf" : method == Method::pmf ? "pmf" : "tile";
  std::fprintf(stderr, "dfgnn: method=%s: %s\n", name, why.c_str());
}

bool tile_can_run(const Attention& attention) {
  const auto type = attention.value.scalar_type();
  const int64_t bytes = attention.value.element_size();
  return type != at::kDouble && attention.score != Score::additive_v2 && attention.num_dst() == attention.num_src() &&
         attention.head_dim() <= 128 && attention.head_dim() * bytes % 16 == 0;
}

// How many edges of smmf cost as much as one block (16 rows by 32 nodes) of tile: from times of both on the batches of
// docs/performance.md, head size 128.
struct TileCost {
  double forward, backward;
};
constexpr TileCost kFullTileCost = {60, 60}, kHalfTileCost = {30, 30};

Method choose_automatically(const Call& call, const Attention& attention, Pass pass) {
  const int64_t blocks = call.route.tile_blocks.guard_int(__FILE__, __LINE__);
  const auto log = [](Method method, const auto&... words) {
    if (log_enabled()) log_choice(method, c10::str(words...));
    return method;
  };
  if (blocks >= 0 && attention.tiles.defined() && tile_can_run(attention)) {
    const auto& cost = attention.value.element_size() == 4 ? kFullTileCost : kHalfTileCost;
    const double edges = static_cast<double>(blocks) * (pass == Pass::forward ? cost.forward : cost.backward);
    if (edges <= static_cast<double>(attention.num_edges())) {
      return log(Method::tile, blocks, " blocks cost as much as ", edges, " of ", attention.num_edges(), " edges");
    }
  }
  if (pass == Pass::backward) return log(Method::smmf, "the backward pass of graphs that are no dense tiles");
  const int64_t threshold = kSharedMemoryPerBlock / attention.value.element_size();
  const int64_t max_degree = call.route.max_degree.guard_int(__FILE__, __LINE__);
  if (attention.score != Score::dot) return log(Method::smmf, "only dot scores have a choice");
  if (max_degree < 0) return log(Method::smmf, "max_degree unknown");
  const bool super_node = max_degree >= threshold;
  return log(super_node ? Method::pmf : Method::smmf, "max_degree ", max_degree, super_node ? " >= " : " < ", threshold,
             " scores in shared memory");
}

}  // namespace

Method choose_method(const Call& call, const Attention& attention, Pass pass) {
  if (call.op == Op::smmf) return Method::smmf;
  if (call.op == Op::pmf) return Method::pmf;
  const auto& method = call.route.method;
  if (method == "smmf") return Method::smmf;
  if (method == "pmf") return Method::pmf;
  if (method == "tile") return tile_can_run(attention) ? Method::tile : Method::smmf;
  TORCH_CHECK(method == "auto", "method: expected 'auto', 'smmf', 'pmf' or 'tile', got '", method, "'");
  return choose_automatically(call, attention, pass);
}

}  // namespace dfgnn
