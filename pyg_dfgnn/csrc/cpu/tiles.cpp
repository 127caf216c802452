// find_tiles_cpu: where edges leave a graph's nodes free to be cut, and what the tile kernels would do there;
// with_masks_cpu: windows of rows, and the edges there as bits; list_tiles_cpu and tile_sizes_cpu: what there is of
// tiles; with_orders_cpu: rows by their numbers of edges.
#include <algorithm>
#include <array>
#include <bitset>
#include <numeric>
#include <utility>
#include <vector>

#include "../../../cuda/resident_geometry.h"
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
    for_tiles(tiles, [&](int64_t begin, int64_t end) {
      const int rows = window_rows(static_cast<int>(end - begin));
      for (int64_t window = begin; window < end; window += rows) {
        const int64_t window_end = std::min(window + rows, end);
        for (int64_t band = window; band < window_end; band += kWarpRows) {
          blocks += count_band(band, std::min(band + kWarpRows, window_end), begin, end);
        }
      }
    });
    return blocks;
  }

  void make_masks(const int* tiles, int* masks) const {
    for_tiles(tiles, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) make_mask(i, begin, end, masks + i * kMaskWords);
    });
  }

 private:
  // Of all tiles; `tiles` may be anything.
  template <class Visit>
  void for_tiles(const int* tiles, Visit visit) const {
    int64_t begin = 0;
    for (int64_t t = 0; t * kStride < num_nodes_; ++t) {
      const int64_t end = std::min<int64_t>(tiles[t + 1], num_nodes_);
      if (end <= begin) continue;
      visit(begin, end);
      begin = end;
    }
  }

  void make_mask(int64_t i, int64_t begin, int64_t end, int* mask) const {
    std::fill_n(mask, kMaskWords, 0);
    mask[1] = kNoLast;
    int64_t last_position = -1;
    for_row(i, [&](int64_t e, int64_t) { last_position = e; });
    bool irregular = end - begin > kMaxChunks * kChunk, disordered = false;
    int64_t previous = -1;
    for_row(i, [&](int64_t e, int64_t j) {
      irregular |= j < begin || j >= end;
      if (irregular) return;
      const int64_t node = j - begin;
      int& word = mask[2 + node / kChunk];
      const auto bit = static_cast<int>(1u << (node % kChunk));
      irregular |= (word & bit) != 0;
      word |= bit;
      mask[0] |= 1 << (node / kChunk);
      if (node <= previous && e == last_position) mask[1] = static_cast<int>(node);
      disordered |= node <= previous && e != last_position;
      previous = node;
    });
    if (irregular) {
      std::fill_n(mask, kMaskWords, 0);
      mask[0] = kMaskIrregular;
      mask[1] = kNoLast;
    } else if (disordered) {
      mask[0] |= kMaskDisordered;
    }
  }

  template <class Visit>
  void for_row(int64_t i, Visit visit) const {
    const auto clamp = [this](int64_t e) { return std::clamp<int64_t>(e, 0, num_edges_); };
    for (int64_t e = clamp(rowptr_[i]); e < clamp(rowptr_[i + 1]); ++e) visit(e, static_cast<int64_t>(col_[e]));
  }

  // Chunks of the tile that rows of a warp have edges in, and the edges of its rows that go edge by edge.
  int64_t count_band(int64_t first, int64_t last, int64_t begin, int64_t end) const {
    std::bitset<kMaxChunks> active;
    int64_t single_edges = 0;
    for (int64_t i = first; i < last; ++i) {
      std::array<int, kMaskWords> mask;
      make_mask(i, begin, end, mask.data());
      if ((mask[0] & (kMaskIrregular | kMaskDisordered)) != 0) {
        for_row(i, [&](int64_t, int64_t) { ++single_edges; });
      } else {
        active |= mask[0];
      }
    }
    return static_cast<int64_t>(active.count()) + single_edges;
  }

  const Index *rowptr_, *col_;
  int64_t num_nodes_, num_edges_;
};

void make_windows(const int* tiles, int nodes, int* windows) {
  std::vector<std::pair<int, int>> bounds;
  for (int t = 0; t + 1 < boundaries_of(nodes); ++t) {
    const int begin = std::clamp(tiles[t], 0, nodes), end = std::clamp(tiles[t + 1], 0, nodes);
    if (begin < end) bounds.emplace_back(begin, end);
  }
  const auto room = static_cast<size_t>(window_blocks(boundaries_of(nodes) - 1));
  std::vector<Window> found;  // as many as there is room for, whatever tiles are
  for (const auto place : {WindowPlace::before, WindowPlace::among, WindowPlace::after}) {
    for (const auto& [begin, end] : bounds) {
      if (window_place(begin, end, static_cast<int>(bounds.size()), nodes) != place) continue;
      const int size = window_rows(end - begin);
      for (int row = begin; row < end && found.size() < room; row += size) {
        found.push_back({begin, end, row, std::min(size, end - row)});
      }
    }
  }
  for (int* to : {windows, windows + (2 * room - found.size()) * kWindowWords}) {
    for (const Window& w : found) {
      to = std::copy_n(std::array{w.begin, w.end, w.first, w.count}.begin(), kWindowWords, to);
    }
  }
}

template <class Index>
void with_masks(const at::Tensor& rowptr, const at::Tensor& col, const at::Tensor& colptr, const at::Tensor& row,
                const int* tiles, int* masks) {
  TileFinder<Index>(rowptr, col).make_masks(tiles, masks);
  TileFinder<Index>(colptr, row).make_masks(tiles, masks + (rowptr.numel() - 1) * kMaskWords);
}

