// The structure of graphs side by side from small numbers that were concatenated, as one cooperative kernel: sums of
// degrees over all nodes, self-loops if asked for, then each graph on chip by a block, where everything goes out in the
// order of its addresses. Graphs that do not fit there, and those with hubs, are left to all warps, edge by edge.
#include <cooperative_groups.h>

#include <algorithm>

#include "cooperative.cuh"
#include "find_row.cuh"
#include "graph.h"
#include "tile_geometry.h"

namespace dfgnn::cuda {
namespace {

constexpr int kBlocks = 4;             // on a multiprocessor
constexpr int kChipBytes = 55 * 1024;  // of a graph on chip
constexpr int kLoads = 8;              // of a thread under way
constexpr int kMostSteps = 64;         // of lanes over a node's edges: more are a hub's
constexpr int kWarpEdges = 256;        // in a row, so that the warp looks for its first node only once

template <class K>
struct SideBySideArrays {
  K *by_dst, *by_src;        // [num_nodes + 1]: pointers without self-loops
  K* loops;                  // [num_nodes + 1]: self-loops of the nodes before; null where they are not asked for
  int* left;                 // [num_graphs]: graphs that blocks leave to all warps
  int *num_left, *taken;     // [1]: how many, and how many graphs blocks have taken
  K *sums, *sums_by_source;  // [blocks]
};

// A graph in shared memory: nodes, and edges by destination and by source, counted from its first.
struct Chip {
  int nodes, edges;
  int *by_dst, *by_src;  // [nodes + 1]: pointers without self-loops
  int* loops;            // [nodes + 1]: self-loops of the nodes before
  uint16_t* perm;        // [edges]: for each edge by source its place by destination
  uint16_t* other;       // [edges]: for each edge by destination its destination, until its source is known

  static __device__ bool holds(int64_t nodes, int64_t edges) {
    return 3 * (nodes + 1) * sizeof(int) + 2 * edges * sizeof(uint16_t) <= kChipBytes;
  }

  __device__ Chip(int* memory, int num_nodes, int num_edges) : nodes(num_nodes), edges(num_edges) {
    by_dst = memory;
    by_src = by_dst + nodes + 1;
    loops = by_src + nodes + 1;
    perm = reinterpret_cast<uint16_t*>(loops + nodes + 1);
    other = perm + edges;
  }

  __device__ int other_at(int c) const { return min(static_cast<int>(other[c]), nodes - 1); }

  // As many lanes take a node's edges, a power of two, in about four steps.
  __device__ int lanes() const {
    const int mean = max((edges + nodes - 1) / nodes, 1);
    return min(max((1 << (32 - __clz(mean - 1))) / 4, 8), kGridThreads);
  }

  // Calls see(node, e, false) for the edges e of each node and, if it has a self-loop behind, see(node, end, true).
  template <bool kLoops, class See>
  __device__ __forceinline__ void for_each_edge(const int* ptr, int lanes, const See& see) const {
    const int lane = threadIdx.x & (lanes - 1), groups = kGridThreads / lanes;
    for (int node = threadIdx.x / lanes; node < nodes; node += groups) {
      const int end = ptr[node + 1];
      for (int e = ptr[node] + lane; e < end + kLoops; e += lanes) see(node, e, kLoops && e == end);
    }
  }

  // How far an edge of `node` moves that ends at `end`, by the self-loops that are gone before it and those that are
  // new; one that is new comes last.
  template <bool kLoops>
  __device__ __forceinline__ int shift(int node, int end, bool is_new) const {
    return kLoops ? node - loops[node + (is_new || end > node)] : 0;
  }
};

// K: int or int64_t, D: uint16_t or int.
template <class K, class D>
class Collate {
 public:
  using Storage = typename BlockSums<K>::Storage;

  __device__ Collate(const SideBySide& task, const SideBySideArrays<K>& arrays, Storage& storage)
      : t_(task), w_(arrays), sums_(storage), nodes_(task.num_nodes), edges_(task.num_edges) {}

  __device__ void run() {
    const auto grid = cooperative_groups::this_grid();
    sum_degrees();
    write_tiles();
    grid.sync();
    write_pointers();
    grid.sync();
    if (t_.self_loops) {
      count_loops();
      grid.sync();
      move_pointers();
      grid.sync();
    }
    write_edges();
  }

