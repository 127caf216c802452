// COO to both compressed forms and to tiles, by two cooperative kernels; the device finds out what there is to do.
//
// - The list ascends by destination and then by source, or the other way round, as most lists of PyG do: it is one of
//   the forms, and is copied as it streams by. Tiles follow from the first and the last edge of each node, and the
//   other form, where no tile is too wide, from the transpose of each tile's bits.
// - What is missing then is sorted by the second kernel, of any list.
#include <cooperative_groups.h>

#include <algorithm>

#include "edge_lists.cuh"
#include "edge_sort.cuh"
#include "tile_search.cuh"
#include "tile_transpose.cuh"

namespace dfgnn::cuda {
namespace {

// What the kernels find out; zeros at first.
struct Findings {
  int unsorted;   // the list is not in the order that it was taken to have;
  int loose;      // or it is in that of rows, but not within a row;
  int gaps;       // pointers of many nodes in a row without edges are missing;
  int wide;       // a tile is too wide
  int next_tile;  // for a block to take
  int has_rows, has_tiles;
  int has_columns;  // and the number of blocks
};

template <class Coo>
struct Task {
  Coo coo;
  CsrEdges<int> csr;
  SortedEdges<int> rows, columns;  // results
  int* tiles;                      // may be null
  int64_t num_boundaries;
  Findings* found = nullptr;
  TileSearch::Arrays search{};
  SortArrays<int> sort{};
};

// What is copied of sorted lists.
template <class I, bool kSelfLoops>
class SortedList {
  using Coo = CooEdges<I, kSelfLoops>;

 public:
  union Shared {
    TileTranspose::Shared transpose;
    BlockSums<int>::Storage sums;
  };

  __device__ SortedList(const Task<Coo>& task, Shared& shared)
      : t_(task),
        found_(*task.found),
        s_(shared),
        search_(task.rows.num_keys, task.search, shared.sums),
        edges_(task.coo),
        num_edges_(static_cast<int>(task.rows.num_edges)),
        num_loops_(static_cast<int>(task.rows.num_loops)) {}

  __device__ void run() {
    if (grid_thread() < 3) t_.rows.stats[grid_thread()] = grid_thread() < 2 || t_.tiles ? 0 : -1;
    if (t_.tiles) search_.start();
    const Order order = guess_order();
    if (order == Order::none) return;
    order == Order::by_dst ? run<true>() : run<false>();
  }

 private:
  enum class Order { none, by_dst, by_src };
  static constexpr int kMaxGap = 32;   // pointers that one thread stores, of nodes without edges and the next
  static constexpr int kRunEdges = 8;  // of a thread, in a warp's run

  struct Ends {
    int major, minor;
  };

  template <bool kByDst>
  __device__ void run() {
    const auto grid = cooperative_groups::this_grid();
    stream<kByDst>();
    grid.sync();
    if (found_.unsorted) return;
    if (found_.gaps) {
      search_pointers<kByDst>();
      grid.sync();
    }
    const bool finds_tiles = t_.tiles && !found_.loose;
    kByDst ? finish_rows(finds_tiles) : finish_columns();
    if (kByDst && grid_thread() == 0) found_.has_rows = 1;
    if (!finds_tiles) return;
    grid.sync();
    if (search_.find(t_.tiles, t_.num_boundaries, TileTranspose::kMaxNodes)) found_.wide = 1;
    if (grid_thread() == 0) found_.has_tiles = 1;
    grid.sync();
    if (!found_.wide) transpose_tiles<kByDst>();
  }

  // What a few runs of edges look like, one a warp. A run inside of one node's edges looks like either; where most do,
  // it counts whose ends stay the same.
  __device__ Order guess_order() {
    if (num_edges_ == 0) return Order::by_dst;
    const int64_t first = static_cast<int64_t>(num_edges_) * (threadIdx.x / 32) / kSortWarps;
    bool not_by_dst = false, not_by_src = false;
    int same_dst = 0, same_src = 0;
#pragma unroll
    for (int u = 0; u < kRunEdges; ++u) {
      const int64_t e = min(first + 32 * u + threadIdx.x % 32, static_cast<int64_t>(num_edges_ - 1));
      const auto x = edges_.load(e), before = edges_.load(max(e - 1, int64_t(0)));
      not_by_dst |= x.dst < before.dst;
      not_by_src |= x.src < before.src;
      same_dst += x.dst == before.dst;
      same_src += x.src == before.src;
    }
    not_by_dst = __syncthreads_or(not_by_dst);
    not_by_src = __syncthreads_or(not_by_src);
    BlockSums<int> sums(s_.sums);
    const bool prefers_dst = sums.total(same_dst - same_src) >= 0;
    if (not_by_dst && not_by_src) return Order::none;
    const bool by_dst = not_by_src || (!not_by_dst && prefers_dst);
    return by_dst ? Order::by_dst : t_.tiles ? Order::by_src : Order::none;
  }

