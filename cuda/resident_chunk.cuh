// Chunks of features of a tile's nodes in shared memory, and the pieces of their rows that lanes have.
#pragma once

#include "async_copy.cuh"
#include "resident_slices.cuh"

namespace dfgnn::cuda::resident {

// Numbers of type T; kBlocks of kThreads of a multiprocessor. kUsual: heads are whole chunks and no more than
// kMostUsual features; of others the last chunk may have less than kRowBytes of a node.
template <class T_, int kThreads_, int kBlocks_, bool kUsual_>
struct Shape {
  using T = T_;
  static constexpr bool kUsual = kUsual_;
  static constexpr int kThreads = kThreads_, kBlocks = kBlocks_, kWarps = kThreads / kWarp;
  static constexpr int kVec = 16 / sizeof(T);      // numbers of a piece of 16 bytes
  static constexpr int kPieces = kRowBytes / 16;   // of a node's part of a chunk,
  static constexpr int kSteps = kPieces / kLanes;  // and of a lane's
  static constexpr int kNumbers = kSteps * kVec;
};

// Of a head.
template <class T>
__device__ __forceinline__ int chunks_of(const Typed<T>& a) {
  return (a.head_dim * static_cast<int>(sizeof(T)) + kRowBytes - 1) / kRowBytes;
}

// What a chunk has of the tile's nodes, in a feature array or in shared memory.
struct Rows {
  char* first;
  unsigned stride;  // bytes
  int bytes;        // of a node that are the chunk's, behind which another head's may lie

  // Of one head.
  template <class T>
  __device__ __forceinline__ Rows(const Typed<T>& a, const void* data, const Tile& tile, int h, int chunk)
      : first(const_cast<char*>(reinterpret_cast<const char*>(a.features(data, tile.first, h))) + chunk * kRowBytes),
        stride(static_cast<unsigned>(a.heads * a.head_dim) * sizeof(T)),
        bytes(a.head_dim * static_cast<int>(sizeof(T)) - chunk * kRowBytes) {}

  __device__ __forceinline__ explicit Rows(unsigned char* chunk)
      : first(reinterpret_cast<char*>(chunk)), stride(kRowBytes), bytes(kRowBytes) {}

  __device__ __forceinline__ char* of(int node) const { return first + static_cast<unsigned>(node) * stride; }
  template <class S>
  __device__ __forceinline__ bool has(int offset) const {
    return S::kUsual || offset < bytes;
  }
};

// Chunks of matrices, one at a time in shared memory: kRowBytes of each node, zeros where its head has fewer, and
// behind them as many zeros, which entries that are no edges read.
template <class S>
class Chunk {
 public:
  unsigned char* memory;
  int nodes;

  __device__ __forceinline__ void set_zeros() const {
    if (threadIdx.x < S::kPieces) reinterpret_cast<uint4*>(memory + nodes * kRowBytes)[threadIdx.x] = {};
  }

  // Starts to copy; a barrier must have come after the last use of what was there.
  __device__ __forceinline__ void start(const Rows& rows) const {
    const uint32_t to = shared_address(memory);
    const int piece = threadIdx.x % S::kPieces;
#pragma unroll 4
    for (int node = threadIdx.x / S::kPieces; node < nodes; node += S::kThreads / S::kPieces) {
      copy_async(to + node * kRowBytes + piece * 16, rows.of(node) + piece * 16, rows.template has<S>(piece * 16));
    }
  }

  // Until it is there, for all threads.
  __device__ __forceinline__ void wait() const {
    wait_for_copies();
    __syncthreads();
  }

  __device__ __forceinline__ Rows rows() const { return Rows(memory); }

  // Of nodes' rows, norms [nodes] is made of chunk after chunk, from their squares to their reciprocals.
  __device__ __forceinline__ void add_to_norms(bool is_first, bool is_last, double eps, float* norms) const {
    for (int i = threadIdx.x; i - static_cast<int>(threadIdx.x) < nodes * S::kPieces; i += S::kThreads) {
      const int node = i / S::kPieces;
      uint4 piece{};
      if (node < nodes) piece = reinterpret_cast<const uint4*>(memory)[i];
      float squares = 0;
#pragma unroll
      for (int v = 0; v < S::kVec; ++v) {
        const float x = number_of<typename S::T>(&piece, v);
        squares += x * x;
      }
      squares = lanes_sum<S::kPieces>(squares);
      if (node >= nodes || i % S::kPieces != 0) continue;
      if (!is_first) squares += norms[node];
      norms[node] = is_last ? reciprocal_norm_of(squares, eps) : squares;
    }
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

  // kAnywhere: from global or shared memory.
  template <bool kAnywhere = false>
  __device__ __forceinline__ void load(const Rows& rows, int node, const Pieces<S>& pieces) {
    const auto load_piece = [](const uint4* piece) { return kAnywhere ? *piece : __ldg(piece); };
    load_with(rows, node, pieces, load_piece);
  }
  // What the block has stored, before a barrier.
  __device__ __forceinline__ void load_stored(const Rows& rows, int node, const Pieces<S>& pieces) {
    load_with(rows, node, pieces, [](const uint4* piece) { return __ldcg(piece); });
  }
  __device__ __forceinline__ void load_shared(const unsigned char* row, const Pieces<S>& pieces) {
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) steps[s] = *reinterpret_cast<const uint4*>(row + pieces[s]);
  }
  __device__ __forceinline__ float number(int step, int v) const { return number_of<typename S::T>(steps + step, v); }

 private:
  template <class Load>
  __device__ __forceinline__ void load_with(const Rows& rows, int node, const Pieces<S>& pieces, const Load& load) {
    const char* row = rows.of(node);
#pragma unroll
    for (int s = 0; s < S::kSteps; ++s) {
      steps[s] = rows.template has<S>(pieces[s]) ? load(reinterpret_cast<const uint4*>(row + pieces[s])) : uint4{};
    }
  }
};

__device__ __forceinline__ uint4 pack_piece(const float* x, float) {
  return {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])};
}
template <class T>
__device__ __forceinline__ uint4 pack_piece(const float* x, T) {
  return {pack<T>(x[0], x[1]), pack<T>(x[2], x[3]), pack<T>(x[4], x[5]), pack<T>(x[6], x[7])};
}

}  // namespace dfgnn::cuda::resident
