// Resident forward: chunks of K give logits, or two numbers do, which stay in shared memory; their softmax is taken in
// place, and chunks of V give `out` (resident.cuh).
#include "resident.cuh"
#include "resident_shapes.cuh"

namespace dfgnn::cuda {
namespace {

using namespace resident;

// The row's dots, or what the score does without, become weights that sum to 1, those that dropout keeps scaled. Stores
// lse.
template <Score score, class S>
__device__ __forceinline__ void softmax(const Typed<typename S::T>& a, const Outputs& outputs, const Tile& tile,
                                        const Slices<S>& edges, float* numbers, int slice, const SliceRow& row, int h) {
  const Dropout dropout(a);
  const float own_term = dst_term<score>(a, tile.first + row.node, h);
  float largest = -INFINITY, sum = 0;
  __syncwarp();
  for_edges_of(edges, slice, row, [&](int slot, int64_t position) {
    float s = -INFINITY;
    if (position >= 0) {
      const float dot = score == Score::additive ? 0.f : numbers[slot];
      const float term = src_term<score>(a, tile.first + edges.node(slot), h);
      s = logit_of<score>(a, dot, own_term, term, position, h).value;
    }
    numbers[slot] = s;
    largest = fmaxf(largest, s);
  });
  largest = lanes_max<kLanes>(largest);
  for_edges_of(edges, slice, row, [&](int slot, int64_t) {
    const float p = exp_difference(numbers[slot], largest);
    numbers[slot] = p;
    sum += p;
  });
  sum = lanes_sum<kLanes>(sum);
  const float share = sum == 0 ? 0 : 1 / sum;
  for_edges_of(edges, slice, row, [&](int slot, int64_t position) {
    numbers[slot] *= dropout.active() && position >= 0 ? share * dropout.factor(position, h) : share;
  });
  if (row.live && lane_in_group() == 0) {
    static_cast<float*>(outputs.lse)[a.scalar(tile.first + row.node, h)] = largest + log(sum);
  }
}

// Shared memory: a chunk, what slices have of rows; then, of slots, offsets and a number each.
template <Score score, class S>
__device__ __forceinline__ bool forward_tile(const Typed<typename S::T>& a, const Outputs& outputs, const Tile& tile,
                                             int h, unsigned char* memory, int bytes) {
  const Chunk<S> chunk{memory, tile.nodes};
  const int64_t rows_begin = chunk_bytes_of(tile.nodes), edges_begin = rows_begin + row_bytes_of(tile.nodes);
  if (edges_begin > bytes) return false;
  const auto rows_of = [&](const void* data) { return Rows(a, data, tile, h); };
  const int chunks = a.head_dim * static_cast<int>(sizeof(typename S::T)) / kRowBytes;
  constexpr bool kNeedsDots = score != Score::additive;
  chunk.start(rows_of(kNeedsDots ? a.src : a.value), 0);
  chunk.set_zeros();
  Slices<S> edges(tile, memory + rows_begin);
  bool fits = edges.sort(a.rowptr, a.num_edges);
  const int64_t edge_bytes = fits ? edge_bytes_of(edges.batches()) : 0;
  fits &= edges_begin + 2 * edge_bytes <= bytes;
  edges.offsets = reinterpret_cast<uint4*>(memory + edges_begin);
  float* numbers = reinterpret_cast<float*>(memory + edges_begin + edge_bytes);
  if (fits) fits = edges.fill(a.col);
  if (!__syncthreads_and(fits)) {
    chunk.wait();
    return false;
  }
  const auto finish = [&](int slice, const SliceRow& row) {
    softmax<score>(a, outputs, tile, edges, numbers, slice, row, h);
  };
  if constexpr (!kNeedsDots) {
    for (int t = threadIdx.x / kWarp; t < edges.count(); t += S::kWarps) finish(t, edges.row(t));
  }
#pragma unroll 1
  for (int c = 0; kNeedsDots && c < chunks; ++c) {
    chunk.wait();
    add_dots<S>(edges, rows_of(a.dst), c, chunk, numbers, [&](int slice, const SliceRow& row) {
      if (c + 1 == chunks) finish(slice, row);
    });
    __syncthreads();
    c + 1 < chunks ? chunk.start(rows_of(a.src), c + 1) : chunk.start(rows_of(a.value), 0);
  }
#pragma unroll 1
  for (int c = 0; c < chunks; ++c) {
    chunk.wait();
    store_sums<S>(edges, chunk, numbers, rows_of(outputs.out), c);
    if (c + 1 == chunks) break;
    __syncthreads();
    chunk.start(rows_of(a.value), c + 1);
  }
  return true;
}

template <Score score, class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    resident_fwd_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                        int bytes) {
  extern __shared__ __align__(128) unsigned char memory[];
  const int h = blockIdx.y;
  for_tiles<S>(
      a, [&](const Tile& tile) { return forward_tile<score, S>(a, outputs, tile, h, memory, bytes); },
      [&](int i) { edge_by_edge::forward_row<score, kMostFeatures>(a, outputs, i, h); });
}

}  // namespace

bool resident_fwd_fits(const Attention& a) { return fits_device(a, Pass::forward); }

cudaError_t resident_fwd(const Attention& a, const Outputs& outputs, cudaStream_t stream) {
  return for_resident_shape(a, Pass::forward, [&]<Score score, class S>() {
    return launch_resident<S>(resident_fwd_kernel<score, S>, a, stream, Typed<typename S::T>{a}, outputs);
  });
}

}  // namespace dfgnn::cuda
