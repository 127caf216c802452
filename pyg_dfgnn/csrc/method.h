// Which method an `attention` call runs.
#pragma once

#include "call.h"

namespace dfgnn {

enum class Pass { forward, backward };

// Op::smmf, Op::pmf and Op::tile are their own choice; Op::attention follows call.route.method, and "auto" the rule of
// the DF-GNN paper (section 4): a super node's scores do not fit in a block's shared memory, so
//   max degree >= shared memory of a block / bytes of the dtype, and a dot score  ->  pmf,  else smmf.
// Measurements refine it, with constants in method.cpp and sizes that the host knows, so that nothing waits for the
// device; in words: docs/operators.md, "Which method".
//
// Where the tile kernels cannot run (float64, head sizes over 256, of cosine scores over 128, or, where cuda/padding.h
// leaves them so, no multiple of 16 bytes, additive_v2, num_dst != num_src; or not tile_fits), "auto" chooses among the
// others, and smmf takes the place of tile.
using TileFits = bool (*)(const Attention&, Pass);
Method choose_method(const Call& call, const Attention& attention, Pass pass, TileFits tile_fits = nullptr);

// Whether the forward pass of a call that records one makes the derivative of out, too (derivative.h): of additive
// scores on CUDA where rows and columns are long, neither tile nor resident may be faster, nobody chose a method, and
// no edge wants a gradient of its own. Of sizes that a trace leaves open it does not, as a guard would be a condition
// of exported programs.
bool keeps_derivative(const Call& call);

// Whether a block of the tensors' device has shared memory for the tile kernels.
bool tile_fits_cuda(const Attention& attention, Pass pass);

// Whether these kernels take the call, were its heads of that size.
bool tile_takes_heads(const Attention& attention, int64_t head_dim);
bool resident_takes_heads(const Attention& attention, int64_t head_dim);

}  // namespace dfgnn
