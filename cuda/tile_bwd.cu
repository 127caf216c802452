// Tile backward: masked dense attention made again from lse, seen from either side. A pass over rows makes delta and
// the gradients of dst and of the logits' edge terms, one over columns, whose first blocks begin before the last of the
// other end, those of src and value; each writes every result once.
#include <algorithm>

#include "device.h"
#include "edge_by_edge.cuh"
#include "tile_dropout.cuh"
#include "tile_gradient.cuh"
#include "tile_one_x.cuh"
#include "tile_products.cuh"
#include "tile_shapes.cuh"

namespace dfgnn::cuda {
namespace {

using namespace tile;

template <class S, bool kRows, bool kPositions>
using BackwardTurns = Turns<kRows ? WindowOrder::from_last : WindowOrder::from_first, kTakesSeveral<S, kPositions>>;

// Heads from h on of a window of rows, which has been started. Goes on to the next, if there may be one, and starts
// that.
template <Score score, class S, bool kPositions>
__device__ __forceinline__ void rows_window(const Typed<typename S::T>& a, const Gradients& g,
                                            BackwardTurns<S, true, kPositions>& turn, int h,
                                            BackwardStages<score, S, true>& stages,
                                            typename BackwardTerms<score, S, true>::Shared& terms_shared) {
  constexpr bool kNeedsDots = score != Score::additive, kCosine = score == Score::cosine;
  constexpr bool kFirst = kMasksFirst<score, S, kPositions>;
  using Side = Terms<true>;
  constexpr bool kSeveral = kTakesSeveral<S, kPositions>;
  const BlockWindow w = turn.window();
  auto& [masks, norms, parts, grads, queries, chunks] = stages;
  const auto start = [&](const BlockWindow& next) { stages.start(a, g, next, h); };
  const int i[2] = {w.node(window_row(0)), w.node(window_row(1))};
  BackwardTerms<score, S, true> terms(terms_shared, w, a.heads, h);
  const auto load_term = [&](int node, int head) { return Side::of_other<score>(a, node, head); };
  terms.start(load_term);
  const OutPieces<S> out[2] = {{a, g, i[0], h}, {a, g, i[1], h}};
  RowTerms row[S::kHeads][2];
  for_heads<S>(a.heads, h, [&](int k) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const float term = kCosine ? 0 : Side::of_window<score>(a, i[v], h + k);
      row[k][v] = RowTerms{term, a.at(g.lse, a.scalar(i[v], h + k)), 0}.template in_unit<score>();
    }
  });
  wait_for_copies();
  Rows<S>::prepare(grads);
  float norm[S::kHeads][2] = {};
  prepare_window<score, S>(queries, norms, a.eps, norm);
  if constexpr (kCosine) {
    for_heads<S>(a.heads, h, [&](int k) {
#pragma unroll
      for (int v = 0; v < 2; ++v) row[k][v].term = kUnit<score> * a.beta_of(h + k) * norm[k][v];
    });
  }
  const RowFactors<S> grad_factors(grads, 1, 1), query_factors(queries, row[0][0].term, row[0][1].term);
  auto [active, mine, others] = masks.template read<kPositions>(w);

  for_heads<S>(a.heads, h, [&](int k) {
#pragma unroll
    for (int v = 0; v < 2; ++v) {
      const int64_t scalar = a.scalar(i[v], h + k);
      float delta = out[v].dot(grads, window_row(v), k);
      parts.add(delta);
      if (g.grad_lse) delta -= a.at(g.grad_lse, scalar);
      if (lane_in_group() == 0 && window_row(v) < w.count && is_first_part<S>()) {
        static_cast<float*>(g.delta)[scalar] = delta;
        if (kCosine) static_cast<float*>(g.scale)[scalar] = a.beta_of(h + k) * norm[k][v];
      }
      row[k][v].delta = delta;
    }
  });
  const Places places(a.rowptr, a.num_edges, w);
  MaskRows<kPositions, S::kHeads> edges(masks, places, others);
  const Dropout dropout(a);
  KeptEdges<true> kept(a, masks, w, others);
  const bool draws = kPositions && dropout.active() && a.num_edges > 0;
  const bool has_terms = kPositions && has_edge_terms(a);
  GradientSums<S> grad[S::kHeads];
  float grad_scalar[S::kHeads][2] = {};