 private:
  static __device__ K* array(const MutableIndex& index) { return static_cast<K*>(index.data); }
  __device__ K degree(int64_t node, int which) const { return static_cast<const D*>(t_.degrees)[2 * node + which]; }
  __device__ K local_perm(int64_t p) const { return static_cast<const D*>(t_.local_perm)[p]; }
  // What is read from the arguments and is an address then, whatever it is.
  __device__ int64_t place_of(int64_t pointer) const { return min(max(pointer, int64_t(0)), edges_); }
  __device__ int64_t first_node(int64_t graph) const { return min(max(t_.ptr[graph], int64_t(0)), nodes_); }

  __device__ void sum_degrees() {
    if (grid_thread() == 0) *w_.num_left = *w_.taken = 0;
    const Share mine = block_share(nodes_);
    K in = 0, out = 0;
    for (int64_t i = mine.begin + threadIdx.x; i < mine.end; i += kGridThreads) {
      in += degree(i, 0);
      out += degree(i, 1);
    }
    in = sums_.total(in);
    out = sums_.total(out);
    if (threadIdx.x == 0) {
      w_.sums[blockIdx.x] = in;
      w_.sums_by_source[blockIdx.x] = out;
    }
  }

  // The first graph that begins at or after each multiple of kStride nodes.
  __device__ void write_tiles() {
    for (int64_t i = grid_thread(); i < t_.num_tiles; i += grid_threads()) {
      const int64_t start = min(i * tile::kStride, nodes_), before = last_row(t_.ptr, 0, t_.num_graphs + 1, start - 1);
      const bool next = t_.ptr[before] < start && before < t_.num_graphs;
      t_.tiles[i] = static_cast<int>(first_node(before + next));
    }
  }

  __device__ void write_pointers() {
    const Share mine = block_share(nodes_);
    K in_before = sums_.total(w_.sums, blockIdx.x), out_before = sums_.total(w_.sums_by_source, blockIdx.x);
    for (int64_t first = mine.begin; first < mine.end; first += kGridThreads) {
      const int64_t i = first + threadIdx.x;
      const bool inside = i < mine.end;
      const K in = sums_.exclusive(inside ? degree(i, 0) : 0, in_before);
      const K out = sums_.exclusive(inside ? degree(i, 1) : 0, out_before);
      if (!inside) continue;
      w_.by_dst[i] = in;
      w_.by_src[i] = out;
    }
    if (blockIdx.x == gridDim.x - 1 && threadIdx.x == 0) {
      w_.by_dst[nodes_] = in_before;
      w_.by_src[nodes_] = out_before;
    }
  }

  // Edges of a source are ascending in local_perm: those to the source itself are found by halves.
  __device__ void count_loops() {
    const Share mine = block_share(nodes_);
    K total = 0;
    for (int64_t j = mine.begin + threadIdx.x; j < mine.end; j += kGridThreads) {
      const K first = w_.by_dst[first_node(last_row(t_.ptr, 0, t_.num_graphs, j))];
      const int64_t begin = place_of(w_.by_src[j]), end = place_of(w_.by_src[j + 1]);
      const int64_t low = first_not_below(begin, end, w_.by_dst[j] - first);
      const K behind = w_.by_dst[j + 1] - first;
      const bool any = low < end && local_perm(low) < behind;
      const int64_t high = any ? first_not_below(low + 1, end, behind) : low;
      w_.loops[j] = static_cast<K>(high - low);
      total += w_.loops[j];
    }
    total = sums_.total(total);
    if (threadIdx.x == 0) w_.sums[blockIdx.x] = total;
  }

  __device__ int64_t first_not_below(int64_t begin, int64_t end, K value) const {
    while (begin < end) {
      const int64_t middle = (begin + end) / 2;
      if (local_perm(middle) < value) {
        begin = middle + 1;
      } else {
        end = middle;
      }
    }
    return begin;
  }

