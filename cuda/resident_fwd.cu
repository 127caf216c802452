// Resident forward: chunks of K give logits, or two numbers do, which stay in shared memory; their softmax is taken in
// place, and chunks of V give `out` (resident.cuh). With cosine scores Q, K and V are one matrix, and its norms are
// made of the same chunks.
#include "resident.cuh"
#include "resident_shapes.cuh"

namespace dfgnn::cuda {
namespace {

using namespace resident;

// A row's dots, or what the score does without, become weights that sum to 1, those that dropout keeps scaled. Stores
// lse. By one thread.
template <Score score, class S>
__device__ __forceinline__ void softmax(const NodeTerms<score, typename S::T>& terms, const Outputs& outputs,
                                        const Dropout<float>& dropout, const Slices<S>& edges, float* numbers,
                                        int place, int row) {
  const auto& a = terms.a;
  const int h = terms.h;
  const float own_term = row < 0 ? 0.f : terms.dst(row);
  float2* pairs = reinterpret_cast<float2*>(numbers);
  const auto logit = [&](float dot, int slot, int edge, bool is_edge) {
    if (!is_edge) return -INFINITY;
    const float term = terms.src(edges.node(slot));
    return logit_of<score>(a, dot, own_term, term, edges.first_edge + edge, h).value;
  };
  float largest = -INFINITY, sum = 0;
  edges.for_batches(place, row, [&](int batch, int edge, int left) {
    float2 s = pairs[batch];
    s.x = logit(s.x, batch * kBatch, edge, left > 0);
    s.y = logit(s.y, batch * kBatch + 1, edge + 1, left > 1);
    pairs[batch] = s;
    const float before = largest;
    largest = fmaxf(largest, fmaxf(s.x, s.y));
    sum = sum * exp_difference(before, largest) + (exp_difference(s.x, largest) + exp_difference(s.y, largest));
  });
  const float share = sum == 0 ? 0 : 1 / sum;
  edges.for_batches(place, row, [&](int batch, int edge, int) {
    const float2 s = pairs[batch];
    float2 p{exp_difference(s.x, largest) * share, exp_difference(s.y, largest) * share};
    if (dropout.active()) {
      p.x *= dropout.factor(edges.first_edge + edge, h);
      p.y *= dropout.factor(edges.first_edge + edge + 1, h);
    }
    pairs[batch] = p;
  });
  if (row >= 0) static_cast<float*>(outputs.lse)[a.scalar(terms.tile.first + row, h)] = largest + log(sum);
}

// Shared memory: a chunk, what slices have of rows, cosine's norms; then, of slots, a number each, before that the
// other nodes of edges, and offsets.
template <Score score, class S>
__device__ __forceinline__ bool forward_tile(const Typed<typename S::T>& a, const Outputs& outputs, const Tile& tile,
                                             int h, unsigned char* memory, int bytes) {
  const Chunk<S> chunk{memory, tile.nodes};
  constexpr bool kCosine = score == Score::cosine;
  const int64_t rows_begin = chunk_bytes_of(tile.nodes), norms_begin = rows_begin + row_bytes_of(tile.nodes);
  const int64_t edges_begin = norms_begin + kCosine * number_bytes_of(tile.nodes);
  if (edges_begin > bytes) return false;
  float* norms = reinterpret_cast<float*>(memory + norms_begin);
  const NodeTerms<score, typename S::T> terms{a, tile, h, norms};
  const auto rows_of = [&](const void* data, int chunk_number) { return Rows(a, data, tile, h, chunk_number); };
  const int chunks = chunks_of(a);
  constexpr bool kNeedsDots = score != Score::additive;
  Slices<S> sides[] = {Slices<S>(tile, memory + rows_begin)};
  const Index* ptrs[] = {&a.rowptr};
  Slices<S>& edges = sides[0];
  bool fits = sort_rows(sides, ptrs, a.num_edges, [&] {
    chunk.start(kNeedsDots ? rows_of(a.src, 0) : rows_of(a.value, chunks - 1));
    chunk.set_zeros();
  });
  const int64_t edge_bytes = fits ? edge_bytes_of(edges.batches()) : 0;
  fits &= edges_begin + 2 * edge_bytes <= bytes;
  float* numbers = reinterpret_cast<float*>(memory + edges_begin);
  edges.offsets = reinterpret_cast<uint2*>(memory + edges_begin + edge_bytes);
  if (fits) {
    uint16_t* others = reinterpret_cast<uint16_t*>(numbers);
    edges.copy({typename Slices<S>::List{a.col, tile.first, tile.nodes, others}});
    __syncthreads();
    fits = edges.fill(others);
  }
  if (!__syncthreads_and(fits)) {
    chunk.wait();
    return false;
  }
#pragma unroll 1
  for (int c = 0; kNeedsDots && c < chunks; ++c) {
    const bool is_first = c == 0, is_last = c + 1 == chunks;
    if constexpr (kCosine) {
      chunk.wait();
      chunk.add_to_norms(is_first, is_last, a.eps, norms);
      OwnRows<S, true>(edges, chunk.rows()).add_dots(chunk, is_first, numbers);
    } else {
      OwnRows<S, false> own(edges, rows_of(a.dst, c));
      chunk.wait();
      own.add_dots(chunk, is_first, numbers);
    }
    __syncthreads();
    if (!is_last) {
      chunk.start(rows_of(a.src, c + 1));
    } else if (!kCosine) {  // of K, which is V with cosine scores, the last is needed again
      chunk.start(rows_of(a.value, chunks - 1));
    }
  }
  const Dropout dropout(a);
  edges.for_places([&](int place, int row) { softmax<score>(terms, outputs, dropout, edges, numbers, place, row); });
#pragma unroll 1
  for (int c = chunks - 1; c >= 0; --c) {
    chunk.wait();
    store_sums<S>(edges, chunk, numbers, rows_of(outputs.out, c));
    if (c == 0) break;
    __syncthreads();
    chunk.start(rows_of(a.value, c - 1));
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
      [&a, &outputs, h](int i) { edge_by_edge::forward_row<score, kMostFeatures>(a, outputs, i, h); });
}

}  // namespace

bool resident_fwd_fits(const Attention& a) { return fits_device<Pass::forward>(a); }

cudaError_t resident_fwd(const Attention& a, const Outputs& outputs, cudaStream_t stream) {
  return for_resident_shape<Pass::forward>(a, [&]<Score score, class S>() {
    return launch_resident<S>(resident_fwd_kernel<score, S>, a, stream, Typed<typename S::T>{a}, outputs);
  });
}

}  // namespace dfgnn::cuda
