// The products that graph attention is made of, as operators of their own: sddmm, from nodes to edges, and spmm, from
// edges to nodes. Each is the derivative of the other, so that any order of derivative is made of the two.
#pragma once

#include <ATen/ATen.h>

#include <optional>

namespace dfgnn {

// A graph as an operator is given it: CSR by destination and, optionally, CSC by source.
struct Structure {
  at::Tensor rowptr, col;
  std::optional<at::Tensor> colptr, row, perm;
};

// One compressed form of E edges, checked and contiguous: entries ptr[r] .. ptr[r + 1] - 1 of row r join it to the
// nodes node[c], and the numbers of entry c are at place position[c] of an [E, H] tensor, or c where `position` is
// undefined.
struct Compressed {
  at::Tensor ptr, node, position;
  int64_t num_nodes;  // of the other side

  int64_t num_rows() const { return ptr.numel() - 1; }
  int64_t num_edges() const { return node.numel(); }
};

// A [E, H]: <a_r, b_node[c]> of every entry c of a CSR, 0 where an entry belongs to no row. a, b: T [nodes, H or 1, D].
at::Tensor sddmm_cpu(const Compressed& graph, const at::Tensor& a, const at::Tensor& b);
at::Tensor sddmm_cuda(const Compressed& graph, const at::Tensor& a, const at::Tensor& b);

// T [num_rows, H, D]: the sum over the entries of r of weight[position] * x[node]; [num_rows, 1, D] and summed over the
// heads too with sum_heads. weight: A [E, H], x: T [nodes, H or 1, D].
at::Tensor spmm_cpu(const Compressed& graph, const at::Tensor& weight, const at::Tensor& x, bool sum_heads);
at::Tensor spmm_cuda(const Compressed& graph, const at::Tensor& weight, const at::Tensor& x, bool sum_heads);

// Through the dispatcher, hence differentiable; see schema.cpp.
at::Tensor dispatch_sddmm(const Structure& graph, const at::Tensor& a, const at::Tensor& b);
at::Tensor dispatch_spmm(const Structure& graph, const at::Tensor& weight, const at::Tensor& x, bool transpose,
                         bool sum_heads);

// The structure with its CSC, which is made where it is not given.
Structure with_csc(Structure graph, const c10::SymInt& num_src);

}  // namespace dfgnn