  __device__ void move_pointers() {
    const Share mine = block_share(nodes_);
    K before = sums_.total(w_.sums, blockIdx.x);
    const K dropped = sums_.total(w_.sums, gridDim.x);
    for (int64_t first = mine.begin; first < mine.end; first += kGridThreads) {
      const int64_t i = first + threadIdx.x;
      const K count = i < mine.end ? w_.loops[i] : 0, start = sums_.exclusive(count, before);
      if (i >= mine.end) continue;
      w_.loops[i] = start;
      const K moved = static_cast<K>(i + 1) - start - count;
      array(t_.rowptr)[i + 1] = w_.by_dst[i + 1] + moved;
      array(t_.colptr)[i + 1] = w_.by_src[i + 1] + moved;
    }
    if (grid_thread() == 0) {
      array(t_.rowptr)[0] = array(t_.colptr)[0] = 0;
      w_.loops[nodes_] = dropped;
    }
    for (int64_t e = capacity() - dropped + grid_thread(); e < capacity(); e += grid_threads()) {
      put(array(t_.col), array(t_.eid), e, 0, 0);
      put(array(t_.row), array(t_.perm), e, 0, 0);
    }
  }

  __device__ int64_t capacity() const { return edges_ + (t_.self_loops ? nodes_ : 0); }

  // Nothing is written out of bounds, whatever the numbers are that were given.
  __device__ __forceinline__ void put(K* first, K* second, int64_t where, K a, K b) const {
    if (static_cast<uint64_t>(where) >= static_cast<uint64_t>(capacity())) return;
    first[where] = a;
    second[where] = b;
  }

  __device__ void write_edges() {
    for (int64_t graph = take_graph(); graph < t_.num_graphs; graph = take_graph()) {
      if (!write_graph(first_node(graph), first_node(graph + 1)) && threadIdx.x == 0) {
        w_.left[atomicAdd(w_.num_left, 1)] = static_cast<int>(graph);
      }
    }
    cooperative_groups::this_grid().sync();
    int64_t before = 0;  // runs of graphs before; no more than that, if no two graphs have the same edges
    const int64_t most = ceil_div(edges_, kWarpEdges) + *w_.num_left;
    for (int i = 0; i < *w_.num_left && before <= most; ++i) {
      before += write_runs(first_node(w_.left[i]), first_node(w_.left[i] + 1), before);
    }
  }

  __device__ int take_graph() {
    __shared__ int graph;
    __syncthreads();  // the one before is written
    if (threadIdx.x == 0) graph = atomicAdd(w_.taken, 1);
    __syncthreads();
    return graph;
  }

  // By the block; or not at all, and false.
  __device__ bool write_graph(int64_t first, int64_t end) {
    if (end <= first) return true;
    const int64_t base = place_of(w_.by_dst[first]), edges = max(place_of(w_.by_dst[end]) - base, int64_t(0));
    if (!Chip::holds(end - first, edges)) return false;
    extern __shared__ int memory[];
    const Chip chip(memory, static_cast<int>(end - first), static_cast<int>(edges));
    const int lanes = chip.lanes();
    if (__syncthreads_or(read_pointers(chip, first, base) > kMostSteps * lanes)) return false;
    read_perm(chip, base);
    chip.for_each_edge<false>(chip.by_dst, lanes,
                              [&](int dst, int c, bool) { chip.other[c] = static_cast<uint16_t>(dst); });
    __syncthreads();
    const Out out = out_of(first, base);
    if (t_.self_loops) {
      write_by_source<true>(chip, lanes, out);
      __syncthreads();
      write_by_destination_with_loops(chip, lanes, out);
    } else {
      write_by_source<false>(chip, lanes, out);
      __syncthreads();
      write_by_destination(chip, out);
    }
    return true;
  }

  // Where a graph's edges go. Without self-loops places are below its number of edges, whatever the numbers are that
  // were given; with them, each is checked against the room.
  struct Out {
    K *row, *perm, *col, *eid;  // from the graph's first on
    K node, edge, old_edge;     // its first ones, with self-loops and without
    int64_t room;               // entries from there on
  };
  __device__ Out out_of(int64_t first, int64_t base) const {
    const K edge =
        static_cast<K>(t_.self_loops ? min(max(base + first - w_.loops[first], int64_t(0)), capacity()) : base);
    const auto from = [&](const MutableIndex& index) { return array(index) + edge; };
    return {from(t_.row),          from(t_.perm), from(t_.col),         from(t_.eid),
            static_cast<K>(first), edge,          static_cast<K>(base), capacity() - edge};
  }

