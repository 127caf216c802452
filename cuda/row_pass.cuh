// A pass over rows of a compressed form, a warp each (row_units.cuh), for all heads at once, or for each.
#pragma once

#include "row_list.cuh"

namespace dfgnn::cuda {

class RowPass {
 public:
  // heads: 1 where they go at once; width: numbers that a piece of a row leaves in its slot of each.
  RowPass(const Index& ptr, int64_t num_rows, int64_t num_edges, int64_t width, int heads = 1)
      : ptr_(ptr), num_rows_(num_rows), width_(static_cast<int>(width)) {
    graph_.heads = heads;  // of any type: the plan takes numbers to have 32 bits
    graph_.num_edges = num_edges;
    units_ = plan_units(graph_, num_rows, heads * width);
  }

  // Of memory for counters, the list of units and slots, of A.
  template <class A>
  size_t bytes() const {
    return UnitScratch<A>::bytes(units_, graph_.heads, width_);
  }
  template <class A>
  A* slots(void* memory) const {
    return scratch<A>(memory).slots;
  }
  const RowUnits& units() const { return units_; }

  // Calls launch(units, counters) with the units, listed where they are. Only where units().need_scratch() is false may
  // there be no memory.
  template <class Launch>
  cudaError_t launch(void* memory, cudaStream_t stream, const Launch& launch) const {
    RowUnits units = units_;
    const auto places = scratch<float>(memory);  // of which the first two are the same for any numbers
    const cudaError_t error = list_rows(units, ptr_, num_rows_, graph_.num_edges, places.list, stream);
    return error == cudaSuccess ? launch(units, memory ? places.counters : nullptr) : error;
  }

  // kernel, exact and launch_kernel(grid, units, kernel) are as launch_units() has them.
  template <class Kernel, class Launch>
  cudaError_t launch(void* memory, cudaStream_t stream, Kernel* kernel, std::type_identity_t<Kernel>* exact,
                     const Launch& launch_kernel) const {
    return launch(memory, stream, [&](const RowUnits& units, unsigned* counters) {
      return launch_units(units, graph_, num_rows_, graph_.heads, counters, stream, kernel, exact, launch_kernel);
    });
  }

 private:
  template <class A>
  UnitScratch<A> scratch(void* memory) const {
    return {memory, graph_.heads, units_};
  }

  const Index ptr_;
  const int64_t num_rows_;
  const int width_;
  Attention graph_{};
  RowUnits units_;
};

}  // namespace dfgnn::cuda