  // Self-loops put in before the edges of the node.
  __device__ __forceinline__ int loops_before(int node) const { return kSelfLoops ? min(node, num_loops_) : 0; }

  // What a list in that order is.
  template <bool kByDst>
  __device__ __forceinline__ const SortedEdges<int>& form() const {
    return kByDst ? t_.rows : t_.columns;
  }

  // Copies the list to its form, with room for self-loops: at the end of rows, in their place in columns.
  template <bool kByDst>
  __device__ void stream() {
    const int lane = threadIdx.x % 32, majors = static_cast<int>(form<kByDst>().num_keys);
    bool failed = false, loose = false, gaps = num_edges_ == 0;
    int* ptr = form<kByDst>().pointers;
    const auto put_loop = [&](int j, int place) {  // into a column; j may be bad
      if (kSelfLoops && !kByDst && j >= 0 && j < num_loops_) t_.columns.other[place] = j;
    };
    const auto fill = [&](int from, int to, int e) {  // pointers of nodes [from, to], which begin with edge e
      from = max(from, 0);                            // the edge before may be bad
      gaps |= to - from >= kMaxGap;
      for (int i = from; i <= to && i - from < kMaxGap; ++i) {
        ptr[i] = e + loops_before(i);
        if (i < to) put_loop(i, ptr[i]);
      }
    };
    constexpr int kRun = 32 * kRunEdges;
    for (int64_t first = grid_thread() / 32 * kRun; first < num_edges_; first += grid_threads() / 32 * kRun) {
      typename Coo::Loaded loaded[kRunEdges];
#pragma unroll
      for (int u = 0; u < kRunEdges; ++u) {
        loaded[u] = edges_.load(min(first + 32 * u + lane, static_cast<int64_t>(num_edges_ - 1)));
      }
      const auto earlier = edges_.load(max(first - 1, int64_t(0)));
      Ends last{static_cast<int>(kByDst ? earlier.dst : earlier.src),
                static_cast<int>(kByDst ? earlier.src : earlier.dst)};  // of lane 0
#pragma unroll
      for (int u = 0; u < kRunEdges; ++u) {
        bool bad = false;
        failed |= edges_.full_key(loaded[u], bad) < 0;
        const int src = static_cast<int>(loaded[u].src), dst = static_cast<int>(loaded[u].dst);
        const Ends x{kByDst ? dst : src, kByDst ? src : dst};
        const Ends turned{__shfl_sync(~0u, x.major, (lane + 31) % 32), __shfl_sync(~0u, x.minor, (lane + 31) % 32)};
        const Ends before = lane > 0 ? turned : last;
        last = turned;
        const int e = static_cast<int>(first) + 32 * u + lane;
        if (e >= num_edges_ || failed) continue;
        const int to = e + loops_before(x.major);
        const bool begins = e == 0 || x.major != before.major;
        if (e == 0) {
          fill(0, x.major, 0);
        } else if (begins) {
          failed |= x.major < before.major;
          if (!failed) fill(before.major + 1, x.major, e);
          if (before.minor < before.major) put_loop(before.major, e + loops_before(before.major));
        } else {
          loose |= x.minor <= before.minor;
        }
        if (x.minor > x.major && (begins || before.minor < x.major)) put_loop(x.major, to);
        if (e == num_edges_ - 1) {
          fill(x.major + 1, majors, num_edges_);
          if (x.minor < x.major) put_loop(x.major, to + 1);
        }
        if constexpr (kByDst) {
          t_.rows.other[to] = x.minor;
          t_.rows.item[to] = e;
        } else {
          t_.columns.other[to + (kSelfLoops && x.minor > x.major)] = x.minor;
        }
      }
    }
    if (__syncthreads_or(failed || (loose && !kByDst)) && threadIdx.x == 0) found_.unsorted = 1;
    if (__syncthreads_or(loose) && threadIdx.x == 0) found_.loose = 1;
    if (__syncthreads_or(gaps) && threadIdx.x == 0) found_.gaps = 1;
  }

