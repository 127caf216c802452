// What the kernels by rows ask of a graph, as plain numbers: what chooses between methods reads them too.
#pragma once

#include <cstdint>

namespace dfgnn::cuda {

// Rows are so long that warps take them from counters, which costs less than to start a block, and that passes over
// them gather one matrix at a time.
constexpr bool rows_are_long(int64_t num_rows, int64_t num_entries) { return num_entries >= 64 * num_rows; }

}  // namespace dfgnn::cuda
