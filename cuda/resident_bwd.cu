// Resident backward: one block makes all gradients of a tile (resident.cuh).
//
//   dP = dO V^T, P = exp(scale Q K^T - lse), dS = P (keep dP - delta), delta = sum over a row's edges of keep P dP
//   dQ = scale dS K, dK = scale dS^T Q, dV = (keep P)^T dO
//
// keep P and dS of the edges stay in shared memory: sums over a row's edges give dQ; then they are put into the order
// of the edges by source, whose sums give dK and dV. No atomics on numbers, so that results are the same bits. Additive
// scores do without Q, K and scale: their P comes of two numbers, and dS times the slope sums up to the gradients of
// those.
//
// With cosine scores Q, K and V are one matrix X, of which there is one gradient. scale is a number of each edge, beta
// r_i r_j, with r = 1 / |x|, which depends on X as well: with it dots have the gradient D = scale dS, and
//   dX = D X + D^T X + (keep P)^T dO - (row sums + column sums of D QK^T) r^2 X.
// What stays of the edges are dots, whose P is made again, and D.
#include "resident.cuh"
#include "resident_shapes.cuh"

namespace dfgnn::cuda {
namespace {

using namespace resident;

// Shared memory: a chunk, or what is being reordered, with the entries of two lists an edge and a place for each row;
// from the end backwards what slices have of rows and of columns, and cosine's numbers of nodes; between them, of
// slots, two numbers and an offset each, before the numbers the other nodes of edges.
template <class S>
struct Layout {
  unsigned char* memory;
  int64_t bytes;
  int nodes, numbers;  // of each node

