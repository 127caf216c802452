// Resident backward of cosine scores (resident_bwd.cu), of one matrix X.
#pragma once

#include "gradient.cuh"
#include "resident_dots.cuh"
#include "resident_layout.cuh"
#include "resident_sums.cuh"
#include "resident_terms.cuh"

namespace dfgnn::cuda::resident {

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

// A row's dP becomes the gradient of the dots, which stay. `projections`: see one_x_tile. By one thread.
template <class S>
__device__ __forceinline__ void differentiate(const NodeTerms<Score::cosine, typename S::T>& terms, const Gradients& g,
                                              const Dropout<float>& dropout, const Slices<S>& edges, const float* dots,
                                              float* gradients, float* projections, int place, int row) {
  const auto& a = terms.a;
  const int h = terms.h, node = max(row, 0);
  const int64_t number = a.scalar(terms.tile.first + node, h);
  const float own_term = terms.dst(node), lse = a.at(g.lse, number);
  const float2* pairs = reinterpret_cast<const float2*>(dots);
  float2* dps = reinterpret_cast<float2*>(gradients);
  const auto weight = [&](float dot, int slot, int edge) {
    const float term = terms.src(edges.node(slot));
    return exp_difference(logit_of<Score::cosine>(a, dot, own_term, term, edges.first_edge + edge, h).value, lse);
  };
  float delta = g.grad_lse ? -a.at(g.grad_lse, number) : 0.f, sum = 0;
  const auto for_edges = [&](const auto& visit) {
    edges.for_batches(place, row, [&](int batch, int edge, int left) {
      const float2 pair = pairs[batch];
      float2 dp = dps[batch];
      visit(pair.x, dp.x, batch * kBatch, edge, left > 0);
      visit(pair.y, dp.y, batch * kBatch + 1, edge + 1, left > 1);
      dps[batch] = dp;
    });
  };
  const auto differentiate_softmax = [&](float dot, float& dp, int slot, int edge, bool is_edge) {
    dp = is_edge ? dp * dropout.factor(edges.first_edge + edge, h) : 0.f;
    if (is_edge) delta += weight(dot, slot, edge) * dp;
  };
  for_edges(differentiate_softmax);
  if (row >= 0 && !g.grad_lse && edges.degree(row) == 1) delta = no_delta<float>();
  const auto differentiate_logit = [&](float dot, float& dp, int slot, int edge, bool is_edge) {
    if (!is_edge) return;
    const float ds = logit_gradient(weight(dot, slot, edge), 1.f, dp, delta);
    if (g.bias) static_cast<float*>(g.bias)[a.scalar(edges.first_edge + edge, h)] = ds;
    const float by_own_term = ds * terms.src(edges.node(slot));
    sum += by_own_term * dot;
    dp = own_term * by_own_term;
  };
  for_edges(differentiate_logit);
  if (row >= 0) {
    static_cast<float*>(g.by_beta)[number] = terms.norms[row] * sum;
    projections[row] = own_term * sum;
  }
}

template <class S>
__device__ __forceinline__ bool one_x_tile(const Typed<typename S::T>& a, const Gradients& g, const Tile& tile, int h,
                                           unsigned char* memory, int bytes) {
  using List = typename Slices<S>::List;
  const Layout layout{memory, bytes, tile.nodes, 2};
  const Chunk<S> chunk{memory, tile.nodes};
  if (!layout.fit_nodes()) return false;
  const auto rows_of = [&](const void* data, int chunk_number) { return Rows(a, data, tile, h, chunk_number); };
  const int chunks = chunks_of(a);
  // Norms, as NodeTerms have them; and row sums and column sums of D XX^T, then, with the factor, of X.
  float *norms = layout.number(0), *projections = layout.number(1);
  const NodeTerms<Score::cosine, typename S::T> terms{a, tile, h, norms};
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
  float* dots = reinterpret_cast<float*>(layout.slots(1, edge_bytes));  // and by column keep P
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
  // Each chunk with dO, then with itself.
#pragma unroll 1
  for (int i = 0; i < 2 * chunks; ++i) {
    const bool is_logits = i % 2 == 1;
    const int c = i / 2;
    OwnRows<S, true> own(rows, is_logits ? chunk.rows() : rows_of(g.grad_out, c));
    if (!is_logits) chunk.wait();
    own.add_dots(chunk, c == 0, is_logits ? dots : gradients);
    if (!is_logits) continue;
    chunk.add_to_norms(c == 0, c + 1 == chunks, a.eps, norms);
    __syncthreads();
    if (c + 1 < chunks) chunk.start(rows_of(a.value, c + 1));
  }
  const Dropout dropout(a);
  rows.for_places(
      [&](int place, int row) { differentiate<S>(terms, g, dropout, rows, dots, gradients, projections, place, row); });
  columns.fetch(a.row);
  columns.fetch(a.perm);
  __syncthreads();  // the last chunk is there still
#pragma unroll 1
  for (int c = chunks - 1; c >= 0; --c) {
    store_sums<S>(rows, chunk, gradients, rows_of(g.value, c));
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
    const float dot = dots[from], gradient = gradients[from];
    const int64_t position = rows.first_edge + positions[edge];
    const float logit = logit_of<Score::cosine>(a, dot, terms.dst(node), terms.src(column), position, h).value;
    sum += gradient * dot;
    return float2{exp_difference(logit, a.at(g.lse, a.scalar(tile.first + node, h))) * dropout.factor(position, h),
                  gradient};
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
    if (column >= 0) projections[column] = own_share(a, norms[column], projections[column] + sum);
  });
  if (!__syncthreads_and(fits)) return false;
  for (int batch = threadIdx.x; batch < columns.batches() * kGroups; batch += S::kThreads) {
    const float4 numbers = reordered[batch];
    reinterpret_cast<float2*>(dots)[batch] = {numbers.x, numbers.y};
    reinterpret_cast<float2*>(gradients)[batch] = {numbers.z, numbers.w};
  }
  __syncthreads();

  add_columns_of_x<S>(a, g, columns, chunk, dots, gradients, projections, rows_of, chunks);
  return true;
}

}  // namespace dfgnn::cuda::resident
