// The other form of a sorted list, tile by tile, a block a tile: the edges of a tile have places that are its nodes' in
// both forms.
#pragma once

#include "compress_task.cuh"
#include "tile_transpose.cuh"

namespace dfgnn::cuda {

// kByDst: the list has rows in order, and columns are made.
template <class I, bool kSelfLoops, bool kByDst>
class TransposedTiles {
  using Coo = CooEdges<I, kSelfLoops>;

 public:
  __device__ TransposedTiles(const CompressTask<Coo>& task, TileTranspose::Shared& shared)
      : t_(task), found_(*task.found), s_(shared), num_edges_(static_cast<int>(task.rows.num_edges)) {}

  // By the whole grid.
  __device__ void run() {
    __shared__ int next;
    const TileQueue queue(t_.queue, found_.queued);
    const int tiles = queue.size();
    for (int i = static_cast<int>(blockIdx.x); i < tiles;) {
      const int tile = queue[i], first = t_.tiles[tile], nodes = t_.tiles[tile + 1] - first;
      if (nodes > TileTranspose::kMaxNodes) {
        if (threadIdx.x == 0) found_.wide = 1;
        break;
      }
      int next_i = tiles;  // as thread 0 has it; taken as late as there is time for the answer
      transpose(first, nodes, [&] {
        if (threadIdx.x == 0 && !*const_cast<volatile int*>(&found_.wide)) {
          next_i = static_cast<int>(gridDim.x) + atomicAdd(&found_.next_tile, 1);
        }
      });
      if (threadIdx.x == 0) next = next_i;
      __syncthreads();
      i = next;
    }
    if (grid_thread() == 0) {
      t_.template form<!kByDst>().pointers[0] = 0;
      found_.transposed = 1;
    }
    if (!kByDst) raise_max_degree(t_.rows, largest_);
    const int all = BlockSums<int>(s_.sums).total(blocks_);
    if (threadIdx.x == 0 && all > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(t_.rows.stats + 2), static_cast<unsigned long long>(all));
    }
  }

 private:
  __device__ __forceinline__ static bool is_loop(int i, int j) { return kSelfLoops && i == j; }

  // Calls meanwhile() before results are written.
  template <class Meanwhile>
  __device__ void transpose(int first, int nodes, const Meanwhile& meanwhile) {
    const auto &known = t_.template form<kByDst>(), &made = t_.template form<!kByDst>();
    TileTranspose tile(s_, first, nodes, known.other);
    blocks_ += tile.template read<!kByDst>(known.pointers);
    const int *begin = s_.begin, *across_begin = s_.across_begin;
    for (int i = threadIdx.x; i < nodes; i += kGridThreads) {
      made.pointers[first + i + 1] = across_begin[i + 1];
      largest_ = max(largest_, across_begin[i + 1] - across_begin[i]);
    }
    meanwhile();
    // Self-loops that were put in are the last edges of their rows.
    const int* row_begin = kByDst ? begin : across_begin;
    const bool loops_are_last = kByDst && tile.places_are_real();
    const auto place_in_row = [&](int i, int j, int place) {
      return is_loop(i, j) ? row_begin[i + 1] - 1 : place - (kSelfLoops && j > i && !loops_are_last);
    };
    if constexpr (kByDst) {
      make_columns(tile, first, place_in_row);
    } else {
      make_rows(tile, first, place_in_row);
    }
    __syncthreads();
  }

  // What is made is put together in shared memory where there is room, as it comes in small pieces. There numbers are
  // counted from the tile's first place.
  template <class PlaceInRow>
  __device__ __forceinline__ void make_columns(const TileTranspose& tile, int first,
                                               const PlaceInRow& place_in_row) const {
    const int base = s_.begin[0];
    const auto for_edges = [&](const auto& put) {
      tile.for_edges_across([&](int i, int j, int place, int across) { put(across, i, place_in_row(i, j, place)); });
    };
    uint16_t *rows = tile.room(2), *places = rows + tile.num_edges();
    if (!rows) {
      return for_edges([&](int e, int i, int place) {
        t_.columns.other[e] = first + i;
        t_.columns.item[e] = place;
      });
    }
    for_edges([&](int e, int i, int place) {
      rows[e - base] = static_cast<uint16_t>(i);
      places[e - base] = static_cast<uint16_t>(place - base);
    });
    __syncthreads();
    for (int e = threadIdx.x; e < tile.num_edges(); e += kGridThreads) {
      t_.columns.other[base + e] = first + rows[e];
      t_.columns.item[base + e] = base + places[e];
    }
  }

  // The same, where there is no room for all three arrays at a time the places of columns after the rest. An edge's
  // item is its number in the list, which has no self-loops; those that were put in come behind it.
  template <class PlaceInRow>
  __device__ __forceinline__ void make_rows(const TileTranspose& tile, int first,
                                            const PlaceInRow& place_in_row) const {
    const int base = s_.begin[0];
    const int first_item = base - (kSelfLoops ? first : 0), first_loop = num_edges_ + first;
    constexpr int kLoop = TileTranspose::kNone;
    const auto for_edges = [&](const auto& put) {
      tile.for_edges_across([&](int j, int i, int place, int across) {
        put(place_in_row(i, j, across), i, j, place, place - base - (kSelfLoops ? j + (i > j) : 0));
      });
    };
    const bool has_room = tile.room(3) != nullptr;
    uint16_t *columns = tile.room(has_room ? 3 : 2), *items = columns + tile.num_edges();
    uint16_t* places = has_room ? items + tile.num_edges() : columns;
    if (!columns) {
      return for_edges([&](int e, int i, int j, int place, int item) {
        t_.rows.other[e] = first + j;
        t_.rows.item[e] = is_loop(i, j) ? first_loop + j : first_item + item;
        t_.columns.item[place] = e;
      });
    }
    const auto put_place = [&](int e, int place) { places[place - base] = static_cast<uint16_t>(e - base); };
    for_edges([&](int e, int i, int j, int place, int item) {
      columns[e - base] = static_cast<uint16_t>(j);
      items[e - base] = static_cast<uint16_t>(is_loop(i, j) ? kLoop : item);
      if (has_room) put_place(e, place);
    });
    __syncthreads();
    for (int e = threadIdx.x; e < tile.num_edges(); e += kGridThreads) {
      t_.rows.other[base + e] = first + columns[e];
      t_.rows.item[base + e] = items[e] == kLoop ? first_loop + columns[e] : first_item + items[e];
    }
    if (!has_room) {
      __syncthreads();
      for_edges([&](int e, int, int, int place, int) { put_place(e, place); });
      __syncthreads();
    }
    for (int e = threadIdx.x; e < tile.num_edges(); e += kGridThreads) t_.columns.item[base + e] = base + places[e];
  }

  const CompressTask<Coo>& t_;
  Findings& found_;
  TileTranspose::Shared& s_;
  const int num_edges_;
  int blocks_ = 0, largest_ = 0;  // of this thread
};

}  // namespace dfgnn::cuda
