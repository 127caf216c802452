// What the kernels of compress.cu share.
#pragma once

#include "bucket_sort.cuh"
#include "edge_lists.cuh"
#include "edge_sort.cuh"
#include "tile_queue.cuh"
#include "tile_search.cuh"

namespace dfgnn::cuda {

// What there is: columns come last, with the blocks of tiles.
struct Done {
  bool rows, tiles, columns;
};

// What the kernels find out; zeros at first.
struct Findings {
  int unsorted;   // the list is not in the order that it was taken to have;
  int loose;      // or it is in that of rows, but does not strictly ascend within a row;
  int gaps;       // pointers of many nodes in a row without edges are missing
  int bucketed;   // buckets have made rows that ascend, of any list
  int next_tile;  // how many tiles of the queue blocks have taken after their first ones
  TileQueue::Counts queued;
  unsigned long long descents;  // of sources within loose rows
  Done done;
};

template <class Coo>
struct CompressTask {
  Coo coo;
  SortedEdges<int> rows, columns;  // results
  int* tiles;                      // may be null
  int64_t num_boundaries;
  SortedEdges<int> loose{};  // rows, whose pointers these are, with their edges in the order of the list
  Findings* found = nullptr;
  typename BucketSort<Coo>::Arrays buckets{};
  TileSearch::Arrays search{};
  TileQueue::Arrays queue{};
  SortArrays<int> sort{};

  // Rows are, or will be, in the order of the list, which was in none, or in that of destinations alone.
  __device__ __forceinline__ bool is_loose() const { return !found->bucketed && (!found->done.rows || found->loose); }

  // What a list in the order of destinations is, or of sources.
  template <bool kByDst>
  __device__ __forceinline__ const SortedEdges<int>& form() const {
    return kByDst ? rows : columns;
  }
};

}  // namespace dfgnn::cuda
