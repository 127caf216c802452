// Tile forward: masked dense attention of one window of rows with its tile, an online softmax over chunks of sources.
#include "device.h"
#include "edge_by_edge.cuh"
#include "tile_additive.cuh"
#include "tile_chunks.cuh"
#include "tile_dropout.cuh"
#include "tile_logit.cuh"
#include "tile_products.cuh"
#include "tile_shapes.cuh"

namespace dfgnn::cuda {
namespace {

using namespace tile;

template <class S, bool kPositions>
using ForwardTurns = Turns<WindowOrder::from_first, kTakesSeveral<S, kPositions>>;

// A row's maximum may grow by this much before what was summed is scaled down.
template <Score score>
constexpr float kSlack = 5.5f * kUnit<score>;

// Shared memory: queries and chunks of keys and values. Single ones, for more blocks; but warpgroups wait less for two,
// and so do the additive score, of values alone, the cosine score, whose keys they are, and several heads, which need
// keys and values together.
template <Score score, class S>
constexpr int kQueriesBytes = score == Score::additive ? 0 : WindowRows<S>::kBytes;
template <Score score, class S, bool kWarpgroup>
using ForwardChunks = Chunks<S, kHasKeys<score>, true, (!kHasKeys<score> || S::kSmall || (kWarpgroup && !S::kScaled))>;
template <Score score, class S, bool kWarpgroup>
constexpr int kStagesBytes = kQueriesBytes<score, S> + ForwardChunks<score, S, kWarpgroup>::kBytes;

// Of code for a device of that compute capability.
template <Score score, class S>
int stages_bytes(int major) {
  return S::kForWarpgroup && major == 9 ? kStagesBytes<score, S, true> : kStagesBytes<score, S, false>;
}

// The softmax of a warp's rows, and what it weights, as chunks go by.
template <class S>
struct Running {
  Features<S> out;
  float m[2] = {-INFINITY, -INFINITY}, sum[2] = {};

  // Goes on to chunks with such a largest logit, of a thread's elements. is_first: nothing has been added yet.
  template <Score score>
  __device__ __forceinline__ void grow(const float (&largest)[2], bool is_first) {
    bool grows = false;
#pragma unroll
    for (int v = 0; v < 2; ++v) grows |= largest[v] > m[v] + kSlack<score>;
    if (!__any_sync(kAllLanes, grows)) return;
    float fade[2];
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const float before = m[v];
      m[v] = max(before, lanes_max<4>(largest[v]));
      fade[v] = before == -INFINITY ? 0 : weight_of<score>(before - m[v]);
      sum[v] *= fade[v];
    }
    if (!is_first) out.fade(fade);
  }
};

// Rows whose weights sum up to less go edge by edge: factors of additive scores may have lost bits, or all logits are
// the least there are, which times log2(e) are -inf.
constexpr float kLeast = 0x1p-40f;

// Whether weights are products of two factors, made for each node. Not in float16, whose weights have to be near their
// row's largest.
template <Score score, class S, bool kPositions>
constexpr bool kHasFactors = score == Score::additive && !kPositions && !std::is_same_v<typename S::T, __half>;

// What sources bring to logits.
template <Score score, class S, bool kPositions>
using ForwardTerms = SrcTerms<score, S, std::conditional_t<kHasFactors<score, S, kPositions>, AdditiveFactors, float>>;

// What a block has in shared memory.
template <Score score, class S>
struct ForwardStages {
  WindowMasks& masks;
  ScoreNorms<score, S>& norms;
  PartSums<S> parts;
  WindowRows<S> queries;
  ForwardChunks<score, S, S::kWarpgroup> chunks;

  // memory: the part's.
  __device__ __forceinline__ ForwardStages(WindowMasks& window_masks, ScoreNorms<score, S>& block_norms,
                                           typename PartSums<S>::Shared& sums, const SharedBytes& memory)
      : masks(window_masks),
        norms(block_norms),
        parts(sums),
        queries{memory},
        chunks(memory + kQueriesBytes<score, S>) {}

