// Which method an `attention` call runs: the super-node check.
#pragma once

#include "call.h"

namespace dfgnn {

enum class Pass { forward, backward };

// Op::smmf and Op::pmf are their own choice; Op::attention follows call.method, and "auto" the rule of the DF-GNN paper
// (section 4): a super node's scores do not fit in a block's shared memory, so
//   max degree >= shared memory of a block / bytes of the dtype, and a dot score  ->  pmf,  else smmf.
// One measurement refines it: the backward pass of smmf keeps no scores in shared memory and was faster than pmf's on
// every graph of docs/performance.md (1.3 to 2.1 times on those with super nodes), so that "auto" takes it there. An
// unknown maximum degree (-1) is read from rowptr, which waits for the device; under stream capture, where that is not
// possible, smmf is taken: it is right for any degree.
Method choose_method(const Call& call, const Attention& attention, Pass pass);

}  // namespace dfgnn
