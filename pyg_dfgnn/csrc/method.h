// Which method an `attention` call runs: the super-node check.
#pragma once

#include "call.h"

namespace dfgnn {

enum class Pass { forward, backward };

// Op::smmf, Op::pmf and Op::tile are their own choice; Op::attention follows call.route.method, and "auto" the rule of
// the DF-GNN paper (section 4): a super node's scores do not fit in a block's shared memory, so
//   max degree >= shared memory of a block / bytes of the dtype, and a dot score  ->  pmf,  else smmf.
// Measurements refine it, with costs in method.cpp that host-side sizes give, so that nothing waits for the device:
// - tile is taken where its blocks of nodes, made of dense products, are cheaper than smmf's edges;
// - pmf's forward pass also where K and V together miss the L2 cache so much more often than one after the other that
//   this outweighs writing and reading the logits; edges within tiles hit it in both. Where no tiles are given, edges
//   count as going anywhere;
// - smmf's backward pass, which keeps no scores in shared memory, is always taken instead of pmf's: it was 1.2 to 2
//   times as fast on the graphs with super nodes of docs/performance.md.
//
// Where the tile kernels cannot run (float64, head sizes over 128 or that are no multiple of 16 bytes, additive_v2,
// num_dst != num_src), smmf does.
Method choose_method(const Call& call, const Attention& attention, Pass pass);

}  // namespace dfgnn