  // Starts to copy what heads from h on need of a window.
  __device__ __forceinline__ void start(const Typed<typename S::T>& a, const BlockWindow& w, int h) {
    constexpr bool kNeedsDots = score != Score::additive;
    if (is_first_part<S>()) masks.stage(a.row_masks, w);
    if (kNeedsDots) Rows<S>(a, a.dst, h).stage(queries, w.first, w.first + w.count);
    chunks.begin(Rows<S>(a, kHasKeys<score> ? a.src : a.value, h), Rows<S>(a, a.value, h), w);
  }
};

// Heads from h on of a window, which has been started. Goes on to the next, if there may be one, and starts that.
template <Score score, class S, bool kPositions>
__device__ __forceinline__ void forward_window(const Typed<typename S::T>& a, const Outputs& outputs,
                                               ForwardTurns<S, kPositions>& turn, int h,
                                               ForwardStages<score, S>& stages,
                                               typename ForwardTerms<score, S, kPositions>::Shared& terms_shared) {
  constexpr bool kNeedsDots = score != Score::additive, kCosine = score == Score::cosine;
  constexpr bool kFactored = kHasFactors<score, S, kPositions>, kFirst = kMasksFirst<score, S, kPositions>;
  using Side = Terms<true>;
  constexpr bool kSeveral = kTakesSeveral<S, kPositions>;
  const BlockWindow w = turn.window();
  auto& [masks, norms, parts, queries, chunks] = stages;
  const auto start = [&](const BlockWindow& next) { stages.start(a, next, h); };
  const int i[2] = {w.node(window_row(0)), w.node(window_row(1))};
  ForwardTerms<score, S, kPositions> terms(terms_shared, w, a.heads, h);
  const auto load_term = [&](int node, int head) { return Side::of_other<score>(a, node, head); };
  terms.start(load_term);
  Running<S> running[S::kHeads];
  float dst[S::kHeads][2], top[S::kHeads];
  AdditiveFactors factors[S::kHeads][2];
  TileSrcs tile_srcs[S::kHeads];
  for_heads<S>(a.heads, h, [&](int k) {
#pragma unroll
    for (int v = 0; v < 2; ++v) dst[k][v] = kCosine ? 0 : Side::of_window<score>(a, i[v], h + k);
    if constexpr (kFactored) tile_srcs[k].load(a, w, h + k);
  });
  wait_for_copies();
  float norm[S::kHeads][2] = {};
  prepare_window<score, S>(queries, norms, a.eps, norm);
  for_heads<S>(a.heads, h, [&](int k) {
    if constexpr (kCosine) {
#pragma unroll
      for (int v = 0; v < 2; ++v) dst[k][v] = kUnit<score> * a.beta_of(h + k) * norm[k][v];
    }
    if constexpr (kFactored) {
      top[k] = tile_srcs[k].largest(a, w, h + k);
#pragma unroll
      for (int v = 0; v < 2; ++v) {
        factors[k][v] = AdditiveFactors::of_dst(dst[k][v], top[k], a.slope_below_zero, running[k].m[v]);
      }
    }
  });
  const RowFactors<S> query_factors(queries, dst[0][0], dst[0][1]);
  auto [active, mine, others] = masks.template read<kPositions>(w);
  const bool have_edges[2] = {masks.has_edges(window_row(0)), masks.has_edges(window_row(1))};

  const Places places(a.rowptr, a.num_edges, w);
  MaskRows<kPositions, S::kHeads> edges(masks, places, others);
  const Dropout dropout(a);
  KeptEdges<true> kept(a, masks, w, others);
  const bool draws = kPositions && dropout.active() && a.num_edges > 0;
  const bool has_terms = kPositions && has_edge_terms(a);
  bool is_first = true;
  chunks.set_chunks(active);
  terms.set_chunks(active, load_term);
  for (uint32_t left = active; left != 0; left &= left - 1) {
    const int chunk = __ffs(left) - 1;
    const bool works = S::kWarpgroup || (mine >> chunk & 1);
    auto srcs = terms.put([&](float src, int k) {
      if constexpr (kFactored) {
        static_assert(S::kHeads <= 2, "top would not stay in registers");
        return AdditiveFactors::of_src(src, k == 0 ? top[0] : top[S::kHeads - 1], a.slope_below_zero);
      } else {
        return src;
      }
    });
    if (kSeveral) chunks.agree();
    const Chunk<S> keys = first_of<score, S>(chunks, norms, a.eps, srcs);
    terms.load(left & (left - 1), load_term);
    if (works) edges.load(chunk);
    for_heads<S>(a.heads, h, [&](int k) {
      Running<S>& to = running[k];
      Logits p;
      if (works) {
        ChunkTerms<float>::Pair src[4];  // read before products, which compilers let no reads pass
        if constexpr (!kFactored && !kFirst) {
#pragma unroll
          for (int j = 0; j < 4; ++j) src[j] = src_pair<score>(srcs, k, j);
        }
        if (kNeedsDots) {
          if constexpr (kFirst) edges.get_masks(p);
          start_product_nt<S, kFirst>(p, queries, query_factors, keys, k);
          finish<S>(p);
          parts.add(p);
        }
        if constexpr (kFactored) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            const auto pair = srcs.pair(k, j);
#pragma unroll
            for (int c = 0; c < 2; ++c) {
#pragma unroll
              for (int v = 0; v < 2; ++v) {
                const float weight = edges.has(v, j, c) ? factors[k][v].weight(pair.of[c]) : 0;
                p[j][2 * v + c] = weight;
                to.sum[v] += weight;
              }
            }
          }
        } else {
          if constexpr (!kFirst) {
            with_terms<kPositions>(has_terms, [&]<bool kTerms>() {
#pragma unroll
              for (int j = 0; j < 4; ++j) {
#pragma unroll
                for (int c = 0; c < 2; ++c) {
#pragma unroll
                  for (int v = 0; v < 2; ++v) {
                    float& s = p[j][2 * v + c];
                    const float term = kProductsHaveTerms<score, S> ? 1 : dst[k][v];
                    const int64_t e = kTerms ? places.of_all(edges.place(v, j, c)) : 0;
                    const auto logit = logit_of<score, kTerms>(a, s, term, src[j].of[c], e, h + k, kUnit<score>);
                    s = logit.value + edges.mask(v, j, c);
                  }
                }
              }
            });
          }
          float largest[2] = {-INFINITY, -INFINITY};
#pragma unroll
          for (int x = 0; x < 16; ++x) largest[x % 4 / 2] = max(largest[x % 4 / 2], p[x / 4][x % 4]);
#pragma unroll
          for (int v = 0; v < 2; ++v) largest[v] *= kFirst ? dst[k][v] : 1;
          to.template grow<score>(largest, is_first);
          if (draws) {
            if (k == 0) kept.load(a, w, chunk);
            kept.draw(a, w, dropout, h + k);
          }
#pragma unroll
          for (int v = 0; v < 2; ++v) {
            const float base = to.m[v] == -INFINITY ? 0 : to.m[v];
#pragma unroll
            for (int x = 0; x < 8; ++x) {
              float& s = p[x / 2][2 * v + x % 2];
              s = weight_of<score>(kFirst ? s * dst[k][v] - base : s - base);
              to.sum[v] += s;
              if constexpr (kPositions) s *= kept.factor(dropout, v, x / 2, x % 2);
            }
          }
        }
      }
      const Chunk<S> values = kHasKeys<score> ? chunks.second() : keys;
      if (kSeveral && (left & (left - 1)) == 0) turn.go_on(start);
      if (works) {
        Weights<S> weights;
        weights.set(p, to.out, values);
        start_product_nn<S>(to.out, weights, values, k);
        finish<S>(to.out, weights);
      }
    });
    if (works) is_first = false;
  }
  if (kSeveral && active == 0) turn.go_on(start);

  float lse[S::kHeads][2], inverse[S::kHeads][2], infinite[2] = {0, 0};
  for_heads<S>(a.heads, h, [&](int k) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const Running<S>& of = running[k];
      const float sum = lanes_sum<4>(of.sum[v]);
      infinite[v] += of.out.nan_if_infinite(v) + sum * 0.0f;
      if ((sum < kLeast || !is_precise<score>(of.m[v])) && have_edges[v]) infinite[v] = NAN;
      inverse[k][v] = sum == 0 ? 0 : inverse_of(sum);
      lse[k][v] = sum == 0 ? -INFINITY : lse_of_sum<score>(of.m[v], sum);
    }
  });
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    for_heads<S>(a.heads, h, [&](int k) {
      if (others >> warp_row(v) & 1) return;
      store_row<S>(running[k].out, v, inverse[k][v], part_of_row<S>(a, outputs.out, i[v], h + k),
                   features_of_part<S>(a));
      if (lane_in_group() == 0 && is_first_part<S>()) {
        static_cast<float*>(outputs.lse)[a.scalar(i[v], h + k)] = lse[k][v];
      }
    });
    parts.add(infinite[v]);  // and all parts have stored theirs
    others |= rows_not_zero(infinite[v], v);
  }
  for_rows_of<S>(others, w, [&](int row) {
    for (int k = h; k < min(h + S::kHeads, a.heads); ++k) {
      edge_by_edge::forward_row<score, S::kWholeHead>(a, outputs, row, k);
    }
  });
}

