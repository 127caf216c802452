// Heads whose rows are whole vectors of 16 bytes, which kernels of CUDA load at once.
#pragma once

#include <initializer_list>

#include "../call.h"

namespace dfgnn {

// The operands with zeros behind each head's features up to whole vectors, where that is worth the copies: a row that
// is not costs the kernels a load for each of its numbers, three to ten times as long altogether, and the tile and
// resident methods do not take it. What the features mean (scale, norms) is that of those given.
Attention with_whole_vectors(const Call& call, Attention attention);

// Edges times heads from which on that is faster (forward, H200, MNIST's batch in bfloat16, 3 heads of 12).
constexpr int64_t kWorthItsCopies = int64_t{1} << 17;

// The size of heads [nodes, heads, size] in whole vectors, and of more than 128 bytes in whole sectors of memory (32
// bytes); of float64 as it is.
int64_t in_whole_vectors(const at::Tensor& features);
int64_t in_whole_vectors(int64_t number_bytes, int64_t head_dim);

// Makes features [nodes, heads, size] have heads of another size, with zeros or without the last ones as it takes, by
// one kernel; of up to three, all of one size. Anything of other dimensions stays as it is, and what is the same the
// same.
void resize_heads(std::initializer_list<at::Tensor*> features, int64_t head_dim);
at::Tensor with_head_dim(at::Tensor features, int64_t head_dim);

}  // namespace dfgnn
