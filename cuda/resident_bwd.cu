// Resident backward: one block makes all gradients of a tile (resident.cuh).
//
//   dP = dO V^T, P = exp(scale Q K^T - lse), dS = P (keep dP - delta), delta = sum over a row's edges of keep P dP
//   dQ = scale dS K, dK = scale dS^T Q, dV = (keep P)^T dO
//
// keep P and dS of the edges stay in shared memory: sums over a row's edges give dQ; then they are put into the order
// of the edges by source, whose sums give dK and dV. No atomics on numbers, so that results are the same bits. With
// cosine scores K is V, and scale a number of each node on either side; additive scores do without Q, K and scale:
// their P comes of two numbers, and dS times the slope sums up to the gradients of those.
#include "resident.cuh"
#include "resident_shapes.cuh"

namespace dfgnn::cuda {
namespace {

using namespace resident;

// Shared memory: a chunk, or what is being reordered, with the entries of two lists an edge and a place for each row;
// from the end backwards what slices have of rows and of columns; between them, of slots, two numbers and an offset
// each, before the numbers the other nodes of edges.
template <class S>
struct Layout {
  unsigned char* memory;
  int64_t bytes;
  int nodes;

  __device__ __forceinline__ int64_t row_bytes() const { return row_bytes_of(nodes); }
  __device__ __forceinline__ int64_t nodes_begin() const { return bytes - 2 * row_bytes(); }
  __device__ __forceinline__ unsigned char* rows() const { return memory + nodes_begin(); }
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

// A row's dots, or what the score does without, become keep P, and dP becomes the gradient of the dots, or of the two
// numbers, whose sum is then stored. By one thread.
template <Score score, class S>
__device__ __forceinline__ void differentiate(const Typed<typename S::T>& a, const Gradients& g,
                                              const Dropout<float>& dropout, const Tile& tile, const Slices<S>& edges,
                                              float* weights, float* gradients, int place, int row, int h) {
  constexpr bool kAdditive = score == Score::additive;
  const int i = tile.first + max(row, 0);
  const int64_t number = a.scalar(i, h);
  const float own_term = dst_term<score>(a, i, h), lse = a.at(g.lse, number);
  float2 *ps = reinterpret_cast<float2*>(weights), *dps = reinterpret_cast<float2*>(gradients);
  const auto term_of = [&](int slot) { return src_term<score>(a, tile.first + edges.node(slot), h); };
  const auto logit = [&](float dot, float term, int edge) {
    return logit_of<score>(a, dot, own_term, term, edges.first_edge + edge, h);
  };
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
    p = is_edge ? exp_difference(logit(kAdditive ? 0.f : p, term_of(slot), edge).value, lse) : 0.f;
    dp = is_edge ? dp * dropout.factor(edges.first_edge + edge, h) : 0.f;
    delta += p * dp;
  };
  for_edges(differentiate_softmax);
  const auto differentiate_logit = [&](float& p, float& dp, int slot, int edge, bool is_edge) {
    const float ds = p * (dp - delta);
    dp = 0;
    if (!is_edge) return;
    const int64_t position = edges.first_edge + edge;
    dp = ds * a.logit_scale;
    if constexpr (kAdditive) dp = ds * logit(0, term_of(slot), edge).slope;
    if constexpr (score == Score::cosine) dp = ds * term_of(slot);
    if (g.bias) static_cast<float*>(g.bias)[a.scalar(position, h)] = ds;
    if (kAdditive && g.a_edge) static_cast<float*>(g.a_edge)[a.scalar(position, h)] = dp;
    p *= dropout.factor(position, h);
    sum += dp;
  };
  for_edges(differentiate_logit);
  if (kAdditive && row >= 0) static_cast<float*>(g.dst)[number] = sum;
}

template <Score score, class S>
__device__ __forceinline__ bool backward_tile(const Typed<typename S::T>& a, const Gradients& g, const Tile& tile,
                                              int h, unsigned char* memory, int bytes) {
  using List = typename Slices<S>::List;
  const Layout<S> layout{memory, bytes, tile.nodes};
  const Chunk<S> chunk{memory, tile.nodes};
  if (!layout.fit_nodes()) return false;
  const auto rows_of = [&](const void* data) { return Rows(a, data, tile, h); };
  const int chunks = a.head_dim * static_cast<int>(sizeof(typename S::T)) / kRowBytes;
  Slices<S> sides[] = {Slices<S>(tile, layout.rows()), Slices<S>(tile, layout.columns())};
  const Index* ptrs[] = {&a.rowptr, &a.colptr};
  Slices<S>& rows = sides[0];
  Slices<S>& columns = sides[1];
  bool fits = sort_rows(sides, ptrs, a.num_edges, [&] {
    chunk.start(rows_of(a.value), 0);
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
  constexpr bool kNeedsDots = score != Score::additive;
  constexpr bool kShared = score == Score::cosine;  // K is V
  // Each chunk of V with dO, then each of K with Q; those that are the same, one after another.
  const int passes = kNeedsDots ? 2 * chunks : chunks;
#pragma unroll 1
  for (int i = 0; i < passes; ++i) {
    const auto chunk_of = [&](int pass) { return kShared ? pass / 2 : pass % chunks; };
    const auto is_logits = [&](int pass) { return kShared ? pass % 2 == 1 : pass >= chunks; };
    OwnRows<S> own(rows, rows_of(is_logits(i) ? a.dst : g.grad_out), chunk_of(i));
    if (!kShared || !is_logits(i)) chunk.wait();
    own.add_dots(chunk, is_logits(i) ? weights : gradients);
    if (kShared && !is_logits(i)) continue;
    __syncthreads();
    if (i + 1 < passes) chunk.start(rows_of(!kShared && is_logits(i + 1) ? a.src : a.value), chunk_of(i + 1));
  }
  const Dropout dropout(a);
  rows.for_places(
      [&](int place, int row) { differentiate<score>(a, g, dropout, tile, rows, weights, gradients, place, row, h); });
  columns.fetch(a.row);
  columns.fetch(a.perm);
  __syncthreads();  // the last chunk of K is there still
#pragma unroll 1
  for (int c = chunks - 1; kNeedsDots && c >= 0; --c) {
    store_sums<S>(rows, chunk, gradients, rows_of(g.dst), c);
    __syncthreads();
    if (c == 0) break;
    chunk.start(rows_of(a.src), c - 1);
    chunk.wait();
  }

  float4* reordered = reinterpret_cast<float4*>(memory);
  uint16_t *nodes = layout.list(0, edge_bytes), *positions = layout.list(1, edge_bytes);
  uint16_t* places = layout.places(edge_bytes);  // of a row in the order
  columns.copy({List{a.row, tile.first, tile.nodes, nodes}, List{a.perm, rows.first_edge, rows.edges(), positions}});
  for (int i = threadIdx.x; i < tile.nodes; i += S::kThreads) places[rows.order[i]] = static_cast<uint16_t>(i);
  __syncthreads();
  const auto numbers_of = [&](int edge, int column, bool is_edge, unsigned& offset) {
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
    if constexpr (score == Score::cosine) {  // what the columns' sums are of is scaled by the rows' terms
      numbers.y *= dst_term<score>(a, tile.first + node, h) / src_term<score>(a, tile.first + column, h);
    }
    return numbers;
  };
  columns.for_places([&](int place, int column) {
    float sum = 0;
    columns.for_batches(place, column, [&](int batch, int edge, int left) {
      uint2 offsets;
      const float2 x = numbers_of(edge, column, left > 0, offsets.x),
                   y = numbers_of(edge + 1, column, left > 1, offsets.y);
      columns.offsets[batch] = offsets;
      reordered[batch] = {x.x, y.x, x.y, y.y};
      sum += x.y + y.y;
    });
    if (!kNeedsDots && column >= 0) static_cast<float*>(g.src)[a.scalar(tile.first + column, h)] = sum;
  });
  if (!__syncthreads_and(fits)) return false;
  for (int batch = threadIdx.x; batch < columns.batches() * kGroups; batch += S::kThreads) {
    const float4 numbers = reordered[batch];
    reinterpret_cast<float2*>(weights)[batch] = {numbers.x, numbers.y};
    reinterpret_cast<float2*>(gradients)[batch] = {numbers.z, numbers.w};
  }
  __syncthreads();

  chunk.start(rows_of(kNeedsDots ? a.dst : g.grad_out), chunks - 1);
  chunk.set_zeros();
#pragma unroll 1
  for (int i = passes - 1; i >= 0; --i) {  // dK, then dV
    const bool is_src = kNeedsDots && i >= chunks;
    chunk.wait();
    store_sums<S>(columns, chunk, is_src ? gradients : weights, rows_of(is_src ? g.src : g.value), i % chunks);
    if (i == 0) break;
    __syncthreads();
    chunk.start(rows_of(kNeedsDots && i - 1 >= chunks ? a.dst : g.grad_out), (i - 1) % chunks);
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
