// Compressed forms of a graph on CUDA: what callers of the kernels see.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

#include "attention.h"

namespace dfgnn::cuda {

struct MutableIndex {
  void* data;
  bool wide;  // int64
};

// CSR by destination of the edges (src[e] -> dst[e]), e < num_edges: rowptr [num_dst + 1], col and eid [capacity],
// stats [2] = (max degree, edges with an end out of range, which are left out). With self_loops, edges i -> i are
// dropped and one put at the end of each row i < min(num_src, num_dst), with eid = num_edges + i. A stable sort by
// destination: edges of a row keep their order. Call with workspace null for its size.
struct CooToCsr {
  Index src, dst;
  int64_t num_edges, num_src, num_dst;
  bool self_loops;
  int64_t capacity;
  MutableIndex rowptr, col, eid;
  int64_t* stats;
};
cudaError_t coo_to_csr(const CooToCsr& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream);

// Lists from here on coo_to_csr and csr_to_csc leave to CUB, whose radix sort takes half the time of the cooperative
// kernel's. So long a list is seldom a batch of small graphs: it is one graph's, sorted by one of its ends at most. The
// near way would pay for that end alone, and by less than the far way costs for the other.
constexpr int64_t kLongList = 1 << 24;

// CSC by source of a CSR: colptr [num_src + 1], row and perm [capacity] of the CSR's index type; perm holds positions
// in the CSR. Entries past the last edge are 0.
struct CsrToCsc {
  Index rowptr, col;
  int64_t num_dst, num_src, capacity;
  MutableIndex colptr, row, perm;
};
cudaError_t csr_to_csc(const CsrToCsc& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream);

// From what coo_to_csr, and of that csr_to_csc, has made to rows that ascend by source, but for self-loops that were
// put in, which stay the last: col, eid and perm change.
struct SortRows {
  CooToCsr csr;
  CsrToCsc csc;
};
cudaError_t sort_rows(const SortRows& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream);

// CSR by destination and CSC by source of graphs side by side, as coo_to_csr and csr_to_csc make them of edges that are
// sorted by destination and then by source, from degrees [num_nodes, 2], the edges that a node is the destination and
// the source of, and local_perm [num_edges], what perm of each graph alone is: uint16 where `narrow`, else int32. ptr
// [num_graphs + 1]: the first node of each graph, then num_nodes. In the CSC, a self-loop that is put in comes last.
// tiles: of find_tiles, with graphs for what may not be cut. Nodes exist where edges do, and graphs where nodes do.
struct SideBySide {
  const void *degrees, *local_perm;
  bool narrow;
  const int64_t* ptr;
  int64_t num_graphs, num_nodes, num_edges, num_tiles;  // num_tiles: entries of `tiles`
  bool self_loops;
  MutableIndex rowptr, col, eid, colptr, row, perm;
  int* tiles;
};
cudaError_t side_by_side(const SideBySide& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream);

// Tiles of a graph with as many sources as destinations: tiles [ceil(num_nodes / 64) + 1], tiles[t] the first node at
// or after 64 t such that no edge joins nodes before and after it. blocks [1]: what they cost (graph.cpp of the
// operators).
struct FindTiles {
  Index rowptr, col;
  int64_t num_nodes, num_edges;
  int* tiles;
  int64_t* blocks;
};
cudaError_t find_tiles(const FindTiles& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream);

// coo_to_csr, sort_rows, csr_to_csc and find_tiles at once, of what has fewer than kLongList entries and int32 results:
// `csr` with stats [3], the last the blocks of find_tiles; of `csc` the results and numbers of nodes. tiles may be
// null: then they are not looked for, and blocks is -1.
struct Compress {
  CooToCsr csr;
  CsrToCsc csc;
  int* tiles;
  int64_t num_boundaries;  // entries of `tiles`
};
cudaError_t compress(const Compress& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream);

// Windows of a graph's tiles [2 * window_blocks(), kWindowWords], in the order in which blocks take them
// (tile_geometry.h).
cudaError_t order_windows(const int* tiles, int64_t num_nodes, int* windows, cudaStream_t stream);

// Masks of the rows of a graph's windows, [num_nodes, kMaskWords], and behind them, where there is a CSC, of its
// columns.
struct MakeMasks {
  Index rowptr, col, colptr, row;
  int64_t num_nodes, num_edges;
  const int* windows;
  int* masks;
};
cudaError_t make_masks(const MakeMasks& task, cudaStream_t stream);

// The list of tiles (tile_geometry.h): tiles and list [boundaries_of(num_nodes)].
cudaError_t list_tiles(const int* tiles, int64_t num_nodes, int* list, cudaStream_t stream);

// Rows and columns by their numbers of edges (tile_geometry.h): orders [kOrderWords, 2, num_nodes], of fewer than 2^30
// nodes and 2^31 edges.
struct OrderRows {
  Index rowptr, colptr;
  int64_t num_nodes, num_edges;
  int* orders;
};
cudaError_t order_rows(const OrderRows& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream);

// What the largest tile takes of the resident kernels: sizes [2] = (nodes, batches of edges, of rows or of columns),
// the second of tiles that may fit at all.
struct MeasureTiles {
  const int* tiles;
  Index rowptr, colptr;
  int64_t num_nodes;
  int64_t* sizes;
};
cudaError_t measure_tiles(const MeasureTiles& task, cudaStream_t stream);

}  // namespace dfgnn::cuda