  chunks.set_chunks(active);
  terms.set_chunks(active, load_term);
  for (uint32_t left = active; left != 0; left &= left - 1) {
    const int chunk = __ffs(left) - 1;
    const bool works = mine >> chunk & 1, joins = S::kWarpgroup || works;  // joins: in products of the part
    auto srcs = terms.put([](float src, int) { return src; });
    if (kSeveral) chunks.agree();
    const Chunk<S> values = first_of<score, S>(chunks, norms, a.eps, srcs);
    terms.load(left & (left - 1), load_term);
    if (works) edges.load(chunk);
    for_heads<S>(a.heads, h, [&](int k) {
      Logits dp = {}, s = {};
      if (joins) start_product_nt<S>(dp, grads, grad_factors, values, k);
      if (!chunks.kIsDouble) finish<S>(dp);  // second() gives the room of values away
      if (joins) parts.add(dp);
      const Chunk<S> keys = kHasKeys<score> ? chunks.second() : values;
      if (joins) {
        if constexpr (kFirst) edges.get_masks(s);
        if (kNeedsDots) start_product_nt<S, kFirst>(s, queries, query_factors, keys, k);
        finish<S>(dp, s);
        if (kNeedsDots) parts.add(s);
      }
      Weights<S> weights = {};
      if (works) {
        if (draws) {
          if (k == 0) kept.load(a, w, chunk);
          kept.draw(a, w, dropout, h + k);
        }
        with_terms<kPositions>(has_terms, [&]<bool kTerms>() {
#pragma unroll
          for (int x = 0; x < 8; ++x) {
            const int j = x / 2, c = x % 2;
            const float src = src_pair<score>(srcs, k, j).of[c];
#pragma unroll
            for (int v = 0; v < 2; ++v) {
              const float term = kProductsHaveTerms<score, S> ? 1 : row[k][v].term;
              const int64_t e = kTerms ? places.of_all(edges.place(v, j, c)) : 0;
              auto logit = logit_of<score, kTerms>(a, s[j][2 * v + c], term, src, e, h + k, kUnit<score>);
              if (!kFirst) logit.value += edges.mask(v, j, c);
              const auto d = masked_gradient<score>(logit, dp[j][2 * v + c], row[k][v],
                                                    kPositions ? kept.factor(dropout, v, j, c) : 1);
              s[j][2 * v + c] = score == Score::cosine ? d.operand * src : d.operand;
              grad_scalar[k][v] += d.operand;
              if (kTerms && edges.has(v, j, c) && is_first_part<S>()) {
                if (g.bias) static_cast<float*>(g.bias)[a.scalar(e, h + k)] = d.ds;
                if (g.a_edge) static_cast<float*>(g.a_edge)[a.scalar(e, h + k)] = d.operand;
              }
            }
          }
        });
        if (kNeedsDots) weights.set(s, grad[k], keys);
      }
      if (kSeveral && (left & (left - 1)) == 0) turn.go_on(start);
      if (kNeedsDots && joins) {
        start_product_nn<S>(grad[k], weights, keys, k);
        finish<S>(grad[k], weights);
      }
    });
  }
  if (kSeveral && active == 0) turn.go_on(start);

  const bool is_one_x = kCosine && g.by_beta;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    float infinite = 0, dots[S::kHeads] = {};
    GradientOfX<S> x[S::kHeads];
    for_heads<S>(a.heads, h, [&](int k) {
      if (is_one_x) {
        x[k] = {a, g, i[v], h + k};
        dots[k] = x[k].dot(grad[k], v);
      }
      infinite += grad[k].nan_if_infinite(v) + (grad_scalar[k][v] + dots[k]) * 0.0f;
    });
    parts.add(infinite);
    others |= rows_not_zero(infinite, v);
    for_heads<S>(a.heads, h, [&](int k) {
      if (is_one_x) {
        const float own = norm[k][v], term = a.beta_of(h + k) * own;
        if (others >> warp_row(v) & 1) return;
        x[k].store(grad[k], v, term, own_share(a, own, term * dots[k]));
        if (lane_in_group() == 0) static_cast<float*>(g.by_beta)[a.scalar(i[v], h + k)] = own * dots[k];
        return;
      }
      const float scalar = lanes_sum<4>(grad_scalar[k][v]);
      if (others >> warp_row(v) & 1) return;
      store_gradient<score, S>(a, g.dst, i[v], h + k, grad[k], v, scalar);
    });
  }
  for_rows_of<S>(others, w, [&](int n) {
    for (int k = h; k < min(h + S::kHeads, a.heads); ++k) {
      edge_by_edge::backward_row<score, S::kWholeHead, true>(a, g, n, k);
    }
  });
}

