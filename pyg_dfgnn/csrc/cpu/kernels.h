// What one instruction set's build of the kernels gives to run.cpp, which chooses one.
//
// kernels_<isa>.cpp compile the same source with different flags. They see this header and those whose functions are
// all in a namespace of the instruction set's own, and none of torch: an inline function of a shared header, built with
// AVX-512 and picked by the linker for everyone, would crash older machines. For the same reason no function has a body
// here.
#pragma once

#include <cstdint>

namespace dfgnn::cpu {

enum class Type { f32, f64, f16, bf16 };
// In the order of dfgnn::Score, and that of messages (messages.h).
enum class Logit { dot, cosine, additive, additive_v2, message };

// The operands as raw pointers; shapes and meaning as in attention.h. T is the value's type, A the accumulation type.
struct Args {
  const void *rowptr, *col;         // CSR, [num_dst + 1] and [num_edges]
  const void *colptr, *row, *perm;  // CSC, the pass over columns only
  bool wide_index;                  // the five above, and eid, are int64, not int32
  int64_t num_dst, num_src, num_edges, heads, head_dim;

  const void *dst, *src, *value;
  const void *dst_scale, *src_scale;  // cosine
  const void* att;                    // additive_v2
  const void* a_edge;                 // additive, or null
  // message: T [num_features, edge_dim], of CSR entry e at eid[e], and W as A [H, D, edge_dim] and A [H, edge_dim, D]
  const void *features, *eid, *projection, *transposed_projection;
  int64_t num_features, edge_dim;
  const void* bias;  // or null
  double scale, negative_slope;

  bool dropout;
  uint32_t seed[2];         // of dropout: its halves, the low one first
  uint64_t keep_threshold;  // an edge is kept when its random 32-bit word is at least this
  double keep_scale;        // and its weight multiplied by this

  void *out, *lse;  // T and A: results of the forward pass, read by the backward pass over rows

  const void *grad_out, *grad_lse;  // grad_lse may be null
  // A [E, H], written by the pass over rows, read by the pass over columns: the weight dropout(p) of an edge, and the
  // gradient of its score (before the leaky ReLU where the score is additive).
  void *weight, *grad_score;
  void* grad_bias;  // A [E, H], additive with a bias only: elsewhere it is grad_score
  void *grad_dst, *grad_src, *grad_value;
  // message: T [num_features, edge_dim], 0 before, and A [N_dst, H, edge_dim], sums over a row's edges of features by
  // ds and by weights; each may be null
  void *grad_features, *grad_sums, *weight_sums;

