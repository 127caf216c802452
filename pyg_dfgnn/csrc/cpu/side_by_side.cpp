// side_by_side_cpu: the structure of graphs side by side, from small numbers that were concatenated.
#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "../graph.h"

namespace dfgnn {
namespace {

// D: uint16_t or int32_t, what the small numbers are.
template <class Index, class D>
class Collate {
 public:
  Collate(const at::Tensor& degrees, const at::Tensor& local_perm, const at::Tensor& ptr, bool self_loops,
          const BatchForms& structure)
      : degrees_(static_cast<const D*>(degrees.const_data_ptr())),
        local_perm_(static_cast<const D*>(local_perm.const_data_ptr())),
        ptr_(ptr.const_data_ptr<int64_t>()),
        nodes_(degrees.size(0)),
        edges_(local_perm.numel()),
        graphs_(ptr.numel() - 1),
        self_loops_(self_loops),
        capacity_(edges_ + (self_loops ? nodes_ : 0)),
        by_dst_(nodes_ + 1),
        by_src_(nodes_ + 1),
        loops_(nodes_ + 1) {
    const auto data = [](const at::Tensor& t) { return t.mutable_data_ptr<Index>(); };
    const auto& [rowptr, col, eid, colptr, row, perm, tiles] = structure;
    rowptr_ = data(rowptr), col_ = data(col), eid_ = data(eid);
    colptr_ = data(colptr), row_ = data(row), perm_ = data(perm);
    tiles_ = tiles.mutable_data_ptr<int>();
    num_tiles_ = tiles.numel();
  }

  void run() {
    add_degrees();
    if (self_loops_) {
      for_each_graph([&](int64_t begin, int64_t end) { count_loops(begin, end); });
      for (int64_t i = 0; i < nodes_; ++i) loops_[i + 1] += loops_[i];
    }
    for (int64_t i = 0; i <= nodes_; ++i) {
      const int64_t moved = self_loops_ ? i - loops_[i] : 0;
      rowptr_[i] = static_cast<Index>(by_dst_[i] + moved);
      colptr_[i] = static_cast<Index>(by_src_[i] + moved);
    }
    for_each_graph([&](int64_t begin, int64_t end) { write(begin, end); });
    for (auto* array : {col_, eid_, row_, perm_}) std::fill(array + rowptr_[nodes_], array + capacity_, Index(0));
    for (int64_t i = 0; i < num_tiles_; ++i) {
      tiles_[i] = static_cast<int>(*std::lower_bound(ptr_, ptr_ + graphs_, std::min(i * cuda::tile::kStride, nodes_)));
    }
  }

 private:
  // Checks all that is read from the arguments, but local_perm.
  void add_degrees() {
    TORCH_CHECK(std::is_sorted(ptr_, ptr_ + graphs_ + 1) && ptr_[0] == 0 && ptr_[graphs_] == nodes_,
                "ptr: expected numbers that ascend from 0 to ", nodes_, ", got others");
    for (int64_t i = 0; i < nodes_; ++i) {
      by_dst_[i + 1] = by_dst_[i] + degrees_[2 * i];
      by_src_[i + 1] = by_src_[i] + degrees_[2 * i + 1];
    }
    bool match = std::is_sorted(by_dst_.begin(), by_dst_.end()) && std::is_sorted(by_src_.begin(), by_src_.end());
    for (int64_t g = 0; g <= graphs_; ++g) match = match && by_dst_[ptr_[g]] == by_src_[ptr_[g]];
    TORCH_CHECK(match && by_dst_[nodes_] == edges_,
                "degrees: expected as many edges to as from the nodes of each graph, ", edges_, " in all, got others");
  }

  template <class Visit>
  void for_each_graph(const Visit& visit) {
    at::parallel_for(0, graphs_, 16, [&](int64_t first, int64_t last) {
      for (int64_t g = first; g < last; ++g) visit(ptr_[g], ptr_[g + 1]);
    });
  }