  // The largest degree that the thread has seen.
  __device__ int read_pointers(const Chip& chip, int64_t first, int64_t base) const {
    const auto local = [&](const K* pointers, int64_t node) {
      return static_cast<int>(min(max(pointers[node] - base, int64_t(0)), static_cast<int64_t>(chip.edges)));
    };
    int most = 0;
    for (int i = threadIdx.x; i <= chip.nodes; i += kGridThreads) {
      chip.by_dst[i] = local(w_.by_dst, first + i);
      chip.by_src[i] = local(w_.by_src, first + i);
      if (t_.self_loops) chip.loops[i] = static_cast<int>(w_.loops[first + i] - w_.loops[first]);
      if (i == chip.nodes) break;
      most = max(most, static_cast<int>(max(degree(first + i, 0), degree(first + i, 1))));
    }
    return most;
  }

  __device__ void read_perm(const Chip& chip, int64_t base) const {
    for (int first = threadIdx.x; first < chip.edges; first += kLoads * kGridThreads) {
      D found[kLoads];
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int p = first + i * kGridThreads;
        if (p < chip.edges) found[i] = static_cast<const D*>(t_.local_perm)[base + p];
      }
#pragma unroll
      for (int i = 0; i < kLoads; ++i) {
        const int p = first + i * kGridThreads;
        if (p < chip.edges) chip.perm[p] = static_cast<uint16_t>(min(static_cast<unsigned>(found[i]), chip.edges - 1u));
      }
    }
  }

  template <bool kLoops>
  __device__ __forceinline__ void write_by_source(const Chip& chip, int lanes, const Out& out) const {
    chip.for_each_edge<kLoops>(chip.by_src, lanes, [&](int src, int p, bool is_new) {
      const int c = is_new ? chip.by_dst[src + 1] : chip.perm[p], dst = is_new ? src : chip.other_at(c);
      if (!is_new) chip.other[c] = static_cast<uint16_t>(src);
      if (kLoops && src == dst && !is_new) return;
      const int new_p = p + chip.shift<kLoops>(src, dst, is_new), new_c = c + chip.shift<kLoops>(dst, src, is_new);
      if (kLoops && static_cast<unsigned>(new_p) >= out.room) return;
      out.row[new_p] = out.node + dst;
      out.perm[new_p] = out.edge + new_c;
    });
  }

  __device__ __forceinline__ void write_by_destination(const Chip& chip, const Out& out) const {
    for (int c = threadIdx.x; c < chip.edges; c += kGridThreads) {
      out.col[c] = out.node + chip.other_at(c);
      out.eid[c] = out.edge + c;
    }
  }

  __device__ __forceinline__ void write_by_destination_with_loops(const Chip& chip, int lanes, const Out& out) const {
    chip.for_each_edge<true>(chip.by_dst, lanes, [&](int dst, int c, bool is_new) {
      const int src = is_new ? dst : chip.other_at(c);
      if (src == dst && !is_new) return;
      const int new_c = c + chip.shift<true>(dst, src, is_new);
      if (static_cast<unsigned>(new_c) >= out.room) return;
      out.col[new_c] = out.node + src;
      out.eid[new_c] = is_new ? static_cast<K>(edges_) + out.node + dst : out.old_edge + c;
    });
  }

