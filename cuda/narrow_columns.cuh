// Columns of additive_bwd of narrow heads side by side, a warp each (additive_columns.cuh has the sums): what is a
// number for each edge and head is made for 32 edges at a time, as narrow_softmax.cuh makes it.
#pragma once

#include "additive_numbers.cuh"
#include "entry_positions.cuh"
#include "gradient_sides.cuh"
#include "narrow_softmax.cuh"

namespace dfgnn::cuda {

// A column, or a piece of one.
template <class S, int kQuads>
__device__ __forceinline__ void narrow_column(const Typed<typename S::T>& a, const Gradients& g,
                                              const RowNumbers<float>* numbers, const Dropout<float>& dropout,
                                              const ColumnScores<typename S::T>& scores, const WarpHeads<S>& heads,
                                              int j, const Range& entries, int64_t slot, float* slots) {
  using Batch = ColumnBatch<NarrowBatch<kQuads, 2>>;
  constexpr int kUnroll = sizeof(typename S::T) == 4 ? 8 : 4;  // rows of a group in flight
  constexpr int kOwn = Batch::kOwn;
  auto& batch = warp_storage<Batch>();
  const int h = heads.head, t = threadIdx.x, step = kUnroll * heads.groups();
  // Of a batch's entries, those for which the lane makes numbers of its head.
  const int order = heads.group() * S::kLanes + heads.lane, own = order % Batch::kOwners * kOwn;
  float* const weights = batch.weights_of(heads);
  const RowReader<S> row_of(a, g.grad_out, h, heads.lane);
  const bool has_terms = a.bias || a.a_edge, needs_positions = dropout.active() || has_terms;
  const float own_term = src_term<Score::additive>(a, j, h);
  const RowNumbers<float>* const of_head = numbers + h;
  const unsigned numbers_bytes = a.heads * sizeof(RowNumbers<float>);

  Fragment<S> sums[2];
  for (auto& sum : sums) sum.zero();
  float grad_scalar = 0;
  const int size = static_cast<int>(entries.size());  // what is longer comes in pieces
  const Index nodes = a.row.from(entries.begin), positions = a.perm.from(entries.begin);
  const auto load_node = [&](int entry) { return LoadedNode(nodes, min(entry, size - 1)); };
  LoadedNode next;
  RowNumbers<float> rows_numbers[kOwn];
  unsigned nowhere;  // entries of nodes that are out of range, a bit each
  // Takes up the nodes of the batch that begins with entry `first`, and asks for their numbers.
  const auto take = [&](int first) {
    const int* const of_batch = batch.nodes_of(first);
    nowhere = batch.take(first, next, a.num_dst);
    next = load_node(first + kWarp + t);
    __syncwarp();
    int own_nodes[kOwn];
    load_numbers(own_nodes, of_batch + own);
#pragma unroll
    for (int x = 0; x < kOwn; ++x) rows_numbers[x] = *row_from(of_head, own_nodes[x], numbers_bytes);
    if (needs_positions) batch.positions.copy(positions, min(first + t, size - 1));
  };
  if (needs_positions) batch.positions.clear();
  if (size > 0) {
    next = load_node(t);
    take(0);
  }
  for (int first = 0; first < size; first += kWarp) {
    const int count = min(kWarp, size - first), left = count - own;
    const int* const of_rows = batch.nodes_of(first) + heads.group() * kUnroll;
    Packed<S> rows[kUnroll];
    load_rows(rows, of_rows, row_of);
    if (needs_positions) {
      batch.positions.wait();
      __syncwarp();
    }
    unsigned kept = 0;  // by dropout, of the lane's own entries, a bit each
    if (dropout.active()) {
#pragma unroll 2
      for (int x = 0; x < kOwn; ++x) kept |= (dropout.keeps(batch.positions[own + x], h) ? 1u : 0) << x;
    }
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      alignas(16) float made[2][4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {
        const int place = quad * 4 + x;
        const RowNumbers<float>& row = rows_numbers[place];
        Logit<float> s;
        if (has_terms) {
          const int64_t e = clamp_to(batch.positions[own + place], a.num_edges - 1);
          s = logit_of<Score::additive>(a, 0.0f, row.dst, own_term, e, h);
        } else {
          s = logit_of<Score::additive, false>(a, 0.0f, row.dst, own_term, 0, h);
        }
        const auto terms = scores(s, row, 1.0f);
        const bool is_entry = place < left && !(nowhere >> own >> place & 1);
        if (is_entry) grad_scalar -= terms.taken;
        made[0][x] = is_entry ? terms.weight : 0;
        made[1][x] = terms.part;
      }
      if (dropout.active()) {
#pragma unroll
        for (int x = 0; x < 4; ++x) made[0][x] *= kept >> (quad * 4 + x) & 1 ? dropout.kept() : 0;
      }
#pragma unroll
      for (int x = 0; x < 4; ++x) made[1][x] *= made[0][x];
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        float* const to = weights + Batch::of_sum(k) + own + quad * 4;
        *reinterpret_cast<float4*>(to) = reinterpret_cast<const float4&>(made[k]);
      }
    }
    if (first + kWarp < size) {
      take(first + kWarp);
    } else {
      __syncwarp();
    }
    const auto add_rows = [&](int base) {
      const int entry = base + heads.group() * kUnroll;
      add_narrow_step<Batch>(sums, weights + entry, rows, base + step <= count, entry, count);
    };
    add_rows(0);
    for (int base = step; base < count; base += step) {
      load_rows(rows, of_rows + base, row_of);
      add_rows(base);
    }
    __syncwarp();
  }
  if (order >= Batch::kOwners) grad_scalar = 0;  // as another lane has it
  if (size > 0) {
    Packed<S> own_row;
    own_row.load(a.features(a.value, j, h), heads.lane, a.head_dim);
    grad_scalar += scores.unit() * sums[1].dot(own_row);
  }
  const auto add = [](float x, float y) { return x + y; };
  grad_scalar = heads.over_groups(lanes_sum<S::kLanes>(grad_scalar), add);
  const HeadSum<S, false> of_value{sums[0], heads};
  store_gradients<Side::columns, Score::additive>(a, g, j, h, of_value, of_value, grad_scalar, heads.is_first(), 1.0f,
                                                  slot, slots);
}

