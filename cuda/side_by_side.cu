// The structure of graphs side by side from small numbers that were concatenated, as one cooperative kernel: sums of
// degrees over all nodes, self-loops if asked for, then every edge by itself.
#include <cooperative_groups.h>

#include "cooperative.cuh"
#include "graph.h"
#include "tile_geometry.h"

namespace dfgnn::cuda {
namespace {

constexpr int kWarpEdges = 256;  // in a row, so that the warp looks for its first node only once

template <class K>
struct SideBySideArrays {
  K *by_dst, *by_src;        // [num_nodes + 1]: pointers without self-loops
  K* loops;                  // [num_nodes + 1]: self-loops of the nodes before; null where they are not asked for
  int* graph;                // [num_nodes]
  K *sums, *sums_by_source;  // [blocks]
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
      put_loops();
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

  // The last of [low, high) whose value is not above `value`, or low.
  template <class T>
  static __device__ int64_t last_from(const T* values, int64_t low, int64_t high, int64_t value) {
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (values[middle] <= value ? low : high) = middle;
    }
    return low;
  }

  __device__ void sum_degrees() {
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
      const int64_t start = min(i * tile::kStride, nodes_), before = last_from(t_.ptr, 0, t_.num_graphs + 1, start - 1);
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
      w_.graph[i] = static_cast<int>(last_from(t_.ptr, 0, t_.num_graphs, i));
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
      const K first = w_.by_dst[first_node(w_.graph[j])];
      const int64_t begin = place_of(w_.by_src[j]), end = place_of(w_.by_src[j + 1]);
      const int64_t low = first_not_below(begin, end, w_.by_dst[j] - first);
      const int64_t high = first_not_below(low, end, w_.by_dst[j + 1] - first);
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

  __device__ void put_loops() {
    const Share mine = block_share(nodes_);
    K before = sums_.total(w_.sums, blockIdx.x);
    const K dropped = sums_.total(w_.sums, gridDim.x);
    for (int64_t first = mine.begin; first < mine.end; first += kGridThreads) {
      const int64_t i = first + threadIdx.x;
      const K count = i < mine.end ? w_.loops[i] : 0, start = sums_.exclusive(count, before);
      if (i >= mine.end) continue;
      w_.loops[i] = start;
      const K moved = static_cast<K>(i + 1) - start - count;
      const K c = w_.by_dst[i + 1] + moved - 1, p = w_.by_src[i + 1] + moved - 1;
      array(t_.rowptr)[i + 1] = c + 1;
      array(t_.colptr)[i + 1] = p + 1;
      put(array(t_.col), array(t_.eid), c, static_cast<K>(i), static_cast<K>(edges_ + i));
      put(array(t_.row), array(t_.perm), p, static_cast<K>(i), c);
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
    const int lane = threadIdx.x % 32;
    const int64_t runs = ceil_div(edges_, kWarpEdges);
    for (int64_t run = grid_thread() / 32; run < runs; run += grid_threads() / 32) {
      const int64_t end = min((run + 1) * kWarpEdges, edges_);
      int64_t from = last_from(w_.by_src, 0, nodes_, run * kWarpEdges);
      for (int64_t p = run * kWarpEdges + lane; p - lane < end; p += 32) {
        const int64_t src = source_of(min(p, end - 1), from);
        if (p < end) write_edge(p, src);
        from = __shfl_sync(~0u, src, 0);
      }
    }
  }

  // By doubling steps, then halves, from one that is not behind.
  __device__ int64_t source_of(int64_t p, int64_t low) const {
    int64_t step = 1;
    while (low + step < nodes_ && w_.by_src[low + step] <= p) {
      low += step;
      step *= 2;
    }
    return last_from(w_.by_src, low, min(low + step, nodes_), p);
  }

  __device__ __forceinline__ void write_edge(int64_t p, int64_t src) const {
    const int64_t graph = w_.graph[src], begin = first_node(graph), end = first_node(graph + 1);
    const int64_t c = min(static_cast<int64_t>(w_.by_dst[begin]) + local_perm(p), edges_ - 1);
    const int64_t dst = min(last_from(w_.by_dst, begin, end, c), nodes_ - 1);
    if (!t_.self_loops) {
      array(t_.eid)[p] = static_cast<K>(p);
      array(t_.row)[p] = static_cast<K>(dst);
      array(t_.perm)[p] = static_cast<K>(c);
      if (c >= 0) array(t_.col)[c] = static_cast<K>(src);
      return;
    }
    if (src == dst) return;
    const int64_t behind_dst = w_.loops[dst + (src > dst)], behind_src = w_.loops[src + (dst > src)];
    const int64_t new_c = c - behind_dst + dst, new_p = p - behind_src + src;
    put(array(t_.col), array(t_.eid), new_c, static_cast<K>(src), static_cast<K>(c));
    put(array(t_.row), array(t_.perm), new_p, static_cast<K>(dst), static_cast<K>(new_c));
  }

  const SideBySide& t_;
  const SideBySideArrays<K>& w_;
  BlockSums<K> sums_;
  const int64_t nodes_, edges_;
};

template <class K, class D>
__global__ void __launch_bounds__(kGridThreads, 6)
    side_by_side_kernel(const __grid_constant__ SideBySide task, const __grid_constant__ SideBySideArrays<K> arrays) {
  __shared__ typename Collate<K, D>::Storage storage;
  Collate<K, D>(task, arrays, storage).run();
}

template <class K, class D>
cudaError_t side_by_side_of(const SideBySide& t, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto kernel = side_by_side_kernel<K, D>;
  int64_t blocks = 0;
  const cudaError_t error = max_grid(kernel, 0, blocks);
  if (error != cudaSuccess) return error;
  blocks =
      grid_for(ceil_div(t.num_edges, kWarpEdges * kGridThreads / 32) + ceil_div(t.num_nodes, kGridThreads), blocks);

  SideBySideArrays<K> arrays{};
  Workspace places(workspace);
  places.place(arrays.graph, t.num_nodes);
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
  return launch_cooperative(kernel, blocks, 0, stream, t, arrays);
}

}  // namespace

cudaError_t side_by_side(const SideBySide& task, void* workspace, size_t& workspace_bytes, cudaStream_t stream) {
  const auto make = task.rowptr.wide
                        ? (task.narrow ? side_by_side_of<int64_t, uint16_t> : side_by_side_of<int64_t, int>)
                        : (task.narrow ? side_by_side_of<int, uint16_t> : side_by_side_of<int, int>);
  return make(task, workspace, workspace_bytes, stream);
}

}  // namespace dfgnn::cuda
