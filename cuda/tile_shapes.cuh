// From run-time types and sizes to the tile kernels.
#pragma once

#include "attention.h"
#include "dependent.cuh"
#include "device.h"
#include "tile_logit.cuh"
#include "tile_masks.cuh"
#include "tile_norms.cuh"
#include "tile_turns.cuh"

namespace dfgnn::cuda::tile {

template <class T, bool kTf32 = false, class Launch>
cudaError_t for_tile_features(int head_dim, const Launch& launch) {
  if (head_dim <= 16) return launch.template operator()<Shape<T, 32, kTf32, 2>>();
  if (head_dim <= 32) return launch.template operator()<Shape<T, 32, kTf32>>();
  if (head_dim <= 64) return launch.template operator()<Shape<T, 64, kTf32>>();
  if (head_dim <= 128) return launch.template operator()<Shape<T, 128, kTf32>>();
  if constexpr (sizeof(T) == 4) {
    return launch.template operator()<Shape<T, 128, false, 1, 2>>();
  } else {
    return launch.template operator()<Shape<T, 256>>();
  }
}

// Calls launch.operator()<score, S>(), for what takes_heads.
template <class Launch>
cudaError_t for_tile_shape(const Attention& a, const Launch& launch) {
  const int number_bytes = a.type == Type::f64 ? 8 : a.type == Type::f32 ? 4 : 2;
  const bool is_cosine = a.score == Score::cosine;
  if (!takes_heads(number_bytes, a.head_dim, is_cosine) || a.score == Score::additive_v2) return cudaErrorNotSupported;
  const auto with_score = [&]<class S>() {
    if (a.score == Score::dot) return launch.template operator()<Score::dot, S>();
    if constexpr (takes_heads(sizeof(typename S::T), S::kWholeHead, true)) {
      if (is_cosine) return launch.template operator()<Score::cosine, S>();
    }
    return launch.template operator()<Score::additive, S>();
  };
  switch (a.type) {
    case Type::f32:
      return a.allow_tf32 ? for_tile_features<float, true>(a.head_dim, with_score)
                          : for_tile_features<float>(a.head_dim, with_score);
    case Type::f16:
      return for_tile_features<__half>(a.head_dim, with_score);
    default:
      return for_tile_features<__nv_bfloat16>(a.head_dim, with_score);
  }
}

// Whether a call is for the kernels that take all: something depends on the place of an edge (their kPositions), or the
// logits' scale is not more than 0.
template <Score score, class S>
bool needs_positions(const Attention& a) {
  return a.bias || a.a_edge || a.dropout_p > 0 || (kMasksFirst<score, S, false> && !(static_cast<float>(a.scale) > 0));
}

// Whether a block of the current device has the shared memory, with so much for matrices and chunks' terms, and else an
// error.
template <Score score, class S>
cudaError_t check_room(int bytes) {
  constexpr int kFixed = sizeof(WindowMasks) + sizeof(ScoreNorms<score, S>) + sizeof(typename PartSums<S>::Shared);
  int limit = 0;
  const cudaError_t error = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin, limit);
  if (error != cudaSuccess) return error;
  return bytes + kFixed + kMatrixAlignment <= limit ? cudaSuccess : cudaErrorNotSupported;
}

// Launches a kernel over tiles and heads, of which a multiprocessor has so many blocks, and whose last parameter is how
// they share windows. stages_bytes: of a part. kDependent: see dependent.cuh.
template <class S, bool kPositions, bool kDependent = false, class Kernel, class... Arguments>
cudaError_t launch_tile(Kernel kernel, int blocks_each, int stages_bytes, const Attention& a, cudaStream_t stream,
                        const Arguments&... arguments) {
  if (a.num_dst == 0 || a.heads == 0) return cudaSuccess;
  const int shared_bytes = S::kParts * stages_bytes;
  cudaError_t error = allow_shared_memory(kernel, shared_bytes);
  if (error != cudaSuccess) return error;
  const int64_t room = window_blocks(a.num_tiles);
  Sharing sharing = Sharing::one_each(room);
  if constexpr (kTakesSeveral<S, kPositions>) {
    int multiprocessors = 0;
    error = device_attribute(cudaDevAttrMultiProcessorCount, multiprocessors);
    if (error != cudaSuccess) return error;
    sharing = Sharing::several(room, blocks_each * multiprocessors);
  }
  const dim3 grid(sharing.blocks, group_blocks<S>(room, a.heads)), block(kThreads, S::kParts);
  if constexpr (kDependent) {
    return launch_dependent(kernel, grid, block, shared_bytes, stream, arguments..., sharing);
  }
  kernel<<<grid, block, shared_bytes, stream>>>(arguments..., sharing);
  return cudaGetLastError();
}

}  // namespace dfgnn::cuda::tile