  // A graph that blocks have left: runs of edges in a row by warps, after so many of other graphs.
  __device__ int64_t write_runs(int64_t first, int64_t end, int64_t before) {
    const int lane = threadIdx.x % 32;
    const int64_t begin = place_of(w_.by_src[first]), last = place_of(w_.by_src[end]), warps = grid_threads() / 32;
    const int64_t runs = max(ceil_div(last - begin, kWarpEdges), int64_t(0));
    if (t_.self_loops) {
      for (int64_t i = first + grid_thread(); i < end; i += grid_threads()) put_loop(i);
    }
    for (int64_t run = (grid_thread() / 32 + warps - before % warps) % warps; run < runs; run += warps) {
      const int64_t p0 = begin + run * kWarpEdges, run_end = min(p0 + kWarpEdges, last);
      int64_t from = last_row(w_.by_src, first, end, p0);
      for (int64_t p = p0 + lane; p - lane < run_end; p += 32) {
        const int64_t src = find_row_from(w_.by_src, end, from, min(p, run_end - 1));
        if (p < run_end) write_edge(p, src, first, end);
        from = __shfl_sync(~0u, src, 0);
      }
    }
    return runs;
  }

  __device__ __forceinline__ void put_loop(int64_t i) const {
    const K moved = static_cast<K>(i) - w_.loops[i + 1], c = w_.by_dst[i + 1] + moved, p = w_.by_src[i + 1] + moved;
    put(array(t_.col), array(t_.eid), c, static_cast<K>(i), static_cast<K>(edges_ + i));
    put(array(t_.row), array(t_.perm), p, static_cast<K>(i), c);
  }

  __device__ __forceinline__ void write_edge(int64_t p, int64_t src, int64_t first, int64_t end) const {
    const int64_t c = place_of(static_cast<int64_t>(w_.by_dst[first]) + local_perm(p));
    const int64_t dst = last_row(w_.by_dst, first, end, c);
    int64_t new_c = c, new_p = p;
    if (t_.self_loops) {
      if (src == dst) return;
      new_c += dst - w_.loops[dst + (src > dst)];
      new_p += src - w_.loops[src + (dst > src)];
    }
    put(array(t_.col), array(t_.eid), new_c, static_cast<K>(src), static_cast<K>(c));
    put(array(t_.row), array(t_.perm), new_p, static_cast<K>(dst), static_cast<K>(new_c));
  }

  const SideBySide& t_;
  const SideBySideArrays<K>& w_;
  BlockSums<K> sums_;
  const int64_t nodes_, edges_;
};

template <class K, class D>
__global__ void __launch_bounds__(kGridThreads, kBlocks)
    side_by_side_kernel(const __grid_constant__ SideBySide task, const __grid_constant__ SideBySideArrays<K> arrays) {
  __shared__ typename Collate<K, D>::Storage storage;
  Collate<K, D>(task, arrays, storage).run();
}

template <class K, class D>
cudaError_t side_by_side_of(const SideBySide& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto kernel = side_by_side_kernel<K, D>;
  int64_t blocks = 0;
  const cudaError_t error = max_grid(kernel, kChipBytes, blocks);
  if (error != cudaSuccess) return error;
  const int64_t runs = ceil_div(t.num_edges, kWarpEdges * kGridThreads / 32);
  blocks = grid_for(std::max(t.num_graphs, runs) + ceil_div(t.num_nodes, kGridThreads), blocks);

  SideBySideArrays<K> arrays{};
  Workspace places(workspace);
  places.place(arrays.left, t.num_graphs);
  places.place(arrays.num_left, 1);
  places.place(arrays.taken, 1);
  places.place(arrays.sums, blocks);
  places.place(arrays.sums_by_source, blocks);
  if (t.self_loops) {
    places.place(arrays.by_dst, t.num_nodes + 1);
    places.place(arrays.by_src, t.num_nodes + 1);
    places.place(arrays.loops, t.num_nodes + 1);
  } else {
    arrays.by_dst = static_cast<K*>(t.rowptr.data);
    arrays.by_src = static_cast<K*>(t.colptr.data);
  }
  if (workspace == nullptr) {
    workspace_bytes = places.bytes();
    return cudaSuccess;
  }
  return launch_cooperative(kernel, blocks, kChipBytes, stream, t, arrays);
}

}  // namespace

cudaError_t side_by_side(const SideBySide& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto make = task.rowptr.wide
                        ? (task.narrow ? side_by_side_of<int64_t, uint16_t> : side_by_side_of<int64_t, int>)
                        : (task.narrow ? side_by_side_of<int, uint16_t> : side_by_side_of<int, int>);
  return make(task, workspace, workspace_bytes, stream);
}

}  // namespace dfgnn::cuda
