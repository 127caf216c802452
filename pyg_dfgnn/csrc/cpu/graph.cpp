// Stable counting sorts of edges: coo_to_csr_cpu and csr_to_csc_cpu; both_forms_cpu.
#include "graph.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <tuple>
#include <utility>
#include <vector>

namespace dfgnn {
namespace {

// counts[i + 1] of group i -> where group i begins, in place.
template <class Index>
void prefix_sum(Index* pointers, int64_t groups) {
  for (int64_t i = 0; i < groups; ++i) pointers[i + 1] += pointers[i];
}

bool inside(int64_t i, int64_t bound) { return i >= 0 && i < bound; }

template <class Input, class Index>
void fill_csr(const Input* src, const Input* dst, int64_t num_edges, int64_t num_src, int64_t num_dst, bool self_loops,
              Index* rowptr, Index* col, Index* eid, int64_t* stats) {
  const int64_t num_loops = self_loops ? std::min(num_src, num_dst) : 0;
  const auto valid = [&](int64_t e) { return inside(src[e], num_src) && inside(dst[e], num_dst); };
  const auto dropped = [&](int64_t e) { return self_loops && src[e] == dst[e]; };  // wherever it is
  const auto kept = [&](int64_t e) { return !dropped(e) && valid(e); };
  int64_t invalid = 0;
  for (int64_t e = 0; e < num_edges; ++e) {
    invalid += !dropped(e) && !valid(e);
    if (kept(e)) ++rowptr[dst[e] + 1];
  }
  for (int64_t i = 0; i < num_loops; ++i) ++rowptr[i + 1];
  const int64_t max_degree = num_dst > 0 ? *std::max_element(rowptr + 1, rowptr + num_dst + 1) : 0;
  prefix_sum(rowptr, num_dst);

  std::vector<Index> next(rowptr, rowptr + num_dst);
  const auto put = [&](int64_t row, int64_t column, int64_t id) {
    const auto c = next[row]++;
    col[c] = static_cast<Index>(column);
    eid[c] = static_cast<Index>(id);
  };
  for (int64_t e = 0; e < num_edges; ++e) {
    if (kept(e)) put(dst[e], src[e], e);
  }
  for (int64_t i = 0; i < num_loops; ++i) put(i, i, num_edges + i);
  const int64_t capacity = num_edges + num_loops;
  std::fill(col + rowptr[num_dst], col + capacity, Index(0));
  std::fill(eid + rowptr[num_dst], eid + capacity, Index(0));
  stats[0] = max_degree;
  stats[1] = invalid;
}

template <class Index>
void fill_csc(const Index* rowptr, const Index* col, int64_t num_edges, int64_t num_dst, int64_t num_src, Index* colptr,
              Index* row, Index* perm) {
  // Visits every edge once, also where rowptr is no CSR pointer at all: pointers are clamped, and an entry that two
  // rows claim is the first one's. So there are at most num_edges of them, and perm names none twice.
  const auto for_each_edge = [&](auto visit) {
    int64_t done = 0;
    for (int64_t i = 0; i < num_dst; ++i) {
      const int64_t end = std::min<int64_t>(rowptr[i + 1], num_edges);
      for (int64_t e = std::max<int64_t>(done, rowptr[i]); e < end; ++e) {
        if (inside(col[e], num_src)) visit(i, e);
      }
      done = std::max(done, end);
    }
  };
  for_each_edge([&](int64_t, int64_t e) { ++colptr[col[e] + 1]; });
  prefix_sum(colptr, num_src);
  std::vector<Index> next(colptr, colptr + num_src);
  for_each_edge([&](int64_t i, int64_t e) {
    const auto c = next[col[e]]++;
    row[c] = static_cast<Index>(i);
    perm[c] = static_cast<Index>(e);
  });
  std::fill(row + colptr[num_src], row + num_edges, Index(0));
  std::fill(perm + colptr[num_src], perm + num_edges, Index(0));
}

// Puts edges of a row in order, by source, and those with the same as they were, which is by position; by counting
// where that takes less time, as of a hub's.
template <class Index>
class RowSort {
 public:
  explicit RowSort(int64_t num_src) : num_src_(num_src) {}

