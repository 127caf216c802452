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
  int next_tile;  // how many blocks have taken after their first ones
  int has_rows, has_tiles;
  int transposed;  // the other form, and the number of blocks are there, unless a tile is too wide;
  int counted;     // the number is

  __device__ __forceinline__ bool has_all() const { return transposed && !wide; }
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
    const Order order = guess_order();
    if (order == Order::none) return;
    order == Order::by_dst ? run<true>() : run<false>();
  }

 private:
  enum class Order { none, by_dst, by_src };
  static constexpr int kMaxGap = 32;     // pointers that one thread stores, of nodes without edges in a row
  static constexpr int kRunEdges = 4;    // of a thread, in a warp's run
  static constexpr int kGuessEdges = 8;  // of a thread that guesses

  struct Ends {
    int major, minor;
  };

  // A warp's run, and the edge before it.
  struct Run {
    typename Coo::Loaded edges[kRunEdges], before;
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
    kByDst ? finish_rows() : finish_columns();
    if (kByDst && grid_thread() == 0) found_.has_rows = 1;
    if (!t_.tiles || found_.loose) return;
    search_.find(t_.tiles, t_.num_boundaries);
    if (grid_thread() == 0) found_.has_tiles = 1;
    grid.sync();
    transpose_tiles<kByDst>();
  }

  // What a few runs of edges look like, one a warp. A run inside of one node's edges looks like either; where most do,
  // it counts whose ends stay the same.
  __device__ Order guess_order() {
    if (num_edges_ == 0) return Order::by_dst;
    const int64_t first = static_cast<int64_t>(num_edges_) * (threadIdx.x / 32) / kSortWarps;
    bool not_by_dst = false, not_by_src = false;
    int same_dst = 0, same_src = 0;
#pragma unroll
    for (int u = 0; u < kGuessEdges; ++u) {
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

  __device__ __forceinline__ Run load_run(int64_t first) const {
    Run run;
#pragma unroll
    for (int u = 0; u < kRunEdges; ++u) {
      run.edges[u] = edges_.load_once(min(first + 32 * u + threadIdx.x % 32, static_cast<int64_t>(num_edges_ - 1)));
    }
    run.before = edges_.load(min(max(first - 1, int64_t(0)), static_cast<int64_t>(num_edges_ - 1)));
    return run;
  }

  // Copies the list to its form, with room for self-loops: at the end of rows, in their place in columns. A run is on
  // its way while that before is copied.
  template <bool kByDst>
  __device__ void stream() {
    const int lane = threadIdx.x % 32, majors = static_cast<int>(form<kByDst>().num_keys);
    const unsigned joined = t_.tiles ? majors : 0;
    bool failed = false, loose = false, gaps = num_edges_ == 0;
    int* ptr = form<kByDst>().pointers;
    const auto put_loop = [&](int j, int place) {  // into a column; j may be bad
      if (kSelfLoops && !kByDst && j >= 0 && j < num_loops_) t_.columns.other[place] = j;
    };
    const auto skip = [&](int from, int to, int e) {  // nodes [from, to), which have no edges, before edge e
      gaps |= to - from > kMaxGap;
#pragma unroll 1
      for (int i = from; i < min(to, from + kMaxGap); ++i) {
        ptr[i] = e + loops_before(i);
        put_loop(i, ptr[i]);
      }
    };
    // The ends of a node's first or last edge, which count where the second is the larger; the first may be bad.
    const auto join = [&](int node, int other) {
      if (static_cast<unsigned>(node) < joined) search_.add(node, other);
    };
    const auto ends_of = [](const typename Coo::Loaded& edge) -> Ends {
      const int src = static_cast<int>(edge.src), dst = static_cast<int>(edge.dst);
      return {kByDst ? dst : src, kByDst ? src : dst};
    };
    constexpr int kRun = 32 * kRunEdges;
    const int64_t stride = grid_threads() / 32 * kRun;
    Run next;
    if (num_edges_ > 0) next = load_run(grid_thread() / 32 * kRun);
    for (int64_t first = grid_thread() / 32 * kRun; first < num_edges_; first += stride) {
      const Run run = next;
      next = load_run(first + stride);
      Ends last = first > 0 ? ends_of(run.before) : Ends{-1, -1};  // of lane 0
#pragma unroll
      for (int u = 0; u < kRunEdges; ++u) {
        bool bad = false;
        failed |= edges_.full_key(run.edges[u], bad) < 0;
        const Ends x = ends_of(run.edges[u]);
        const Ends turned{__shfl_sync(~0u, x.major, (lane + 31) % 32), __shfl_sync(~0u, x.minor, (lane + 31) % 32)};
        const Ends before = lane > 0 ? turned : last;
        last = turned;
        const int e = static_cast<int>(first) + 32 * u + lane;
        if (e >= num_edges_ || failed) continue;
        const int to = e + loops_before(x.major);
        const bool begins = x.major != before.major;
        if (begins) {
          failed |= x.major < before.major;
          ptr[x.major] = to;
          join(x.minor, x.major);
          join(before.major, before.minor);
          const int last_before = max(before.major, -1);  // the edge before may be bad
          if (last_before < x.major - 1) skip(last_before + 1, x.major, e);
          if (before.minor < before.major) put_loop(before.major, e + loops_before(before.major));
        } else {
          loose |= x.minor <= before.minor;
        }
        if (x.minor > x.major && (begins || before.minor < x.major)) put_loop(x.major, to);
        if constexpr (kByDst) {
          t_.rows.other[to] = x.minor;
          __stcs(t_.rows.item + to, e);
        } else {
          t_.columns.other[to + (kSelfLoops && x.minor > x.major)] = x.minor;
        }
      }
    }
    if (grid_thread() == 0 && num_edges_ > 0) {
      bool bad = false;
      const auto edge = edges_.load(num_edges_ - 1);
      const Ends x = ends_of(edge);
      if (edges_.full_key(edge, bad) >= 0) {
        join(x.major, x.minor);
        if (x.minor < x.major) put_loop(x.major, num_edges_ + loops_before(x.major));
        skip(x.major + 1, majors, num_edges_);
        ptr[majors] = num_edges_ + loops_before(majors);
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

  // The largest degree, and self-loops.
  __device__ void finish_rows() {
    int largest = 0;
    for (int64_t i = grid_thread(); i < t_.rows.num_keys; i += grid_threads()) {
      const int begin = t_.rows.pointers[i], end = t_.rows.pointers[i + 1];
      largest = max(largest, end - begin);
      if (i < num_loops_) {
        t_.rows.other[end - 1] = static_cast<int>(i);
        t_.rows.item[end - 1] = num_edges_ + static_cast<int>(i);
      }
    }
    raise_max_degree(t_.rows, largest);
  }

  // Self-loops, where they are not there.
  __device__ void finish_columns() {
    if (!found_.gaps) return;
    for (int64_t j = grid_thread(); j < num_loops_; j += grid_threads()) {
      const int begin = t_.columns.pointers[j], first = begin - loops_before(static_cast<int>(j));
      const int count = t_.columns.pointers[j + 1] - begin - 1;
      const int64_t before = lower_bound(edges_.dst + first, count, static_cast<I>(j));
      t_.columns.other[begin + before] = static_cast<int>(j);
    }
  }

  // The other form, tile by tile: the edges of a tile have places that are its nodes' in both forms.
  template <bool kByDst>
  __device__ void transpose_tiles() {
    int blocks = 0, largest = 0;
    __shared__ int2 next;  // the tile's first node and the one behind its last; none where the first is negative
    const int num_tiles = static_cast<int>(t_.num_boundaries) - 1;
    const auto tile_at = [&](int t) { return t < num_tiles ? int2{t_.tiles[t], t_.tiles[t + 1]} : int2{-1, 0}; };
    int2 mine = tile_at(static_cast<int>(blockIdx.x));
    while (mine.x >= 0) {
      int2 ahead;
      if (threadIdx.x == 0) {
        const int t = static_cast<int>(gridDim.x) + atomicAdd(&found_.next_tile, 1);
        ahead = tile_at(*const_cast<volatile int*>(&found_.wide) ? num_tiles : t);
      }
      const int nodes = mine.y - mine.x;
      if (nodes > TileTranspose::kMaxNodes) {
        found_.wide = 1;
      } else if (nodes > 0) {
        transpose_tile<kByDst>(mine.x, nodes, blocks, largest);
      }
      if (threadIdx.x == 0) next = ahead;
      __syncthreads();
      mine = next;
      __syncthreads();
    }
    if (grid_thread() == 0) {
      form<!kByDst>().pointers[0] = 0;
      found_.transposed = 1;
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
    TileTranspose tile(s_.transpose, first, nodes, known.other);
    blocks += tile.template read<!kByDst>(known.pointers);
    const int *begin = s_.transpose.begin, *across_begin = s_.transpose.across_begin;
    for (int i = threadIdx.x; i < nodes; i += kGridThreads) {
      made.pointers[first + i + 1] = across_begin[i + 1];
      largest = max(largest, across_begin[i + 1] - across_begin[i]);
    }
    // Self-loops that were put in are the last edges of their rows.
    const int* row_begin = kByDst ? begin : across_begin;
    const auto is_loop = [](int i, int j) { return kSelfLoops && i == j; };
    const bool loops_are_last = kByDst && tile.places_are_real();
    const auto place_in_row = [&](int i, int j, int place) {
      return is_loop(i, j) ? row_begin[i + 1] - 1 : place - (kSelfLoops && j > i && !loops_are_last);
    };
    if constexpr (kByDst) {
      tile.for_edges_across([&](int i, int j, int place, int across) {
        t_.columns.other[across] = first + i;
        t_.columns.item[across] = place_in_row(i, j, place);
      });
    } else {
      tile.for_edges_across([&](int j, int i, int place, int across) {
        const int e = place_in_row(i, j, across);
        t_.rows.other[e] = first + j;
        t_.rows.item[e] = is_loop(i, j) ? num_edges_ + first + i : kSelfLoops ? place - (first + j) - (i > j) : place;
      });
      tile.for_edges([&](int j, int i, int place, int across) { t_.columns.item[place] = place_in_row(i, j, across); });
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

  Task<Coo> task{coo_edges<I, kSelfLoops>(t.csr),
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
