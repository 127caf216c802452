// Which method an `attention` call runs: the super-node check.
#pragma once

#include "call.h"

namespace dfgnn {

// Op::smmf and Op::pmf are their own choice; Op::attention follows call.method, and "auto" the rule of the DF-GNN paper
// (section 4): a super node's scores do not fit in a block's shared memory, so
//   max degree >= shared memory of a block / bytes of the dtype, and a dot score  ->  pmf,  else smmf.
// An unknown maximum degree (-1) is read from rowptr, which waits for the device; under stream capture, where that is
// not possible, smmf is taken: it is right for any degree.
Method choose_method(const Call& call, const Attention& attention);

}  // namespace dfgnn
