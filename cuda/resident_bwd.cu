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

// Shared memory: a chunk, or what is being reordered and a place for each row; from the end backwards what slices have
// of rows and of columns; between them, of slots, two numbers and an offset each.
template <class S>
struct Layout {
  unsigned char* memory;
  int64_t bytes;
  int nodes;

  __device__ __forceinline__ int64_t row_bytes() const { return row_bytes_of(nodes); }
  __device__ __forceinline__ int64_t nodes_begin() const { return bytes - 2 * row_bytes(); }
  __device__ __forceinline__ unsigned char* rows() const { return memory + nodes_begin(); }
  __device__ __forceinline__ unsigned char* columns() const { return memory + bytes - row_bytes(); }
  __device__ __forceinline__ uint16_t* places(int64_t edge_bytes) const {
    return reinterpret_cast<uint16_t*>(memory + 2 * edge_bytes);
  }
  __device__ __forceinline__ unsigned char* slots(int which, int64_t edge_bytes) const {
    return memory + nodes_begin() - (which + 1) * edge_bytes;
  }
  __device__ __forceinline__ bool fit_nodes() const { return chunk_bytes_of(nodes) <= nodes_begin(); }
  __device__ __forceinline__ bool fit_edges(int64_t edge_bytes) const {
    return max(chunk_bytes_of(nodes), 2 * edge_bytes + place_bytes_of(nodes)) + 3 * edge_bytes <= nodes_begin();
  }
};

// Stores the sum of what a group's lanes have as the number of a row's node.
template <class T>
__device__ __forceinline__ void store_number(const Typed<T>& a, void* data, int node, int h, const SliceRow& row,
                                             float x) {
  x = lanes_sum<kLanes>(x);
  if (row.live && lane_in_group() == 0) static_cast<float*>(data)[a.scalar(node, h)] = x;
}

// The row's dots, or what the score does without, become keep P, and dP becomes the gradient of the dots, or of the two
// numbers, whose sum is then stored.
template <Score score, class S>
__device__ __forceinline__ void differentiate(const Typed<typename S::T>& a, const Gradients& g, const Tile& tile,
                                              const Slices<S>& edges, float* weights, float* gradients, int slice,
                                              const SliceRow& row, int h) {
  constexpr bool kAdditive = score == Score::additive;
  const Dropout dropout(a);
  const int i = tile.first + row.node;
  const int64_t node_and_head = a.scalar(i, h);
  const float lse = a.at(g.lse, node_and_head), own_term = dst_term<score>(a, i, h);
  const auto logit = [&](int slot, int64_t position) {
    const float term = src_term<score>(a, tile.first + edges.node(slot), h);
    return logit_of<score>(a, kAdditive ? 0.f : weights[slot], own_term, term, position, h);
  };
  const auto factor = [&](int slot, int64_t position) {
    if constexpr (kAdditive) return logit(slot, position).slope;
    return score == Score::dot ? a.logit_scale : src_term<score>(a, tile.first + edges.node(slot), h);
  };
  float delta = 0, sum = 0;
  __syncwarp();
  for_edges_of(edges, slice, row, [&](int slot, int64_t position) {
    float p = 0, dp = 0;
    if (position >= 0) {
      p = exp_difference(logit(slot, position).value, lse);
      dp = gradients[slot] * dropout.factor(position, h);
    }
    delta += p * dp;
    weights[slot] = p;
    gradients[slot] = dp;
  });
  delta = lanes_sum<kLanes>(delta);
  if (g.grad_lse) delta -= a.at(g.grad_lse, node_and_head);
  for_edges_of(edges, slice, row, [&](int slot, int64_t position) {
    const float p = weights[slot], ds = p * (gradients[slot] - delta);
    float operand = 0;
    if (position >= 0) operand = ds * factor(slot, position);
    if (g.bias && position >= 0) static_cast<float*>(g.bias)[a.scalar(position, h)] = ds;
    if (kAdditive && g.a_edge && position >= 0) static_cast<float*>(g.a_edge)[a.scalar(position, h)] = operand;
    if (dropout.active() && position >= 0) weights[slot] = p * dropout.factor(position, h);
    gradients[slot] = operand;
    sum += operand;
  });
  if constexpr (kAdditive) store_number(a, g.dst, i, h, row, sum);
}