  template <bool kByDst>
  __device__ void search_pointers() {
    const I* keys = kByDst ? edges_.dst : edges_.src;
    const int nodes = static_cast<int>(form<kByDst>().num_keys);
    for (int64_t i = grid_thread(); i <= nodes; i += grid_threads()) {
      form<kByDst>().pointers[i] =
          static_cast<int>(lower_bound(keys, num_edges_, static_cast<I>(i))) + loops_before(static_cast<int>(i));
    }
  }

  // The largest degree, self-loops, and how far edges reach.
  __device__ void finish_rows(bool finds_tiles) {
    int largest = 0;
    for (int64_t i = grid_thread(); i < t_.rows.num_keys; i += grid_threads()) {
      const int begin = t_.rows.pointers[i], end = t_.rows.pointers[i + 1], last = end - 1 - (i < num_loops_);
      largest = max(largest, end - begin);
      if (i < num_loops_) {
        t_.rows.other[end - 1] = static_cast<int>(i);
        t_.rows.item[end - 1] = num_edges_ + static_cast<int>(i);
      }
      if (finds_tiles && last >= begin) add_reach(static_cast<int>(i), t_.rows.other[begin], t_.rows.other[last]);
    }
    raise_max_degree(t_.rows, largest);
  }

  __device__ void finish_columns() {
    for (int64_t j = grid_thread(); j < t_.columns.num_keys; j += grid_threads()) {
      const int begin = t_.columns.pointers[j], loops = loops_before(static_cast<int>(j)), first = begin - loops;
      const int count = t_.columns.pointers[j + 1] - begin - (j < num_loops_);
      if (found_.gaps && j < num_loops_) {  // else it is there
        const int64_t before = lower_bound(edges_.dst + first, count, static_cast<I>(j));
        t_.columns.other[begin + before] = static_cast<int>(j);
      }
      if (count > 0) {
        add_reach(static_cast<int>(j), static_cast<int>(edges_.dst[first]),
                  static_cast<int>(edges_.dst[first + count - 1]));
      }
    }
  }

  __device__ void add_reach(int node, int first, int last) { search_.add(min(node, first), max(node, last)); }

  // The other form, tile by tile: the edges of a tile have places that are its nodes' in both forms.
  template <bool kByDst>
  __device__ void transpose_tiles() {
    int blocks = 0, largest = 0;
    __shared__ int next;
    for (;;) {
      __syncthreads();
      if (threadIdx.x == 0) next = atomicAdd(&found_.next_tile, 1);
      __syncthreads();
      const int t = next;
      if (t >= t_.num_boundaries - 1) break;
      const int first = t_.tiles[t], nodes = t_.tiles[t + 1] - first;
      if (nodes > 0) transpose_tile<kByDst>(first, nodes, blocks, largest);
    }
    if (grid_thread() == 0) {
      form<!kByDst>().pointers[0] = 0;
      found_.has_rows = found_.has_columns = 1;
    }
    if (!kByDst) raise_max_degree(t_.rows, largest);
    const int all = BlockSums<int>(s_.sums).total(blocks);
    if (threadIdx.x == 0 && all > 0) {
      atomicAdd(reinterpret_cast<unsigned long long*>(t_.rows.stats + 2), static_cast<unsigned long long>(all));
    }
  }