// The same of columns.
template <Score score, class S, bool kPositions, Sums kSums>
__device__ __forceinline__ void columns_window(const Typed<typename S::T>& a, const Gradients& g,
                                               BackwardTurns<S, false, kPositions>& turn, int h,
                                               BackwardStages<score, S, false, kSums>& stages,
                                               typename BackwardTerms<score, S, false>::Shared& terms_shared) {
  constexpr bool kNeedsDots = score != Score::additive, kCosine = score == Score::cosine;
  constexpr bool kFirst = kMasksFirst<score, S, kPositions>;
  constexpr bool kOfSrc = kSums != Sums::of_value, kOfValue = kSums != Sums::of_src, kSumsSrc = kNeedsDots && kOfSrc;
  using Side = Terms<false>;
  constexpr bool kSeveral = kTakesSeveral<S, kPositions>;
  const BlockWindow w = turn.window();
  auto& [masks, norms, parts, values, keys, chunks] = stages;
  const auto start = [&](const BlockWindow& next) { stages.start(a, g, next, h); };
  const int node[2] = {w.node(window_row(0)), w.node(window_row(1))};
  const void* delta = when_written(g.delta);
  const void* scale = kCosine ? when_written(g.scale) : nullptr;
  BackwardTerms<score, S, false> terms(terms_shared, w, a.heads, h);
  const auto load_row = [&](int i, int head) {
    const auto written = [&](const void* data) { return __ldcg(static_cast<const float*>(data) + a.scalar(i, head)); };
    const float term = kCosine ? written(scale) : Side::of_other<score>(a, i, head);
    return RowTerms{term, a.at(g.lse, a.scalar(i, head)), written(delta)};
  };
  terms.start(load_row);
  float src[S::kHeads][2];
  for_heads<S>(a.heads, h, [&](int k) {
#pragma unroll
    for (int v = 0; v < 2; ++v) src[k][v] = kCosine ? 0 : Side::of_window<score>(a, node[v], h + k);
  });
  wait_for_copies();
  float norm[S::kHeads][2] = {};
  if (!kCosine && kOfSrc) Rows<S>::prepare(values);  // else they are the keys
  prepare_window<score, S>(keys, norms, a.eps, norm);
  if constexpr (kCosine) {
    for_heads<S>(a.heads, h, [&](int k) {
#pragma unroll
      for (int v = 0; v < 2; ++v) src[k][v] = kUnit<score> * norm[k][v];
    });
  }
  const RowFactors<S> value_factors(values, 1, 1), key_factors(keys, src[0][0], src[0][1]);
  auto [active, mine, others] = masks.template read<kPositions>(w);

  const Places places(a.colptr, a.num_edges, w);
  MaskRows<kPositions, S::kHeads> edges(masks, places, others);
  const Dropout dropout(a);
  KeptEdges<false> kept(a, masks, w, others);
  const bool draws = kPositions && dropout.active() && a.num_edges > 0;
  const bool has_terms = kPositions && has_edge_terms(a);
  GradientSums<S> grad[S::kHeads], grad_value[S::kHeads];
  float grad_scalar[S::kHeads][2] = {};

  chunks.set_chunks(active);
  terms.set_chunks(active, load_row);
  for (uint32_t left = active; left != 0; left &= left - 1) {
    const int chunk = __ffs(left) - 1;
    const bool works = mine >> chunk & 1, joins = S::kWarpgroup || works;  // joins: in products of the part
    const auto rows =
        terms.put([](const RowTerms& row, int) { return static_cast<RowTerms::Shared<score>>(row.in_unit<score>()); });
    if (kSeveral) chunks.agree();
    const Chunk<S> grads = chunks.first();
    terms.load(left & (left - 1), load_row);
    if (works) {
      edges.load(chunk);
      if (draws) kept.load(a, w, chunk);
    }
    const auto edge_at = [&](int place) { return clamp_to(a.perm[places.of_all(place)], a.num_edges - 1); };
    for_heads<S>(a.heads, h, [&](int k) {
      Logits p = {}, s = {};
      if (joins && kOfSrc) {
        start_product_nt<S>(p, values, value_factors, grads, k);  // here p is dp
        parts.add(p);
      }
      const Chunk<S> queries = kNeedsDots ? chunks.second() : grads;
      if (joins) {
        if constexpr (kFirst) edges.get_masks(s);
        if (kNeedsDots) start_product_nt<S, kFirst>(s, keys, key_factors, queries, k);
        finish<S>(p, s);
        if (kNeedsDots) parts.add(s);
      }
      Weights<S> weights = {}, value_weights = {};
      if (works) {
        if (draws) kept.draw(a, w, dropout, h + k);
        with_terms<kPositions>(has_terms, [&]<bool kTerms>() {
#pragma unroll
          for (int x = 0; x < 8; ++x) {
            const int j = x / 2, c = x % 2;
            const RowTerms row = RowTerms::of(rows.pair(k, j).of[c]);
#pragma unroll
            for (int v = 0; v < 2; ++v) {
              const float term = kProductsHaveTerms<score, S> ? 1 : src[k][v];
              int64_t e = 0;
              if (kTerms && edges.has(v, j, c)) e = edge_at(edges.place(v, j, c));
              auto logit = logit_of<score, kTerms>(a, s[j][2 * v + c], term, row.term, e, h + k, kUnit<score>);
              if (!kFirst) logit.value += edges.mask(v, j, c);
              const auto d =
                  masked_gradient<score>(logit, p[j][2 * v + c], row, kPositions ? kept.factor(dropout, v, j, c) : 1);
              s[j][2 * v + c] = score == Score::cosine ? d.operand * row.term : d.operand;
              p[j][2 * v + c] = d.weight;
              if (kOfSrc) grad_scalar[k][v] += d.operand;
            }
          }
        });
        if (kOfValue) value_weights.set(p, grad_value[k], grads);
      }
      if (joins && kOfValue) start_product_nn<S>(grad_value[k], value_weights, grads, k);
      if (kOfValue && !chunks.kIsDouble) finish<S>(grad_value[k], value_weights);  // and release() that of grads
      chunks.release();
      if (kSeveral && (left & (left - 1)) == 0) turn.go_on(start);
      if (works && kSumsSrc) weights.set(s, grad[k], queries);
      if (joins && kSumsSrc) start_product_nn<S>(grad[k], weights, queries, k);
      if constexpr (kSums == Sums::of_src) {
        finish<S>(grad[k], weights);
      } else if constexpr (kSumsSrc) {
        finish<S>(grad_value[k], value_weights, grad[k], weights);
      } else if constexpr (kSums == Sums::both) {
        finish<S>(grad_value[k], value_weights);
      }
    });
  }
  if (kSeveral && active == 0) turn.go_on(start);

  const bool is_one_x = kCosine && g.by_beta;
#pragma unroll
  for (int v = 0; v < 2; ++v) {
    float infinite = 0, dots[S::kHeads] = {};
    GradientOfX<S> x[S::kHeads];
    for_heads<S>(a.heads, h, [&](int k) {
      if (is_one_x) {
        x[k] = {a, g, node[v], h + k};
        dots[k] = x[k].dot(grad[k], v);
      }
      if (kSumsSrc) infinite += grad[k].nan_if_infinite(v);
      if (kOfValue) infinite += grad_value[k].nan_if_infinite(v);
      infinite += (grad_scalar[k][v] + dots[k]) * 0.0f;
    });
    parts.add(infinite);
    others |= rows_not_zero(infinite, v);
    for_heads<S>(a.heads, h, [&](int k) {
      if (is_one_x) {
        const float own = norm[k][v];
        if (others >> warp_row(v) & 1) return;
        x[k].add(grad[k], v, own, own_share(a, own, own * dots[k]), grad_value[k]);
        return;
      }
      const float scalar = lanes_sum<4>(grad_scalar[k][v]);
      if (others >> warp_row(v) & 1) return;
      if (kOfValue) {
        store_row<S>(grad_value[k], v, 1, part_of_row<S>(a, g.value, node[v], h + k), features_of_part<S>(a));
      }
      if (kOfSrc) store_gradient<score, S>(a, g.src, node[v], h + k, grad[k], v, scalar);
    });
  }
  for_rows_of<S>(others, w, [&](int n) {
    for (int k = h; k < min(h + S::kHeads, a.heads); ++k) {
      edge_by_edge::backward_column<score, S::kWholeHead, true>(a, g, n, k);
    }
  });
}