  // Calls visit(src, p, dst, c) for the edges of a graph, p and c their places by source and by destination.
  template <class Visit>
  void for_each_edge(int64_t begin, int64_t end, const Visit& visit) const {
    const int64_t first = by_dst_[begin], count = by_dst_[end] - first;
    std::vector<Index> dst(count);
    std::vector<int64_t> next(by_dst_.begin() + begin, by_dst_.begin() + end);  // place of each destination
    for (int64_t i = begin; i < end; ++i) {
      std::fill(dst.begin() + (by_dst_[i] - first), dst.begin() + (by_dst_[i + 1] - first), static_cast<Index>(i));
    }
    for (int64_t j = begin; j < end; ++j) {
      int64_t before = -1;
      for (int64_t p = by_src_[j]; p < by_src_[j + 1]; ++p) {
        const int64_t local = local_perm_[p];
        TORCH_CHECK(local >= 0 && local < count, "local_perm: expected places in [0, ", count, "), got ", local,
                    " (do all graphs of the batch have one index_dtype?)");
        TORCH_CHECK(local > before, "local_perm: expected ascending places of the edges of a source, got ", local,
                    " after ", before);
        before = local;
        const int64_t expected = next[dst[local] - begin]++ - first;
        TORCH_CHECK(local == expected, "local_perm: expected edges of a destination in the order of their sources, ",
                    "place ", expected, " in its graph, got ", local);
        visit(j, p, dst[local], first + local);
      }
    }
  }

  void count_loops(int64_t begin, int64_t end) {
    for_each_edge(begin, end, [&](int64_t src, int64_t, int64_t dst, int64_t) { loops_[src + 1] += src == dst; });
  }

  void write(int64_t begin, int64_t end) {
    for_each_edge(begin, end, [&](int64_t src, int64_t p, int64_t dst, int64_t c) {
      int64_t new_c = c, new_p = p;
      if (self_loops_) {
        if (src == dst) return;
        new_c += dst - loops_[dst + (src > dst)];
        new_p += src - loops_[src + (dst > src)];
      }
      put(new_c, src, c, new_p, dst);
    });
    for (int64_t i = begin; self_loops_ && i < end; ++i) put(rowptr_[i + 1] - 1, i, edges_ + i, colptr_[i + 1] - 1, i);
  }

  void put(int64_t c, int64_t src, int64_t id, int64_t p, int64_t dst) {
    col_[c] = static_cast<Index>(src);
    eid_[c] = static_cast<Index>(id);
    row_[p] = static_cast<Index>(dst);
    perm_[p] = static_cast<Index>(c);
  }

  const D *degrees_, *local_perm_;
  const int64_t* ptr_;
  const int64_t nodes_, edges_, graphs_;
  const bool self_loops_;
  const int64_t capacity_;
  std::vector<int64_t> by_dst_, by_src_;  // pointers without self-loops
  std::vector<int64_t> loops_;            // self-loops of the nodes before
  Index *rowptr_, *col_, *eid_, *colptr_, *row_, *perm_;
  int* tiles_;
  int64_t num_tiles_;
};

template <class Index>
void collate(const at::Tensor& degrees, const at::Tensor& local_perm, const at::Tensor& ptr, bool self_loops,
             const BatchForms& structure) {
  if (degrees.scalar_type() == at::kShort) {
    Collate<Index, uint16_t>(degrees, local_perm, ptr, self_loops, structure).run();
  } else {
    Collate<Index, int32_t>(degrees, local_perm, ptr, self_loops, structure).run();
  }
}

}  // namespace

void side_by_side_cpu(const at::Tensor& degrees, const at::Tensor& local_perm, const at::Tensor& ptr, bool self_loops,
                      const BatchForms& structure) {
  const auto make = std::get<0>(structure).scalar_type() == at::kLong ? collate<int64_t> : collate<int32_t>;
  make(degrees, local_perm, ptr, self_loops, structure);
}

}  // namespace dfgnn
