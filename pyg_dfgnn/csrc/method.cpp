#include "method.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "../../cuda/resident_geometry.h"
#include "../../cuda/row_geometry.h"
#include "../../cuda/run_geometry.h"
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
  const char* name = method == Method::smmf   ? "smmf"
                     : method == Method::pmf  ? "pmf"
                     : method == Method::tile ? "tile"
                                              : "resident";
  std::fprintf(stderr, "dfgnn: method=%s: %s\n", name, why.c_str());
}

bool tile_can_run(const Attention& attention, Pass pass, TileFits fits) {
  return tile_takes_heads(attention, attention.head_dim()) && (!fits || fits(attention, pass));
}

// Tiles that are listed, of a size that is known and fits in shared memory (of all but small GPUs, where smmf runs);
// with cosine scores one x alone, and all of its gradient.
bool resident_can_run(const Call& call, const Attention& attention, Pass pass) {
  if (attention.tile_nodes < 0 || attention.tile_batches < 0) return false;
  const int64_t nodes = attention.tile_nodes, batches = attention.tile_batches;
  const bool is_cosine = attention.score == Score::cosine;
  const bool is_one_x = attention.dst.is_same(attention.src) && (pass == Pass::forward || call.sum_x);
  if (is_cosine && !is_one_x) return false;
  const auto bytes = pass == Pass::forward
                         ? cuda::resident::forward_bytes(nodes, batches, attention.max_degree, is_cosine)
                         : cuda::resident::backward_bytes(nodes, batches, is_cosine);
  return attention.tiles.defined() && cuda::tile::parts_of(attention.tiles.numel(), attention.num_dst()).list &&
         resident_takes_heads(attention, attention.head_dim()) && bytes <= cuda::resident::bytes_of_block(1);
}

// Where pmf is the faster one, from times of both on the graphs of docs/performance.md and docs/results.md (H200, heads
// of 8 to 256). Forward, smmf gathers every row once with cosine scores (1.35 to 1.9 times as fast where rows are
// long), and needs no logits with additive ones; for dot scores of wide heads pmf gathers K, then V, so that only one
// of them competes for the L2 cache, and in half precision its heads of 64 and 128 go through tensor cores. pmf costs
// launches, and memory for what it stores of edges and heads. Backward, what it stores saves smmf's second pass making
// it again, as long as it stays near the cache; beyond, that pays where the rest is cheap: additive scores, tensor
// cores, and heads of medium size; and for more than 128 features, which cost smmf's two passes most, but for float32's
// dot products where memory is what counts. Where rows are long by rows_are_long(), pmf's passes gather the rows of one
// matrix each, which was 2 to 45 % faster with heads of 32 to 256 in float32 (ogbl-ppa- and ogbn-proteins-like;
// bfloat16's of 32 were slower). Narrow heads lie side by side in smmf's warps, and many short rows go to groups of
// lanes, in smmf only. So do runs of short rows where edges are few, or of unequal lengths (run_geometry.h;
// Pubmed-like, float32, with the forward pass 128 to 89 µs in CUDA graphs, Cora-like 34 to 29), but, in float32, where
// few rows have many edges (6000 of 11: backward 34 instead of 37 µs by pmf, additive scores 20 instead of 27).
constexpr int64_t kLongRow = 16;  // edges, on average
constexpr int64_t kManyRows = 1 << 15;
constexpr int64_t kRunRows = 1 << 13, kRunEdges = 1 << 15;  // so many of the first, or fewer of the second
constexpr int64_t kNarrowHead = 128, kMediumHead = 256, kWideHead = 512;  // bytes
constexpr int64_t kManyFeatures = 128;
constexpr int64_t kWorthItsLaunches = 1 << 19;      // edges times heads
constexpr int64_t kStoredBytes = int64_t{1} << 30;  // of logits, or of pairs of numbers (pmf_bwd), at the most
constexpr int64_t kStoredBytesNearCache = 1 << 26;

int64_t head_bytes(const Attention& attention) { return attention.head_dim() * attention.value.element_size(); }

bool goes_through_tensor_cores(const Attention& attention) {
  return attention.value.element_size() == 2 && (attention.head_dim() == 64 || attention.head_dim() == 128);
}

// What smmf's warps take several of at once.
bool has_narrow_heads(const Attention& attention) {
  const int64_t bytes = head_bytes(attention);
  return attention.heads() > 1 && bytes <= kNarrowHead && bytes % 16 == 0 && !goes_through_tensor_cores(attention);
}

// What pmf's two gathers are worth.
bool has_wide_heads(const Attention& attention) {
  return head_bytes(attention) >= kWideHead || goes_through_tensor_cores(attention);
}

