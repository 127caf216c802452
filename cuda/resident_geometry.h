// What the resident kernels take of shared memory, as plain numbers: what chooses between methods reads them too.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define DFGNN_EVERYWHERE __host__ __device__
#else
#define DFGNN_EVERYWHERE
#endif

namespace dfgnn::cuda::resident {

constexpr int kLanes = 4, kGroups = 8;                        // of a row, of a warp
constexpr int kBatch = 2;                                     // edges of a row at a time
constexpr int kRowBytes = 128;                                // of a node's part of a chunk
constexpr int kMostFeatures = 768;                            // of a head,
constexpr int kMostUsual = 256;                               // and of one of whole chunks with kernels of its own
constexpr int kMultiprocessorBytes = 228 << 10;               // of shared memory
constexpr int kMostNodes = kMultiprocessorBytes / kRowBytes;  // of a tile: larger ones are not looked into
constexpr int kStaticBytes = 256;  // of a block, at the most; beside them the system takes 1 KiB

// Whether heads of that size have kernels: whole pieces of 16 bytes, and all of a node's offsets in a tile fit 32 bits.
constexpr bool takes_heads(int64_t number_bytes, int64_t heads, int64_t head_dim) {
  return number_bytes <= 4 && head_dim <= kMostFeatures && head_dim * number_bytes % 16 == 0 &&
         heads * head_dim * number_bytes <= 1 << 20;
}

// Of a block's dynamic shared memory where a multiprocessor has so many.
constexpr int64_t bytes_of_block(int blocks) {
  return (kMultiprocessorBytes / blocks - 1024 - kStaticBytes) / kRowBytes * kRowBytes;
}

DFGNN_EVERYWHERE constexpr int64_t slots_of_nodes(int64_t nodes) { return (nodes + kGroups - 1) / kGroups * kGroups; }

// A chunk of so many nodes, and zeros behind it; what the slices of nodes take, places of nodes, a number of each, and
// 4 bytes an edge of batches.
DFGNN_EVERYWHERE constexpr int64_t chunk_bytes_of(int64_t nodes) { return (nodes + 1) * kRowBytes; }
DFGNN_EVERYWHERE constexpr int64_t row_bytes_of(int64_t nodes) {
  const int64_t shorts = nodes + 1 + slots_of_nodes(nodes) + slots_of_nodes(nodes) / kGroups + 1;
  return (2 * shorts + 15) / 16 * 16;
}
DFGNN_EVERYWHERE constexpr int64_t place_bytes_of(int64_t nodes) { return (2 * nodes + 15) / 16 * 16; }
DFGNN_EVERYWHERE constexpr int64_t number_bytes_of(int64_t nodes) { return (4 * nodes + 15) / 16 * 16; }
DFGNN_EVERYWHERE constexpr int64_t edge_bytes_of(int64_t batches) { return batches * (kGroups * kBatch * 4); }
DFGNN_EVERYWHERE constexpr int64_t list_bytes_of(int64_t edge_bytes) { return edge_bytes / 2; }  // 2 bytes an edge

// A chunk, or what the backward pass has of edges and nodes in its place.
DFGNN_EVERYWHERE constexpr int64_t chunk_or_edge_bytes_of(int64_t nodes, int64_t edge_bytes) {
  const int64_t chunk = chunk_bytes_of(nodes), edges = 3 * edge_bytes + place_bytes_of(nodes);
  return chunk > edges ? chunk : edges;
}

// At the most so many batches have nodes with as many of their own, one of them `longest`: a slice has as many as the
// longest of its nodes, which are in order.
template <class N>
DFGNN_EVERYWHERE constexpr N batches_of(N edges) {
  return (edges + kBatch - 1) / kBatch;
}
DFGNN_EVERYWHERE constexpr int64_t batches_of_slices(int64_t of_nodes, int64_t longest) {
  return of_nodes / kGroups + longest + 1;
}

// All that a tile takes in a pass. Where the longest row is known, to have so many edges, rows' batches may be fewer.
// Cosine scores have a number of each node beside, and two in the backward pass; other scores a list of slots in that.
constexpr int64_t kTooMany = 1 << 14;
constexpr int64_t forward_bytes(int64_t nodes, int64_t batches, int64_t max_degree, bool is_cosine) {
  if (nodes > kTooMany || batches > kTooMany) return INT64_MAX;
  if (max_degree >= 0 && max_degree < kTooMany * kBatch) {
    const int64_t at_most = slots_of_nodes(nodes) / kGroups * batches_of(max_degree);
    if (at_most < batches) batches = at_most;
  }
  return chunk_bytes_of(nodes) + row_bytes_of(nodes) + is_cosine * number_bytes_of(nodes) + 2 * edge_bytes_of(batches);
}
constexpr int64_t backward_bytes(int64_t nodes, int64_t batches, bool is_cosine) {
  if (nodes > kTooMany || batches > kTooMany) return INT64_MAX;
  const int64_t edges = edge_bytes_of(batches), beside = is_cosine ? 2 * number_bytes_of(nodes) : list_bytes_of(edges);
  return chunk_or_edge_bytes_of(nodes, edges) + 3 * edges + 2 * row_bytes_of(nodes) + beside;
}

}  // namespace dfgnn::cuda::resident

#undef DFGNN_EVERYWHERE
