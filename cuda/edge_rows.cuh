// Results of edges by rows, a warp each (row_units.cuh), where rows have some length: what is the row's own is there
// for all of its edges.
#pragma once

#include "row_units.cuh"

namespace dfgnn::cuda {

inline bool edges_go_by_rows(int64_t num_rows, int64_t num_nodes, int64_t num_edges) {
  constexpr int64_t kSome = 16;
  return num_nodes > 0 && num_edges >= kSome * num_rows;
}

// Rows of a compressed form, with memory for passes over them.
class EdgeRows {
 public:
  EdgeRows(const Index& ptr, int64_t num_rows, int64_t num_edges) {
    graph_.heads = 1;
    graph_.num_dst = num_rows;
    graph_.num_edges = num_edges;
    graph_.rowptr = ptr;
    units_ = plan_units(graph_, num_rows, 0);
  }

  size_t scratch_bytes() const {
    const bool take_turns = rows_are_long(graph_.num_dst, graph_.num_edges);
    return take_turns ? UnitScratch<float>::bytes(units_, 1, 0) : 0;
  }

  // launch(grid, units, kernel): as launch_units() has it.
  template <class Kernel, class Launch>
  cudaError_t launch(void* memory, cudaStream_t stream, Kernel* kernel, const Launch& launch) const {
    RowUnits units = units_;
    const UnitScratch<float> scratch(memory, 1, units);
    const cudaError_t error = order_rows(units, graph_.rowptr, graph_.num_edges, scratch.order, stream);
    if (error != cudaSuccess) return error;
    return launch_units(units, graph_, graph_.num_dst, 1, scratch.counters, stream, kernel, nullptr, launch);
  }

 private:
  Attention graph_{};
  RowUnits units_;
};

}  // namespace dfgnn::cuda