// By times.
template <class S>
constexpr int narrow_columns_warps() {
  return warps_here<S>(sizeof(typename S::T) == 4 ? 16 : 20);
}

template <class S, int kQuads>
__global__ void __launch_bounds__(RowUnits::kThreads, narrow_columns_warps<S>())
    narrow_columns_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                          const RowNumbers<float>* numbers, RowUnits units, float* slots) {
  const WarpHeads<S> heads(a.heads);
  const Dropout dropout(a);
  const ColumnScores scores(a);
  for_units(a.colptr, a.num_src, a.num_edges, units, [&](int j, const Range& entries, int64_t slot) {
    narrow_column<S, kQuads>(a, g, numbers, dropout, scores, heads, j, entries, slot, slots);
  });
}

template <class S>
cudaError_t launch_narrow_columns(const Attention& a, const Gradients& g, const RowNumbers<float>* numbers,
                                  const RowUnits& units, const UnitScratch<float>& scratch, cudaStream_t stream) {
  return for_narrow_quads<S>(a.heads, [&]<int kQuads>() {
    const auto launch = [&](dim3 grid, const RowUnits& with, auto* kernel) {
      kernel<<<grid, with.block(), with.warps * sizeof(ColumnBatch<NarrowBatch<kQuads, 2>>), stream>>>(
          Typed<typename S::T>{a}, g, numbers, with, scratch.slots);
    };
    return launch_units(units, a, a.num_src, head_blocks<S>(a.heads), scratch.counters, stream,
                        narrow_columns_kernel<S, kQuads>, nullptr, launch);
  });
}

}  // namespace dfgnn::cuda
