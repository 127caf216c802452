// Lists that ascend by destination and then by source, or the other way round: one of the forms, which is copied as
// they stream by, then tiles, and the other form.
#pragma once

#include <cooperative_groups.h>

#include "transposed_tiles.cuh"

namespace dfgnn::cuda {

// All threads of the grid come to each step.
template <class I, bool kSelfLoops>
class SortedList {
  using Coo = CooEdges<I, kSelfLoops>;

 public:
  using Shared = TileTranspose::Shared;

  __device__ SortedList(const CompressTask<Coo>& task, Shared& shared)
      : t_(task),
        found_(*task.found),
        s_(shared),
        search_(task.rows.num_keys, task.search, shared.sums),
        edges_(task.coo),
        num_edges_(static_cast<int>(task.rows.num_edges)),
        num_loops_(static_cast<int>(task.rows.num_loops)) {}

  __device__ Done run() {
    if (grid_thread() < 3) t_.rows.stats[grid_thread()] = grid_thread() < 2 || t_.tiles ? 0 : -1;
    const Order order = guess_order();
    if (order == Order::none) return {};
    return order == Order::by_dst ? run<true>() : run<false>();
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
  __device__ Done run() {
    const auto grid = cooperative_groups::this_grid();
    stream<kByDst>();
    grid.sync();
    if (found_.unsorted) return {};
    if (found_.gaps) {
      search_pointers<kByDst>();
      grid.sync();
    }
    int largest = kByDst ? finish_rows() : 0;
    if (!kByDst) finish_columns();
    const bool has_tiles = t_.tiles && !found_.loose;
    bool has_all = false;
    if (has_tiles) {
      search_.find(t_.tiles, t_.num_boundaries,
                   [&](int tile, int nodes) { TileQueue::add(t_.queue, found_.queued, tile, nodes); });
      grid.sync();
      has_all = TransposedTiles<I, kSelfLoops, kByDst>(t_, s_, largest).run();
    }
    raise_max_degree(t_.rows, largest);
    return {kByDst || has_all, has_tiles, has_all};
  }

  // What a few runs of edges look like, one a warp, the last one where self-loops of all nodes begin if they come
  // behind all other edges. A run inside of one node's edges looks like either; where most do, it counts whose ends
  // stay the same. Rows that do not ascend are left to buckets where those may take them.
  __device__ Order guess_order() {
    if (num_edges_ == 0) return Order::by_dst;
    constexpr int kRuns = kSortWarps - 1;
    const int warp = static_cast<int>(threadIdx.x) / 32, nodes = static_cast<int>(t_.rows.num_keys);
    const int64_t first = warp < kRuns ? static_cast<int64_t>(num_edges_) * warp / kRuns
                                       : max(int64_t{num_edges_} - nodes - 32 * kGuessEdges / 2, int64_t{0});
    bool not_by_dst = false, not_by_src = false, loose = false, far = false;
    int same_dst = 0, same_src = 0;
#pragma unroll
    for (int u = 0; u < kGuessEdges; ++u) {
      const int64_t e = min(first + 32 * u + threadIdx.x % 32, static_cast<int64_t>(num_edges_ - 1));
      const auto x = edges_.load(e), before = edges_.load(max(e - 1, int64_t(0)));
      not_by_dst |= x.dst < before.dst;
      not_by_src |= x.src < before.src;
      loose |= x.dst == before.dst && x.src < before.src;
      far |= BucketSort<Coo>::is_far(x.src, x.dst);
      same_dst += x.dst == before.dst;
      same_src += x.src == before.src;
    }
    loose = t_.tiles && BucketSort<Coo>::takes(nodes) && __syncthreads_or(loose) && !__syncthreads_or(far);
    not_by_dst = __syncthreads_or(not_by_dst) || loose;
    not_by_src = __syncthreads_or(not_by_src);
    BlockSums<int> sums(s_.sums);
    const bool prefers_dst = sums.total(same_dst - same_src) >= 0;
    if (not_by_dst && not_by_src) return Order::none;
    const bool by_dst = not_by_src || (!not_by_dst && prefers_dst);
    return by_dst ? Order::by_dst : t_.tiles ? Order::by_src : Order::none;
  }

  // Self-loops put in before the edges of the node.
  __device__ __forceinline__ int loops_before(int node) const { return kSelfLoops ? min(node, num_loops_) : 0; }

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
    const int lane = threadIdx.x % 32, majors = static_cast<int>(t_.template form<kByDst>().num_keys);
    const unsigned joined = t_.tiles ? majors : 0;
    bool failed = false, loose = false, twice = false, gaps = num_edges_ == 0;
    int* ptr = t_.template form<kByDst>().pointers;
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
          twice |= x.minor == before.minor;
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
    if (__syncthreads_or(twice) && threadIdx.x == 0) *t_.buckets.twice = 1;
    if (__syncthreads_or(gaps) && threadIdx.x == 0) found_.gaps = 1;
  }

  template <bool kByDst>
  __device__ void search_pointers() {
    const I* keys = kByDst ? edges_.dst : edges_.src;
    const int nodes = static_cast<int>(t_.template form<kByDst>().num_keys);
    for (int64_t i = grid_thread(); i <= nodes; i += grid_threads()) {
      t_.template form<kByDst>().pointers[i] =
          static_cast<int>(lower_bound(keys, num_edges_, static_cast<I>(i))) + loops_before(static_cast<int>(i));
    }
  }

  // Self-loops. Returns the largest degree of this thread's rows.
  __device__ int finish_rows() {
    int largest = 0;
    for (int64_t i = grid_thread(); i < t_.rows.num_keys; i += grid_threads()) {
      const int begin = t_.rows.pointers[i], end = t_.rows.pointers[i + 1];
      largest = max(largest, end - begin);
      if (i < num_loops_) {
        t_.rows.other[end - 1] = static_cast<int>(i);
        t_.rows.item[end - 1] = num_edges_ + static_cast<int>(i);
      }
    }
    return largest;
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

  const CompressTask<Coo>& t_;
  Findings& found_;
  Shared& s_;
  TileSearch search_;
  const Coo& edges_;
  const int num_edges_, num_loops_;
};

}  // namespace dfgnn::cuda
