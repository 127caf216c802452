// Which graphs smmf takes by runs of rows (row_runs.cuh): for kernels and for who chooses between methods.
#pragma once

#include <cstdint>

namespace dfgnn::cuda {

// Rows so short that warps take several, of so few edges that what a kernel takes is latencies, or, of more, of such
// unequal lengths, by the longest of all (-1 where it is not known), that groups of lanes would wait for each other.
constexpr bool has_runs(int64_t num_rows, int64_t num_edges, int64_t max_degree) {
  constexpr int64_t kFew = int64_t{1} << 18, kMost = int64_t{1} << 26;
  if (num_edges <= kFew) return num_edges < 12 * num_rows;
  const bool is_short = num_edges <= kMost && num_edges >= 3 * num_rows && num_edges < 16 * num_rows;
  return is_short && max_degree >= (6 * num_edges + num_rows - 1) / num_rows;  // callers may say any max_degree
}

// Heads of 16-byte vectors that a warp has no room beside, and has room for in registers.
constexpr bool runs_take_heads(int64_t number_bytes, int64_t head_dim) {
  const int64_t bytes = number_bytes * head_dim;
  return number_bytes <= 4 && bytes % 16 == 0 && bytes > 128 && bytes <= (number_bytes == 2 ? 512 : 1024);
}

}  // namespace dfgnn::cuda
