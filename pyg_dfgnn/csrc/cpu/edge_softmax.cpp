// Numbers of edges by rows (csrc/products.h). Sums are of doubles, so that those of a row of a million edges are as
// exact as those of a few.
#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "../products.h"

namespace dfgnn {
namespace {

// Calls row(r, begin, end) with every row and its entries, in parallel.
template <class Row>
void for_rows(const Compressed& graph, int64_t heads, const Row& row) {
  const int64_t num_rows = graph.num_rows(), num_edges = graph.num_edges();
  const int64_t numbers = num_edges * heads / std::max<int64_t>(num_rows, 1) + 1;
  const auto of_type = [&](const auto* ptr) {
    const auto bound = [&](int64_t r) { return std::clamp<int64_t>(ptr[r], 0, num_edges); };
    at::parallel_for(0, num_rows, std::max<int64_t>(1, 4096 / numbers), [&](int64_t first, int64_t last) {
      for (int64_t r = first; r < last; ++r) row(r, bound(r), std::max(bound(r), bound(r + 1)));
    });
  };
  graph.ptr.scalar_type() == at::kLong ? of_type(graph.ptr.const_data_ptr<int64_t>())
                                       : of_type(graph.ptr.const_data_ptr<int32_t>());
}

}  // namespace

at::Tensor add_ends_cpu(const Compressed& graph, const at::Tensor& a, const at::Tensor& b) {
  // <(a_i, 1), (1, b_j)>
  return sddmm_cpu(graph, at::stack({a, at::ones_like(a)}, -1), at::stack({at::ones_like(b), b}, -1));
}

at::Tensor sum_edges_cpu(const Compressed& graph, const at::Tensor& values) {
  const int64_t H = values.size(1);
  const auto rows = at::zeros({graph.num_rows(), H}, values.options());
  const auto position = graph.position.defined() ? graph.position.to(at::kLong) : graph.position;
  const auto* positions = position.defined() ? position.const_data_ptr<int64_t>() : nullptr;
  AT_DISPATCH_FLOATING_TYPES(values.scalar_type(), "sum_edges", [&] {
    const auto* x = values.const_data_ptr<scalar_t>();
    auto* out = rows.mutable_data_ptr<scalar_t>();
    for_rows(graph, H, [&](int64_t r, int64_t begin, int64_t end) {
      c10::SmallVector<double, 32> sums(H, 0.0);
      for (int64_t c = begin; c < end; ++c) {
        const int64_t e = positions ? std::clamp<int64_t>(positions[c], 0, graph.num_edges() - 1) : c;
        for (int64_t h = 0; h < H; ++h) sums[h] += x[e * H + h];
      }
      std::copy(sums.begin(), sums.end(), out + r * H);
    });
  });
  return rows;
}

at::Tensor edge_softmax_cpu(const Compressed& graph, const at::Tensor& logits, double scale) {
  const auto result = at::zeros_like(logits);
  AT_DISPATCH_FLOATING_TYPES(logits.scalar_type(), "edge_softmax", [&] {
    const auto* s = logits.const_data_ptr<scalar_t>();
    auto* out = result.mutable_data_ptr<scalar_t>();
    const int64_t H = logits.size(1);
    const auto factor = static_cast<scalar_t>(scale);
    for_rows(graph, H, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t h = 0; h < H; ++h) {
        auto most = -std::numeric_limits<scalar_t>::infinity();
        for (int64_t e = begin; e < end; ++e) most = std::max(most, factor * s[e * H + h]);
        double sum = 0;
        for (int64_t e = begin; e < end; ++e) {
          const auto logit = factor * s[e * H + h];
          sum += out[e * H + h] = logit == -INFINITY ? 0 : std::exp(logit - most);
        }
        if (sum == 0) continue;
        for (int64_t e = begin; e < end; ++e) out[e * H + h] /= static_cast<scalar_t>(sum);
      }
    });
  });
  return result;
}

at::Tensor edge_softmax_bwd_cpu(const Compressed& graph, const at::Tensor& grad, const at::Tensor& alpha,
                                double scale) {
  const auto result = at::zeros_like(grad);
  AT_DISPATCH_FLOATING_TYPES(grad.scalar_type(), "edge_softmax_bwd", [&] {
    const auto *g = grad.const_data_ptr<scalar_t>(), *p = alpha.const_data_ptr<scalar_t>();
    auto* out = result.mutable_data_ptr<scalar_t>();
    const int64_t H = grad.size(1);
    for_rows(graph, H, [&](int64_t, int64_t begin, int64_t end) {
      for (int64_t h = 0; h < H; ++h) {
        double sum = 0;
        for (int64_t e = begin; e < end; ++e) sum += static_cast<double>(p[e * H + h]) * g[e * H + h];
        const auto of_row = static_cast<scalar_t>(sum);
        for (int64_t e = begin; e < end; ++e) {
          out[e * H + h] = static_cast<scalar_t>(scale) * p[e * H + h] * (g[e * H + h] - of_row);
        }
      }
    });
  });
  return result;
}

}  // namespace dfgnn