// Of a multiprocessor, as many as registers and shared memory leave room for: for one more of single small heads in 16
// bits, and, on Hopper, of scaled values alone.
template <Score score, class S, bool kPositions>
constexpr bool kOneMore = !kPositions && (S::kSmall ? S::kHeads == 1 && sizeof(typename S::T) == 2
                                                    : S::kWarpgroup && S::kScaled && score == Score::additive);
template <Score score, class S, bool kPositions>
constexpr int kBlocks = (S::kSmall       ? 5
                         : S::kParts > 1 ? 1
                         : S::kLarge     ? 2
                         : S::kScaled    ? 3
                                         : 4) +
                        kOneMore<score, S, kPositions> - (kPositions && S::kFeatures < 128);

template <Score score, class S, bool kPositions>
__global__ void __launch_bounds__(S::kParts* kThreads, (kBlocks<score, S, kPositions>))
    tile_fwd_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                    Sharing sharing) {
  extern __shared__ __align__(kMatrixAlignment) unsigned char memory[];
  __shared__ WindowMasks masks;
  __shared__ ScoreNorms<score, S> norms;
  __shared__ typename PartSums<S>::Shared sums;
  __shared__ typename ForwardTerms<score, S, kPositions>::Shared terms;
  __shared__ typename ForwardTurns<S, kPositions>::Storage windows;
  ForwardTurns<S, kPositions> turn(a, windows, sharing);
  if (!turn) return;
  const auto of_part = SharedBytes::of(memory + part<S>() * kStagesBytes<score, S, S::kWarpgroup>);
  for_groups<S>(a.heads, [&](int h) {
    ForwardStages<score, S> stages(masks, norms, sums, of_part);
    stages.start(a, turn.window(), h);
    do {
      forward_window<score, S, kPositions>(a, outputs, turn, h, stages, terms);
    } while (kTakesSeveral<S, kPositions> && turn);
  });
}

}  // namespace