template <class Index>
void find_tiles(const at::Tensor& rowptr, const at::Tensor& col, int* tiles, int64_t* blocks) {
  const TileFinder<Index> finder(rowptr, col);
  finder.find(tiles);
  *blocks = finder.count_blocks(tiles);
}

template <class Index>
void measure_tiles(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& colptr, int64_t* sizes) {
  using namespace cuda::resident;
  const int64_t num_nodes = rowptr.numel() - 1;
  const auto* boundaries = tiles.const_data_ptr<int>();
  sizes[0] = sizes[1] = 0;
  for (int64_t t = 0; t + 1 < boundaries_of(num_nodes); ++t) {
    const auto node = [&](int64_t i) { return std::clamp<int64_t>(boundaries[i], 0, num_nodes); };
    const int64_t begin = node(t), end = node(t + 1);
    sizes[0] = std::max(sizes[0], end - begin);
    if (begin >= end || end - begin > kMostNodes) continue;
    for (const auto* ptr : {rowptr.const_data_ptr<Index>(), colptr.const_data_ptr<Index>()}) {
      int64_t sum = 0, longest = 0;
      for (int64_t i = begin; i < end; ++i) {
        const auto edges = static_cast<int64_t>(static_cast<uint64_t>(ptr[i + 1]) - static_cast<uint64_t>(ptr[i]));
        const int64_t own = batches_of(std::clamp<int64_t>(edges, 0, int64_t{1} << 32));
        sum += own;
        longest = std::max(longest, own);
      }
      sizes[1] = std::max(sizes[1], batches_of_slices(sum, longest));
    }
  }
}

// Rows by their numbers of edges, and in that order where those begin and how many they are, each 2 * nodes apart.
template <class Index>
void order_rows(const at::Tensor& ptr, int64_t num_edges, int* to) {
  const auto* begins = ptr.const_data_ptr<Index>();
  const int64_t nodes = ptr.numel() - 1;
  const auto begin = [&](int64_t i) { return std::clamp<int64_t>(begins[i], 0, num_edges); };
  const auto edges = [&](int64_t i) { return std::max<int64_t>(begin(i + 1) - begin(i), 0); };
  const auto key = [&](int64_t i) { return std::min<int64_t>(edges(i), kMostOrderEdges); };
  std::iota(to, to + nodes, 0);
  std::stable_sort(to, to + nodes, [&](int a, int b) { return key(a) > key(b); });
  for (int64_t p = 0; p < nodes; ++p) {
    to[p + 2 * nodes] = static_cast<int>(begin(to[p]));
    to[p + 4 * nodes] = static_cast<int>(edges(to[p]));
  }
}

}  // namespace

Tiles find_tiles_cpu(const at::Tensor& rowptr, const at::Tensor& col) {
  const auto tiles = at::empty({boundaries_of(rowptr.numel() - 1)}, rowptr.options().dtype(at::kInt));
  const auto blocks = at::empty({1}, rowptr.options().dtype(at::kLong));
  const auto find = rowptr.scalar_type() == at::kLong ? find_tiles<int64_t> : find_tiles<int32_t>;
  find(rowptr, col, tiles.mutable_data_ptr<int>(), blocks.mutable_data_ptr<int64_t>());
  return {tiles, blocks};
}

at::Tensor with_masks_cpu(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& col,
                          const at::Tensor& colptr, const at::Tensor& row) {
  const int64_t nodes = rowptr.numel() - 1;
  const int64_t count = boundaries_of(nodes), masked = size_with_masks(nodes), list = tiles.numel() - count;
  const auto result = at::zeros({masked + list}, tiles.options());
  result.narrow(0, 0, count).copy_(tiles.narrow(0, 0, count));
  result.narrow(0, masked, list).copy_(tiles.narrow(0, count, list));
  const auto make = rowptr.scalar_type() == at::kLong ? with_masks<int64_t> : with_masks<int32_t>;
  const auto* boundaries = tiles.const_data_ptr<int>();
  auto* to = result.mutable_data_ptr<int>();
  make_windows(boundaries, static_cast<int>(nodes), to + windows_begin(nodes));
  make(rowptr, col, colptr, row, boundaries, to + masks_begin(nodes));
  return result;
}

at::Tensor with_orders_cpu(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& colptr,
                           int64_t num_edges) {
  const int64_t nodes = rowptr.numel() - 1, begin = tiles.numel();
  const auto result = at::empty({begin + size_of_orders(nodes)}, tiles.options());
  result.narrow(0, 0, begin).copy_(tiles);
  const auto order = rowptr.scalar_type() == at::kLong ? order_rows<int64_t> : order_rows<int32_t>;
  auto* to = result.mutable_data_ptr<int>() + begin;
  for (const auto* ptr : {&rowptr, &colptr}) order(*ptr, num_edges, std::exchange(to, to + nodes));
  return result;
}

void list_tiles_cpu(const at::Tensor& tiles, int64_t num_nodes, const at::Tensor& list) {
  const auto* boundaries = tiles.const_data_ptr<int>();
  auto* to = list.mutable_data_ptr<int>();
  auto* const end = to + list.numel();
  for (int64_t t = 0; t + 1 < list.numel(); ++t) {
    if (boundaries[t] < boundaries[t + 1]) *to++ = boundaries[t];
  }
  std::fill(to, end, static_cast<int>(num_nodes));
}

void tile_sizes_cpu(const at::Tensor& tiles, const at::Tensor& rowptr, const at::Tensor& colptr,
                    const at::Tensor& sizes) {
  const auto measure = rowptr.scalar_type() == at::kLong ? measure_tiles<int64_t> : measure_tiles<int32_t>;
  measure(tiles, rowptr, colptr, sizes.mutable_data_ptr<int64_t>());
}

}  // namespace dfgnn
