// sddmm, spmm and their like on CUDA: what callers of the kernels see. Types, layout and alignment are those of
// attention.h.
#pragma once

#include "attention.h"

namespace dfgnn::cuda {

// T [nodes, heads, head_dim]; where it has one head, that serves all, and so does one node of the first operand.
struct Features {
  const void* data;
  int heads;
  bool one_node = false;
};

// One compressed form of a graph: entry c of row r joins it to node[c], and has place position[c] (c where its data is
// null) in [num_edges, heads].
struct Products {
  Type type;
  int64_t num_rows, num_nodes, num_edges;
  int heads, head_dim;
  Index ptr, node, position;
};

// The same as attention's kernels have it.
inline Attention operands_of(const Products& graph) {
  Attention a{};
  a.type = graph.type;
  a.num_dst = graph.num_rows;
  a.num_src = graph.num_nodes;
  a.num_edges = graph.num_edges;
  a.heads = graph.heads;
  a.head_dim = graph.head_dim;
  a.rowptr = graph.ptr;
  a.col = graph.node;
  return a;
}

// Features of edges beside their ends: T [rows, width], those of entry c at eid[c], and T [num_rows, heads, width],
// what each row of the graph multiplies them with.
struct FeaturesOfEdges {
  Index eid;
  int64_t rows;
  int width;
  const void *features, *projected;
};

// result A [num_edges, heads]: <a_r, b_node> of every entry that belongs to a row, and 0 of others. position.data is
// null. With features of edges, where these are not null, <projected_r, features_eid> is added. scratch: of as many
// bytes as sddmm_scratch says.
size_t sddmm_scratch(const Products& graph);
cudaError_t sddmm(const Products& graph, const Features& a, const Features& b, const FeaturesOfEdges* edges,
                  void* result, void* scratch, cudaStream_t stream);

// result T [num_rows, heads, head_dim]: sum of weight * x_node over the entries of r; with sum_heads over the heads
// too, T [num_rows, 1, head_dim]. weight: A [num_edges, heads]. scratch: of as many bytes as spmm_scratch says.
size_t spmm_scratch(const Products& graph, bool sum_heads);
cudaError_t spmm(const Products& graph, const void* weight, const Features& x, bool sum_heads, void* result,
                 void* scratch, cudaStream_t stream);

// result T [num_nodes, head_dim], written at `node` of every entry that belongs to a row, each of which has one of its
// own: sum over the heads of weight * a_r. weight: A [num_edges, heads].
cudaError_t edge_spmm_t(const Products& graph, const void* weight, const Features& a, void* result,
                        cudaStream_t stream);

// result A [num_edges, heads]: a_r + b_node of every entry that belongs to a row. a: A [num_rows, heads], b: A [nodes,
// heads].
cudaError_t add_ends(const Products& graph, const void* a, const void* b, void* result, cudaStream_t stream);

}  // namespace dfgnn::cuda
