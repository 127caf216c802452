// Shapes and dtypes of results, for torch.compile, torch.export and tensors on the meta device.
#include <torch/library.h>

#include <initializer_list>
#include <limits>

#include "checks.h"
#include "graph.h"
#include "operands.h"

namespace dfgnn {
namespace {

at::Tensor empty_gradient(const OptTensor& t, const at::Tensor& like) {
  return t.has_value() ? at::empty_like(*t, at::MemoryFormat::Contiguous) : at::empty({0}, like.options());
}

void check_meta(const Call& call) {
  const auto names = names_of(call.score);
  check_on_meta({{"rowptr", call.rowptr},
                 {"col", call.col},
                 {names.a, call.a},
                 {names.b, call.b},
                 {names.c, call.c},
                 {"a_edge", call.a_edge},
                 {"bias", call.bias},
                 {"seed", call.seed},
                 {"colptr", call.colptr},
                 {"row", call.row},
                 {"perm", call.perm},
                 {"tiles", call.route.tiles}});
}

struct Meta {
  static ForwardResult forward(Call call) {
    check_meta(call);
    const auto& value = call.value();
    const auto num_dst = call.a.sym_size(0);
    return {
        at::empty_symint({num_dst, value.sym_size(1), value.sym_size(2)}, value.options()),
        at::empty_symint({num_dst, value.sym_size(1)}, value.options().dtype(accumulate_type(value.scalar_type())))};
  }

  static CallGradients backward(Call call, BackwardInputs inputs) {
    check_meta(call);
    check_on_meta(
        {{"grad_out", inputs.grad_out}, {"grad_lse", inputs.grad_lse}, {"out", inputs.out}, {"lse", inputs.lse}});
    const auto like = [](const at::Tensor& t) { return at::empty_like(t, at::MemoryFormat::Contiguous); };
    const auto grad_a = call.sum_x ? at::empty({0}, call.a.options()) : like(call.a);
    return {grad_a, like(call.b), like(call.c), empty_gradient(call.a_edge, call.value()),
            empty_gradient(call.bias, call.value())};
  }
};

// Indices of graphs of such sizes: int64 where one needs it. Sizes that are not known yet, as those of what is chosen
// by values are, are taken to be small, which is then asserted where they are.
at::ScalarType index_type_of(std::initializer_list<c10::SymInt> sizes) {
  const c10::SymInt limit = std::numeric_limits<int32_t>::max();
  c10::SymBool fits = true;
  for (const auto& size : sizes) fits = fits.sym_and(size.sym_lt(limit));
  if (!TORCH_GUARD_OR_TRUE(fits)) return at::kLong;
  TORCH_SYM_CHECK(fits, "expected fewer than 2^31 - 1 nodes and edges where their numbers depend on values");
  return at::kInt;
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> coo_to_csr_meta(T src, T dst, c10::SymInt num_src,
                                                                           c10::SymInt num_dst, bool self_loops) {
  check_on_meta({{"src", src}, {"dst", dst}});
  auto capacity = dst.sym_numel();
  if (self_loops) capacity = capacity + num_src.min(num_dst);
  const auto options = src.options().dtype(index_type_of({capacity, num_src, num_dst}));
  return {at::empty_symint({num_dst + 1}, options), at::empty_symint({capacity}, options),
          at::empty_symint({capacity}, options), at::empty({2}, src.options().dtype(at::kLong))};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> csr_to_csc_meta(T rowptr, T col, c10::SymInt num_src) {
  check_on_meta({{"rowptr", rowptr}, {"col", col}});
  const auto options = rowptr.options();
  return {at::empty_symint({num_src + 1}, options), at::empty_symint({col.sym_numel()}, options),
          at::empty_symint({col.sym_numel()}, options)};
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>
compress_meta(T src, T dst, c10::SymInt num_src, c10::SymInt num_dst, bool self_loops, bool with_tiles) {
  const auto [rowptr, col, eid, stats] = coo_to_csr_meta(src, dst, num_src, num_dst, self_loops);
  const auto [colptr, row, perm] = csr_to_csc_meta(rowptr, col, num_src);
  const auto boundaries = with_tiles ? cuda::tile::boundaries_of(num_dst) : c10::SymInt(0);
  return {rowptr,
          col,
          eid,
          colptr,
          row,
          perm,
          at::empty_symint({boundaries}, src.options().dtype(at::kInt)),
          at::empty({3}, stats.options())};
}

std::tuple<at::Tensor, at::Tensor> find_tiles_meta(T rowptr, T col) {
  check_on_meta({{"rowptr", rowptr}, {"col", col}});
  const auto options = rowptr.options();
  return {at::empty_symint({cuda::tile::boundaries_of(rowptr.sym_numel() - 1)}, options.dtype(at::kInt)),
          at::empty({1}, options.dtype(at::kLong))};
}

at::Tensor with_masks_meta(T tiles, T rowptr, T col, T colptr, T row) {
  check_on_meta({{"tiles", tiles}, {"rowptr", rowptr}, {"col", col}, {"colptr", colptr}, {"row", row}});
  const auto nodes = rowptr.sym_numel() - 1, list = tiles.sym_numel() - cuda::tile::boundaries_of(nodes);
  return at::empty_symint({cuda::tile::size_with_masks(nodes) + list}, tiles.options());
}

at::Tensor with_list_meta(T tiles, c10::SymInt num_nodes) {
  return at::empty_symint({tiles.sym_numel() + cuda::tile::size_of_list(num_nodes)}, tiles.options());
}

at::Tensor with_orders_meta(T tiles, T rowptr, T col, T colptr) {
  check_on_meta({{"tiles", tiles}, {"rowptr", rowptr}, {"col", col}, {"colptr", colptr}});
  return at::empty_symint({tiles.sym_numel() + cuda::tile::size_of_orders(rowptr.sym_numel() - 1)}, tiles.options());
}

at::Tensor tile_sizes_meta(T tiles, T rowptr, T colptr) {
  check_on_meta({{"tiles", tiles}, {"rowptr", rowptr}, {"colptr", colptr}});
  return at::empty({2}, tiles.options().dtype(at::kLong));
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor> side_by_side_meta(
    T degrees, T local_perm, T ptr, bool self_loops) {
  check_on_meta({{"degrees", degrees}, {"local_perm", local_perm}, {"ptr", ptr}});
  const auto nodes = degrees.sym_size(0), edges = local_perm.sym_numel();
  const auto options = degrees.options().dtype(index_type_of({nodes + edges}));
  const auto capacity = self_loops ? edges + nodes : edges;
  const auto make = [&](const c10::SymInt& size) { return at::empty_symint({size}, options); };
  return {make(nodes + 1),
          make(capacity),
          make(capacity),
          make(nodes + 1),
          make(capacity),
          make(capacity),
          at::empty_symint({cuda::tile::boundaries_of(nodes)}, options.dtype(at::kInt))};
}

}  // namespace

TORCH_LIBRARY_IMPL(dfgnn, Meta, m) {
  register_forward<Meta>(m);
  register_backward<Meta>(m);
  m.impl("coo_to_csr", coo_to_csr_meta);
  m.impl("csr_to_csc", csr_to_csc_meta);
  m.impl("compress", compress_meta);
  m.impl("find_tiles", find_tiles_meta);
  m.impl("with_masks", with_masks_meta);
  m.impl("with_list", with_list_meta);
  m.impl("with_orders", with_orders_meta);
  m.impl("tile_sizes", tile_sizes_meta);
  m.impl("side_by_side", side_by_side_meta);
}

}  // namespace dfgnn
