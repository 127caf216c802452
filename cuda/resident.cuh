// Attention within tiles of sparse graphs, a block a tile: matrices of the tile's nodes pass through shared memory in
// chunks of features, and what edges gather they gather from there, so that every row of K and V is read from memory
// once, whatever the degrees.
//
// In shared memory lie, too, the tile's edges and a number or two for each (resident_slices.cuh).
#pragma once

#include "resident_slices.cuh"

namespace dfgnn::cuda::resident {

// Numbers of type T; kBlocks of kThreads of a multiprocessor.
template <class T_, int kThreads_, int kBlocks_>
struct Shape {
  using T = T_;
  static constexpr int kThreads = kThreads_, kBlocks = kBlocks_, kWarps = kThreads / kWarp;
  static constexpr int kVec = 16 / sizeof(T);      // numbers of a piece of 16 bytes
  static constexpr int kPieces = kRowBytes / 16;   // of a node's part of a chunk,
  static constexpr int kSteps = kPieces / kLanes;  // and of a lane's
  static constexpr int kNumbers = kSteps * kVec;
};

// The rows of one head and the tile's nodes of a feature array.
struct Rows {
  char* first;
  unsigned stride;  // bytes

  template <class T>
  __device__ __forceinline__ Rows(const Typed<T>& a, const void* data, const Tile& tile, int h)
      : first(const_cast<char*>(reinterpret_cast<const char*>(a.features(data, tile.first, h)))),
        stride(static_cast<unsigned>(a.heads * a.head_dim) * sizeof(T)) {}

  __device__ __forceinline__ char* of(int node, int chunk) const {
    return first + (static_cast<unsigned>(node) * stride + static_cast<unsigned>(chunk * kRowBytes));
  }
};

// Chunks of matrices, one at a time in shared memory: kRowBytes of each node, and behind them as many zeros, which
// entries that are no edges read.
template <class S>
class Chunk {
 public:
  unsigned char* memory;
  int nodes;

  __device__ __forceinline__ void set_zeros() const {
    if (threadIdx.x < S::kPieces) reinterpret_cast<uint4*>(memory + nodes * kRowBytes)[threadIdx.x] = {};
  }

  // Starts to copy; a barrier must have come after the last use of what was there.
  __device__ __forceinline__ void start(const Rows& rows, int chunk) const {
    const unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(memory));
    const int piece = threadIdx.x % S::kPieces;
#pragma unroll 4
    for (int node = threadIdx.x / S::kPieces; node < nodes; node += S::kThreads / S::kPieces) {
      asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to + node * kRowBytes + piece * 16),
                   "l"(rows.of(node, chunk) + piece * 16));
    }
    asm volatile("cp.async.commit_group;");
  }

  // Until it is there, for all threads.
  __device__ __forceinline__ void wait() const {
    asm volatile("cp.async.wait_group 0;");
    __syncthreads();
  }
};

// Where a lane's pieces lie in a row of a chunk. The eight lanes whose 16 bytes a multiprocessor reads at once are of
// two rows: those read different halves of their rows, and so from different banks.
template <class S>
struct Pieces {
  static_assert(S::kSteps == 2 && kLanes == 4);
  static constexpr int kHalf = kLanes * 16;
  int first = lane_group() % 2 * kHalf + lane_in_group() * 16;

  __device__ __forceinline__ int operator[](int step) const { return first ^ step * kHalf; }
};

// A lane's pieces of a row, as they lie in memory.
template <class S>
struct Packed {
  uint4 steps[S::kSteps];

  __device__ __forceinline__ void load(const char* row, const Pieces<S>& pieces) {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) steps[s] = __ldg(reinterpret_cast<const uint4*>(row + pieces[s]));
  }
  __device__ __forceinline__ void load_shared(const unsigned char* row, const Pieces<S>& pieces) {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) steps[s] = *reinterpret_cast<const uint4*>(row + pieces[s]);
  }
  __device__ __forceinline__ float number(int step, int v) const { return number_of<typename S::T>(steps + step, v); }
};

__device__ __forceinline__ uint4 pack_piece(const float* x, float) {
  return {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])};
}
template <class T>
__device__ __forceinline__ uint4 pack_piece(const float* x, T) {
  return {pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]), pack<T>(x[6], x[7])};
}

// Of four numbers a lane, the sums over the group's lanes: lane l has that of number l.
__device__ __forceinline__ float transpose_sum(const float (&x)[kBatch]) {
  const bool upper = threadIdx.x & 2, odd = threadIdx.x & 1;
  float a = upper ? x[2] : x[0], b = upper ? x[3] : x[1];
  a += __shfl_xor_sync(kAllLanes, upper ? x[0] : x[2], 2);
  b += __shfl_xor_sync(kAllLanes, upper ? x[1] : x[3], 2);
  const float sum = odd ? b : a;
  return sum + __shfl_xor_sync(kAllLanes, odd ? a : b, 1);
}

