// Compressed forms of a graph's edges: what builds them on each device.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

#include "../../cuda/tile_geometry.h"

namespace dfgnn {

// rowptr [num_dst + 1], col [C], eid [C], stats int64 [2]. See graph.cpp for the contract.
using Csr = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
// colptr [num_src + 1], row [E], perm [E].
using Csc = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

// tiles int32 [boundaries_of(num_nodes)], blocks int64 [1].
using Tiles = std::tuple<at::Tensor, at::Tensor>;
// rowptr [num_dst + 1], col [C], eid [C], colptr [num_src + 1], row [C], perm [C], tiles as above or [0], stats int64
// [3].
using BothForms =
    std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
// rowptr [N + 1], col [C], eid [C], colptr [N + 1], row [C], perm [C], tiles int32 [boundaries_of(N)].
using BatchForms = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;

Csr coo_to_csr_cpu(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops,
                   at::ScalarType index_type);
Csc csr_to_csc_cpu(const at::Tensor& rowptr, const at::Tensor& col, int64_t num_src);
std::tuple<Csr, Csc> both_forms_cpu(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst,
                                    bool self_loops, at::ScalarType index_type);
Tiles find_tiles_cpu(const at::Tensor& rowptr, const at::Tensor& col);
at::Tensor with_masks_cpu(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& col,
                          const at::Tensor& colptr, const at::Tensor& row);
at::Tensor with_orders_cpu(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& colptr,
                           int64_t num_edges);
// tiles of find_tiles, perhaps with masks; the last is the list that goes behind, or sizes [2].
void list_tiles_cpu(const at::Tensor& tiles, int64_t num_nodes, const at::Tensor& list);
void tile_sizes_cpu(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& colptr,
                    const at::Tensor& sizes);
void side_by_side_cpu(const at::Tensor& degrees, const at::Tensor& local_perm, const at::Tensor& ptr, bool self_loops,
                      const BatchForms& structure);

Csr coo_to_csr_cuda(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops,
                    at::ScalarType index_type);
Csc csr_to_csc_cuda(const at::Tensor& rowptr, const at::Tensor& col, int64_t num_src);
BothForms compress_cuda(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops,
                        bool with_tiles, at::ScalarType index_type);
Tiles find_tiles_cuda(const at::Tensor& rowptr, const at::Tensor& col);
// Without a CSC, room for the masks of columns.
at::Tensor with_masks_cuda(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& col,
                           const at::Tensor& colptr, const at::Tensor& row);
at::Tensor with_orders_cuda(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& colptr,
                            int64_t num_edges);
void list_tiles_cuda(const at::Tensor& tiles, int64_t num_nodes, const at::Tensor& list);
void tile_sizes_cuda(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& colptr,
                     const at::Tensor& sizes);
void side_by_side_cuda(const at::Tensor& degrees, const at::Tensor& local_perm, const at::Tensor& ptr, bool self_loops,
                       const BatchForms& structure);

// The operator compress by those that make its parts: both_forms, as coo_to_csr and csr_to_csc, but for the order of
// the edges of a row.
template <auto both_forms, auto find_tiles>
BothForms compress_by_parts(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst,
                            bool self_loops, bool with_tiles, at::ScalarType index_type) {
  const auto [csr, csc] = both_forms(src, dst, num_src, num_dst, self_loops, index_type);
  const auto& [rowptr, col, eid, stats] = csr;
  const auto& [colptr, row, perm] = csc;
  const auto none = [&src] {
    return Tiles{at::empty({0}, src.options().dtype(at::kInt)), at::full({1}, -1, src.options().dtype(at::kLong))};
  };
  const auto [tiles, blocks] = with_tiles ? find_tiles(rowptr, col) : none();
  return {rowptr, col, eid, colptr, row, perm, tiles, at::cat({stats, blocks})};
}

}  // namespace dfgnn
