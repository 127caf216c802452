// Which graphs smmf takes by runs of rows (row_runs.cuh): for kernels and for who chooses between methods.
#pragma once

#include <cstdint>

namespace dfgnn::cuda {

// So few edges that what a kernel takes is latencies, in rows so short that warps take several.
constexpr bool has_runs(int64_t num_rows, int64_t num_edges) {
  return num_edges <= int64_t{1} << 18 && num_edges < 12 * num_rows;
}

// Heads of 16-byte vectors that a warp has no room beside, and has room for in registers.
constexpr bool runs_take_heads(int64_t number_bytes, int64_t head_dim) {
  const int64_t bytes = number_bytes * head_dim;
  return number_bytes <= 4 && bytes % 16 == 0 && bytes > 128 && bytes <= (number_bytes == 2 ? 512 : 1024);
}

}  // namespace dfgnn::cuda