// Of a multiprocessor, as many as registers and shared memory leave room for.
template <bool kRows, class S, bool kPositions>
constexpr int kAdditiveBlocks =
    S::kSmall                 ? (kPositions ? 3 : 5)
    : S::kParts > 1           ? 1
    : S::kLarge || kPositions ? 2 + kRows
                              : 3 + (sizeof(typename S::T) == 2) + (kRows && S::kFeatures == 64);
template <bool kRows, Score score, class S, bool kPositions>
constexpr int kBlocks = score == Score::additive             ? kAdditiveBlocks<kRows, S, kPositions>
                        : S::kSmall                          ? 4 - kPositions
                        : S::kParts > 1                      ? 1
                        : kRows && !S::kScaled && !S::kLarge ? 3
                                                             : 2;

template <bool kRows, Score score, class S, bool kPositions, Sums kSums = Sums::both>
__global__ void __launch_bounds__(S::kParts* kThreads, (kBlocks<kRows, score, S, kPositions>))
    tile_bwd_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                    Sharing sharing) {
  extern __shared__ __align__(kMatrixAlignment) unsigned char memory[];
  __shared__ WindowMasks masks;
  __shared__ ScoreNorms<score, S> norms;
  __shared__ typename PartSums<S>::Shared sums;
  __shared__ typename BackwardTerms<score, S, kRows>::Shared terms;
  __shared__ typename BackwardTurns<S, kRows, kPositions>::Storage windows;
  if (kRows) let_next_begin();
  BackwardTurns<S, kRows, kPositions> turn(a, windows, sharing);
  if (!turn) return;
  const auto of_part = SharedBytes::of(memory + part<S>() * kStagesBytes<score, S, kRows>);
  for_groups<S>(a.heads, [&](int h) {
    BackwardStages<score, S, kRows, kSums> stages(masks, norms, sums, of_part);
    stages.start(a, g, turn.window(), h);
    do {
      if constexpr (kRows) {
        rows_window<score, S, kPositions>(a, g, turn, h, stages, terms);
      } else {
        columns_window<score, S, kPositions, kSums>(a, g, turn, h, stages, terms);
      }
    } while (kTakesSeveral<S, kPositions> && turn);
  });
}

