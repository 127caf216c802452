// What the ways of a cooperative sort (edge_sort.cuh) have in the workspace, and the chunks in which they take lists.
#pragma once

#include "chunk_sort.cuh"
#include "sorted_edges.cuh"

namespace dfgnn::cuda {

// Chunks of the near way are short, so that they have few different nodes, which may be many beside the edges.
template <class K>
using NearChunk = ChunkSort<K, 32 / sizeof(K), 1536>;

constexpr int kDigitBits = 10;  // of a step of the far way
template <class K>
using FarChunk = ChunkSort<K, 64 / sizeof(K), 1 << kDigitBits>;

template <class K>
struct SortArrays {
  int *far, *bad;         // whether the near way is out of question, and whether an edge that it took turned out bad
  int* crowded;           // whether the counted way is
  K* sums;                // [blocks]
  K* totals;              // [digits]
  K* starts;              // [digits, blocks]
  K *low, *high, *reach;  // [near chunks]: least and largest key, and the largest until here
  K* keys[2];             // [capacity]
  uint16_t* counts;       // [near chunks, different nodes], in the place of the keys
};

// How many blocks a sort takes, at the most `most`.
template <class K>
int64_t sort_blocks(int64_t capacity, int64_t num_keys, int64_t most) {
  return grid_for(ceil_div(capacity, NearChunk<K>::kChunk) + ceil_div(num_keys, 4 * kGridThreads), most);
}

// For a sort of so many items by so many blocks.
template <class K>
SortArrays<K> place_sort_arrays(Workspace& places, int64_t capacity, int64_t blocks) {
  const int64_t chunks = ceil_div(capacity, NearChunk<K>::kChunk);
  SortArrays<K> arrays{};
  places.place(arrays.far, 1);
  places.place(arrays.bad, 1);
  places.place(arrays.crowded, 1);
  places.place(arrays.sums, blocks);
  places.place(arrays.totals, FarChunk<K>::kDigits);
  places.place(arrays.starts, FarChunk<K>::kDigits * blocks);
  places.place(arrays.low, chunks);
  places.place(arrays.high, chunks);
  places.place(arrays.reach, chunks);
  Workspace in_place_of_keys = places;
  places.place(arrays.keys[0], capacity);
  places.place(arrays.keys[1], capacity);
  in_place_of_keys.place(arrays.counts, chunks * NearChunk<K>::kDigits);
  if (in_place_of_keys.bytes() > places.bytes()) places = in_place_of_keys;
  return arrays;
}

// How many items a chunk has that begins at `first`.
template <class Chunk>
__device__ __forceinline__ int items_from(int64_t first, int64_t end) {
  return static_cast<int>(min(max(end - first, int64_t(0)), static_cast<int64_t>(Chunk::kChunk)));
}

}  // namespace dfgnn::cuda