// What a block (16 rows by 32 nodes with edges) costs the tile kernels, in edges of the other methods, and what they
// save on each node, or, of large heads in float32, lose: fitted to the times of all on the batches of
// docs/performance.md (H200, one head of 128; of large heads, of 136, 192 and 256, those and batches of nearest
// neighbours; of float32's, H100). Of small heads (1, 4 and 8 of 8, 16 and 32 features) a block costs so many times
// that, and nothing is saved on nodes; and of several tiny ones, which lie beside zeros there, so many times more.
// _may_choose_tile() of graph.py bounds them all: no block for less than 54, no node for more than 20; and repeats
// the least of kBlockEdges, and kTiles[0].
constexpr int64_t kSmallHead = 32, kTinyHead = 8;
struct TileCost {
  double block, node;
};
struct TileCosts {
  TileCost dot, cosine, additive;
  double small, tiny;
};
// Of large heads there are no kernels for cosine scores.
enum HeadKind { float32, half, large_float32, large_half };
HeadKind kind_of_heads(const Attention& attention) {
  const bool is_half = attention.value.element_size() == 2;
  if (attention.head_dim() > kManyFeatures) return is_half ? large_half : large_float32;
  return is_half ? half : float32;
}

constexpr TileCosts kTileCosts[4][2] = {
    // forward, backward
    {{{94, 4.5}, {80, 4.5}, {100, 5.5}, 0.9, 2}, {{109, 5.0}, {100, 10.0}, {100, 5.5}, 0.7, 2.5}},  // float32
    {{{61, 9.0}, {61, 9.0}, {98, 17.5}, 1.15, 1}, {{55, 7.5}, {87, 15.0}, {74, 14.0}, 1.15, 1}},    // half
    {{{56, -0.5}, {}, {56, -0.5}, 1, 1}, {{70, 0}, {}, {64, 0}, 1, 1}},                             // large_float32
    {{{61, 9.0}, {}, {75, 10.0}, 1, 1}, {{62, 7.5}, {}, {74, 14.0}, 1, 1}},                         // large_half
};

template <class Scores>
auto of_score(const Scores& scores, Score score) {
  return score == Score::dot ? scores.dot : score == Score::cosine ? scores.cosine : scores.additive;
}

bool tile_is_cheaper(const Attention& attention, int64_t blocks, Pass pass) {
  const auto& costs = kTileCosts[kind_of_heads(attention)][pass == Pass::backward];
  const auto cost = of_score(costs, attention.score);
  const auto edges = static_cast<double>(attention.num_edges()), nodes = static_cast<double>(attention.num_dst());
  const bool is_small = attention.head_dim() <= kSmallHead;
  const bool is_tiny = attention.head_dim() <= kTinyHead && attention.heads() > 1;
  const double block = cost.block * (is_small ? costs.small : 1) * (is_tiny ? costs.tiny : 1);
  const double saved = is_small ? 0 : cost.node;
  return block * static_cast<double>(blocks) < edges + saved * nodes;
}

// From times on COCO-SP, MNIST, CIFAR10, and batches of 64 to 1024 graphs of nearest neighbours, with other than dot
// scores of 1024 (H200, cosine scores H100, heads as above): from how many edges a block on tile is the faster one,
// and how many tiles and heads it takes for resident to be worth it, as a block works on a tile from the beginning to
// the end, however many multiprocessors are idle. Of graphs whose tiles are sparse enough for a list (_may_be_sparse of
// graph.py). Forward, smmf takes several narrow heads at once (4 of 32 on COCO-SP: 376 µs instead of 411 with dot
// scores, 288 instead of 356 with additive ones).
struct BlockEdges {
  double dot, cosine, additive;
};
constexpr BlockEdges kBlockEdges[4][2] = {
    // forward, backward
    {{87, 64, 100}, {86, 100, 90}},  // float32
    {{58, 54, 92}, {64, 69, 75}},    // half
    {{110, 0, 70}, {105, 0, 115}},   // large_float32
    {{59, 0, 59}, {64, 0, 59}},      // large_half
};
constexpr int64_t kTiles[2] = {300, 120};  // forward, backward

// tile_pays: whether tile can run, and is cheaper than smmf and pmf.
bool resident_is_cheaper(const Call& call, const Attention& attention, int64_t blocks, Pass pass, bool tile_pays) {
  const bool is_backward = pass == Pass::backward;
  const int64_t nodes = attention.num_dst(), edges = attention.num_edges();
  if (!resident_can_run(call, attention, pass)) return false;
  if (!is_backward && has_narrow_heads(attention)) return false;
  if (nodes * attention.heads() < kTiles[is_backward] * attention.tile_nodes) return false;
  if (!tile_pays) return true;
  const double block_edges = of_score(kBlockEdges[kind_of_heads(attention)][is_backward], attention.score);
  return static_cast<double>(edges) < block_edges * static_cast<double>(blocks);
}