template <Score score, class S, bool kPositions>
cudaError_t launch_backward(const Attention& a, const Gradients& g, cudaStream_t stream) {
  const Typed<typename S::T> typed{a};
  cudaError_t error =
      launch_tile<S, kPositions>(tile_bwd_kernel<true, score, S, kPositions>, kBlocks<true, score, S, kPositions>,
                                 kStagesBytes<score, S, true>, a, stream, typed, g);
  if (error != cudaSuccess) return error;
  const auto launch_columns = [&]<bool kDependent, Sums kSums>() {
    return launch_tile<S, kPositions, kDependent>(tile_bwd_kernel<false, score, S, kPositions, kSums>,
                                                  kBlocks<false, score, S, kPositions>, kStagesBytes<score, S, false>,
                                                  a, stream, typed, g);
  };
  if constexpr (S::kLarge && score != Score::additive) {
    error = launch_columns.template operator()<true, Sums::of_src>();
    return error == cudaSuccess ? launch_columns.template operator()<false, Sums::of_value>() : error;
  } else {
    return launch_columns.template operator()<true, Sums::both>();
  }
}

}  // namespace

bool tile_bwd_fits(const Attention& a) {
  return for_tile_shape(a, [&]<Score score, class S>() {
           const auto bytes = [&]<bool kRows>() {
             return S::kParts * kStagesBytes<score, S, kRows> + sizeof(typename BackwardTerms<score, S, kRows>::Shared);
           };
           return check_room<score, S>(
               static_cast<int>(std::max(bytes.template operator()<true>(), bytes.template operator()<false>())));
         }) == cudaSuccess;
}

cudaError_t tile_bwd(const Attention& a, const Gradients& g, cudaStream_t stream) {
  return for_tile_shape(a, [&]<Score score, class S>() {
    return needs_positions<score, S>(a) ? launch_backward<score, S, true>(a, g, stream)
                                        : launch_backward<score, S, false>(a, g, stream);
  });
}

}  // namespace dfgnn::cuda
