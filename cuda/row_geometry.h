// What the kernels by rows ask of a graph, as plain numbers: what chooses between methods reads them too.
#pragma once

#include <algorithm>
#include <cstdint>

namespace dfgnn::cuda {

// Rows are so long that warps take them from counters, which costs less than to start a block, and that passes over
// them gather one matrix at a time.
constexpr bool rows_are_long(int64_t num_rows, int64_t num_entries) { return num_entries >= 64 * num_rows; }

// Rows have so many entries that a warp should take one, whatever it keeps of it.
constexpr bool rows_fill_warps(int64_t num_rows, int64_t num_entries) { return num_entries >= 16 * num_rows; }

// Lengths differ so much, by the longest row (-1: not known), that pieces of some rows are worth it.
constexpr bool rows_are_uneven(int64_t num_rows, int64_t num_entries, int64_t longest) {
  return longest > 8 * num_entries / std::max<int64_t>(num_rows, 1);
}

}  // namespace dfgnn::cuda
