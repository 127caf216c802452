// The products that graph attention is made of, as operators of their own: sddmm, from nodes to edges, and spmm, from
// edges to nodes. Each is the derivative of the other, so that any order of derivative is made of the two. The same of
// features that edges have (edge_features.cpp), and of numbers of edges without features (edge_softmax.cpp).
#pragma once

#include <ATen/ATen.h>

#include <optional>

namespace dfgnn {

// A graph as an operator is given it: CSR by destination and, optionally, CSC by source.
struct Structure {
  at::Tensor rowptr, col;
  std::optional<at::Tensor> colptr, row, perm;
};

// As schemas name its CSC.
inline constexpr char kCscArguments[] = "Tensor? colptr=None, Tensor? row=None, Tensor? perm=None";

// One compressed form of E edges, checked and contiguous: entries ptr[r] .. ptr[r + 1] - 1 of row r join it to the
// nodes node[c], and the numbers of entry c are at place position[c] of an [E, H] tensor, or c where `position` is
// undefined.
struct Compressed {
  at::Tensor ptr, node, position;
  int64_t num_nodes;  // of the other side

  int64_t num_rows() const { return ptr.numel() - 1; }
  int64_t num_edges() const { return node.numel(); }
};

// A [E, H]: <a_r, b_node[c]> of every entry c of a CSR, 0 where an entry belongs to no row. a, b: T [nodes, H or 1, D];
// a of one node serves all rows.
at::Tensor sddmm_cpu(const Compressed& graph, const at::Tensor& a, const at::Tensor& b);
at::Tensor sddmm_cuda(const Compressed& graph, const at::Tensor& a, const at::Tensor& b);

// The same, and added to it <projected_r, features[eid[c]]>. projected: T [num_rows, H, F], features: T [rows, F].
at::Tensor sddmm_of_both_cpu(const Compressed& graph, const at::Tensor& a, const at::Tensor& b, const at::Tensor& eid,
                             const at::Tensor& projected, const at::Tensor& features);
at::Tensor sddmm_of_both_cuda(const Compressed& graph, const at::Tensor& a, const at::Tensor& b, const at::Tensor& eid,
                              const at::Tensor& projected, const at::Tensor& features);

// T [num_rows, H, D]: the sum over the entries of r of weight[position] * x[node]; [num_rows, 1, D] and summed over the
// heads too with sum_heads. weight: A [E, H], x: T [nodes, H or 1, D].
at::Tensor spmm_cpu(const Compressed& graph, const at::Tensor& weight, const at::Tensor& x, bool sum_heads);
at::Tensor spmm_cuda(const Compressed& graph, const at::Tensor& weight, const at::Tensor& x, bool sum_heads);

// T [num_nodes, D], at node[c] of every entry c of a CSR, no two of which have the same: the sum over the heads of
// weight[c] * a_r, 0 where there is no such entry. weight: A [E, H], a: T [rows or 1, H, D].
at::Tensor edge_spmm_t_cpu(const Compressed& graph, const at::Tensor& weight, const at::Tensor& a);
at::Tensor edge_spmm_t_cuda(const Compressed& graph, const at::Tensor& weight, const at::Tensor& a);

// A [E, H]: a_r + b_node of every entry of a CSR, 0 where an entry belongs to no row. a, b: A [nodes, H].
at::Tensor add_ends_cpu(const Compressed& graph, const at::Tensor& a, const at::Tensor& b);
at::Tensor add_ends_cuda(const Compressed& graph, const at::Tensor& a, const at::Tensor& b);

// A [num_rows, H]: the sum of values[position] over the entries of a row.
at::Tensor sum_edges_cpu(const Compressed& graph, const at::Tensor& values);
at::Tensor sum_edges_cuda(const Compressed& graph, const at::Tensor& values);

// A [E, H]: the softmax of scale * logits over the entries of each row of a CSR, 0 where an entry belongs to no row or
// all logits of its row are -inf; and the gradient of the logits from that of the softmax, alpha.
at::Tensor edge_softmax_cpu(const Compressed& graph, const at::Tensor& logits, double scale);
at::Tensor edge_softmax_cuda(const Compressed& graph, const at::Tensor& logits, double scale);
at::Tensor edge_softmax_bwd_cpu(const Compressed& graph, const at::Tensor& grad, const at::Tensor& alpha, double scale);
at::Tensor edge_softmax_bwd_cuda(const Compressed& graph, const at::Tensor& grad, const at::Tensor& alpha,
                                 double scale);

// What sddmm and edge_sddmm ask of their operands; `a` of the second goes by that name.
void check_sddmm(const Structure& graph, const at::Tensor& a, const at::Tensor& b);
void check_edge_sddmm(const at::Tensor& rowptr, const at::Tensor& eid, const at::Tensor& a, const char* name,
                      const at::Tensor& features);

// Through the dispatcher, hence differentiable.
at::Tensor dispatch_sddmm(const Structure& graph, const at::Tensor& a, const at::Tensor& b);
at::Tensor dispatch_spmm(const Structure& graph, const at::Tensor& weight, const at::Tensor& x, bool transpose,
                         bool sum_heads);
at::Tensor dispatch_edge_sddmm(const at::Tensor& rowptr, const at::Tensor& eid, const at::Tensor& a,
                               const at::Tensor& features);
at::Tensor dispatch_edge_spmm(const at::Tensor& rowptr, const at::Tensor& eid, const at::Tensor& weight,
                              const at::Tensor& features);
at::Tensor dispatch_edge_spmm_t(const at::Tensor& rowptr, const at::Tensor& eid, const at::Tensor& weight,
                                const at::Tensor& a, c10::SymInt rows);

at::Tensor dispatch_edge_softmax(const at::Tensor& rowptr, const at::Tensor& col, const at::Tensor& logits,
                                 double scale);

// The gradient of edge_softmax's logits from that of its result, alpha, by operators that have derivatives.
at::Tensor edge_softmax_gradient(const at::Tensor& rowptr, const at::Tensor& col, const at::Tensor& grad,
                                 const at::Tensor& alpha, double scale);

// The structure with its CSC, which is made where it is not given.
Structure with_csc(Structure graph, const c10::SymInt& num_src);

}  // namespace dfgnn
