// COO to both compressed forms and to tiles, by three cooperative kernels; the device finds out what there is to do.
//
// - The list ascends by destination and then by source, or the other way round, as most lists of PyG do: it is one of
//   the forms, and is copied as it streams by. Tiles follow from the first and the last edge of each node, and the
//   other form, where no tile is too wide, from the transpose of each tile's bits.
// - Of any other list the second kernel makes rows, and finds tiles. Buckets make rows that ascend, where edges join
//   near nodes and none is there twice; else a sort makes loose ones, whose edges have the order of the list.
// - What is missing then, the third makes: tile by tile, where no tile is too wide; else it puts loose rows in order
//   where none is long, sorts for columns, and once more for loose rows that are left.
#include <cooperative_groups.h>

#include <algorithm>

#include "ascending_rows.cuh"
#include "sorted_list.cuh"
#include "tile_blocks.cuh"

namespace dfgnn::cuda {
namespace {

template <class I, bool kSelfLoops>
__global__ void __launch_bounds__(kGridThreads, 3)
    sorted_list_kernel(const __grid_constant__ CompressTask<CooEdges<I, kSelfLoops>> task) {
  extern __shared__ __align__(16) char shared[];
  using List = SortedList<I, kSelfLoops>;
  const Done done = List(task, *reinterpret_cast<typename List::Shared*>(shared)).run();
  if (grid_thread() == 0) task.found->done = done;
}

template <class Coo>
union AnyListShared {
  typename BucketSort<Coo>::Shared buckets;
  typename EdgeSort<int, Coo>::Shared sort;
  TileSearch::Storage search;
};

template <class Coo>
__global__ void __launch_bounds__(kGridThreads, 3) any_list_kernel(const __grid_constant__ CompressTask<Coo> task) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<AnyListShared<Coo>*>(memory);
  const auto grid = cooperative_groups::this_grid();
  const Done done = task.found->done;
  const bool is_loose = task.is_loose();
  if (done.columns) return;
  TileSearch search(task.rows.num_keys, task.search, shared.search);
  bool has_rows = done.rows, bucketed = false;
  if (is_loose && task.tiles && !*task.buckets.twice) {
    bucketed = BucketSort<Coo>(task.coo, task.rows, task.buckets, search, shared.buckets).run();
    if (bucketed && grid_thread() == 0) task.found->bucketed = 1;
    has_rows = bucketed || (has_rows && !*task.buckets.twice);
  }
  if (!has_rows) {
    EdgeSort<int, Coo>(task.coo, task.loose, task.sort, shared.sort).run();
  } else if (is_loose && !bucketed) {
    copy_edges(task.rows, task.loose);
  }
  if (!task.tiles || done.tiles) return;
  if (!bucketed) {
    search.start();
    grid.sync();
    search.add_all(task.loose.pointers, task.loose.other, task.loose.capacity(), task.rows.stats[0]);
    grid.sync();
  }
  search.find(task.tiles, task.num_boundaries,
              [&](int tile, int nodes) { TileQueue::add(task.queue, task.found->queued, tile, nodes); });
}

union OtherFormShared {
  TileTranspose::Shared tiles;
  EdgeSort<int, CsrEdges<int>>::Shared sort;
  AscendingRows<int>::Shared ascending;
  tile::BlockMasks masks;
};

template <class I, bool kSelfLoops>
__global__ void __launch_bounds__(kGridThreads, 3)
    other_form_kernel(const __grid_constant__ CompressTask<CooEdges<I, kSelfLoops>> task) {
  extern __shared__ __align__(16) char memory[];
  auto& shared = *reinterpret_cast<OtherFormShared*>(memory);
  const auto grid = cooperative_groups::this_grid();
  if (task.found->done.columns) return;
  const bool is_loose = task.is_loose();
  if (task.found->bucketed) {
    int unused = 0;
    if (TransposedTiles<I, kSelfLoops, true>(task, shared.tiles, unused).run()) {
      clear_behind(task.columns, task.rows.pointers[task.rows.num_keys]);
      return;
    }
  }
  const AscendingRowsTask<int> forms{
      task.rows, task.columns, {task.loose.other, task.loose.item}, &task.found->descents};
  AscendingRows<int> ascending(forms, task.sort, shared.ascending);
  const bool is_short = is_loose && task.rows.stats[0] <= ShortKeys<int>::kMost;
  if (is_short) {
    order_short_rows(task.loose, task.rows);
    grid.sync();
  } else if (is_loose) {
    copy_edges(task.loose, task.rows);
    grid.sync();
    ascending.check();
  }
  const CsrEdges<int> rows{task.rows.pointers, task.rows.other, task.rows.num_keys, task.columns.num_keys};
  EdgeSort<int, CsrEdges<int>>(rows, task.columns, task.sort, shared.sort).run();
  if (is_loose && !is_short) {
    grid.sync();
    ascending.run();
    grid.sync();
  }
  if (task.tiles) {
    tile::add_blocks(task.tiles, static_cast<int>(task.rows.num_keys), task.rows.pointers, task.rows.other,
                     task.rows.capacity(), shared.masks, task.rows.stats + 2);
  }
}

template <class I, bool kSelfLoops>
cudaError_t compress_as(const Compress& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  using Coo = CooEdges<I, kSelfLoops>;
  const auto sorted = sorted_list_kernel<I, kSelfLoops>;
  const auto any = any_list_kernel<Coo>;
  const auto other = other_form_kernel<I, kSelfLoops>;
  constexpr int sorted_bytes = sizeof(typename SortedList<I, kSelfLoops>::Shared),
                any_bytes = sizeof(AnyListShared<Coo>), other_bytes = sizeof(OtherFormShared);
  int64_t sorted_blocks = 0, any_blocks = 0, other_blocks = 0;
  cudaError_t error = max_grid(sorted, sorted_bytes, sorted_blocks);
  if (error == cudaSuccess) error = max_grid(any, any_bytes, any_blocks);
  if (error == cudaSuccess) error = max_grid(other, other_bytes, other_blocks);
  if (error != cudaSuccess) return error;
  const int64_t capacity = t.csr.capacity, nodes = t.csr.num_dst;
  sorted_blocks = grid_for(ceil_div(capacity, 8 * kGridThreads) + ceil_div(nodes, 2 * kGridThreads), sorted_blocks);
  any_blocks = sort_blocks<int>(capacity, std::max(nodes, t.csr.num_src), any_blocks);
  other_blocks = std::min(any_blocks, other_blocks);

  CompressTask<Coo> task{
      coo_edges<I, kSelfLoops>(t.csr), sorted_edges<int>(t.csr), sorted_edges<int>(t.csc), t.tiles, t.num_boundaries,
      sorted_edges<int>(t.csr)};
  Workspace places(workspace);
  const int64_t reaches = t.tiles ? nodes : 0;
  places.place(task.found, 1);
  places.place(task.search.reach, reaches);
  places.place(task.search.told, std::max(sorted_blocks, any_blocks));
  task.buckets = BucketSort<Coo>::place(places);
  const size_t zeros = places.bytes();
  task.queue.most = static_cast<int>(t.tiles ? t.num_boundaries - 1 : 0);
  places.place(task.queue.tiles, int64_t{TileQueue::kClasses} * task.queue.most);
  task.sort = place_sort_arrays<int>(places, capacity, any_blocks);
  places.place(task.buckets.edges, capacity);
  task.loose.other = reinterpret_cast<int*>(task.buckets.edges);  // in the place of what is of no use then
  task.loose.item = task.loose.other + capacity;
  if (workspace == nullptr) {
    workspace_bytes = places.bytes();
    return cudaSuccess;
  }
  error = cudaMemsetAsync(workspace, 0, zeros, stream);
  if (error == cudaSuccess) error = launch_cooperative(sorted, sorted_blocks, sorted_bytes, stream, task);
  if (error == cudaSuccess) error = launch_cooperative(any, any_blocks, any_bytes, stream, task);
  if (error == cudaSuccess) error = launch_cooperative(other, other_blocks, other_bytes, stream, task);
  return error;
}

}  // namespace

cudaError_t compress(const Compress& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto run = task.csr.src.wide ? (task.csr.self_loops ? compress_as<int64_t, true> : compress_as<int64_t, false>)
                                     : (task.csr.self_loops ? compress_as<int, true> : compress_as<int, false>);
  return run(task, workspace, workspace_bytes, stream);
}

}  // namespace dfgnn::cuda