  template <bool kByDst>
  __device__ void transpose_tile(int first, int nodes, int& blocks, int& largest) {
    const auto &known = form<kByDst>(), &made = form<!kByDst>();
    TileTranspose tile(s_.transpose, first, nodes);
    blocks += tile.template read<!kByDst>(known.pointers, known.other);
    const int *begin = s_.transpose.begin, *across_begin = s_.transpose.across_begin;
    for (int i = threadIdx.x; i < nodes; i += kGridThreads) {
      made.pointers[first + i + 1] = across_begin[i + 1];
      largest = max(largest, across_begin[i + 1] - across_begin[i]);
    }
    // Self-loops that were put in are the last edges of their rows.
    const auto place_in_row = [](int i, int j, int place) { return place - (kSelfLoops && j > i); };
    const auto is_loop = [](int i, int j) { return kSelfLoops && i == j; };
    if constexpr (kByDst) {
      tile.for_edges_across([&](int i, int j, int place, int across) {
        t_.columns.other[across] = first + i;
        if (!is_loop(i, j)) t_.columns.item[across] = place_in_row(i, j, place);
      });
    } else {
      tile.for_edges_across([&](int j, int i, int place, int across) {
        if (is_loop(i, j)) return;
        const int e = place_in_row(i, j, across);
        t_.rows.other[e] = first + j;
        t_.rows.item[e] = kSelfLoops ? place - (first + j) - (i > j) : place;
      });
      tile.for_edges([&](int j, int i, int place, int across) {
        if (!is_loop(i, j)) t_.columns.item[place] = place_in_row(i, j, across);
      });
    }
    for (int i = threadIdx.x; kSelfLoops && i < nodes; i += kGridThreads) {
      const int e = (kByDst ? begin : across_begin)[i + 1] - 1;
      t_.columns.item[kByDst ? tile.place_across(i, i) : tile.place_along(i, i)] = e;
      if (!kByDst) {
        t_.rows.other[e] = first + i;
        t_.rows.item[e] = num_edges_ + first + i;
      }
    }
    __syncthreads();
  }

  const Task<Coo>& t_;
  Findings& found_;
  Shared& s_;
  TileSearch search_;
  const Coo& edges_;
  const int num_edges_, num_loops_;
};

template <class I, bool kSelfLoops>
__global__ void __launch_bounds__(kGridThreads, 3)
    sorted_list_kernel(const __grid_constant__ Task<CooEdges<I, kSelfLoops>> task) {
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
__global__ void __launch_bounds__(kGridThreads, 3) any_list_kernel(const __grid_constant__ Task<Coo> task) {
  extern __shared__ __align__(16) char shared[];
  auto& storage = *reinterpret_cast<AnyListShared<Coo>*>(shared);
  const auto grid = cooperative_groups::this_grid();
  const Findings& found = *task.found;
  if (found.has_columns) return;
  if (!found.has_rows) {
    EdgeSort<int, Coo>(task.coo, task.rows, task.sort, storage.coo).run();
    grid.sync();
  }
  if (task.tiles && !found.has_tiles) {
    TileSearch search(task.rows.num_keys, task.search, storage.sums);
    search.add_all(task.rows.pointers, task.rows.other, task.rows.capacity());
    grid.sync();
    search.find(task.tiles, task.num_boundaries, 0);
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

  Task<Coo> task{coo_edges<I, kSelfLoops>(t.csr),
                 csr_edges<int>(t.csc),
                 sorted_edges<int>(t.csr),
                 sorted_edges<int>(t.csc),
                 t.tiles,
                 t.num_boundaries};
  Workspace places(workspace);
  places.place(task.found, 1);
  places.place(task.search.reach, t.tiles ? nodes : 0);
  places.place(task.search.sums, std::max(sorted_blocks, any_blocks));
  places.place(task.search.ends, std::max(sorted_blocks, any_blocks));
  task.sort = place_sort_arrays<int>(places, capacity, any_blocks);
  if (workspace == nullptr) {
    workspace_bytes = places.bytes();
    return cudaSuccess;
  }
  error = cudaMemsetAsync(task.found, 0, sizeof(Findings), stream);
  if (error == cudaSuccess) error = launch_cooperative(sorted, sorted_blocks, sorted_bytes, stream, task);
  if (error == cudaSuccess) error = launch_cooperative(any, any_blocks, any_bytes, stream, task);
  if (error != cudaSuccess || !t.tiles) return error;
  const FindTiles tiles{t.csc.rowptr, t.csc.col, nodes, capacity, t.tiles, t.csr.stats + 2};
  return count_blocks(tiles, &task.found->has_columns, stream);
}

}  // namespace

cudaError_t compress(const Compress& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto run = task.csr.src.wide ? (task.csr.self_loops ? compress_as<int64_t, true> : compress_as<int64_t, false>)
                                     : (task.csr.self_loops ? compress_as<int, true> : compress_as<int, false>);
  return run(task, workspace, workspace_bytes, stream);
}

}  // namespace dfgnn::cuda