// sums (+)= own rows times rows of the chunk, for the slices of the warp: a number for each edge. Calls finish(slice,
// row) after each slice.
template <class S, class Finish>
__device__ __forceinline__ void add_dots(const Slices<S>& edges, const Rows& own_rows, int chunk_number,
                                         const Chunk<S>& chunk, float* sums, const Finish& finish) {
  const int group = lane_group(), lane = lane_in_group(), slices = edges.count();
  const Pieces<S> pieces;
  int t = threadIdx.x / kWarp;
  if (t >= slices) return;
  SliceRow next_row = edges.row(t);
  Packed<S> next;
  next.load(own_rows.of(next_row.node, chunk_number), pieces);
#pragma unroll 1
  for (; t < slices; t += S::kWarps) {
    const SliceRow row = next_row;
    float own[S::kNumbers];
#pragma unroll
    for (int x = 0; x < S::kNumbers; ++x) own[x] = next.number(x / S::kVec, x % S::kVec);
    if (t + S::kWarps < slices) {
      next_row = edges.row(t + S::kWarps);
      next.load(own_rows.of(next_row.node, chunk_number), pieces);
    }
    const int end = edges.begin(t + 1);
#pragma unroll 1
    for (int b = edges.begin(t); b < end; ++b) {
      const int quad = b * kGroups + group;
      const uint4 offsets = edges.offsets[quad];
      float* sum = sums + quad * kBatch + lane;
      const float before = chunk_number == 0 ? 0.f : *sum;
      float dots[kBatch];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        Packed<S> other;
        other.load_shared(chunk.memory + (&offsets.x)[u], pieces);
        // Which half a lane reads first depends on its group: halves have sums of their own, so that the result does
        // not depend on where the row is in the order.
        float halves[S::kSteps] = {};
#pragma unroll
        for (int x = 0; x < S::kNumbers; ++x) halves[x / S::kVec] += own[x] * other.number(x / S::kVec, x % S::kVec);
        dots[u] = halves[0] + halves[1];
      }
      *sum = before + transpose_sum(dots);
    }
    finish(t, row);
  }
}

// Stores to rows of a chunk the sums over edges of weights * rows of the chunk in shared memory.
template <class S>
__device__ __forceinline__ void store_sums(const Slices<S>& edges, const Chunk<S>& chunk, const float* weights,
                                           const Rows& to, int chunk_number) {
  const Pieces<S> pieces;
#pragma unroll 1
  for (int t = threadIdx.x / kWarp; t < edges.count(); t += S::kWarps) {
    const SliceRow row = edges.row(t);
    float sum[S::kNumbers] = {};
    const int end = edges.begin(t + 1);
#pragma unroll 1
    for (int b = edges.begin(t); b < end; ++b) {
      const int quad = b * kGroups + lane_group();
      const uint4 offsets = edges.offsets[quad];
      const float4 four = reinterpret_cast<const float4*>(weights)[quad];
#pragma unroll
      for (int u = 0; u < kBatch; ++u) {
        Packed<S> other;
        other.load_shared(chunk.memory + (&offsets.x)[u], pieces);
#pragma unroll
        for (int x = 0; x < S::kNumbers; ++x) sum[x] += (&four.x)[u] * other.number(x / S::kVec, x % S::kVec);
      }
    }
    if (!row.live) continue;
    char* target = to.of(row.node, chunk_number);
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      store_vector(reinterpret_cast<typename S::T*>(target + pieces[s]),
                   pack_piece(sum + s * S::kVec, typename S::T{}));
    }
  }
}

// Edges of a slice's row as a group's lanes have them, lane l those of numbers l, l + kLanes, ... of the row: calls
// visit(slot, position), `position` being the edge's in the compressed form, or -1 where there is none.
template <class S, class Visit>
__device__ __forceinline__ void for_edges_of(const Slices<S>& edges, int slice, const SliceRow& row,
                                             const Visit& visit) {
  const int size = row.live ? edges.degree(row.node) : 0, begin = edges.begin(slice);
  const int batches = edges.begin(slice + 1) - begin;
  for (int b = 0; b < batches; ++b) {
    const int e = b * kBatch + lane_in_group();
    visit(((begin + b) * kGroups + lane_group()) * kBatch + lane_in_group(),
          e < size ? edges.first_edge + edges.begins[row.node] + e : -1);
  }
}

}  // namespace dfgnn::cuda::resident
