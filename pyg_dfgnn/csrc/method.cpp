#include "method.h"

#include <algorithm>
#include <cmath>
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

// What pmf's forward pass costs beside smmf's, for dot scores, where both gather at the same rate: lines through the
// times of both on the batches of docs/performance.md (H200, one head of 128), whose gathers stay in the L2 cache.
struct PmfCost {
  double call, edge, row;  // us a call, ps for the logit of an edge and head, ps a row
};
constexpr PmfCost kPmfCosts[2] = {
    {3, 5, 170},  // float32
    {3, 9, 10},   // 16 bits
};

// What pmf saves: smmf gathers rows of K and V at once, which compete for the L2 cache, pmf those of K, then those of
// V. Random rows of 512 bytes came at 9.4 TB/s from a table that the cache holds and at 4.6 from one of 2 GB; with 50
// MB of cache, the sizes between follow from the share of misses (60 MB: 8.0, measured 7.8; 120: 5.9, 5.9;
// 256: 5.1, 5.3).
constexpr double kCacheBytes = 50e6, kPicosecondsPerMissedByte = 1 / 4.6 - 1 / 9.4;

// The share of an edge's gathers that the cache does not answer: those that are a row's first at the least.
double miss_rate(double table_bytes, double num_src, double edges) {
  return std::max(std::min(num_src / edges, 1.0), 1 - kCacheBytes / table_bytes);
}

// The edges of most rows stay within tiles, so that the rows of a moment fit the cache, whatever there are in all.
bool is_local(const Attention& attention, int64_t tile_blocks) {
  return tile_blocks >= 0 && 2 * tile_blocks < attention.num_edges();
}

// Microseconds that pmf's forward pass saves.
double pmf_saves(const Attention& attention, int64_t tile_blocks) {
  const auto edges = static_cast<double>(attention.num_edges()), num_src = static_cast<double>(attention.num_src());
  const auto heads = static_cast<double>(attention.heads());
  const double row_bytes = heads * static_cast<double>(attention.head_dim() * attention.value.element_size());
  const auto& cost = kPmfCosts[attention.value.element_size() == 2];
  const double costs =
      cost.call + 1e-6 * (cost.edge * edges * heads + cost.row * static_cast<double>(attention.num_dst()));
  if (edges == 0 || is_local(attention, tile_blocks)) return -costs;
  const double table = num_src * row_bytes;
  const double fewer_misses = miss_rate(2 * table, num_src, edges) - miss_rate(table, num_src, edges);
  return 1e-6 * fewer_misses * kPicosecondsPerMissedByte * 2 * edges * row_bytes - costs;
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
  if (attention.score != Score::dot) return log(Method::smmf, "only dot scores have a choice");
  const int64_t threshold = kSharedMemoryPerBlock / attention.value.element_size();
  const int64_t max_degree = call.route.max_degree.guard_int(__FILE__, __LINE__);
  if (max_degree >= threshold) {
    return log(Method::pmf, "max_degree ", max_degree, " >= ", threshold, " scores in shared memory");
  }
  const double saved = pmf_saves(attention, blocks);
  return log(saved > 0 ? Method::pmf : Method::smmf, "pmf is estimated to take ", std::abs(saved), " us ",
             saved > 0 ? "less" : "more");
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