bool tile_fwd_fits(const Attention& a) {
  int major = 0;
  return device_attribute(cudaDevAttrComputeCapabilityMajor, major) == cudaSuccess &&
         for_tile_shape(a, [&]<Score score, class S>() {
           constexpr int kTerms = sizeof(typename ForwardTerms<score, S, false>::Shared);
           return check_room<score, S>(S::kParts * stages_bytes<score, S>(major) + kTerms);
         }) == cudaSuccess;
}

cudaError_t tile_fwd(const Attention& a, const Outputs& outputs, cudaStream_t stream) {
  int major = 0;
  const cudaError_t error = device_attribute(cudaDevAttrComputeCapabilityMajor, major);
  if (error != cudaSuccess) return error;
  return for_tile_shape(a, [&]<Score score, class S>() {
    const auto slope = static_cast<float>(a.negative_slope);
    // Factors are for slopes of 0 to 1; for others there are the kernels that take all.
    const bool is_general = kHasFactors<score, S, false> && !(slope > 0 && slope <= 1);
    const auto launch = [&]<bool kPositions>() {
      return launch_tile<S, kPositions>(tile_fwd_kernel<score, S, kPositions>, kBlocks<score, S, kPositions>,
                                        stages_bytes<score, S>(major), a, stream, Typed<typename S::T>{a}, outputs);
    };
    return needs_positions<score, S>(a) || is_general ? launch.template operator()<true>()
                                                      : launch.template operator()<false>();
  });
}

}  // namespace dfgnn::cuda
