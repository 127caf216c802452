// From one form of a list to the other, tile by tile, a block a tile: the edges of a tile have places that are its
// nodes' in both forms.
#pragma once

#include "compress_task.cuh"
#include "tile_transpose.cuh"

namespace dfgnn::cuda {

// kByDst: rows are there, and columns are made of them; else the other way round.
template <class I, bool kSelfLoops, bool kByDst>
class TransposedTiles {
  using Coo = CooEdges<I, kSelfLoops>;

 public:
  // largest: the largest degree that this thread has seen of rows.
  __device__ TransposedTiles(const CompressTask<Coo>& task, TileTranspose::Shared& shared, int& largest)
      : t_(task),
        found_(*task.found),
        s_(shared),
        queue_(task.queue, task.found->queued),
        num_edges_(static_cast<int>(task.rows.num_edges)),
        largest_(largest) {}

  // By the whole grid. Does nothing and returns false if a tile is too wide.
  __device__ bool run() {
    if (any_is_wide()) return false;
    __shared__ Nodes next;
    const auto first = static_cast<int>(blockIdx.x);
    for (Nodes nodes = first < queue_.size() ? nodes_of(queue_[first]) : Nodes{}; nodes.size() > 0; nodes = next) {
      transpose(nodes, next);
      __syncthreads();
    }
    if (grid_thread() == 0) t_.template form<!kByDst>().pointers[0] = 0;
    const int all = BlockSums<int>(s_.sums).total(blocks_);
    if (threadIdx.x == 0 && all > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(t_.rows.stats + 2), static_cast<unsigned long long>(all));
    }
    return true;
  }

 private:
  __device__ __forceinline__ static bool is_loop(int i, int j) { return kSelfLoops && i == j; }

  __device__ bool any_is_wide() const {
    static_assert(TileQueue::kLargest + tile::kStride <= TileTranspose::kMaxNodes);
    bool is_wide = false;
    for (int i = static_cast<int>(threadIdx.x); i < found_.queued[0]; i += kGridThreads) {
      const int tile = t_.queue.tiles[i];
      is_wide |= t_.tiles[tile + 1] - t_.tiles[tile] > TileTranspose::kMaxNodes;
    }
    return __syncthreads_or(is_wide);
  }

  // Of a tile.
  struct Nodes {
    int begin, end;
    __device__ __forceinline__ int size() const { return end - begin; }
  };
  __device__ __forceinline__ Nodes nodes_of(int tile) const { return {t_.tiles[tile], t_.tiles[tile + 1]}; }

  // The first warp finds the block's next tile, a step at a time between those of this one, so that nobody waits for
  // answers.
  __device__ void transpose(const Nodes& nodes, Nodes& next) {
    const auto &known = t_.template form<kByDst>(), &made = t_.template form<!kByDst>();
    const bool finds_next = threadIdx.x < 32;
    int next_i = 0, next_tile = -1;
    if (threadIdx.x == 0) next_i = static_cast<int>(gridDim.x) + atomicAdd(&found_.next_tile, 1);
    TileTranspose tile(s_, nodes.begin, nodes.size(), known.other);
    blocks_ += tile.template read<!kByDst>(known.pointers);
    if (finds_next) {
      next_i = __shfl_sync(~0u, next_i, 0);
      if (next_i < queue_.size()) next_tile = queue_[next_i];
    }
    const int first = nodes.begin, *begin = s_.begin, *across_begin = s_.across_begin;
    for (int i = threadIdx.x; i < nodes.size(); i += kGridThreads) {
      made.pointers[first + i + 1] = across_begin[i + 1];
      if (!kByDst) largest_ = max(largest_, across_begin[i + 1] - across_begin[i]);
    }
    Nodes next_nodes{};
    const auto meanwhile = [&] {
      if (next_tile >= 0) next_nodes = nodes_of(next_tile);
    };
    // Self-loops that were put in are the last edges of their rows.
    const int* row_begin = kByDst ? begin : across_begin;
    const bool loops_are_last = kByDst && tile.places_are_real();
    const auto place_in_row = [&](int i, int j, int place) {
      return is_loop(i, j) ? row_begin[i + 1] - 1 : place - (kSelfLoops && j > i && !loops_are_last);
    };
    if constexpr (kByDst) {
      make_columns(tile, first, place_in_row, meanwhile);
    } else {
      make_rows(tile, first, place_in_row, meanwhile);
    }
    if (threadIdx.x == 0) next = next_nodes;
  }

