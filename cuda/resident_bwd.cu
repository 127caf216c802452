// Resident backward: one block makes all gradients of a tile (resident.cuh).
//
//   dP = dO V^T, P = exp(scale Q K^T - lse), dS = P (keep dP - delta), delta = sum over a row's edges of keep P dP
//   dQ = scale dS K, dK = scale dS^T Q, dV = (keep P)^T dO
//
// keep P and dS of the edges stay in shared memory: sums over a row's edges give dQ; then they are put into the order
// of the edges by source, whose sums give dK and dV. No atomics on numbers, so that results are the same bits.
#include "resident.cuh"
#include "resident_shapes.cuh"

namespace dfgnn::cuda {
namespace {

using namespace resident;

// Shared memory: a chunk, or what is being reordered; from the end backwards what slices have of rows and of columns,
// and a place for each row; between them, of slots, two numbers and an offset each.
template <class S>
struct Layout {
  unsigned char* memory;
  int64_t bytes;
  int nodes;

  __device__ __forceinline__ int64_t row_bytes() const { return row_bytes_of(nodes); }
  __device__ __forceinline__ int64_t nodes_begin() const { return bytes - 2 * row_bytes() - place_bytes_of(nodes); }
  __device__ __forceinline__ unsigned char* rows() const { return memory + bytes - 2 * row_bytes(); }
  __device__ __forceinline__ unsigned char* columns() const { return memory + bytes - row_bytes(); }
  __device__ __forceinline__ uint16_t* places() const { return reinterpret_cast<uint16_t*>(memory + nodes_begin()); }
  __device__ __forceinline__ unsigned char* slots(int which, int64_t edge_bytes) const {
    return memory + nodes_begin() - (which + 1) * edge_bytes;
  }
  __device__ __forceinline__ bool fit_nodes() const { return chunk_bytes_of(nodes) <= nodes_begin(); }
  __device__ __forceinline__ bool fit_edges(int64_t edge_bytes) const {
    return max(chunk_bytes_of(nodes), 2 * edge_bytes) + 3 * edge_bytes <= nodes_begin();
  }
};

// The row's dots become keep P, and keep's dP becomes scale dS.
template <class S>
__device__ __forceinline__ void differentiate(const Typed<typename S::T>& a, const Gradients& g, const Slices<S>& edges,
                                              float* weights, float* gradients, int slice, const SliceRow& row,
                                              int64_t node_and_head, int h) {
  const Dropout dropout(a);
  const float lse = a.at(g.lse, node_and_head);
  float delta = 0;
  __syncwarp();
  for_edges_of(edges, slice, row, [&](int slot, int64_t position) {
    float p = 0, dp = 0;
    if (position >= 0) {
      const float s = logit_of<Score::dot>(a, weights[slot], a.logit_scale, 1.f, position, h).value;
      p = exp_difference(s, lse);
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
    if (g.bias && position >= 0) static_cast<float*>(g.bias)[a.scalar(position, h)] = ds;
    if (dropout.active() && position >= 0) weights[slot] = p * dropout.factor(position, h);
    gradients[slot] = position >= 0 ? ds * a.logit_scale : 0.f;
  });
}

template <class S>
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
  uint16_t* places = layout.places();  // of a row in the order
  if (fits) {
    for (int i = threadIdx.x; i < tile.nodes; i += S::kThreads) places[rows.order[i]] = static_cast<uint16_t>(i);
    fits = rows.fill(a.col);
  }
  if (!__syncthreads_and(fits)) {
    chunk.wait();
    return false;
  }
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    chunk.wait();
    add_dots<S>(rows, rows_of(g.grad_out), c, chunk, gradients, [](int, const SliceRow&) {});
    __syncthreads();
    c + 1 < chunks ? chunk.start(rows_of(a.value), c + 1) : chunk.start(rows_of(a.src), 0);
  }
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    chunk.wait();
    add_dots<S>(rows, rows_of(a.dst), c, chunk, weights, [&](int slice, const SliceRow& row) {
      if (c + 1 < chunks) return;
      differentiate<S>(a, g, rows, weights, gradients, slice, row, a.scalar(tile.first + row.node, h), h);
    });
    if (c + 1 == chunks) break;
    __syncthreads();
    chunk.start(rows_of(a.src), c + 1);
  }
  columns.fetch(a.row);
  columns.fetch(a.perm);
  __syncwarp();  // the last chunk of K is there still, and a warp's weights are its own
#pragma unroll 1
  for (int c = chunks - 1; c >= 0; --c) {
    store_sums<S>(rows, chunk, gradients, rows_of(g.dst), c);
    __syncthreads();
    if (c == 0) break;
    chunk.start(rows_of(a.src), c - 1);
    chunk.wait();
  }

  float2* reordered = reinterpret_cast<float2*>(memory);
  columns.for_slots([&](int slot, int64_t entry) {
    float2 numbers{0, 0};
    int node = -1;
    if (entry >= 0) {
      const int64_t row = a.row[entry] - tile.first;
      if (row >= 0 && row < tile.nodes) node = static_cast<int>(row);
      const int64_t e = node < 0 ? -1 : a.perm[entry] - rows.first_edge - rows.begins[node];
      if (e >= 0 && e < rows.degree(node)) {
        const int from = rows.slot(places[node], static_cast<int>(e));
        numbers = {weights[from], gradients[from]};
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

  chunk.start(rows_of(a.dst), chunks - 1);
  chunk.set_zeros();
#pragma unroll 1
  for (int c = chunks - 1; c >= 0; --c) {
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

template <class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    resident_bwd_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                        int bytes) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int h = blockIdx.y;
  for_tiles<S>(
      a, [&](const Tile& tile) { return backward_tile<S>(a, g, tile, h, memory, bytes); },
      [&](int n) {
        edge_by_edge::backward_row<Score::dot, kMostFeatures, false>(a, g, n, h);
        edge_by_edge::backward_column<Score::dot, kMostFeatures, false>(a, g, n, h);
      });
}

}  // namespace

bool resident_bwd_fits(const Attention& a) { return fits_device(a, Pass::backward); }

cudaError_t resident_bwd(const Attention& a, const Gradients& g, cudaStream_t stream) {
  return for_resident_shape(a, Pass::backward, [&]<class S>() {
    return launch_resident<S>(resident_bwd_kernel<S>, a, stream, Typed<typename S::T>{a}, g);
  });
}

}  // namespace dfgnn::cuda
