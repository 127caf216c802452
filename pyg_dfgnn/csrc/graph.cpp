// The compressed forms of a graph, as operators, so that scripted and compiled models build them too. Sizes of the
// results follow from sizes of the arguments alone (self-loops that are dropped leave unused entries behind
// rowptr[-1]): nothing waits for the device.
#include "graph.h"

#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "checks.h"

namespace dfgnn {
namespace {

void check_size(int64_t size, const char* name) {
  constexpr int64_t kMost = int64_t{1} << 48;  // so that sums of sizes are numbers, too
  TORCH_CHECK(size >= 0 && size < kMost, name, ": expected a number of nodes >= 0 and below 2^48, got ", size);
}

// Nodes of tiles are int32, and so is where a step of the kernels beyond the last one ends.
void check_nodes_of_tiles(int64_t nodes, const char* name) {
  TORCH_CHECK(nodes < std::numeric_limits<int32_t>::max() - 256, name,
              ": expected fewer than 2^31 - 257 nodes with tiles, got ", nodes);
}

// Those of find_tiles, and behind them what else a caller of `may_have` takes; `what` says that in words.
template <class MayHave>
void check_tiles(const at::Tensor& tiles, int64_t nodes, const char* what, const MayHave& may_have) {
  const auto parts = cuda::tile::parts_of(tiles.numel(), nodes);
  TORCH_CHECK(tiles.scalar_type() == at::kInt && parts.is_valid && may_have(parts), "tiles: expected the ",
              cuda::tile::boundaries_of(nodes), " int32 entries of find_tiles for ", nodes, " nodes", what, ", got ",
              tiles.numel(), " of ", tiles.scalar_type());
}

// By source, of as many nodes as there are destinations.
void check_colptr(const at::Tensor& colptr, const at::Tensor& rowptr) {
  check_index(colptr, "colptr", rowptr, rowptr.device());
  TORCH_CHECK(colptr.numel() == rowptr.numel(), "colptr: expected as many entries as rowptr (", rowptr.numel(),
              "), got ", colptr.numel());
}

// Returns the type of the results' indices.
at::ScalarType check_coo(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst,
                         bool self_loops) {
  check_index(src, "src");
  check_index(dst, "dst");
  TORCH_CHECK(src.numel() == dst.numel(), "dst: expected as many entries as src (", src.numel(), "), got ",
              dst.numel());
  TORCH_CHECK(src.scalar_type() == dst.scalar_type(), "dst: expected the dtype of src (", src.scalar_type(), "), got ",
              dst.scalar_type());
  TORCH_CHECK(src.device() == dst.device(), "dst: expected a tensor on ", src.device(), ", got one on ", dst.device());
  check_size(num_src, "num_src");
  check_size(num_dst, "num_dst");
  const int64_t capacity = src.numel() + (self_loops ? std::min(num_src, num_dst) : 0);
  const int64_t limit = std::numeric_limits<int32_t>::max();
  return capacity < limit && num_src < limit && num_dst < limit ? at::kInt : at::kLong;
}

template <auto kernel>
Csr coo_to_csr(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops) {
  const auto index_type = check_coo(src, dst, num_src, num_dst, self_loops);
  return kernel(src.contiguous(), dst.contiguous(), num_src, num_dst, self_loops, index_type);
}

// coo_to_csr, csr_to_csc and, where they are asked for, find_tiles in one; `stats` has the blocks of tiles behind, or
// -1. Rows ascend by source whatever the order of the list, but for self-loops that were put in:
// method tile, and caches, are made for that. On CUDA, the more of it is a copy the more the list is sorted.
template <auto kernel>
BothForms compress(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops,
                   bool with_tiles) {
  const auto index_type = check_coo(src, dst, num_src, num_dst, self_loops);
  TORCH_CHECK(!with_tiles || num_src == num_dst, "with_tiles: expected False where num_src (", num_src,
              ") is not num_dst (", num_dst, "), got True");
  if (with_tiles) check_nodes_of_tiles(num_dst, "num_dst");
  return kernel(src.contiguous(), dst.contiguous(), num_src, num_dst, self_loops, with_tiles, index_type);
}

// rowptr, after an assertion on the device that `stats` counts no bad edges. Traces keep it, as it has a result.
at::Tensor assert_in_range(const at::Tensor& rowptr, const at::Tensor& stats) {
  TORCH_CHECK(stats.dim() == 1 && stats.sym_numel() > 1 && stats.scalar_type() == at::kLong,
              "stats: expected the int64 entries of coo_to_csr or compress, got ", stats.scalar_type(), " of shape ",
              stats.sym_sizes());
  at::_assert_async(stats.select(0, 1).eq(0), "edge_index: holds nodes that are out of range");
  return rowptr;
}

template <auto kernel>
Csc csr_to_csc(const at::Tensor& rowptr, const at::Tensor& col, int64_t num_src) {
  check_given({{"rowptr", rowptr}, {"col", col}});
  check_csr(rowptr, col, rowptr.device());
  check_size(num_src, "num_src");
  return kernel(rowptr.contiguous(), col.contiguous(), num_src);
}

// A tile is a run of nodes whose edges stay inside it. They are found from the edges alone (the graphs of a batch need
// not be known), small ones in a row are one tile: tiles[t] is the first boundary at or after node 64 t. `blocks` says
// what the tile kernels' work is: how many blocks of 16 rows and 32 nodes have edges, and, counted the same, the edges
// that these kernels take one by one.
template <auto kernel>
Tiles find_tiles(const at::Tensor& rowptr, const at::Tensor& col) {
  check_csr(rowptr, col, rowptr.device());
  check_nodes_of_tiles(rowptr.numel() - 1, "rowptr");
  return kernel(rowptr.contiguous(), col.contiguous());
}

// The tiles with windows and masks behind them: the rows that each block takes, and for each node its edges in its tile
// as bits, first of all rows, then of all columns (tile_geometry.h). They are what the tile kernels read in the place
// of the edges, and would be made for every call.
template <auto kernel>
at::Tensor with_masks(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& col,
                      const at::Tensor& colptr, const at::Tensor& row) {
  check_csr(rowptr, col, rowptr.device());
  check_index(tiles, "tiles", tiles, rowptr.device());
  check_colptr(colptr, rowptr);
  check_index(row, "row", rowptr, rowptr.device());
  check_nodes_of_tiles(rowptr.numel() - 1, "rowptr");
  check_tiles(tiles, rowptr.numel() - 1, ", perhaps with their list behind",
              [](const auto& parts) { return !parts.masks && !parts.orders; });
  TORCH_CHECK(row.numel() == col.numel(), "row: expected as many entries as col (", col.numel(), "), got ",
              row.numel());
  return kernel(tiles.contiguous(), rowptr.contiguous(), col.contiguous(), colptr.contiguous(), row.contiguous());
}

// The tiles, with masks or without, with the list of them behind that method resident reads: the same boundaries, each
// once, and then num_nodes in the places that are left.
template <auto kernel>
at::Tensor with_list(const at::Tensor& tiles, int64_t num_nodes) {
  check_index(tiles, "tiles");
  check_size(num_nodes, "num_nodes");
  check_nodes_of_tiles(num_nodes, "num_nodes");
  check_tiles(tiles, num_nodes, ", perhaps with masks behind",
              [](const auto& parts) { return !parts.list && !parts.orders; });
  const int64_t begin = tiles.numel(), size = cuda::tile::size_of_list(num_nodes);
  const auto result = at::empty({begin + size}, tiles.options());
  result.narrow(0, 0, begin).copy_(tiles);
  kernel(tiles.contiguous(), num_nodes, result.narrow(0, begin, size));
  return result;
}

// The tiles with what the kernels of few edges read behind them (row_runs.cuh): rows and columns by their numbers of
// edges, most first, those of as many as they lie, [2, N]; where the edges of each begin; and how many there are.
template <auto kernel>
at::Tensor with_orders(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& col,
                       const at::Tensor& colptr) {
  check_csr(rowptr, col, rowptr.device());
  check_index(tiles, "tiles", tiles, rowptr.device());
  check_colptr(colptr, rowptr);
  const int64_t nodes = rowptr.numel() - 1;
  check_tiles(tiles, nodes, "", [](const auto& parts) { return !parts.masks && !parts.list && !parts.orders; });
  constexpr int64_t kMostNodes = int64_t{1} << 30;
  TORCH_CHECK(nodes < kMostNodes, "rowptr: expected fewer than ", kMostNodes, " nodes, got ", nodes);
  TORCH_CHECK(col.numel() <= std::numeric_limits<int32_t>::max(), "col: expected fewer than 2^31 entries, got ",
              col.numel());
  return kernel(tiles.contiguous(), rowptr.contiguous(), colptr.contiguous(), col.numel());
}

// What method resident must know of the largest tile: its nodes, and how many batches of edges (resident_geometry.h)
// one has at the most, of those with few enough nodes to fit at all.
template <auto kernel>
at::Tensor tile_sizes(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& colptr) {
  check_index(tiles, "tiles", tiles, rowptr.device());
  check_index(rowptr, "rowptr");
  TORCH_CHECK(rowptr.numel() > 0, "rowptr: expected N + 1 entries, got none");
  check_colptr(colptr, rowptr);
  check_nodes_of_tiles(rowptr.numel() - 1, "rowptr");
  check_tiles(tiles, rowptr.numel() - 1, ", whatever is behind", [](const auto&) { return true; });
  const auto sizes = at::empty({2}, tiles.options().dtype(at::kLong));
  kernel(tiles.contiguous(), rowptr.contiguous(), colptr.contiguous(), sizes);
  return sizes;
}

// Graphs side by side, each of edges that are sorted by destination and then by source, from what is small and
// concatenates: `degrees`, the edges that a node is the destination and the source of; `local_perm`, what perm of each
// graph alone is; both int32, or int16 that is read without sign; and `ptr`, the first node of each graph, then N.
template <auto kernel>
BatchForms side_by_side(const at::Tensor& degrees, const at::Tensor& local_perm, const at::Tensor& ptr,
                        bool self_loops) {
  TORCH_CHECK(degrees.dim() == 2 && degrees.size(1) == 2, "degrees: expected shape [N, 2], got ", degrees.sizes());
  const auto type = degrees.scalar_type();
  TORCH_CHECK(type == at::kShort || type == at::kInt, "degrees: expected an int16 or int32 tensor, got ", type);
  TORCH_CHECK(local_perm.dim() == 1, "local_perm: expected a 1-dimensional tensor, got shape ", local_perm.sizes());
  TORCH_CHECK(local_perm.scalar_type() == type, "local_perm: expected the dtype of degrees (", type, "), got ",
              local_perm.scalar_type());
  TORCH_CHECK(ptr.dim() == 1 && ptr.scalar_type() == at::kLong, "ptr: expected a 1-dimensional int64 tensor, got ",
              ptr.scalar_type(), " of shape ", ptr.sizes());
  const int64_t nodes = degrees.size(0), edges = local_perm.numel();
  TORCH_CHECK(ptr.numel() > (nodes > 0 ? 1 : 0), "ptr: expected the first node of each graph, then ", nodes, ", got ",
              ptr.numel(), " entries");
  constexpr int64_t kMostGraphs = int64_t{1} << 30;
  TORCH_CHECK(ptr.numel() <= kMostGraphs, "ptr: expected no more than ", kMostGraphs, " entries, got ", ptr.numel());
  TORCH_CHECK(nodes > 0 || edges == 0, "local_perm: expected no entries where there are no nodes, got ", edges);
  check_nodes_of_tiles(nodes, "degrees");
  check_device(local_perm, "local_perm", degrees.device());
  check_device(ptr, "ptr", degrees.device());
  const bool fits = nodes + edges < std::numeric_limits<int32_t>::max();
  const auto options = degrees.options().dtype(fits ? at::kInt : at::kLong);
  const int64_t capacity = edges + (self_loops ? nodes : 0);
  const auto make = [&](int64_t size) { return at::empty({size}, options); };
  const BatchForms structure{make(nodes + 1),
                             make(capacity),
                             make(capacity),
                             make(nodes + 1),
                             make(capacity),
                             make(capacity),
                             at::empty({cuda::tile::boundaries_of(nodes)}, options.dtype(at::kInt))};
  kernel(degrees.contiguous(), local_perm.contiguous(), ptr.contiguous(), self_loops, structure);
  return structure;
}

}  // namespace

TORCH_LIBRARY_FRAGMENT(dfgnn, m) {
  m.def(
      "coo_to_csr(Tensor src, Tensor dst, SymInt num_src, SymInt num_dst, *, bool self_loops=False) -> "
      "(Tensor rowptr, Tensor col, Tensor eid, Tensor stats)");
  m.def("csr_to_csc(Tensor rowptr, Tensor col, SymInt num_src) -> (Tensor colptr, Tensor row, Tensor perm)");
  m.def(
      "compress(Tensor src, Tensor dst, SymInt num_src, SymInt num_dst, *, bool self_loops=False, "
      "bool with_tiles=False) -> (Tensor rowptr, Tensor col, Tensor eid, Tensor colptr, Tensor row, Tensor perm, "
      "Tensor tiles, Tensor stats)");
  m.def("assert_in_range(Tensor(a) rowptr, Tensor stats) -> Tensor(a)");
  m.def("find_tiles(Tensor rowptr, Tensor col) -> (Tensor tiles, Tensor blocks)");
  m.def("with_masks(Tensor tiles, Tensor rowptr, Tensor col, Tensor colptr, Tensor row) -> Tensor");
  m.def("with_list(Tensor tiles, SymInt num_nodes) -> Tensor");
  m.def("with_orders(Tensor tiles, Tensor rowptr, Tensor col, Tensor colptr) -> Tensor");
  m.def("tile_sizes(Tensor tiles, Tensor rowptr, Tensor colptr) -> Tensor");
  m.def(
      "side_by_side(Tensor degrees, Tensor local_perm, Tensor ptr, *, bool self_loops=False) -> "
      "(Tensor rowptr, Tensor col, Tensor eid, Tensor colptr, Tensor row, Tensor perm, Tensor tiles)");
}

TORCH_LIBRARY_IMPL(dfgnn, CompositeImplicitAutograd, m) { m.impl("assert_in_range", assert_in_range); }

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) {
  m.impl("coo_to_csr", coo_to_csr<coo_to_csr_cpu>);
  m.impl("csr_to_csc", csr_to_csc<csr_to_csc_cpu>);
  m.impl("compress", compress<compress_by_parts<both_forms_cpu, find_tiles_cpu>>);
  m.impl("find_tiles", find_tiles<find_tiles_cpu>);
  m.impl("with_masks", with_masks<with_masks_cpu>);
  m.impl("with_list", with_list<list_tiles_cpu>);
  m.impl("with_orders", with_orders<with_orders_cpu>);
  m.impl("tile_sizes", tile_sizes<tile_sizes_cpu>);
  m.impl("side_by_side", side_by_side<side_by_side_cpu>);
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  m.impl("coo_to_csr", coo_to_csr<coo_to_csr_cuda>);
  m.impl("csr_to_csc", csr_to_csc<csr_to_csc_cuda>);
  m.impl("compress", compress<compress_cuda>);
  m.impl("find_tiles", find_tiles<find_tiles_cuda>);
  m.impl("with_masks", with_masks<with_masks_cuda>);
  m.impl("with_list", with_list<list_tiles_cuda>);
  m.impl("with_orders", with_orders<with_orders_cuda>);
  m.impl("tile_sizes", tile_sizes<tile_sizes_cuda>);
  m.impl("side_by_side", side_by_side<side_by_side_cuda>);
}
#endif

}  // namespace dfgnn