template <Score score, class S>
__device__ __forceinline__ bool backward_tile(const Typed<typename S::T>& a, const Gradients& g, const Tile& tile,
                                              int h, unsigned char* memory, int bytes) {
  const Layout<S> layout{memory, bytes, tile.nodes};
  const Chunk<S> chunk{memory, tile.nodes};
  if (!layout.fit_nodes()) return false;
  const auto rows_of = [&](const void* data) { return Rows(a, data, tile, h); };
  const int chunks = a.head_dim * static_cast<int>(sizeof(typename S::T)) / kRowBytes;
  chunk.start(rows_of(a.value), 0);
  chunk.set_zeros();
  Slices<S> rows(tile, layout.rows()), columns(tile, layout.columns());
  bool fits = rows.sort(a.rowptr, a.num_edges);
  if (fits) rows.fetch(a.col);
  if (fits) fits = columns.sort(a.colptr, a.num_edges);
  const int64_t edge_bytes = fits ? edge_bytes_of(max(rows.batches(), columns.batches())) : 0;
  fits = fits && rows.edges() == columns.edges() && layout.fit_edges(edge_bytes);
  rows.offsets = columns.offsets = reinterpret_cast<uint4*>(layout.slots(0, edge_bytes));
  float* weights = reinterpret_cast<float*>(layout.slots(1, edge_bytes));
  float* gradients = reinterpret_cast<float*>(layout.slots(2, edge_bytes));
  if (fits) fits = rows.fill(a.col);
  if (!__syncthreads_and(fits)) {
    chunk.wait();
    return false;
  }
  constexpr bool kNeedsDots = score != Score::additive;
  constexpr bool kShared = score == Score::cosine;  // K is V
  const auto finish_last = [&](int c) {             // where that is the last chunk
    return [&, c](int slice, const SliceRow& row) {
      if (c + 1 == chunks) differentiate<score>(a, g, tile, rows, weights, gradients, slice, row, h);
    };
  };
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    chunk.wait();
    if constexpr (kNeedsDots) {
      add_dots<S>(rows, rows_of(g.grad_out), c, chunk, gradients, [](int, const SliceRow&) {});
    } else {
      add_dots<S>(rows, rows_of(g.grad_out), c, chunk, gradients, finish_last(c));
    }
    if constexpr (kShared) {
      add_dots<S>(rows, rows_of(a.dst), c, chunk, weights, finish_last(c));
      if (c + 1 == chunks) break;
    }
    __syncthreads();
    if (c + 1 < chunks) {
      chunk.start(rows_of(a.value), c + 1);
    } else if (kNeedsDots) {
      chunk.start(rows_of(a.src), 0);
    }
  }
#pragma unroll 1
  for (int c = 0; kNeedsDots && !kShared && c < chunks; ++c) {
    chunk.wait();
    add_dots<S>(rows, rows_of(a.dst), c, chunk, weights, finish_last(c));
    if (c + 1 == chunks) break;
    __syncthreads();
    chunk.start(rows_of(a.src), c + 1);
  }
  columns.fetch(a.row);
  columns.fetch(a.perm);
  __syncwarp();  // the last chunk of K is there still, and a warp's weights are its own
#pragma unroll 1
  for (int c = chunks - 1; kNeedsDots && c >= 0; --c) {
    store_sums<S>(rows, chunk, gradients, rows_of(g.dst), c);
    __syncthreads();
    if (c == 0) break;
    chunk.start(rows_of(a.src), c - 1);
    chunk.wait();
  }

  float2* reordered = reinterpret_cast<float2*>(memory);
  uint16_t* places = layout.places(edge_bytes);  // of a row in the order
  for (int i = threadIdx.x; i < tile.nodes; i += S::kThreads) places[rows.order[i]] = static_cast<uint16_t>(i);
  __syncthreads();
  columns.for_slots([&](int slot, int column, int64_t entry) {
    float2 numbers{0, 0};
    int node = -1;
    if (entry >= 0) {
      const int64_t row = a.row[entry] - tile.first;
      if (row >= 0 && row < tile.nodes) node = static_cast<int>(row);
      const int64_t e = node < 0 ? -1 : a.perm[entry] - rows.first_edge - rows.begins[node];
      if (e >= 0 && e < rows.degree(node)) {
        const int from = rows.slot(places[node], static_cast<int>(e));
        numbers = {weights[from], gradients[from]};
        if constexpr (score == Score::cosine) {  // what the columns' sums are of is scaled by the rows' terms
          numbers.y *= dst_term<score>(a, tile.first + node, h) / src_term<score>(a, tile.first + column, h);
        }
      } else {
        fits = false;
      }
    }
    columns.set_offset(slot, node);
    reordered[slot] = numbers;
  });
  if (!__syncthreads_and(fits)) return false;
  const int slots = columns.batches() * kGroups * kBatch;
  for (int slot = threadIdx.x; slot < slots; slot += S::kThreads) {
    weights[slot] = reordered[slot].x;
    gradients[slot] = reordered[slot].y;
  }
  __syncthreads();

  chunk.start(rows_of(kNeedsDots ? a.dst : g.grad_out), chunks - 1);
  chunk.set_zeros();
  for (int t = threadIdx.x / kWarp; !kNeedsDots && t < columns.count(); t += S::kWarps) {
    const SliceRow row = columns.row(t);
    float sum = 0;
    for_edges_of(columns, t, row, [&](int slot, int64_t) { sum += gradients[slot]; });
    store_number(a, g.src, tile.first + row.node, h, row, sum);
  }
#pragma unroll 1
  for (int c = chunks - 1; kNeedsDots && c >= 0; --c) {
    chunk.wait();
    store_sums<S>(columns, chunk, gradients, rows_of(g.src), c);
    __syncthreads();
    c > 0 ? chunk.start(rows_of(a.dst), c - 1) : chunk.start(rows_of(g.grad_out), chunks - 1);
  }
#pragma unroll 1
  for (int c = chunks - 1; c >= 0; --c) {
    chunk.wait();
    store_sums<S>(columns, chunk, weights, rows_of(g.value), c);
    if (c == 0) break;
    __syncthreads();
    chunk.start(rows_of(g.grad_out), c - 1);
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
