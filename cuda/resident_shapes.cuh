// From run-time types and sizes to the kernels of resident.cuh.
#pragma once

#include "device.h"
#include "edge_by_edge.cuh"
#include "resident.cuh"
#include "shapes.cuh"

namespace dfgnn::cuda::resident {

enum class Pass { forward, backward };

// Those behind the last node come last.
template <class T>
__device__ __forceinline__ Tile tile_of(const Typed<T>& a, int64_t t) {
  const int begin = static_cast<int>(clamp_to(a.tile_list[t], a.num_dst));
  return Tile{begin, max(static_cast<int>(clamp_to(a.tile_list[t + 1], a.num_dst)) - begin, 0)};
}

// Calls by_edges(node), a warp a node, for the nodes of the block's tiles that `left` has a bit of.
template <class S, class ByEdges>
__device__ __noinline__ void for_nodes_left(const Typed<typename S::T>& a, uint32_t left, const ByEdges by_edges) {
  int bit = 0;
  for (int64_t t = blockIdx.x; t < a.num_tiles; t += gridDim.x) {
    const Tile tile = tile_of(a, t);
    if (tile.nodes == 0) continue;
    if (left >> bit & 1) {
      for (int i = threadIdx.x / kWarp; i < tile.nodes; i += S::kWarps) by_edges(tile.first + i);
    }
    bit = min(bit + 1, 31);
  }
}

// Calls visit(tile) for the block's tiles; then, for those that it returned false of, by_edges(node) for each node. By
// one call behind all else, so that nothing has to be kept over it.
template <class S, class Visit, class ByEdges>
__device__ __forceinline__ void for_tiles(const Typed<typename S::T>& a, const Visit& visit, const ByEdges& by_edges) {
  uint32_t left = 0;  // a bit for each of the first, one for the rest
  int bit = 0;
  for (int64_t t = blockIdx.x; t < a.num_tiles; t += gridDim.x) {
    const Tile tile = tile_of(a, t);
    if (tile.first >= a.num_dst) break;
    if (tile.nodes == 0) continue;
    if (!visit(tile)) left |= 1u << bit;
    bit = min(bit + 1, 31);
    __syncthreads();  // all are done with the shared memory
  }
  if (left != 0) for_nodes_left<S>(a, left, by_edges);
}

// Calls launch.operator()<score, S>() with the shape of most blocks a multiprocessor in which the tiles fit.
template <Pass pass, Score score, class T, bool kUsual, class Launch>
cudaError_t for_resident_threads(const Attention& a, const Launch& launch) {
  // Of a multiprocessor. With more there are fewer registers, and these spill too much.
  constexpr bool kNeedsMore = pass == Pass::backward && score == Score::dot && sizeof(T) == 2;
  constexpr int kThreads = kNeedsMore ? 640 : 768;
  constexpr bool kCosine = score == Score::cosine;
  const int64_t bytes = pass == Pass::forward ? forward_bytes(a.tile_nodes, a.tile_batches, a.max_degree, kCosine)
                                              : backward_bytes(a.tile_nodes, a.tile_batches, kCosine);
  const auto fits = [bytes]<class S>() { return bytes <= bytes_of_block(S::kBlocks); };
  using Small = Shape<T, kThreads / 8 / kWarp * kWarp, 8, kUsual>;
  using Medium = Shape<T, kThreads / 4, 4, kUsual>;
  using Large = Shape<T, kThreads / 2, 2, kUsual>;
  using Whole = Shape<T, kThreads, 1, kUsual>;
  if (fits.template operator()<Small>()) return launch.template operator()<score, Small>();
  if (fits.template operator()<Medium>()) return launch.template operator()<score, Medium>();
  if (fits.template operator()<Large>()) return launch.template operator()<score, Large>();
  if (fits.template operator()<Whole>()) return launch.template operator()<score, Whole>();
  return cudaErrorNotSupported;
}

template <Pass pass, Score score, class Launch>
cudaError_t for_resident_type(const Attention& a, const Launch& launch) {
  return for_type(a.type, [&]<class T>() {
    if constexpr (sizeof(T) < 8) {
      const bool is_usual = a.head_dim * sizeof(T) % kRowBytes == 0 && a.head_dim <= kMostUsual;
      return is_usual ? for_resident_threads<pass, score, T, true>(a, launch)
                      : for_resident_threads<pass, score, T, false>(a, launch);
    }
    return cudaErrorNotSupported;
  });
}

template <Pass pass, class Launch>
cudaError_t for_resident_shape(const Attention& a, const Launch& launch) {
  const int number_bytes = a.type == Type::f64 ? 8 : a.type == Type::f32 ? 4 : 2;
  const bool has_kernel = a.num_dst == a.num_src && takes_heads(number_bytes, a.heads, a.head_dim);
  if (!has_kernel || !a.tile_list.data || a.tile_nodes < 0 || a.tile_batches < 0) return cudaErrorNotSupported;
  switch (a.score) {
    case Score::dot:
      return for_resident_type<pass, Score::dot>(a, launch);
    case Score::cosine:
      return a.dst == a.src ? for_resident_type<pass, Score::cosine>(a, launch) : cudaErrorNotSupported;
    case Score::additive:
      return for_resident_type<pass, Score::additive>(a, launch);
    default:
      return cudaErrorNotSupported;
  }
}

// Whether the device has shared memory enough.
template <Pass pass>
bool fits_device(const Attention& a) {
  int limit = 0;
  return device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, limit) == cudaSuccess &&
         for_resident_shape<pass>(a, [&]<Score, class S>() {
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
