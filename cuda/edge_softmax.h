// Numbers of edges, A [num_edges, heads], by the rows of a compressed form: their sums, softmax and its derivative.
// scratch: of as many bytes as edge_scratch says, at a multiple of 16.
#pragma once

#include "products.h"

namespace dfgnn::cuda {

size_t edge_scratch(const Products& graph);

// result A [num_rows, heads]: the sum of `values` at the positions of the entries of a row.
cudaError_t sum_edges(const Products& graph, const void* values, void* result, void* scratch, cudaStream_t stream);

// result A [num_edges, heads]: exp(scale * logit) over its sum in the entry's row, 0 in a row all of whose logits are
// -inf; of entries of no row left as they are. position.data is null.
cudaError_t edge_softmax(const Products& graph, const void* logits, double scale, void* result, void* scratch,
                         cudaStream_t stream);

// result A [num_edges, heads]: the gradient of the logits, scale * alpha * (grad - sum of alpha * grad), where alpha is
// that softmax.
cudaError_t edge_softmax_backward(const Products& graph, const void* grad, const void* alpha, double scale,
                                  void* result, void* scratch, cudaStream_t stream);

}  // namespace dfgnn::cuda
