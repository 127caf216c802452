// From run-time types and sizes to the kernels of resident.cuh.
#pragma once

#include "device.h"
#include "edge_by_edge.cuh"
#include "resident.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda::resident {

enum class Pass { forward, backward };

// Calls visit(tile) for the block's tiles; then, for those that it returned false of, by_edges(node) for each node, a
// warp a node. After all others, so that nothing has to be kept over the calls in there.
template <class S, class Visit, class ByEdges>
__device__ __forceinline__ void for_tiles(const Typed<typename S::T>& a, const Visit& visit, const ByEdges& by_edges) {
  const int nodes = static_cast<int>(a.num_dst);
  const auto tile_of = [&](int64_t t) {  // those behind the last node come last
    const int begin = static_cast<int>(clamp_to(a.tile_list[t], nodes));
    return Tile{begin, max(static_cast<int>(clamp_to(a.tile_list[t + 1], nodes)) - begin, 0)};
  };
  uint32_t left = 0;  // a bit for each of the first, one for the rest
  int bit = 0;
  for (int64_t t = blockIdx.x; t < a.num_tiles; t += gridDim.x) {
    const Tile tile = tile_of(t);
    if (tile.first >= nodes) break;
    if (tile.nodes == 0) continue;
    if (!visit(tile)) left |= 1u << bit;
    bit = min(bit + 1, 31);
    __syncthreads();  // all are done with the shared memory
  }
  bit = 0;
  for (int64_t t = blockIdx.x; left != 0 && t < a.num_tiles; t += gridDim.x) {
    const Tile tile = tile_of(t);
    if (tile.nodes == 0) continue;
    if (left >> bit & 1) {
      for (int i = threadIdx.x / kWarp; i < tile.nodes; i += S::kWarps) by_edges(tile.first + i);
    }
    bit = min(bit + 1, 31);
  }
}

// Calls launch.operator()<score, S>() with the shape of most blocks a multiprocessor in which the tiles fit; threads
// are as many as registers allow.
template <Score score, class T, class Launch>
cudaError_t for_resident_threads(const Attention& a, Pass pass, const Launch& launch) {
  constexpr int kThreads = 768;  // of a multiprocessor
  constexpr bool kCosine = score == Score::cosine;
  const int64_t bytes = pass == Pass::forward ? forward_bytes(a.tile_nodes, a.tile_batches, a.max_degree, kCosine)
                                              : backward_bytes(a.tile_nodes, a.tile_batches, kCosine);
  const auto fits = [bytes]<class S>() { return bytes <= bytes_of_block(S::kBlocks); };
  using Small = Shape<T, kThreads / 8, 8>;
  using Medium = Shape<T, kThreads / 4, 4>;
  using Large = Shape<T, kThreads / 2, 2>;
  using Whole = Shape<T, kThreads, 1>;
  if (fits.template operator()<Small>()) return launch.template operator()<score, Small>();
  if (fits.template operator()<Medium>()) return launch.template operator()<score, Medium>();
  if (fits.template operator()<Large>()) return launch.template operator()<score, Large>();
  if (fits.template operator()<Whole>()) return launch.template operator()<score, Whole>();
  return cudaErrorNotSupported;
}

template <Score score, class Launch>
cudaError_t for_resident_type(const Attention& a, Pass pass, const Launch& launch) {
  return for_type(a.type, [&]<class T>() {
    if constexpr (sizeof(T) < 8) return for_resident_threads<score, T>(a, pass, launch);
    return cudaErrorNotSupported;
  });
}

template <class Launch>
cudaError_t for_resident_shape(const Attention& a, Pass pass, const Launch& launch) {
  const int number_bytes = a.type == Type::f64 ? 8 : a.type == Type::f32 ? 4 : 2;
  const bool has_kernel = a.num_dst == a.num_src && takes_heads(number_bytes, a.heads, a.head_dim);
  if (!has_kernel || !a.tile_list.data || a.tile_nodes < 0 || a.tile_batches < 0) return cudaErrorNotSupported;
  switch (a.score) {
    case Score::dot:
      return for_resident_type<Score::dot>(a, pass, launch);
    case Score::cosine:
      return a.dst == a.src ? for_resident_type<Score::cosine>(a, pass, launch) : cudaErrorNotSupported;
    case Score::additive:
      return for_resident_type<Score::additive>(a, pass, launch);
    default:
      return cudaErrorNotSupported;
  }
}

// Whether the device has shared memory enough.
inline bool fits_device(const Attention& a, Pass pass) {
  int limit = 0;
  return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, limit) == cudaSuccess &&
         for_resident_shape(a, pass, [&]<Score, class S>() {
           return bytes_of_block(S::kBlocks) + kStaticBytes <= limit ? cudaSuccess : cudaErrorNotSupported;
         }) == cudaSuccess;
}

// Launches a kernel over tiles and heads; its last parameter is the shared memory of a block.
template <class S, class Kernel, class... Arguments>
cudaError_t launch_resident(Kernel kernel, const Attention& a, cudaStream_t stream, const Arguments&... arguments) {
  if (a.num_dst == 0 || a.heads == 0) return cudaSuccess;
  constexpr int kBytes = static_cast<int>(bytes_of_block(S::kBlocks));
  int multiprocessors = 0;
  cudaError_t error = device_attribute(cudaDevAttrMultiProcessorCount, multiprocessors);
  if (error == cudaSuccess) error = allow_shared_memory(kernel, kBytes);
  if (error != cudaSuccess) return error;
  // As many as there are tiles of half that size, so that which multiprocessor has room takes the next; and where they
  // are smaller, blocks take several.
  const int64_t resident = static_cast<int64_t>(multiprocessors) * S::kBlocks;
  const int64_t likely = 2 * (a.num_dst / (a.tile_nodes > 0 ? a.tile_nodes : 1)) + 1;
  const int64_t wanted = likely > resident ? likely : resident;
  const dim3 grid(static_cast<unsigned>(a.num_tiles < wanted ? a.num_tiles : wanted), a.heads);
  kernel<<<grid, S::kThreads, kBytes, stream>>>(arguments..., kBytes);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda::resident
