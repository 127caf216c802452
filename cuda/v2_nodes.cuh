// The gradients of nodes, of GATv2's scores of edges by octets, from signs (v2_octets.cuh): sums over the entries of a
// row of either compressed form of d = ds leaky_relu'(z), times att. A row is a warp's, whose lanes share its channels.
//
// As leaky_relu(z) is leaky_relu'(z) z, and z a sum, att's gradient is made of sums of d, too: those of a node times
// its row of x, and what is W's (v2_features.cuh).
#pragma once

#include "row_pass.cuh"
#include "v2_staging.cuh"

namespace dfgnn::cuda {

// Warps of a block, which stays until there are no rows.
struct V2Nodes {
  static constexpr int kThreads = 128, kWarps = kThreads / kWarp, kBlocks = 6;         // of a multiprocessor
  static int bytes(const V2Logits& task) { return kWarps * V2Staged::of_warp(task); }  // of shared memory
};

// takes_several: rows are so short that a warp takes all of a unit's at once, without waiting for each. Of att's
// gradient each block leaves a share [width].
template <class S, bool by_destination>
__global__ void __launch_bounds__(V2Nodes::kThreads, blocks_here(V2Nodes::kBlocks))
    v2_nodes_kernel(V2Terms<S> terms, V2Gradients g, RowUnits units, bool takes_several, float* partial, float* slots) {
  using T = typename S::T;
  using Octet = V2Octet<S>;
  constexpr int kEach = S::kFeatures / kWarp, kAtOnce = 8;  // channels of a lane; edges
  using Channels = Shape<T, kEach, 1, 1, false, true>;
  extern __shared__ uint4 memory[];
  __shared__ int rows_of_warps[V2Nodes::kWarps][2][kWarp];
  __shared__ float shares[V2Nodes::kWarps][S::kFeatures];
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp, k = lane * kEach;
  auto& rows = rows_of_warps[warp];
  const Index ptr = by_destination ? terms.rowptr : terms.colptr;
  const int64_t num_rows = by_destination ? terms.num_dst : terms.num_src;
  const T* const own_x = static_cast<const T*>(by_destination ? terms.x_dst : terms.x_src) + k;
  T* const grad_x = static_cast<T*>(by_destination ? g.x_dst : g.x_src) + k;
  const int head = k / terms.channels;
  const bool is_head = head < terms.heads;  // with zeros behind heads
  const int group = Octet::group_of(k), first_slot = Octet::slot_of(k);
  const V2Staging<S> staging(terms, g, memory);
  const auto slope = static_cast<float>(terms.negative_slope);
  float att[kEach], of_att[kEach] = {};
  load_numbers(att, static_cast<const float*>(terms.att) + k);

  // Of the entries of rows [first_row, last_row): of a piece of one, if there is a slot.
  const auto take = [&](int first_row, int last_row, const Range& entries, int64_t slot) {
    int row = first_row;
    float sum[kEach] = {};
    Packed<Channels> own{};
    const auto load_own = [&] {
      if (is_head) own.load(own_x + row * terms.pitch, 0, kEach);
    };
    const auto go_to = [&](int next) {
#pragma unroll 1
      while (row < next) {
        Fragment<Channels> result;
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          if (sum[i] != 0) of_att[i] += sum[i] * own[i];  // of a node that nothing came back to, even if it is infinite
          result.x[i] = sum[i] * att[i];
          sum[i] = 0;
        }
        if (slot != kWhole) {
#pragma unroll
          for (int i = 0; i < kEach; ++i) slots[slot * S::kFeatures + k + i] = result.x[i];
        } else if (is_head) {
          result.template store<1>(grad_x + row * terms.pitch, 0, kEach, 0);
        }
        if (++row < last_row) load_own();
      }
    };
    load_own();
    if (entries.size() <= 0) return go_to(last_row);
    V2Entries<S, by_destination> ahead(terms, entries);
    const bool has_several = last_row - first_row > 1;
    int64_t row_of_lane = first_row;
    const auto start = [&](int stage, int64_t first) {
      const auto entry = ahead.take(first);
      staging.start(stage, entry.edge, entry.offset >= 0);
      if (!has_several) return;
      row_of_lane = find_row_from(ptr, last_row, row_of_lane, min(first + lane, entries.end - 1));
      rows[stage][lane] = static_cast<int>(row_of_lane);
    };
    start(0, entries.begin);
    int stage = 0;
    for (int64_t first = entries.begin; first < entries.end; first += kWarp, stage ^= 1) {
      const int count = static_cast<int>(min(int64_t{kWarp}, entries.end - first));
      if (first + kWarp < entries.end) {
        start(stage ^ 1, first + kWarp);
        staging.template wait<1>();
      } else {
        staging.template wait<0>();
      }
      const auto add = [&]<bool kSeveral>() {
#pragma unroll 1
        for (int base = 0; base < count; base += kAtOnce) {  // past the end, of what is no edge
          const auto* const signs = staging.signs(stage, base) + group;
          const float* const grads = staging.grads(stage, base) + head;
#pragma unroll
          for (int u = 0; u < kAtOnce; ++u) {
            if constexpr (kSeveral) go_to(rows[stage][base + u]);
            const unsigned positive = static_cast<unsigned>(signs[u * kV2Octet]) >> first_slot;
            const float ds = is_head ? grads[u * staging.pitch] : 0.0f, less = slope * ds;
#pragma unroll
            for (int i = 0; i < kEach; ++i) sum[i] += positive >> i & 1 ? ds : less;
          }
        }
      };
      has_several ? add.template operator()<true>() : add.template operator()<false>();
      __syncwarp();
    }
    go_to(last_row);
  };
  for (unsigned unit = blockIdx.x * V2Nodes::kWarps + warp; unit < units.count; unit += gridDim.x * V2Nodes::kWarps) {
    if (takes_several) {  // at once, if they are all for the unit
      const int64_t first = (int64_t{unit} - units.segments) * units.rows_per_unit;
      const int64_t last = min(first + units.rows_per_unit, num_rows), own = first + lane;
      const bool is_there = first >= 0 && own < last;
      const bool is_whole =
          units.segments == 0 || row_range(ptr, is_there ? own : 0, terms.num_edges).size() <= units.segment;
      if (__all_sync(kAllLanes, first >= 0 && (!is_there || is_whole))) {
        const Range entries{clamp_to(ptr[first], terms.num_edges), clamp_to(ptr[last], terms.num_edges)};
        take(static_cast<int>(first), static_cast<int>(last), entries, kWhole);
        continue;
      }
    }
    for_unit(ptr, num_rows, terms.num_edges, units, unit, lane,
             [&](int r, const Range& entries, int64_t slot) { take(r, r + 1, entries, slot); });
  }

#pragma unroll
  for (int i = 0; i < kEach; ++i) shares[warp][k + i] = of_att[i];
  __syncthreads();
  if (threadIdx.x >= S::kFeatures) return;
  float share = 0;
#pragma unroll
  for (int w = 0; w < V2Nodes::kWarps; ++w) share += shares[w][threadIdx.x];  // in their order
  partial[blockIdx.x * S::kFeatures + threadIdx.x] = share;
}

}  // namespace dfgnn::cuda