  // What is made of an edge: a node of the tile, and a place counted from the tile's first. Where there is room for all
  // of them, they have places of 16 bits.
  struct Made {
    int node, place;
    bool is_loop = false, is_below = false;  // in its row
  };
  static constexpr int kNodeBits = 14;
  static_assert(TileTranspose::kMaxNodes < 1 << kNodeBits);

  static __device__ __forceinline__ uint32_t packed(const Made& x) {
    return x.node + (x.is_loop << kNodeBits) + (x.is_below << (kNodeBits + 1)) + (x.place << 16);
  }
  static __device__ __forceinline__ Made unpacked(uint32_t x) {
    return {static_cast<int>(x & ((1u << kNodeBits) - 1)), static_cast<int>(x >> 16), (x >> kNodeBits & 1) != 0,
            (x >> (kNodeBits + 1) & 1) != 0};
  }

  // Put together in shared memory where there is room, as they come in small groups. Calls meanwhile() before
  // they are written.
  template <class PlaceInRow, class Meanwhile>
  __device__ __forceinline__ void make_columns(const TileTranspose& tile, int first, const PlaceInRow& place_in_row,
                                               const Meanwhile& meanwhile) const {
    const int base = s_.begin[0];
    const auto write = [&](int e, const Made& x) {
      t_.columns.other[base + e] = first + x.node;
      t_.columns.item[base + e] = base + x.place;
    };
    const auto for_edges = [&](const auto& put) {
      tile.for_edges_across(
          [&](int i, int j, int place, int across) { put(across - base, Made{i, place_in_row(i, j, place) - base}); });
    };
    auto* made = static_cast<uint32_t*>(tile.room(sizeof(uint32_t)));
    if (!made) {
      meanwhile();
      return for_edges(write);
    }
    for_edges([&](int e, const Made& x) { made[e] = packed(x); });
    __syncthreads();
    meanwhile();
    for (int e = threadIdx.x; e < tile.num_edges(); e += kGridThreads) write(e, unpacked(made[e]));
  }

  // The same; an edge's place in its column then says what that column has there. Its item is its number in the list,
  // which has no self-loops; those that were put in come behind it.
  template <class PlaceInRow, class Meanwhile>
  __device__ __forceinline__ void make_rows(const TileTranspose& tile, int first, const PlaceInRow& place_in_row,
                                            const Meanwhile& meanwhile) const {
    const int base = s_.begin[0];
    const int first_item = base - (kSelfLoops ? first : 0), first_loop = num_edges_ + first;
    const auto write = [&](int e, const Made& x) {
      const int loops_before = kSelfLoops ? x.node + x.is_below : 0;
      t_.rows.other[base + e] = first + x.node;
      t_.rows.item[base + e] = x.is_loop ? first_loop + x.node : first_item + x.place - loops_before;
    };
    const auto for_edges = [&](const auto& put) {
      tile.for_edges_across([&](int j, int i, int place, int across) {
        put(place_in_row(i, j, across) - base, Made{j, place - base, is_loop(i, j), kSelfLoops && i > j});
      });
    };
    auto* made = static_cast<uint32_t*>(tile.room(sizeof(uint32_t)));
    if (!made) {
      meanwhile();
      return for_edges([&](int e, const Made& x) {
        write(e, x);
        t_.columns.item[base + x.place] = base + e;
      });
    }
    for_edges([&](int e, const Made& x) { made[e] = packed(x); });
    __syncthreads();
    meanwhile();
    const bool has_room = tile.room(sizeof(uint32_t) + sizeof(uint16_t)) != nullptr;
    auto* edges = reinterpret_cast<uint16_t*>(made + (has_room ? tile.num_edges() : 0));
    const auto put_edge = [&](int e, const Made& x) { edges[x.place] = static_cast<uint16_t>(e); };
    for (int e = threadIdx.x; e < tile.num_edges(); e += kGridThreads) {
      const Made x = unpacked(made[e]);
      write(e, x);
      if (has_room) put_edge(e, x);
    }
    __syncthreads();
    if (!has_room) {
      for_edges(put_edge);
      __syncthreads();
    }
    for (int e = threadIdx.x; e < tile.num_edges(); e += kGridThreads) t_.columns.item[base + e] = base + edges[e];
  }

  const CompressTask<Coo>& t_;
  Findings& found_;
  TileTranspose::Shared& s_;
  const TileQueue queue_;
  const int num_edges_;
  int blocks_ = 0;  // of this thread
  int& largest_;
};

}  // namespace dfgnn::cuda
