#include "method.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "../../cuda/resident_geometry.h"
#include "../../cuda/row_geometry.h"
#include "../../cuda/run_geometry.h"
#include "../../cuda/tile_geometry.h"

#ifdef DFGNN_WITH_CUDA
#include <c10/cuda/CUDAException.h>

#include "cuda/padding.h"
#include "cuda/tensors.h"
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

constexpr std::pair<Method, const char*> kMethods[] = {
    {Method::smmf, "smmf"}, {Method::pmf, "pmf"}, {Method::tile, "tile"}, {Method::resident, "resident"}};

const char* name_of(Method method) {
  return std::find_if(std::begin(kMethods), std::end(kMethods), [&](const auto& m) { return m.first == method; })
      ->second;
}

template <class... Words>
void log_choice(const char* name, const Words&... words) {
  if (log_enabled()) std::fprintf(stderr, "dfgnn: method=%s: %s\n", name, c10::str(words...).c_str());
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
// of 8 to 256), and on random graphs and power laws of 10,000 to 4 million edges (H100, CUDA graphs;
// docs/kernels/which-method.md).
//
// Forward, smmf gathers every row once with cosine scores, and needs no logits with additive ones. For dot scores of
// wide heads pmf gathers K, then V, so that only one of them competes for the caches: that pays where rows are very
// long or of unequal lengths, or both do not fit into the L2 cache; of heads of medium size, in float32, where one
// does. pmf costs launches, and memory for what it stores of edges and heads.
//
// Backward, what it stores saves smmf's second pass making it again, which pays wherever rows are not short: with
// additive scores most, and in float32 as long as it stays near the cache; in 16 bits with cosine scores, and with dot
// products of more than 64 features where rows are long. Where rows are very long, pmf's passes gather the rows of one
// matrix each, which was 2 to 45 % faster with heads of 32 to 512 in float32 (ogbl-ppa- and ogbn-proteins-like).
// Dot products of narrow heads are cheap to make again: they are smmf's, as far as they fit into the L2 cache, and
// several narrow heads lie side by side in smmf's warps; of wide ones GATv2's scores, whose products take most
// instructions, are made once where rows fill a warp (docs/kernels/gatv2.md). Many short rows go to groups of
// lanes, in smmf only; but a warp's groups wait for their longest row: of random graphs, from 8 edges a row on, pmf's
// backward pass takes 0.7 to 0.95 times as long with additive scores and in float32, of equal rows 1.03 to 1.07. Runs
// of short rows are smmf's, too, where edges are few, or of unequal lengths (run_geometry.h), but, in float32, where
// few rows have many edges, and with additive scores, or cosine ones in 16 bits, where edges are many.
constexpr int64_t kLongRow = 16, kRatherLongRow = 12, kLongUnequalRow = 8;  // edges, on average
constexpr int64_t kLongRowOfHalfDots = 24, kVeryLongRow = 80;
constexpr int64_t kManyRows = 1 << 15;
constexpr int64_t kRunRows = 1 << 13, kRunEdges = 1 << 15;  // so many of the first, or fewer of the second
constexpr int64_t kManyRunEdges = 1 << 18;
constexpr int64_t kNarrowHead = 128, kMediumHead = 256, kWideHead = 512;  // bytes
constexpr int64_t kSomeFeatures = 64, kManyFeatures = 128;
constexpr int64_t kWorthItsLaunches = 1 << 17;      // edges times heads, forward
constexpr int64_t kManyEdges = 3 << 17;             // the same, backward
constexpr int64_t kStoredBytes = int64_t{1} << 30;  // may_store()
constexpr int64_t kMemoryToStored = 32;
constexpr int64_t kStoredBytesNearCache = 1 << 26;
constexpr int64_t kCompete = 1 << 24, kFitsAlone = 1 << 26;  // bytes of K, and of V, in the L2 cache

#ifdef DFGNN_WITH_CUDA
// Bytes of a device, which takes long to ask for.
int64_t total_memory(c10::DeviceIndex device) {
  static std::mutex mutex;
  static std::map<c10::DeviceIndex, int64_t> known;
  const std::lock_guard lock(mutex);
  if (const auto found = known.find(device); found != known.end()) return found->second;
  cudaDeviceProp properties;
  C10_CUDA_CHECK(cudaGetDeviceProperties(&properties, device));
  return known[device] = static_cast<int64_t>(properties.totalGlobalMem);
}
#endif

// Whether logits, or pairs of numbers (pmf_bwd, which has half as many more but of additive scores), of so many bytes
// may be stored: of a GPU a share of its memory.
bool may_store(int64_t bytes, [[maybe_unused]] const at::Device& device) {
  if (bytes <= kStoredBytes) return true;
#ifdef DFGNN_WITH_CUDA
  if (device.is_cuda()) return bytes <= total_memory(device.index()) / kMemoryToStored;
#endif
  return false;
}

int64_t head_bytes(const Attention& attention) { return attention.head_dim() * attention.value.element_size(); }

bool goes_through_tensor_cores(const Attention& attention) {
  return attention.value.element_size() == 2 && (attention.head_dim() == 64 || attention.head_dim() == 128);
}

// What smmf's warps take several of at once.
bool has_narrow_heads(const Attention& attention) {
  const int64_t bytes = head_bytes(attention);
  return attention.heads() > 1 && bytes <= kNarrowHead && bytes % 16 == 0;
}

// What pmf's two gathers are worth.
bool has_wide_heads(const Attention& attention) {
  return head_bytes(attention) >= kWideHead || attention.head_dim() > kSomeFeatures;
}

// The heads that times were taken of: one of 33 to 128 features, one of more, and 1, 4 and 8 of 8, 16 and 32, in
// float32 and in half precision, where several of less than 64 cost as much as these.
enum HeadKind { float32, half, small_float32, small_half, large_float32, large_half };
constexpr int64_t kSmallHead = 32, kTinyHead = 8;
HeadKind kind_of_heads(const Attention& attention) {
  const bool is_half = attention.value.element_size() == 2;
  if (attention.head_dim() > kManyFeatures) return is_half ? large_half : large_float32;
  const bool is_small_half = is_half && attention.heads() > 1 && head_bytes(attention) < kNarrowHead;
  if (attention.head_dim() <= kSmallHead || is_small_half) return is_half ? small_half : small_float32;
  return is_half ? half : float32;
}

// Of large heads there are no kernels for cosine scores.
template <class Cost>
struct ScoreCosts {
  Cost dot, cosine, additive;
};
template <class Cost>
const Cost& of_score(const ScoreCosts<Cost>& costs, Score score) {
  return score == Score::dot ? costs.dot : score == Score::cosine ? costs.cosine : costs.additive;
}

// What a block (16 rows by 32 nodes with edges) costs the tile kernels, in edges of smmf or pmf, whichever is the
// faster one; what they save on each node; and, of a head, what a call costs beside that. Fitted to times of all
// (H100, CUDA graphs, docs/kernels/which-method.md) on batches of random graphs of 30 to 400 nodes, 0.5 to 40 % of
// whose pairs are edges, of trees, and on the batches of docs/performance.md: of one head of 128, and of 256 with dot
// and additive scores. Of small heads on the batches and on batches of nearest neighbours (H200; dot scores of 8 x 16
// on random graphs, too). Of several tiny heads, which lie beside zeros in tile's chunks in float32, a block costs so
// many times more. _may_choose_tile() of graph.py bounds them all.
struct TileCost {
  double block, node, call;
};
constexpr ScoreCosts<TileCost> kTileCosts[6][2] = {
    // forward, backward
    {{{21, -2, 3e4}, {21, -2, 3e4}, {21, -2, 3e4}}, {{42, -1, 3e4}, {30, 0.5, 0}, {30, 0.5, 0}}},  // float32
    {{{7, 0, 0}, {18, 5, 0}, {10, -2, 3e4}}, {{8, 0, 0}, {8, 0, 0}, {8, 0, 0}}},                   // half
    {{{85, 0, 0}, {72, 0, 0}, {90, 0, 0}}, {{76, 0, 0}, {70, 0, 0}, {70, 0, 0}}},                  // small_float32
    {{{60, 0, 0}, {70, 0, 0}, {113, 0, 0}}, {{63, 0, 0}, {100, 0, 0}, {85, 0, 0}}},                // small_half
    {{{18, -8, 0}, {}, {18, -8, 0}}, {{30, -8, 0}, {}, {30, -8, 0}}},                              // large_float32
    {{{9, -1, 0}, {}, {13, -1, 0}}, {{18, -5, 3e4}, {}, {12, -2, 0}}},                             // large_half
};
constexpr double kTiny[2] = {2, 2.5};  // forward, backward
// What a block costs more where logits have terms of their edges (a_edge, bias), whose places it looks up for each
// head: so much with heads of kEdgeTermsHead features, and more with shorter ones, which have more of them for the time
// of an edge. Fitted to PATTERN's and CLUSTER's times (H100) with heads of 1 x 128, 2 x 64, 4 x 32 and 8 x 16.
constexpr ScoreCosts<double> kEdgeTermsOfBlock[2][2] = {
    {{20, 20, 48}, {118, 118, 190}},  // float32: forward, backward
    {{36, 36, 64}, {130, 130, 250}},  // half
};
constexpr double kEdgeTermsHead = 128;
// What an edge counts of that, and for resident, where rows are of equal length, which is what the others do best.
constexpr double kEqualRows = 0.5, kEqualRowsOfResident = 0.6;

bool has_equal_rows(const Attention& attention) {
  const double all = static_cast<double>(attention.max_degree) * static_cast<double>(attention.num_dst());
  const auto edges = static_cast<double>(attention.num_edges());
  return edges <= all && all <= 1.25 * edges;
}

bool tile_is_cheaper(const Attention& attention, int64_t blocks, Pass pass) {
  const bool is_backward = pass == Pass::backward;
  const HeadKind kind = kind_of_heads(attention);
  const TileCost& cost = of_score(kTileCosts[kind][is_backward], attention.score);
  const auto edges = static_cast<double>(attention.num_edges()), nodes = static_cast<double>(attention.num_dst());
  const bool is_tiny = kind == small_float32 && attention.head_dim() <= kTinyHead && attention.heads() > 1;
  const double block = cost.block * (is_tiny ? kTiny[is_backward] : 1);
  const double call = cost.call / static_cast<double>(attention.heads());
  const bool has_edge_terms = attention.a_edge.defined() || attention.bias.defined();
  const bool is_half = attention.value.element_size() == 2;
  const double head = kEdgeTermsHead / static_cast<double>(attention.head_dim());
  const double terms = has_edge_terms ? head * of_score(kEdgeTermsOfBlock[is_half][is_backward], attention.score) : 0;
  const double edge = kind == float32 && has_equal_rows(attention) ? kEqualRows : 1;
  return (block + terms) * static_cast<double>(blocks) + call < edge * edges + cost.node * nodes;
}

// Up to how many edges, for each block and each node, resident is faster than tile, from the same times. Of graphs
// whose tiles are sparse enough for a list (_may_be_sparse of graph.py; _may_choose_tile there has a bound below all of
// these that are for a head of more than 32 features, where tile pays, and _resident_takes has kManyTiles). A block
// works on a tile from the beginning to the end, however many multiprocessors are idle: so there have to be some tiles,
// times heads; and forward, unless scores are cosines, of which smmf makes more, so many edges a node for it to be
// better than smmf.
struct ResidentEdges {
  double block, node;
};
constexpr ScoreCosts<ResidentEdges> kResidentEdges[6][2] = {
    // forward, backward
    {{{4, 9}, {0, 6}, {0, 6}}, {{4, 9}, {10, 10}, {10, 10}}},          // float32
    {{{2, 5.3}, {4, 5.2}, {4, 5.2}}, {{2, 5.3}, {4, 5.2}, {4, 5.2}}},  // half
    {{{87, 0}, {64, 0}, {100, 0}}, {{86, 0}, {100, 0}, {90, 0}}},      // small_float32
    {{{58, 0}, {54, 0}, {92, 0}}, {{64, 0}, {69, 0}, {75, 0}}},        // small_half
    {{{25, 9}, {}, {10, 7}}, {{12, 12}, {}, {20, 18}}},                // large_float32
    {{{4, 5.2}, {}, {4, 5.2}}, {{13, 6}, {}, {13, 6}}},                // large_half
};
constexpr int64_t kTiles = 110, kManyTiles = 300, kTilesOfDotsBackward = 120;
constexpr int64_t kEdgesOfFewTiles = 8, kEdgesOfFloat32 = 4;  // a node

bool are_tiles_enough(const Attention& attention, int64_t tiles) {
  return attention.num_dst() * attention.heads() >= tiles * attention.tile_nodes;
}

// Forward, for resident to be faster than smmf.
bool are_edges_enough(const Attention& attention) {
  if (attention.score == Score::cosine) return true;
  const int64_t of_many_tiles = attention.value.element_size() == 2 ? 0 : kEdgesOfFloat32;
  const int64_t least = are_tiles_enough(attention, kManyTiles) ? of_many_tiles : kEdgesOfFewTiles;
  return attention.num_edges() >= least * attention.num_dst();
}

// From so many bytes of a head on smmf is slower. Heads of whole sectors of memory are resident's, but forward for many
// narrow ones with additive scores, which smmf takes side by side. Of others, whose chunks begin and end within
// sectors, several narrow ones are not where that does not pay, nor are in float32 those of more bytes than these, up
// to as many features as smmf's warps have registers for (COCO-SP and CIFAR10, H200; docs/kernels/head-sizes.md).
constexpr int64_t kLeastOfResident = 80, kSector = 32, kSomeHeads = 4, kManyHeads = 8;
constexpr int64_t kMostOfSums = 192, kMostForward = 256, kMostBackward = 384;

bool are_heads_resident(const Attention& attention, Pass pass) {
  const int64_t bytes = head_bytes(attention);
  const bool is_backward = pass == Pass::backward, is_half = attention.value.element_size() == 2;
  const bool are_sums = attention.score == Score::additive && !is_backward;
  const bool is_narrow = has_narrow_heads(attention), are_some = attention.heads() >= kSomeHeads;
  if (bytes < kLeastOfResident) return false;
  if (are_sums && is_narrow && attention.heads() >= kManyHeads) return goes_through_tensor_cores(attention);
  if (bytes % kSector == 0 || (is_backward && attention.score != Score::dot)) return true;
  if (attention.head_dim() > 2 * kManyFeatures) return true;
  if (are_sums) return !are_some && (is_half || bytes <= kMostOfSums);
  if (is_narrow && are_some) return is_half && !is_backward;
  return is_half || bytes <= (is_backward ? kMostBackward : kMostForward);
}

// tile_pays: whether tile can run, and is cheaper than smmf and pmf.
bool resident_is_cheaper(const Call& call, const Attention& attention, int64_t blocks, Pass pass, bool tile_pays) {
  const bool is_backward = pass == Pass::backward;
  if (!resident_can_run(call, attention, pass) || !are_heads_resident(attention, pass)) return false;
  const bool are_dots_backward = is_backward && attention.score == Score::dot;
  if (!are_tiles_enough(attention, are_dots_backward ? kTilesOfDotsBackward : kTiles)) return false;
  if (!tile_pays) return is_backward || are_edges_enough(attention);
  const auto& most = of_score(kResidentEdges[kind_of_heads(attention)][is_backward], attention.score);
  const double edge = has_equal_rows(attention) ? kEqualRowsOfResident : 1;
  const auto edges = static_cast<double>(attention.num_edges()), nodes = static_cast<double>(attention.num_dst());
  return edge * edges < most.block * static_cast<double>(blocks) + most.node * nodes;
}

int64_t fewest_rows(const Attention& attention) { return std::min(attention.num_dst(), attention.num_src()); }

// Whether smmf takes runs of rows, and no few rows of many edges.
bool goes_by_runs(const Attention& attention) {
  const int64_t fewest = fewest_rows(attention), edges = attention.num_edges();
  return (fewest >= kRunRows || edges < kRunEdges) && cuda::has_runs(fewest, edges, attention.max_degree) &&
         cuda::runs_take_heads(attention.value.element_size(), attention.head_dim());
}

int64_t bytes_of_sources(const Attention& attention) {
  return attention.num_src() * attention.heads() * head_bytes(attention);
}

// In float32, of rows so long that passes over them gather one matrix at a time.
bool gathers_one_matrix(const Attention& attention) {
  const int64_t bytes = head_bytes(attention);
  const bool is_measured = attention.value.element_size() == 4 && attention.head_dim() % 4 == 0 &&
                           bytes >= kNarrowHead && attention.head_dim() <= 4 * kManyFeatures;
  const bool is_worth_it =
      bytes > kNarrowHead || attention.score != Score::dot || bytes_of_sources(attention) > kCompete;
  return is_measured && is_worth_it && cuda::rows_are_long(attention.num_dst(), attention.num_edges());
}

bool pmf_is_cheaper_forward(const Attention& attention) {
  const int64_t rows = attention.num_dst(), edges = attention.num_edges();
  if (attention.score != Score::dot || edges * attention.heads() < kWorthItsLaunches) return false;
  if (gathers_one_matrix(attention)) return true;
  if (edges < (has_equal_rows(attention) ? kLongRow : kRatherLongRow) * rows) return false;
  const int64_t matrix = bytes_of_sources(attention);
  if (has_wide_heads(attention)) {
    const bool may_be_uneven = attention.max_degree < 0 || cuda::rows_are_uneven(rows, edges, attention.max_degree);
    return may_be_uneven || edges >= kVeryLongRow * rows || matrix > kCompete;
  }
  const bool is_medium = attention.value.element_size() == 4 && head_bytes(attention) > kNarrowHead;
  return is_medium && matrix > kCompete && matrix <= kFitsAlone;
}

bool pmf_is_cheaper_backward(const Attention& attention, bool is_near_cache) {
  const int64_t rows = attention.num_dst(), edges = attention.num_edges(), bytes = head_bytes(attention);
  const bool is_dot = attention.score == Score::dot, is_additive = attention.score == Score::additive;
  const bool is_cosine = attention.score == Score::cosine;
  const bool is_half = attention.value.element_size() == 2, has_some = attention.head_dim() > kSomeFeatures;
  const bool has_more = attention.head_dim() > kManyFeatures, are_equal = has_equal_rows(attention);
  const bool are_many = edges * attention.heads() >= kManyEdges, are_long = edges >= kLongRow * rows;
  const bool are_rather_long = are_long || (edges >= kRatherLongRow * rows && !are_equal);
  const bool are_long_unequal = edges >= kLongUnequalRow * rows && !are_equal;
  if (attention.score == Score::additive_v2) {
    const bool is_measured = attention.value.element_size() <= 4 && bytes > kNarrowHead && bytes % 16 == 0 &&
                             attention.head_dim() <= 4 * kManyFeatures;
    return is_measured && are_many && (are_long || (has_more && are_long_unequal));
  }
  if (are_many && gathers_one_matrix(attention)) return true;
  if (is_additive || (is_half && has_some && !has_more && is_cosine)) {
    if (are_rather_long || (are_long_unequal && edges >= kManyRunEdges)) return true;
  }
  if (has_more && are_many && (is_additive || (is_dot && (is_half || is_near_cache)))) return true;
  if (is_half) {
    if (is_cosine && has_more && are_many && cuda::rows_are_long(rows, edges)) return true;
    if (is_dot && has_more) return are_long;
    if (is_dot) return has_some && (are_many ? are_rather_long : edges >= kLongRowOfHalfDots * rows);
    return goes_through_tensor_cores(attention) && are_long && are_many;  // one head of 64, cosine scores
  }
  if (is_dot && bytes <= kNarrowHead && bytes_of_sources(attention) <= kCompete) return false;
  const bool is_medium = attention.value.element_size() == 4 && bytes >= kNarrowHead && bytes <= kMediumHead;
  if (is_dot && is_medium && are_many && are_long) return true;
  const bool by_runs = goes_by_runs(attention);
  const bool are_short = rows >= kManyRows && !are_long && !are_long_unequal;
  return is_near_cache && !are_short && !by_runs;
}

bool pmf_is_cheaper(const Attention& attention, Pass pass) {
  if (has_narrow_heads(attention)) return false;
  const int64_t numbers = attention.num_edges() * attention.heads() * (pass == Pass::forward ? 1 : 2);
  const int64_t stored = numbers * (attention.value.element_size() == 8 ? 8 : 4);
  const bool is_cheaper = pass == Pass::forward ? pmf_is_cheaper_forward(attention)
                                                : pmf_is_cheaper_backward(attention, stored <= kStoredBytesNearCache);
  return is_cheaper && may_store(stored, attention.value.device());
}

Method choose_automatically(const Call& call, const Attention& attention, Pass pass, TileFits tile_fits) {
  const int64_t blocks = call.route.tile_blocks.guard_int(__FILE__, __LINE__);
  const auto log = [](Method method, const auto&... words) {
    log_choice(name_of(method), words...);
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
  if (pass == Pass::forward && attention.score == Score::dot && max_degree >= threshold && has_wide_heads(attention) &&
      !(fewest_rows(attention) >= kRunRows && goes_by_runs(attention))) {
    return log(Method::pmf, "max_degree ", max_degree, " >= ", threshold, " scores in shared memory");
  }
  return log(pmf_is_cheaper(attention, pass) ? Method::pmf : Method::smmf, attention.num_edges(), " edges, ",
             attention.num_dst(), " rows");
}

#ifdef DFGNN_WITH_CUDA
// Edges for each node on either side from which on the derivative pays, from times beside "auto" without it (H200, CUDA
// graphs, random graphs of 2^15 to 2^22 edges and 8 to 64 a node, power laws of 2^18 to 2^22;
// docs/kernels/two-gathers.md). With fewer edges in all, what there is to gain is little.
constexpr int64_t kManyDerivativeEdges = 1 << 17;
int64_t least_degree_of_derivative(cuda::AdditiveHeads heads, int64_t number_bytes, int64_t head_bytes) {
  const bool is_half = number_bytes == 2;
  if (heads == cuda::AdditiveHeads::side_by_side) return is_half ? 48 : 32;
  return !is_half && head_bytes >= kMediumHead ? 8 : 16;
}

// Tiles with nothing behind them, as Python leaves them where neither tile nor resident may be chosen.
bool are_bare(const at::Tensor& tiles, const Call& call) {
  return tiles.dim() == 1 && tiles.device() == call.rowptr.device() && !tiles.is_floating_point() &&
         TORCH_STATICALLY_KNOWN_TRUE(tiles.sym_numel().sym_eq(cuda::tile::boundaries_of(call.a.sym_size(0))));
}
#endif

bool is_within_tiles(const Attention& attention) {
  return attention.score != Score::additive_v2 && attention.num_dst() == attention.num_src();
}

}  // namespace

bool keeps_derivative([[maybe_unused]] const Call& call) {
#ifdef DFGNN_WITH_CUDA
  const auto wants_gradient = [](const OptTensor& t) { return t.has_value() && t->requires_grad(); };
  const at::Tensor& v = call.value();
  if (call.score != Score::additive || call.op != Op::attention || call.route.method != "auto") return false;
  if (!v.is_cuda() || v.dim() != 3 || call.a.dim() != 2 || call.b.dim() != 2) return false;
  if (wants_gradient(call.a_edge) || wants_gradient(call.bias)) return false;
  const auto edges = call.col.sym_numel(), nodes = call.a.sym_size(0).max(call.b.sym_size(0));
  if (!TORCH_STATICALLY_KNOWN_TRUE(edges.sym_ge(kManyDerivativeEdges))) return false;
  if (call.route.tiles && !are_bare(*call.route.tiles, call)) return false;
  const auto fixed = [&v](int64_t dim) { return static_cast<int>(v.sym_size(dim).guard_int(__FILE__, __LINE__)); };
  static_assert(kManyDerivativeEdges >= kWorthItsCopies, "so that heads are padded");
  const int64_t bytes = v.element_size(), head_dim = in_whole_vectors(bytes, fixed(2));
  const auto heads = cuda::additive_heads(type_of(v), fixed(1), static_cast<int>(head_dim));
  if (heads == cuda::AdditiveHeads::none) return false;
  const int64_t least = least_degree_of_derivative(heads, bytes, bytes * head_dim);
  if (!TORCH_STATICALLY_KNOWN_TRUE(edges.sym_ge(nodes * least))) return false;
  log_choice("derivative", edges, " edges, ", nodes, " nodes");
  return true;
#else
  return false;
#endif
}

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
  const auto& asked = call.route.method;
  if (asked == "auto") return choose_automatically(call, attention, pass, tile_fits);
  for (const auto& [method, name] : kMethods) {
    if (asked != name) continue;
    const bool can_run = method == Method::tile       ? tile_can_run(attention, pass, tile_fits)
                         : method == Method::resident ? resident_can_run(call, attention, pass)
                                                      : true;
    return can_run ? method : Method::smmf;
  }
  std::string names = "'auto'";
  for (const auto& m : kMethods) names += c10::str(", '", m.second, "'");
  TORCH_CHECK(false, "method: expected one of ", names, ", got '", asked, "'");
}

}  // namespace dfgnn
