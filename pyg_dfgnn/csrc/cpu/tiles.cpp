// find_tiles_cpu: where edges leave a graph's nodes free to be cut, and what the tile kernels would do there.
#include <algorithm>
#include <bitset>
#include <vector>

#include "../graph.h"

namespace dfgnn {
namespace {

using namespace cuda::tile;

template <class Index>
class TileFinder {
 public:
  TileFinder(const at::Tensor& rowptr, const at::Tensor& col)
      : rowptr_(rowptr.const_data_ptr<Index>()),
        col_(col.const_data_ptr<Index>()),
        num_nodes_(rowptr.numel() - 1),
        num_edges_(col.numel()) {}

  void find(int* tiles) const {
    std::vector<int64_t> reach(num_nodes_);  // the last node that edges of this and the nodes before reach
    for (int64_t i = 0; i < num_nodes_; ++i) reach[i] = i;
    for (int64_t i = 0; i < num_nodes_; ++i) {
      int64_t first = i, last = i;
      for_row(i, [&](int64_t, int64_t j) {
        if (j < 0 || j >= num_nodes_) return;
        first = std::min(first, j);
        last = std::max(last, j);
      });
      reach[first] = std::max(reach[first], last);
    }
    for (int64_t i = 1; i < num_nodes_; ++i) reach[i] = std::max(reach[i], reach[i - 1]);
    const int64_t strides = (num_nodes_ + kStride - 1) / kStride;
    for (int64_t t = 0; t <= strides; ++t) {
      int64_t node = std::min(t * kStride, num_nodes_);
      while (node > 0 && node < num_nodes_ && reach[node - 1] >= node) node = reach[node - 1] + 1;
      tiles[t] = static_cast<int>(node);
    }
  }

  int64_t count_blocks(const int* tiles) const {
    int64_t blocks = 0;
    for (int64_t t = 0; t * kStride < num_nodes_; ++t) {
      const int64_t begin = tiles[t], end = tiles[t + 1];
      if (begin == end) continue;
      const int rows = window_rows(static_cast<int>(end - begin));
      for (int64_t window = begin; window < end; window += rows) {
        const int64_t window_end = std::min(window + rows, end);
        for (int64_t band = window; band < window_end; band += kWarpRows) {
          blocks += count_band(band, std::min(band + kWarpRows, window_end), begin, end);
        }
      }
    }
    return blocks;
  }

 private:
  template <class Visit>
  void for_row(int64_t i, Visit visit) const {
    const auto clamp = [this](int64_t e) { return std::clamp<int64_t>(e, 0, num_edges_); };
    for (int64_t e = clamp(rowptr_[i]); e < clamp(rowptr_[i + 1]); ++e) visit(e, static_cast<int64_t>(col_[e]));
  }

  // Chunks of the tile that rows of a warp have edges in, and the edges of its rows that go edge by edge.
  int64_t count_band(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    std::bitset<kMaxChunks> active;
    int64_t irregular_edges = 0;
    for (int64_t i = first; i < last; ++i) {
      std::bitset<kMaxChunks> chunks;
      std::bitset<kMaxChunks * kChunk> nodes;
      int64_t edges = 0, previous = -1, descents = 0;
      bool irregular = end - begin > kMaxChunks * kChunk, last_descends = false;
      for_row(i, [&](int64_t, int64_t j) {
        ++edges;
        last_descends = j <= previous;
        descents += last_descends;
        previous = j;
        irregular |= j < begin || j >= end;
        if (irregular) return;
        irregular |= nodes[j - begin];
        nodes.set(j - begin);
        chunks.set((j - begin) / kChunk);
      });
      if (irregular || descents > last_descends) {
        irregular_edges += edges;
      } else {
        active |= chunks;
      }
    }
    return static_cast<int64_t>(active.count()) + irregular_edges;
  }

  const Index *rowptr_, *col_;
  int64_t num_nodes_, num_edges_;
};

template <class Index>
void find_tiles(const at::Tensor& rowptr, const at::Tensor& col, int* tiles, int64_t* blocks) {
  const TileFinder<Index> finder(rowptr, col);
  finder.find(tiles);
  *blocks = finder.count_blocks(tiles);
}

}  // namespace

Tiles find_tiles_cpu(const at::Tensor& rowptr, const at::Tensor& col) {
  const int64_t strides = (rowptr.numel() - 1 + kTileStride - 1) / kTileStride;
  const auto tiles = at::empty({strides + 1}, rowptr.options().dtype(at::kInt));
  const auto blocks = at::empty({1}, rowptr.options().dtype(at::kLong));
  const auto find = rowptr.scalar_type() == at::kLong ? find_tiles<int64_t> : find_tiles<int32_t>;
  find(rowptr, col, tiles.mutable_data_ptr<int>(), blocks.mutable_data_ptr<int64_t>());
  return {tiles, blocks};
}

}  // namespace dfgnn
