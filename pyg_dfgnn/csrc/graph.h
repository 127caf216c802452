// Compressed forms of a graph's edges: what builds them on each device.
#pragma once

#include <ATen/ATen.h>

#include <tuple>

namespace dfgnn {

// rowptr [num_dst + 1], col [C], eid [C], stats int64 [2]. See graph.cpp for the contract.
using Csr = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
// colptr [num_src + 1], row [E], perm [E].
using Csc = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Csr coo_to_csr_cpu(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops,
                   at::ScalarType index_type);
Csc csr_to_csc_cpu(const at::Tensor& rowptr, const at::Tensor& col, int64_t num_src);

Csr coo_to_csr_cuda(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops,
                    at::ScalarType index_type);
Csc csr_to_csc_cuda(const at::Tensor& rowptr, const at::Tensor& col, int64_t num_src);

}  // namespace dfgnn