  // sddmm: dst, src and out; spmm: weight, src and out; edge_spmm_t: weight, dst and out. What has one head has it for
  // all, and so has one node of dst.
  int64_t dst_heads, src_heads, out_heads;
  bool one_dst;
};

// A row of more edges than this is computed in pieces that run in parallel. The pieces depend on its degree alone, so
// the bits of the result do not depend on the number of threads.
constexpr int64_t kPieceEdges = 2048;

// One pass over rows (or columns: then "row" means column below). What is accumulated over the edges of a row is its
// state, an array of A; the states of a row's pieces merge into its result.
struct Pass {
  int64_t (*state_size)(const Args&);
  // Rows begin..end - 1 as a whole, but for those of more than kPieceEdges edges.
  void (*rows)(const Args&, int64_t begin, int64_t end, void* state);
  // Edges begin..end - 1 of one row into its state.
  void (*piece)(const Args&, int64_t row, int64_t begin, int64_t end, void* state);
  // Merges `count` states that lie one after the other, in their order, and writes the row's result.
  void (*merge)(const Args&, int64_t row, void* states, int64_t count);
};

struct Kernels {
  Pass forward;       // out, lse
  Pass backward_dst;  // over rows: weight, grad_score, grad_bias, grad_dst
  Pass backward_src;  // over columns: grad_src, grad_value; not of messages, whose columns are spmm
                      // (csrc/message_attention.cpp)
};

struct ProductKernels {
  Pass sddmm, spmm, edge_spmm_t;
};

// Rows of features, one after another, and the way back from what normalises them; see normalize.h.
struct NormArgs {
  const void* x;  // T [rows, size]
  int64_t size;
  double eps;
  void* reciprocal;  // A [rows]
  // Backward:
  const void *g, *added;  // T [rows, size]; added may be null
  const void* beta;       // A [heads], of row r at r % heads, or null
  int64_t heads;
  void *grad, *projection;  // T [rows, size] and A [rows]
};

struct NormKernels {
  void (*reciprocal_norm)(const NormArgs&, int64_t begin, int64_t end);  // of these rows
  void (*normalize_backward)(const NormArgs&, int64_t begin, int64_t end);
};

// Additive_v2's gradients of nodes; see att.h. T [rows, size] each, of all heads' features.
struct AttArgs {
  const void* x;
  void* g;            // without the factor att before, with it and with `added` after
  const void* added;  // or null
  const void* att;    // A [size]
  int64_t size;
};

// Of nodes begin .. end - 1; sums: A [size], their part of att's gradient.
using AttKernel = void (*)(const AttArgs&, int64_t begin, int64_t end, void* sums);

// GAT's scores of nodes and the way back; see node_scores.h. Of one or two vectors att.
struct NodeArgs {
  const void* x;  // T [N, heads, head_dim]
  int64_t heads, head_dim;
  const void* att[2];   // A [heads, head_dim]; the second one may be null, as what is made of it
  void* scores[2];      // A [N, heads]
  const void* grad[2];  // A [N, heads]
  void* grad_x;         // T [N, heads, head_dim]
};

struct NodeKernels {
  void (*scores)(const NodeArgs&, int64_t begin, int64_t end);  // of these nodes
  void (*gradients)(const NodeArgs&, int64_t begin, int64_t end, void* sums);
};

// GATv2's scores of edges that have features: of E entries of the rows of a compressed form, CSR by destination or, for
// the gradients of sources, CSC. Shapes and meaning as in logits.h.
struct V2Args {
  const void *ptr, *node, *position;  // [num_rows + 1], [E] and, of a CSC, [E]: the edges' numbers
  const void* eid;                    // [E], by edges
  bool wide_index;                    // the four above are int64, not int32
  int64_t num_rows, num_nodes, num_edges, num_features, heads, channels, edge_dim;
  const void *own, *other;   // T [rows, heads, channels], T [nodes, heads, channels]
  const void *att, *weight;  // A [heads, channels], A [edge_dim, heads, channels]
  const void* features;      // T [num_features, edge_dim]
  double negative_slope;
  void* logits;      // A [E, heads], 0 before
  const void* grad;  // A [E, heads]
  int64_t tasks;     // that the entries are cut into
  void* grad_own;    // A [rows, heads, channels], 0 before: of rows that are in one task but neither its first nor last
  void *ends, *end_rows;  // A [tasks, 2, heads, channels] of a task's first and last row, int64 [tasks, 2]: -1 before
  void *sums, *grad_features;  // A [tasks, 1 + edge_dim, heads, channels], T [num_features, edge_dim]: each may be null
};

struct V2Kernels {
  int64_t (*scratch)(const V2Args&);  // of A
  void (*logits)(const V2Args&, int64_t begin, int64_t end, void* scratch);
  void (*gradients)(const V2Args&, int64_t task, void* scratch);
};

// mask[e * heads + h]: whether dropout keeps edge e of [begin, end) for head h.
using DropoutMask = void (*)(const Args&, int64_t begin, int64_t end, bool* mask);

namespace baseline {
Kernels kernels(Logit logit, Type type);
ProductKernels product_kernels(Type type);
NormKernels norm_kernels(Type type);
AttKernel att_kernel(Type type);
NodeKernels node_kernels(Type type);
V2Kernels v2_kernels(Type type);
void dropout_mask(const Args&, int64_t begin, int64_t end, bool* mask);
}  // namespace baseline
namespace avx2 {
Kernels kernels(Logit logit, Type type);
ProductKernels product_kernels(Type type);
NormKernels norm_kernels(Type type);
AttKernel att_kernel(Type type);
NodeKernels node_kernels(Type type);
V2Kernels v2_kernels(Type type);
void dropout_mask(const Args&, int64_t begin, int64_t end, bool* mask);
}  // namespace avx2
namespace avx512 {
Kernels kernels(Logit logit, Type type);
ProductKernels product_kernels(Type type);
NormKernels norm_kernels(Type type);
AttKernel att_kernel(Type type);
NodeKernels node_kernels(Type type);
V2Kernels v2_kernels(Type type);
void dropout_mask(const Args&, int64_t begin, int64_t end, bool* mask);
}  // namespace avx512

}  // namespace dfgnn::cpu
