// Which method an `attention` call runs: the super-node check.
#pragma once

#include "call.h"

namespace dfgnn {

enum class Pass { forward, backward };

// Op::smmf and Op::pmf are their own choice; Op::attention follows call.method, and "auto" the rule of the DF-GNN paper
// (section 4): a super node's scores do not fit in a block's shared memory, so
//   max degree >= shared memory of a block / bytes of the dtype, and a dot score  ->  pmf,  else smmf.
// One measurement refines it: smmf's backward pass keeps no scores in shared memory and was 1.2 to 2 times as fast as
// pmf's on the graphs with super nodes of docs/performance.md, so that "auto" always takes it. Where the maximum degree
// is unknown (-1), smmf is taken, which is right for any: asking rowptr would wait for the device.
Method choose_method(const Call& call, const Attention& attention, Pass pass);

}  // namespace dfgnn
