// COO to both compressed forms and to tiles, by two cooperative kernels; the device finds out what there is to do.
//
// - The list ascends by destination and then by source, or the other way round, as most lists of PyG do: it is one of
//   the forms, and is copied as it streams by. Tiles follow from the first and the last edge of each node, and the
//   other form, where no tile is too wide, from the transpose of each tile's bits.
// - What is missing then is sorted by the second kernel, of any list.
#include <cooperative_groups.h>

#include <algorithm>

#include "sorted_list.cuh"

namespace dfgnn::cuda {
namespace {

template <class I, bool kSelfLoops>
__global__ void __launch_bounds__(kGridThreads, 3)
    sorted_list_kernel(const __grid_constant__ CompressTask<CooEdges<I, kSelfLoops>> task) {
  extern __shared__ __align__(16) char shared[];
  using List = SortedList<I, kSelfLoops>;
  List(task, *reinterpret_cast<typename List::Shared*>(shared)).run();
}

template <class Coo>
union AnyListShared {
  typename EdgeSort<int, Coo>::Shared coo;
  EdgeSort<int, CsrEdges<int>>::Shared csr;
  BlockSums<int>::Storage sums;
};

// What the kernel before has left.
template <class Coo>
__global__ void __launch_bounds__(kGridThreads, 3) any_list_kernel(const __grid_constant__ CompressTask<Coo> task) {
  extern __shared__ __align__(16) char shared[];
  auto& storage = *reinterpret_cast<AnyListShared<Coo>*>(shared);
  const auto grid = cooperative_groups::this_grid();
  Findings& found = *task.found;
  if (grid_thread() == 0 && task.tiles) {
    if (found.has_all()) {
      found.counted = 1;
    } else {
      task.rows.stats[2] = 0;
    }
  }
  if (found.has_all()) return;
  if (!found.has_rows) {
    EdgeSort<int, Coo>(task.coo, task.rows, task.sort, storage.coo).run();
    grid.sync();
  }
  if (task.tiles && !found.has_tiles) {
    TileSearch search(task.rows.num_keys, task.search, storage.sums);
    search.start();
    grid.sync();
    search.add_all(task.rows.pointers, task.rows.other, task.rows.capacity());
    grid.sync();
    search.find(task.tiles, task.num_boundaries);
  }
  EdgeSort<int, CsrEdges<int>>(task.csr, task.columns, task.sort, storage.csr).run();
}

template <class I, bool kSelfLoops>
cudaError_t compress_as(const Compress& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  using Coo = CooEdges<I, kSelfLoops>;
  const auto sorted = sorted_list_kernel<I, kSelfLoops>;
  const auto any = any_list_kernel<Coo>;
  constexpr int sorted_bytes = sizeof(typename SortedList<I, kSelfLoops>::Shared),
                any_bytes = sizeof(AnyListShared<Coo>);
  int64_t sorted_blocks = 0, any_blocks = 0;
  cudaError_t error = max_grid(sorted, sorted_bytes, sorted_blocks);
  if (error == cudaSuccess) error = max_grid(any, any_bytes, any_blocks);
  if (error != cudaSuccess) return error;
  const int64_t capacity = t.csr.capacity, nodes = t.csr.num_dst;
  sorted_blocks = grid_for(ceil_div(capacity, 8 * kGridThreads) + ceil_div(nodes, 2 * kGridThreads), sorted_blocks);
  any_blocks = sort_blocks<int>(capacity, std::max(nodes, t.csr.num_src), any_blocks);

  CompressTask<Coo> task{coo_edges<I, kSelfLoops>(t.csr),
                         csr_edges<int>(t.csc),
                         sorted_edges<int>(t.csr),
                         sorted_edges<int>(t.csc),
                         t.tiles,
                         t.num_boundaries};
  Workspace places(workspace);
  const int64_t reaches = t.tiles ? nodes : 0;
  places.place(task.found, 1);
  places.place(task.search.reach, reaches);
  places.place(task.search.sums, std::max(sorted_blocks, any_blocks));
  places.place(task.search.ends, std::max(sorted_blocks, any_blocks));
  task.queue.most = static_cast<int>(t.tiles ? t.num_boundaries - 1 : 0);
  places.place(task.queue.tiles, int64_t{TileQueue::kClasses} * task.queue.most);
  task.sort = place_sort_arrays<int>(places, capacity, any_blocks);
  if (workspace == nullptr) {
    workspace_bytes = places.bytes();
    return cudaSuccess;
  }
  const auto zeros = reinterpret_cast<char*>(task.search.reach + reaches) - reinterpret_cast<char*>(task.found);
  error = cudaMemsetAsync(task.found, 0, static_cast<size_t>(zeros), stream);
  if (error == cudaSuccess) error = launch_cooperative(sorted, sorted_blocks, sorted_bytes, stream, task);
  if (error == cudaSuccess) error = launch_cooperative(any, any_blocks, any_bytes, stream, task);
  if (error != cudaSuccess || !t.tiles) return error;
  const FindTiles tiles{t.csc.rowptr, t.csc.col, nodes, capacity, t.tiles, t.csr.stats + 2};
  return count_blocks(tiles, &task.found->counted, stream);
}

}  // namespace

cudaError_t compress(const Compress& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto run = task.csr.src.wide ? (task.csr.self_loops ? compress_as<int64_t, true> : compress_as<int64_t, false>)
                                     : (task.csr.self_loops ? compress_as<int, true> : compress_as<int, false>);
  return run(task, workspace, workspace_bytes, stream);
}

}  // namespace dfgnn::cuda
