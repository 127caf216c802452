// Graph building on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../../../cuda/graph.h"

#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>

#include "../graph.h"
#include "tensors.h"

namespace dfgnn {
namespace {

cuda::MutableIndex write(const at::Tensor& t) { return {t.mutable_data_ptr(), t.scalar_type() == at::kLong}; }

template <class Task>
void run(cudaError_t (*build)(const Task&, void*, size_t&, cudaStream_t), const Task& task,
         const at::TensorOptions& options) {
  const auto stream = c10::cuda::getCurrentCUDAStream();
  size_t bytes = 0;
  C10_CUDA_CHECK(build(task, nullptr, bytes, stream));
  const auto workspace = at::empty({static_cast<int64_t>(bytes) + 1}, options.dtype(at::kByte));
  C10_CUDA_CHECK(build(task, workspace.mutable_data_ptr(), bytes, stream));
}

}  // namespace

Csr coo_to_csr_cuda(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops,
                    at::ScalarType index_type) {
  const c10::cuda::CUDAGuard guard(src.device());
  const int64_t capacity = src.numel() + (self_loops ? std::min(num_src, num_dst) : 0);
  const auto options = src.options().dtype(index_type);
  auto rowptr = at::empty({num_dst + 1}, options), col = at::empty({capacity}, options);
  auto eid = at::empty({capacity}, options), stats = at::empty({2}, options.dtype(at::kLong));
  run(cuda::coo_to_csr,
      {index_of(src), index_of(dst), src.numel(), num_src, num_dst, self_loops, capacity, write(rowptr), write(col),
       write(eid), stats.mutable_data_ptr<int64_t>()},
      options);
  return {rowptr, col, eid, stats};
}

Csc csr_to_csc_cuda(const at::Tensor& rowptr, const at::Tensor& col, int64_t num_src) {
  const c10::cuda::CUDAGuard guard(rowptr.device());
  auto colptr = at::empty({num_src + 1}, rowptr.options());
  auto row = at::empty_like(col), perm = at::empty_like(col);
  run(cuda::csr_to_csc,
      {index_of(rowptr), index_of(col), rowptr.numel() - 1, num_src, col.numel(), write(colptr), write(row),
       write(perm)},
      rowptr.options());
  return {colptr, row, perm};
}

namespace {

std::tuple<Csr, Csc> both_forms(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst,
                                bool self_loops, at::ScalarType index_type) {
  const c10::cuda::CUDAGuard guard(src.device());
  const auto csr = coo_to_csr_cuda(src, dst, num_src, num_dst, self_loops, index_type);
  const auto& [rowptr, col, eid, stats] = csr;
  const auto csc = csr_to_csc_cuda(rowptr, col, num_src);
  const auto& [colptr, row, perm] = csc;
  const int64_t capacity = col.numel();
  run(cuda::sort_rows,
      {{index_of(src), index_of(dst), src.numel(), num_src, num_dst, self_loops, capacity, write(rowptr), write(col),
        write(eid), nullptr},
       {index_of(rowptr), index_of(col), num_dst, num_src, capacity, write(colptr), write(row), write(perm)}},
      rowptr.options());
  return {csr, csc};
}

}  // namespace

BothForms compress_cuda(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops,
                        bool with_tiles, at::ScalarType index_type) {
  const int64_t capacity = src.numel() + (self_loops ? std::min(num_src, num_dst) : 0);
  if (index_type == at::kLong || capacity >= cuda::kLongList) {
    return compress_by_parts<both_forms, find_tiles_cuda>(src, dst, num_src, num_dst, self_loops, with_tiles,
                                                          index_type);
  }
  const c10::cuda::CUDAGuard guard(src.device());
  const auto make = [&](int64_t size) { return at::empty({size}, src.options().dtype(at::kInt)); };
  auto rowptr = make(num_dst + 1), col = make(capacity), eid = make(capacity);
  auto colptr = make(num_src + 1), row = make(capacity), perm = make(capacity);
  auto tiles = make(with_tiles ? cuda::tile::boundaries_of(num_dst) : 0);
  auto stats = at::empty({3}, src.options().dtype(at::kLong));
  run(cuda::compress,
      {{index_of(src), index_of(dst), src.numel(), num_src, num_dst, self_loops, capacity, write(rowptr), write(col),
        write(eid), stats.mutable_data_ptr<int64_t>()},
       {index_of(rowptr), index_of(col), num_dst, num_src, capacity, write(colptr), write(row), write(perm)},
       with_tiles ? tiles.mutable_data_ptr<int>() : nullptr,
       tiles.numel()},
      src.options());
  return {rowptr, col, eid, colptr, row, perm, tiles, stats};
}

Tiles find_tiles_cuda(const at::Tensor& rowptr, const at::Tensor& col) {
  const c10::cuda::CUDAGuard guard(rowptr.device());
  const int64_t nodes = rowptr.numel() - 1;
  auto tiles = at::empty({cuda::tile::boundaries_of(nodes)}, rowptr.options().dtype(at::kInt));
  auto blocks = at::empty({1}, rowptr.options().dtype(at::kLong));
  run(cuda::find_tiles,
      {index_of(rowptr), index_of(col), nodes, col.numel(), tiles.mutable_data_ptr<int>(),
       blocks.mutable_data_ptr<int64_t>()},
      rowptr.options());
  return {tiles, blocks};
}

at::Tensor with_masks_cuda(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& col,
                           const at::Tensor& colptr, const at::Tensor& row) {
  const c10::cuda::CUDAGuard guard(rowptr.device());
  const int64_t nodes = rowptr.numel() - 1;
  const int64_t boundaries = cuda::tile::boundaries_of(nodes), masked = cuda::tile::size_with_masks(nodes);
  const int64_t list = tiles.numel() - boundaries;  // entries of the list of tiles, which is kept behind masks
  const auto result = at::empty({masked + list}, tiles.options().dtype(at::kInt));
  const auto* from = tiles.const_data_ptr<int>();
  auto* to = result.mutable_data_ptr<int>();
  auto *windows = to + cuda::tile::windows_begin(nodes), *masks = to + cuda::tile::masks_begin(nodes);
  const auto stream = c10::cuda::getCurrentCUDAStream();
  const int64_t unused = windows - to - boundaries;
  C10_CUDA_CHECK(cudaMemcpyAsync(to, from, boundaries * sizeof(int), cudaMemcpyDefault, stream));
  C10_CUDA_CHECK(cudaMemsetAsync(to + boundaries, 0, unused * sizeof(int), stream));
  C10_CUDA_CHECK(cudaMemcpyAsync(to + masked, from + boundaries, list * sizeof(int), cudaMemcpyDefault, stream));
  C10_CUDA_CHECK(cuda::order_windows(to, nodes, windows, stream));
  C10_CUDA_CHECK(cuda::make_masks(
      {index_of(rowptr), index_of(col), index_of(colptr), index_of(row), nodes, col.numel(), windows, masks}, stream));
  return result;
}

at::Tensor with_orders_cuda(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& colptr,
                            int64_t num_edges) {
  const c10::cuda::CUDAGuard guard(rowptr.device());
  const int64_t nodes = rowptr.numel() - 1, begin = tiles.numel();
  const auto result = at::empty({begin + cuda::tile::size_of_orders(nodes)}, tiles.options());
  auto* to = result.mutable_data_ptr<int>();
  C10_CUDA_CHECK(cudaMemcpyAsync(to, tiles.const_data_ptr<int>(), begin * sizeof(int), cudaMemcpyDefault,
                                 c10::cuda::getCurrentCUDAStream()));
  run(cuda::order_rows, {index_of(rowptr), index_of(colptr), nodes, num_edges, to + begin}, rowptr.options());
  return result;
}

void list_tiles_cuda(const at::Tensor& tiles, int64_t num_nodes, const at::Tensor& list) {
  const c10::cuda::CUDAGuard guard(tiles.device());
  C10_CUDA_CHECK(cuda::list_tiles(tiles.const_data_ptr<int>(), num_nodes, list.mutable_data_ptr<int>(),
                                  c10::cuda::getCurrentCUDAStream()));
}

void tile_sizes_cuda(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& colptr,
                     const at::Tensor& sizes) {
  const c10::cuda::CUDAGuard guard(tiles.device());
  C10_CUDA_CHECK(cuda::measure_tiles({tiles.const_data_ptr<int>(), index_of(rowptr), index_of(colptr),
                                      rowptr.numel() - 1, sizes.mutable_data_ptr<int64_t>()},
                                     c10::cuda::getCurrentCUDAStream()));
}

void side_by_side_cuda(const at::Tensor& degrees, const at::Tensor& local_perm, const at::Tensor& ptr, bool self_loops,
                       const BatchForms& structure) {
  const c10::cuda::CUDAGuard guard(degrees.device());
  const auto& [rowptr, col, eid, colptr, row, perm, tiles] = structure;
  run(cuda::side_by_side,
      {degrees.const_data_ptr(), local_perm.const_data_ptr(), degrees.scalar_type() == at::kShort,
       ptr.const_data_ptr<int64_t>(), ptr.numel() - 1, degrees.size(0), local_perm.numel(), tiles.numel(), self_loops,
       write(rowptr), write(col), write(eid), write(colptr), write(row), write(perm), tiles.mutable_data_ptr<int>()},
      degrees.options());
}

}  // namespace dfgnn
