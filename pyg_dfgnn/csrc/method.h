// Which method an `attention` call runs: the super-node check.
#pragma once

#include "call.h"

namespace dfgnn {

enum class Pass { forward, backward };

// Op::smmf, Op::pmf and Op::tile are their own choice; Op::attention follows call.route.method, and "auto" the rule of
// the DF-GNN paper (section 4): a super node's scores do not fit in a block's shared memory, so
//   max degree >= shared memory of a block / bytes of the dtype, and a dot score  ->  pmf,  else smmf.
// Measurements refine it. smmf's backward pass keeps no scores in shared memory and was 1.2 to 2 times as fast as
// pmf's on the graphs with super nodes of docs/performance.md, so that "auto" takes it instead. Tile is taken where its
// blocks of nodes, made of dense products, are cheaper than smmf's edges (kTileCosts in method.cpp). Where the maximum
// degree is unknown (-1), smmf is taken, which is right for any: asking rowptr would wait for the device.
//
// Where the tile kernels cannot run (float64, head sizes over 128 or that are no multiple of 16 bytes, additive_v2,
// num_dst != num_src), smmf does.
Method choose_method(const Call& call, const Attention& attention, Pass pass);

}  // namespace dfgnn