  void operator()(Index* col, Index* eid, int64_t count) {
    constexpr int64_t kSourcesOfEdge = 16;  // counted while one edge is compared with others
    edges_.clear();
    for (int64_t e = 0; e < count; ++e) edges_.emplace_back(col[e], eid[e]);
    if (count * kSourcesOfEdge < num_src_) {
      std::sort(edges_.begin(), edges_.end());
      for (int64_t e = 0; e < count; ++e) std::tie(col[e], eid[e]) = edges_[e];
    } else {
      next_.assign(num_src_ + 1, 0);
      for (const auto& edge : edges_) ++next_[edge.first + 1];
      prefix_sum(next_.data(), num_src_);
      for (const auto& edge : edges_) {
        const auto e = next_[edge.first]++;
        std::tie(col[e], eid[e]) = edge;
      }
    }
  }

 private:
  const int64_t num_src_;
  std::vector<std::pair<Index, Index>> edges_;
  std::vector<Index> next_;
};

// Edges of a row by source, those with the same by their position in the list, which they ascend by; but for the last,
// where it is a self-loop that was put in.
template <class Index>
void sort_rows(const Index* rowptr, int64_t num_dst, int64_t num_src, int64_t num_loops, Index* col, Index* eid) {
  constexpr int64_t kGrain = 1024;
  at::parallel_for(0, num_dst, kGrain, [&](int64_t first, int64_t last) {
    RowSort<Index> sort(num_src);
    for (int64_t i = first; i < last; ++i) {
      const int64_t begin = rowptr[i], end = rowptr[i + 1] - (i < num_loops);
      if (!std::is_sorted(col + begin, col + end)) sort(col + begin, eid + begin, end - begin);
    }
  });
}

// Calls f with a zero of the C++ type of an index dtype.
template <class F>
void with_index_type(at::ScalarType type, F f) {
  type == at::kLong ? f(int64_t(0)) : f(int32_t(0));
}

}  // namespace

Csr coo_to_csr_cpu(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst, bool self_loops,
                   at::ScalarType index_type) {
  const auto options = src.options().dtype(index_type);
  const int64_t num_edges = src.numel();
  const int64_t capacity = num_edges + (self_loops ? std::min(num_src, num_dst) : 0);
  const auto rowptr = at::zeros({num_dst + 1}, options);
  const auto col = at::empty({capacity}, options), eid = at::empty({capacity}, options);
  const auto stats = at::empty({2}, options.dtype(at::kLong));
  with_index_type(src.scalar_type(), [&](auto input) {
    with_index_type(index_type, [&](auto index) {
      using Input = decltype(input);
      using Index = decltype(index);
      fill_csr(src.const_data_ptr<Input>(), dst.const_data_ptr<Input>(), num_edges, num_src, num_dst, self_loops,
               rowptr.mutable_data_ptr<Index>(), col.mutable_data_ptr<Index>(), eid.mutable_data_ptr<Index>(),
               stats.mutable_data_ptr<int64_t>());
    });
  });
  return {rowptr, col, eid, stats};
}

Csc csr_to_csc_cpu(const at::Tensor& rowptr, const at::Tensor& col, int64_t num_src) {
  const auto colptr = at::zeros({num_src + 1}, rowptr.options());
  const auto row = at::empty_like(col), perm = at::empty_like(col);
  with_index_type(rowptr.scalar_type(), [&](auto index) {
    using Index = decltype(index);
    fill_csc(rowptr.const_data_ptr<Index>(), col.const_data_ptr<Index>(), col.numel(), rowptr.numel() - 1, num_src,
             colptr.mutable_data_ptr<Index>(), row.mutable_data_ptr<Index>(), perm.mutable_data_ptr<Index>());
  });
  return {colptr, row, perm};
}

std::tuple<Csr, Csc> both_forms_cpu(const at::Tensor& src, const at::Tensor& dst, int64_t num_src, int64_t num_dst,
                                    bool self_loops, at::ScalarType index_type) {
  const auto csr = coo_to_csr_cpu(src, dst, num_src, num_dst, self_loops, index_type);
  const auto& [rowptr, col, eid, stats] = csr;
  const int64_t num_loops = col.numel() - src.numel();
  with_index_type(index_type, [&, &rowptr = rowptr, &col = col, &eid = eid](auto index) {
    using Index = decltype(index);
    sort_rows(rowptr.template const_data_ptr<Index>(), num_dst, num_src, num_loops,
              col.template mutable_data_ptr<Index>(), eid.template mutable_data_ptr<Index>());
  });
  return {csr, csr_to_csc_cpu(rowptr, col, num_src)};
}

}  // namespace dfgnn