  __device__ __forceinline__ int64_t row_bytes() const { return row_bytes_of(nodes); }
  __device__ __forceinline__ int64_t nodes_begin() const {
    return bytes - 2 * row_bytes() - numbers * number_bytes_of(nodes);
  }
  __device__ __forceinline__ float* number(int which) const {
    return reinterpret_cast<float*>(memory + nodes_begin() + which * number_bytes_of(nodes));
  }
  __device__ __forceinline__ unsigned char* rows() const { return memory + bytes - 2 * row_bytes(); }
  __device__ __forceinline__ unsigned char* columns() const { return memory + bytes - row_bytes(); }
  __device__ __forceinline__ uint16_t* others() const {
    return reinterpret_cast<uint16_t*>(memory + chunk_bytes_of(nodes));
  }
  __device__ __forceinline__ uint16_t* list(int which, int64_t edge_bytes) const {
    return reinterpret_cast<uint16_t*>(memory + 2 * edge_bytes + which * edge_bytes / 2);
  }
  __device__ __forceinline__ uint16_t* places(int64_t edge_bytes) const {
    return reinterpret_cast<uint16_t*>(memory + 3 * edge_bytes);
  }
  __device__ __forceinline__ unsigned char* slots(int which, int64_t edge_bytes) const {
    return memory + nodes_begin() - (which + 1) * edge_bytes;
  }
  __device__ __forceinline__ bool fit_nodes() const { return chunk_bytes_of(nodes) <= nodes_begin(); }
  __device__ __forceinline__ bool fit_edges(int64_t edge_bytes) const {
    return max(chunk_bytes_of(nodes), 3 * edge_bytes + place_bytes_of(nodes)) + 3 * edge_bytes <= nodes_begin();
  }
};

// dK, then dV, in the order of the edges by source.
template <bool kHasSrc, class S, class RowsOf>
__device__ __forceinline__ void store_columns(const Typed<typename S::T>& a, const Gradients& g,
                                              const Slices<S>& columns, const Chunk<S>& chunk, const float* weights,
                                              const float* gradients, const RowsOf& rows_of, int chunks) {
  chunk.start(rows_of(kHasSrc ? a.dst : g.grad_out, chunks - 1));
  chunk.set_zeros();
#pragma unroll 1
  for (int i = kHasSrc ? 2 * chunks - 1 : chunks - 1; i >= 0; --i) {
    const bool is_src = kHasSrc && i >= chunks;
    chunk.wait();
    store_sums<S>(columns, chunk, is_src ? gradients : weights, rows_of(is_src ? g.src : g.value, i % chunks));
    if (i == 0) break;
    __syncthreads();
    chunk.start(rows_of(kHasSrc && i - 1 >= chunks ? a.dst : g.grad_out, (i - 1) % chunks));
  }
}

// What cosine's dX has beside the rows' sums, which are there: each chunk of X, then of dO, those first that the rows
// have come to last, whose sums are in the cache.
template <class S, class RowsOf>
__device__ __forceinline__ void add_columns_of_x(const Typed<typename S::T>& a, const Gradients& g,
                                                 const Slices<S>& columns, const Chunk<S>& chunk, const float* weights,
                                                 const float* gradients, const float* projections,
                                                 const RowsOf& rows_of, int chunks) {
  chunk.start(rows_of(a.src, 0));
  chunk.set_zeros();
#pragma unroll 1
  for (int i = 0; i < 2 * chunks; ++i) {
    const bool is_x = i % 2 == 0;
    chunk.wait();
    store_sums<S, true>(columns, chunk, is_x ? gradients : weights, rows_of(g.value, i / 2),
                        is_x ? projections : nullptr);
    if (i + 1 == 2 * chunks) break;
    __syncthreads();
    chunk.start(is_x ? rows_of(g.grad_out, i / 2) : rows_of(a.src, i / 2 + 1));
  }
}

// A row's dP becomes the gradient of the dots, or of the two numbers of additive scores, whose sum is then stored, and
// its dots, or what the score does without, keep P; cosine's stay. `projections`: see backward_tile. By one thread.
template <Score score, class S>
__device__ __forceinline__ void differentiate(const NodeTerms<score, typename S::T>& terms, const Gradients& g,
                                              const Dropout<float>& dropout, const Slices<S>& edges, float* weights,
                                              float* gradients, float* projections, int place, int row) {
  constexpr bool kAdditive = score == Score::additive, kCosine = score == Score::cosine;
  const auto& a = terms.a;
  const int h = terms.h, node = max(row, 0);
  const int64_t number = a.scalar(terms.tile.first + node, h);
  const float own_term = terms.dst(node), lse = a.at(g.lse, number);
  float2 *ps = reinterpret_cast<float2*>(weights), *dps = reinterpret_cast<float2*>(gradients);
  const auto logit = [&](float dot, int slot, int edge) {
    return logit_of<score>(a, dot, own_term, terms.src(edges.node(slot)), edges.first_edge + edge, h);
  };
  const auto weight = [&](float dot, int slot, int edge) { return exp_difference(logit(dot, slot, edge).value, lse); };
  float delta = g.grad_lse ? -a.at(g.grad_lse, number) : 0.f, sum = 0;
  const auto for_edges = [&](const auto& visit) {
    edges.for_batches(place, row, [&](int batch, int edge, int left) {
      float2 p = ps[batch], dp = dps[batch];
      visit(p.x, dp.x, batch * kBatch, edge, left > 0);
      visit(p.y, dp.y, batch * kBatch + 1, edge + 1, left > 1);
      ps[batch] = p;
      dps[batch] = dp;
    });
  };
  const auto differentiate_softmax = [&](float& p, float& dp, int slot, int edge, bool is_edge) {  // p was the dot
    const float own = is_edge ? weight(kAdditive ? 0.f : p, slot, edge) : 0.f;
    if (!kCosine) p = own;
    dp = is_edge ? dp * dropout.factor(edges.first_edge + edge, h) : 0.f;
    delta += own * dp;
  };
  for_edges(differentiate_softmax);
  const auto differentiate_logit = [&](float& p, float& dp, int slot, int edge, bool is_edge) {
    if (!is_edge) {
      dp = 0;
      return;
    }
    const float ds = (kCosine ? weight(p, slot, edge) : p) * (dp - delta);
    const int64_t position = edges.first_edge + edge;
    if (g.bias) static_cast<float*>(g.bias)[a.scalar(position, h)] = ds;
    if constexpr (kCosine) {
      const float by_own_term = ds * terms.src(edges.node(slot));
      sum += by_own_term * p;
      dp = own_term * by_own_term;
    } else {
      dp = ds * (kAdditive ? logit(0, slot, edge).slope : a.logit_scale);
      if (kAdditive && g.a_edge) static_cast<float*>(g.a_edge)[a.scalar(position, h)] = dp;
      p *= dropout.factor(position, h);
      sum += dp;
    }
  };
  for_edges(differentiate_logit);
  if (kAdditive && row >= 0) static_cast<float*>(g.dst)[number] = sum;
  if (kCosine && row >= 0) {
    static_cast<float*>(g.by_beta)[number] = terms.norms[row] * sum;
    projections[row] = own_term * sum;
  }
}

template <Score score, class S>
__device__ __forceinline__ bool backward_tile(const Typed<typename S::T>& a, const Gradients& g, const Tile& tile,
                                              int h, unsigned char* memory, int bytes) {
  using List = typename Slices<S>::List;
  constexpr bool kNeedsDots = score != Score::additive, kCosine = score == Score::cosine;
  const Layout<S> layout{memory, bytes, tile.nodes, kCosine ? 2 : 0};
  const Chunk<S> chunk{memory, tile.nodes};
  if (!layout.fit_nodes()) return false;
  const auto rows_of = [&](const void* data, int chunk_number) { return Rows(a, data, tile, h, chunk_number); };
  const int chunks = a.head_dim * static_cast<int>(sizeof(typename S::T)) / kRowBytes;
  // Of cosine scores: norms, as NodeTerms have them; and row sums and column sums of D QK^T, then, with the factor, of
  // X.
  float *norms = layout.number(0), *projections = layout.number(1);
  const NodeTerms<score, typename S::T> terms{a, tile, h, norms};
  Slices<S> sides[] = {Slices<S>(tile, layout.rows()), Slices<S>(tile, layout.columns())};
  const Index* ptrs[] = {&a.rowptr, &a.colptr};
  Slices<S>& rows = sides[0];
  Slices<S>& columns = sides[1];
  bool fits = sort_rows(sides, ptrs, a.num_edges, [&] {
    chunk.start(rows_of(a.value, 0));
    chunk.set_zeros();
  });
  const int64_t edge_bytes = fits ? edge_bytes_of(max(rows.batches(), columns.batches())) : 0;
  fits = fits && rows.edges() == columns.edges() && layout.fit_edges(edge_bytes);
  rows.offsets = columns.offsets = reinterpret_cast<uint2*>(layout.slots(0, edge_bytes));
  float* weights = reinterpret_cast<float*>(layout.slots(1, edge_bytes));
  float* gradients = reinterpret_cast<float*>(layout.slots(2, edge_bytes));
  if (fits) {
    rows.copy({List{a.col, tile.first, tile.nodes, layout.others()}});
    __syncthreads();
    fits = rows.fill(layout.others());
  }
  if (!__syncthreads_and(fits)) {
    chunk.wait();
    return false;
  }
  // Each chunk of V with dO, then each of K with Q; those that are the same, one after another.
  const int passes = kNeedsDots ? 2 * chunks : chunks;
#pragma unroll 1
  for (int i = 0; i < passes; ++i) {
    const bool is_logits = kCosine ? i % 2 == 1 : i >= chunks;
    const int c = kCosine ? i / 2 : i % chunks;
    OwnRows<S, kCosine> own(rows, kCosine && is_logits ? chunk.rows() : rows_of(is_logits ? a.dst : g.grad_out, c));
    if (!kCosine || !is_logits) chunk.wait();
    own.add_dots(chunk, c == 0, is_logits ? weights : gradients);
    if (kCosine && !is_logits) continue;
    if (kCosine) chunk.add_to_norms(c == 0, c + 1 == chunks, a.eps, norms);
    __syncthreads();
    if (i + 1 == passes) break;
    chunk.start(!kCosine && i + 1 >= chunks ? rows_of(a.src, (i + 1) % chunks)
                                            : rows_of(a.value, kCosine ? c + 1 : i + 1));
  }
  const Dropout dropout(a);
  rows.for_places([&](int place, int row) {
    differentiate<score>(terms, g, dropout, rows, weights, gradients, projections, place, row);
  });
  columns.fetch(a.row);
  columns.fetch(a.perm);
  __syncthreads();  // the last chunk of K is there still
#pragma unroll 1
  for (int c = chunks - 1; kNeedsDots && c >= 0; --c) {
    store_sums<S>(rows, chunk, gradients, rows_of(kCosine ? g.value : g.dst, c));
    __syncthreads();
    if (c == 0) break;
    chunk.start(rows_of(a.src, c - 1));
    chunk.wait();
  }

  float4* reordered = reinterpret_cast<float4*>(memory);
  uint16_t *nodes = layout.list(0, edge_bytes), *positions = layout.list(1, edge_bytes);
  uint16_t* places = layout.places(edge_bytes);  // of a row in the order
  columns.copy({List{a.row, tile.first, tile.nodes, nodes}, List{a.perm, rows.first_edge, rows.edges(), positions}});
  for (int i = threadIdx.x; i < tile.nodes; i += S::kThreads) places[rows.order[i]] = static_cast<uint16_t>(i);
  __syncthreads();
  // keep P and the gradient of the dot of a column's edge; adds to `sum` what the column sums up of edges.
  const auto numbers_of = [&](int edge, int column, bool is_edge, unsigned& offset, float& sum) {
    offset = columns.offset_of(Slices<S>::kNone);
    if (!is_edge) return float2{0, 0};
    const int node = nodes[edge], e = node == Slices<S>::kNone ? -1 : positions[edge] - rows.begins[node];
    if (e < 0 || e >= rows.degree(node)) {
      fits = false;
      return float2{0, 0};
    }
    offset = columns.offset_of(node);
    const int from = rows.slot(places[node], e);
    float2 numbers{weights[from], gradients[from]};
    if constexpr (kCosine) {
      const int64_t position = rows.first_edge + positions[edge];
      const float dot = numbers.x,
                  logit = logit_of<score>(a, dot, terms.dst(node), terms.src(column), position, h).value;
      numbers.x = exp_difference(logit, a.at(g.lse, a.scalar(tile.first + node, h))) * dropout.factor(position, h);
      sum += numbers.y * dot;
    } else {
      sum += numbers.y;
    }
    return numbers;
  };
  columns.for_places([&](int place, int column) {
    float sum = 0;
    columns.for_batches(place, column, [&](int batch, int edge, int left) {
      uint2 offsets;
      const float2 x = numbers_of(edge, column, left > 0, offsets.x, sum),
                   y = numbers_of(edge + 1, column, left > 1, offsets.y, sum);
      columns.offsets[batch] = offsets;
      reordered[batch] = {x.x, y.x, x.y, y.y};
    });
    if (!kNeedsDots && column >= 0) static_cast<float*>(g.src)[a.scalar(tile.first + column, h)] = sum;
    if (kCosine && column >= 0) {
      projections[column] = own_share(a, norms[column], projections[column] + sum);
    }
  });
  if (!__syncthreads_and(fits)) return false;
  for (int batch = threadIdx.x; batch < columns.batches() * kGroups; batch += S::kThreads) {
    const float4 numbers = reordered[batch];
    reinterpret_cast<float2*>(weights)[batch] = {numbers.x, numbers.y};
    reinterpret_cast<float2*>(gradients)[batch] = {numbers.z, numbers.w};
  }
  __syncthreads();

  if constexpr (kCosine) {
    add_columns_of_x<S>(a, g, columns, chunk, weights, gradients, projections, rows_of, chunks);
  } else {
    store_columns<kNeedsDots, S>(a, g, columns, chunk, weights, gradients, rows_of, chunks);
  }
  return true;
}

template <Score score, class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    resident_bwd_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                        int bytes) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int h = blockIdx.y;
  for_tiles<S>(
      a, [&](const Tile& tile) { return backward_tile<score, S>(a, g, tile, h, memory, bytes); },
      [&](int n) {
        edge_by_edge::backward_row<score, kMostFeatures, false>(a, g, n, h);
        edge_by_edge::backward_column<score, kMostFeatures, false>(a, g, n, h);
      });
}

}  // namespace

bool resident_bwd_fits(const Attention& a) { return fits_device(a, Pass::backward); }

cudaError_t resident_bwd(const Attention& a, const Gradients& g, cudaStream_t stream) {
  return for_resident_shape(a, Pass::backward, [&]<Score score, class S>() {
    return launch_resident<S>(resident_bwd_kernel<score, S>, a, stream, Typed<typename S::T>{a}, g);
  });
}

}  // namespace dfgnn::cuda
