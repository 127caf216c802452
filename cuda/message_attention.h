// Attention over messages x_j + W f_e on CUDA: what callers of the kernels see. W meets nodes, so that messages are
// never made: with f_e the features of edge e, and W^T by heads,
//   s_e = scale (<q_i, k_j> + <W^T q_i, f_e>),  alpha = dropout(softmax(s)),  y_i = sum alpha_e v_j + W sum alpha_e f_e
#pragma once

#include "message_geometry.h"
#include "products.h"

namespace dfgnn::cuda {

// Features of edges, T [rows, width], those of edge e at eid[e]. Where their pieces, of a message_shape(), are not 0,
// kernels are of octets: projected is W^T q, T [num_dst, heads, width], and what W makes of sums is left to callers.
// Otherwise weights are W, in the accumulation type A, as lanes read it: [steps, vector, width / term, lanes, term],
// where vector and term are a lane's numbers of nodes' and of edges' features, and steps times lanes times vector is a
// row of all heads, with zeros behind the last.
struct MessageFeatures {
  Index eid;
  int64_t rows;
  int width, pieces;
  const void *features, *weights, *projected;
};

// sums: of octets, sum alpha_e f_e: T [num_dst, heads, width], of which W is to be added to `out`.
struct MessageOutputs {
  void *out, *lse, *sums;
};

// With dp_e = <dy_i, v_j> + <W^T dy_i, f_e>, of dropped edges 0, and ds_e = scale alpha_e (dp_e - <dy_i, y_i>):
struct MessageGradients {
  const void *grad_out, *out, *lse;  // dy, y
  const void* projected;             // of octets: W^T dy
  void* query;             // sum ds_e k_j + W sum ds_e f_e, of octets the first alone: T [num_dst, heads, head_dim]
  void *logits, *weights;  // ds and alpha: A [num_edges, heads]
  // sum ds_e f_e and sum alpha_e f_e: T [num_dst, heads, width]; both or none are null, of octets the second may be.
  void *by_logits, *by_weights;
  void* features;  // of f_e, at eid[e]: T [rows, width]; may be null
};

// Of `attention`: dst, src and value are q, k and v; score, and what else there is of scores, do not matter. Shapes are
// those of which there is a message_shape(), the width a whole_width(). scratch: of as many bytes as *_scratch says.
size_t message_attention_fwd_scratch(const Attention& attention, const MessageFeatures& features);
cudaError_t message_attention_fwd(const Attention& attention, const MessageFeatures& features,
                                  const MessageOutputs& outputs, void* scratch, cudaStream_t stream);
size_t message_attention_bwd_scratch(const Attention& attention, const MessageFeatures& features);
cudaError_t message_attention_bwd(const Attention& attention, const MessageFeatures& features,
                                  const MessageGradients& gradients, void* scratch, cudaStream_t stream);

// The same of octets, which these call; not of float64.
size_t message_octets_fwd_scratch(const Attention& attention, const MessageFeatures& features);
cudaError_t message_octets_fwd(const Attention& attention, const MessageFeatures& features,
                               const MessageOutputs& outputs, void* scratch, cudaStream_t stream);
size_t message_octets_bwd_scratch(const Attention& attention, const MessageFeatures& features);
cudaError_t message_octets_bwd(const Attention& attention, const MessageFeatures& features,
                               const MessageGradients& gradients, void* scratch, cudaStream_t stream);

}  // namespace dfgnn::cuda
