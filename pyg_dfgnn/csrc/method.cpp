#include "method.h"

#include <cstdio>
#include <cstdlib>
#include <string>

#include "../../cuda/tile_geometry.h"

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
  return attention.score != Score::additive_v2 && attention.num_dst() == attention.num_src() &&
         cuda::tile::takes_heads(attention.value.element_size(), attention.head_dim());
}

// What a block (16 rows by 32 nodes with edges) costs the tile kernels, in edges of smmf, and what they save on each
// node: lines through the times of both methods on the batches of docs/performance.md (H200, one head of 128).
struct TileCost {
  double block, node;
};
constexpr TileCost kTileCosts[2][2][2] = {
    // forward, backward
    {{{95, 4.6}, {107, 3.8}},   // float32: dot and cosine,
     {{87, 10.0}, {90, 3.9}}},  // additive
    {{{42, 6.7}, {43, 4.5}},    // 16 bits
     {{42, 6.7}, {43, 4.5}}},
};

bool tile_is_cheaper(const Attention& attention, int64_t blocks, Pass pass) {
  const bool half = attention.value.element_size() == 2, additive = attention.score == Score::additive;
  const auto& cost = kTileCosts[half][additive][pass == Pass::backward];
  const auto edges = static_cast<double>(attention.num_edges()), nodes = static_cast<double>(attention.num_dst());
  return cost.block * static_cast<double>(blocks) < edges + cost.node * nodes;
}

Method choose_automatically(const Call& call, const Attention& attention, Pass pass) {
  const int64_t blocks = call.route.tile_blocks.guard_int(__FILE__, __LINE__);
  const auto log = [](Method method, const auto&... words) {
    if (log_enabled()) log_choice(method, c10::str(words...));
    return method;
  };
  if (blocks >= 0 && attention.tiles.defined() && tile_can_run(attention) && tile_is_cheaper(attention, blocks, pass)) {
    return log(Method::tile, blocks, " blocks of nodes for ", attention.num_edges(), " edges");
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
