// What resident's backward pass has in shared memory.
#pragma once

#include "resident_chunk.cuh"

namespace dfgnn::cuda::resident {

// A chunk, or what is being reordered; from the end backwards what slices have of rows and of columns, and cosine's
// numbers of nodes; between them, of slots, two numbers and an offset each; before these a list of slots or edges, or,
// of cosine scores, the other nodes of edges at first.
struct Layout {
  unsigned char* memory;
  int64_t bytes;
  int nodes, numbers;  // of each node

  __device__ __forceinline__ int64_t row_bytes() const { return row_bytes_of(nodes); }
  __device__ __forceinline__ int64_t nodes_begin() const {
    return bytes - 2 * row_bytes() - numbers * number_bytes_of(nodes);
  }
  __device__ __forceinline__ float* number(int which) const {
    return reinterpret_cast<float*>(memory + nodes_begin() + which * number_bytes_of(nodes));
  }
  __device__ __forceinline__ unsigned char* rows() const { return memory + bytes - 2 * row_bytes(); }
  __device__ __forceinline__ unsigned char* columns() const { return memory + bytes - row_bytes(); }
  __device__ __forceinline__ uint16_t* others() const {
    return reinterpret_cast<uint16_t*>(memory + chunk_bytes_of(nodes));
  }
  __device__ __forceinline__ unsigned char* slots(int which, int64_t edge_bytes) const {
    return memory + nodes_begin() - (which + 1) * edge_bytes;
  }
  __device__ __forceinline__ bool fit_nodes() const { return chunk_bytes_of(nodes) <= nodes_begin(); }
  __device__ __forceinline__ uint16_t* list_of_edges(int64_t edge_bytes) const {
    return reinterpret_cast<uint16_t*>(slots(2, edge_bytes) - list_bytes_of(edge_bytes));
  }
  __device__ __forceinline__ bool fit_edges(int64_t edge_bytes, int64_t list_bytes = 0) const {
    return chunk_or_edge_bytes_of(nodes, edge_bytes) + 3 * edge_bytes + list_bytes <= nodes_begin();
  }

  // In the chunk's place: two numbers an edge, two lists of edges, and, of cosine scores, a place of each row in the
  // order.
  __device__ __forceinline__ uint16_t* list(int which, int64_t edge_bytes) const {
    return reinterpret_cast<uint16_t*>(memory + 2 * edge_bytes + which * list_bytes_of(edge_bytes));
  }
  __device__ __forceinline__ uint16_t* places(int64_t edge_bytes) const {
    return reinterpret_cast<uint16_t*>(memory + 3 * edge_bytes);
  }
};

}  // namespace dfgnn::cuda::resident
