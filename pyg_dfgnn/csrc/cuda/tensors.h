// From tensors to what the kernels of cuda/ take.
#pragma once

#include <ATen/ATen.h>

#include <limits>

#include "../../../cuda/attention.h"

namespace dfgnn {

inline cuda::Type type_of(const at::Tensor& t) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return cuda::Type::f32;
    case at::kHalf:
      return cuda::Type::f16;
    case at::kBFloat16:
      return cuda::Type::bf16;
    default:
      return cuda::Type::f64;
  }
}

inline cuda::Index index_of(const at::Tensor& t) {
  if (!t.defined()) return {};
  return {t.const_data_ptr(), t.scalar_type() == at::kLong};
}

inline const void* data_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }
inline void* writable(const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

// Memory for a kernel; not defined where it is of no bytes.
inline at::Tensor scratch_of(size_t bytes, const at::Tensor& like) {
  return bytes == 0 ? at::Tensor() : at::empty({static_cast<int64_t>(bytes)}, like.options().dtype(at::kByte));
}

// Kernels load features 16 bytes at a time; a view may begin anywhere.
inline at::Tensor aligned(const at::Tensor& t) {
  return reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0 ? t : t.clone();
}

// Results [E, heads] of kernels that put zeros where entries are no edges, but do not run where there are no rows.
inline at::Tensor results_of_edges(int64_t edges, int64_t heads, int64_t rows, const at::TensorOptions& options) {
  return rows > 0 ? at::empty({edges, heads}, options) : at::zeros({edges, heads}, options);
}

// Kernels count rows, and the numbers of one, in int.
constexpr int64_t kMostRows = std::numeric_limits<int32_t>::max();

inline void check_heads(const char* name, int64_t heads, int64_t size) {
  TORCH_CHECK(heads * size < kMostRows / 8 && heads < 65536, name,
              ": expected fewer than 2^16 heads, and fewer than 2^28 numbers of all, on CUDA, got ", heads,
              " heads of size ", size);
}

// Of rows [rows, heads, size], or those that so many heads have in common.
inline void check_rows(const char* name, int64_t rows, int64_t heads, int64_t size) {
  TORCH_CHECK(rows < kMostRows, name, ": expected fewer than 2^31 rows on CUDA, got ", rows);
  check_heads(name, heads, size);
}

// Of a graph's nodes.
inline void check_sizes(int64_t num_dst, int64_t num_src, int64_t heads, int64_t head_dim) {
  TORCH_CHECK(num_dst < kMostRows && num_src < kMostRows, "rowptr: expected fewer than 2^31 nodes on CUDA, got ",
              num_dst, " destinations and ", num_src, " sources");
  check_heads("heads", heads, head_dim);
}

}  // namespace dfgnn
