// The tiles of a graph in the order in which blocks take them: about the largest first, so that all blocks end at about
// the same time. Within a class of sizes they are in any order, which no result depends on.
#pragma once

#include "fragment.cuh"

namespace dfgnn::cuda {

class TileQueue {
 public:
  static constexpr int kClasses = 32, kClassNodes = 16;
  static constexpr int kLargest = (kClasses - 1) * kClassNodes;  // from so many nodes on tiles are in the first class

  struct Arrays {
    int* tiles;  // [kClasses][most of them], numbers of tiles
    int most;
  };
  using Counts = int[kClasses];  // of each class; zeros at first

  // By one thread each.
  __device__ __forceinline__ static void add(const Arrays& arrays, Counts& counts, int tile, int nodes) {
    const int size_class = kClasses - 1 - min(nodes / kClassNodes, kClasses - 1);
    arrays.tiles[static_cast<int64_t>(size_class) * arrays.most + atomicAdd(&counts[size_class], 1)] = tile;
  }

  // Once all have been added. Whole warps come to these.
  __device__ __forceinline__ TileQueue(const Arrays& arrays, const Counts& counts)
      : arrays_(arrays), count_(counts[threadIdx.x % kWarp]), until_(sum_to_lane(count_)) {
    static_assert(kClasses == kWarp, "a class a lane");
  }
  __device__ __forceinline__ int size() const { return __shfl_sync(kAllLanes, until_, kClasses - 1); }
  __device__ __forceinline__ int operator[](int i) const {  // below size()
    const int size_class = __ffs(static_cast<int>(__ballot_sync(kAllLanes, i < until_))) - 1;
    const int begin = __shfl_sync(kAllLanes, until_ - count_, size_class);
    return arrays_.tiles[static_cast<int64_t>(size_class) * arrays_.most + i - begin];
  }

 private:
  const Arrays& arrays_;
  int count_, until_;  // of the lane's class, and with those before
};

}  // namespace dfgnn::cuda