bool pmf_is_cheaper(const Attention& attention, Pass pass) {
  if (attention.score == Score::additive_v2 || has_narrow_heads(attention)) return false;
  const int64_t bytes = attention.value.element_size();
  const bool on_tensor_cores = goes_through_tensor_cores(attention), is_dot = attention.score == Score::dot;
  const int64_t rows = attention.num_dst(), edges = attention.num_edges(), edge_heads = edges * attention.heads();
  const int64_t stored = edge_heads * (bytes == 8 ? 8 : 4) * (pass == Pass::forward ? 1 : 2);
  const bool is_possible = edge_heads >= kWorthItsLaunches && stored <= kStoredBytes;
  const bool long_rows = is_possible && edges >= kLongRow * rows, is_near = stored <= kStoredBytesNearCache;
  const bool is_additive = attention.score == Score::additive;
  const bool is_measured = bytes == 4 && attention.head_dim() % 4 == 0 && head_bytes(attention) >= kNarrowHead &&
                           attention.head_dim() <= 2 * kManyFeatures;
  const bool one_matrix_at_a_time = is_possible && is_measured && cuda::rows_are_long(rows, edges);
  if (pass == Pass::forward) return is_dot && (one_matrix_at_a_time || (long_rows && has_wide_heads(attention)));
  if (one_matrix_at_a_time) return true;
  const bool many_features = is_possible && attention.head_dim() > kManyFeatures;
  if (many_features && (is_additive || (is_dot && (bytes == 2 || is_near)))) return true;
  const bool is_medium = bytes == 4 && head_bytes(attention) >= kNarrowHead && head_bytes(attention) <= kMediumHead;
  if (long_rows && (on_tensor_cores || is_additive || (is_dot && is_medium))) return true;
  const bool short_rows = rows >= kManyRows && edges < kLongRow * rows;
  const int64_t fewest = std::min(rows, attention.num_src());
  const bool by_runs = (fewest >= kRunRows || edges < kRunEdges) &&
                       cuda::has_runs(fewest, edges, attention.max_degree) &&
                       cuda::runs_take_heads(bytes, attention.head_dim());
  return is_near && bytes != 2 && !short_rows && !by_runs;
}

Method choose_automatically(const Call& call, const Attention& attention, Pass pass, TileFits tile_fits) {
  const int64_t blocks = call.route.tile_blocks.guard_int(__FILE__, __LINE__);
  const auto log = [](Method method, const auto&... words) {
    if (log_enabled()) log_choice(method, c10::str(words...));
    return method;
  };
  const bool tile_pays = blocks >= 0 && attention.tiles.defined() && tile_is_cheaper(attention, blocks, pass) &&
                         tile_can_run(attention, pass, tile_fits);
  if (resident_is_cheaper(call, attention, blocks, pass, tile_pays)) {
    return log(Method::resident, attention.tile_nodes, " nodes a tile, ", attention.num_edges(), " edges");
  }
  if (tile_pays) {
    return log(Method::tile, blocks, " blocks of nodes for ", attention.num_edges(), " edges");
  }
  const int64_t threshold = kSharedMemoryPerBlock / attention.value.element_size();
  const int64_t max_degree = call.route.max_degree.guard_int(__FILE__, __LINE__);
  if (pass == Pass::forward && attention.score == Score::dot && max_degree >= threshold && has_wide_heads(attention)) {
    return log(Method::pmf, "max_degree ", max_degree, " >= ", threshold, " scores in shared memory");
  }
  return log(pmf_is_cheaper(attention, pass) ? Method::pmf : Method::smmf, attention.num_edges(), " edges, ",
             attention.num_dst(), " rows");
}

bool is_within_tiles(const Attention& attention) {
  return attention.score != Score::additive_v2 && attention.num_dst() == attention.num_src();
}

}  // namespace

bool tile_takes_heads(const Attention& attention, int64_t head_dim) {
  return is_within_tiles(attention) &&
         cuda::tile::takes_heads(attention.value.element_size(), head_dim, attention.score == Score::cosine);
}

bool resident_takes_heads(const Attention& attention, int64_t head_dim) {
  return is_within_tiles(attention) &&
         cuda::resident::takes_heads(attention.value.element_size(), attention.heads(), head_dim);
}

Method choose_method(const Call& call, const Attention& attention, Pass pass, TileFits tile_fits) {
  if (call.op == Op::smmf) return Method::smmf;
  if (call.op == Op::pmf) return Method::pmf;
  const auto& method = call.route.method;
  if (method == "smmf") return Method::smmf;
  if (method == "pmf") return Method::pmf;
  if (method == "tile") return tile_can_run(attention, pass, tile_fits) ? Method::tile : Method::smmf;
  if (method == "resident") return resident_can_run(call, attention, pass) ? Method::resident : Method::smmf;
  TORCH_CHECK(method == "auto", "method: expected 'auto', 'smmf', 'pmf', 'tile' or 'resident', got '", method, "'");
  return choose_automatically(call, attention, pass, tile_fits);
}

}  // namespace dfgnn
