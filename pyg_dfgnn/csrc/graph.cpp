// coo_to_csr and csr_to_csc: the compressed forms of a graph, as operators, so that scripted and compiled models build
// them too. Sizes of the results follow from sizes of the arguments alone (self-loops that are dropped leave unused
// entries behind rowptr[-1]): nothing waits for the device.
#include "graph.h"

#include <torch/library.h>

#include <algorithm>
#include <limits>

#include "checks.h"

namespace dfgnn {
namespace {

void check_size(int64_t size, const char* name) {
  TORCH_CHECK(size >= 0, name, ": expected a number of nodes >= 0, got ", size);
}

template <auto kernel>
Csr coo_to_csr(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops) {
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
  const auto index_type = capacity < limit && num_src < limit && num_dst < limit ? at::kInt : at::kLong;
  return kernel(src.contiguous(), dst.contiguous(), num_src, num_dst, self_loops, index_type);
}

template <auto kernel>
Csc csr_to_csc(const at::Tensor& rowptr, const at::Tensor& col, int64_t num_src) {
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
  TORCH_CHECK(rowptr.numel() - 1 < std::numeric_limits<int32_t>::max(), "rowptr: expected fewer than 2^31 nodes, got ",
              rowptr.numel() - 1);
  return kernel(rowptr.contiguous(), col.contiguous());
}

}  // namespace

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) {
  m.impl("coo_to_csr", coo_to_csr<coo_to_csr_cpu>);
  m.impl("csr_to_csc", csr_to_csc<csr_to_csc_cpu>);
  m.impl("find_tiles", find_tiles<find_tiles_cpu>);
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  m.impl("coo_to_csr", coo_to_csr<coo_to_csr_cuda>);
  m.impl("csr_to_csc", csr_to_csc<csr_to_csc_cuda>);
  m.impl("find_tiles", find_tiles<find_tiles_cuda>);
}
#endif

}  // namespace dfgnn
