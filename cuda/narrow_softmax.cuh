// SMMF forward of long rows of narrow heads side by side with additive scores, a warp each: what is a number for each
// edge and head is made for 32 edges at a time, by lanes that have four or eight of a head each; then rows of values,
// which are gathered as those of all heads, are summed up, with an online softmax (Milakov & Gimelshein 2018).
#pragma once

#include "narrow_forward.cuh"

namespace dfgnn::cuda {

// A batch's nodes and weights, and the nodes of the next one. kQuads: fours of edges of a lane; so there are no more
// than 4 kQuads heads.
template <int kQuads>
struct NarrowBatch {
  static constexpr int kPitch = kWarp + 4;  // so that heads' weights lie in different banks
  alignas(16) int nodes[2][kWarp];
  alignas(16) float weights[4 * kQuads][kPitch];
};

// A row, or a piece of one.
template <class S, int kQuads>
__device__ __forceinline__ void narrow_softmax_row(const Typed<typename S::T>& a, const Outputs& outputs,
                                                   const Dropout<float>& dropout, const WarpHeads<S>& heads, int i,
                                                   const Range& edges, float* piece) {
  constexpr int kUnroll = 8;  // rows of a group in flight
  constexpr int kQuad = 4, kOwn = kQuads * kQuad, kOwners = kWarp / kOwn;
  auto& batch = warp_storage<NarrowBatch<kQuads>>();
  const int h = heads.head, t = threadIdx.x, step = kUnroll * heads.groups();
  // Of a batch's edges, those for which the lane makes numbers of its head. If that has more than kOwners lanes, some
  // do what others do.
  const int order = heads.group() * S::kLanes + heads.lane, own = order % kOwners * kOwn;
  float* const weights = batch.weights[t / S::kLanes & (heads.apart() / S::kLanes - 1)];
  const RowReader<S> value_row(a, a.value, h, heads.lane);
  const float own_term = dst_term<Score::additive>(a, i, h), *const src_terms = static_cast<const float*>(a.src) + h;
  const unsigned terms_bytes = a.heads * sizeof(float);

  Fragment<S> out;
  out.zero();
  float m = -INFINITY, sum = 0;
  const int size = static_cast<int>(edges.size());  // what is longer comes in pieces
  const Index col = a.col.from(edges.begin);
  const auto load_node = [&](int entry) { return LoadedNode(col, min(entry, size - 1)); };
  LoadedNode next;
  float terms[kQuads][kQuad];
  unsigned nowhere;  // edges of nodes that are out of range, a bit each
  // Takes up the nodes of the batch that begins with edge `first`, and asks for what they bring to the logits.
  const auto take = [&](int first) {
    int* const nodes = batch.nodes[first / kWarp % 2];
    const int node = next.check(a.num_src);
    nodes[t] = max(node, 0);
    nowhere = __ballot_sync(kAllLanes, node == kNoNode);
    next = load_node(first + kWarp + t);
    __syncwarp();
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      int of_quad[kQuad];
      load_numbers(of_quad, nodes + own + quad * kQuad);
#pragma unroll
      for (int x = 0; x < kQuad; ++x) terms[quad][x] = __ldg(row_from(src_terms, of_quad[x], terms_bytes));
    }
  };
  if (size > 0) {
    next = load_node(t);
    take(0);
  }
  for (int first = 0; first < size; first += kWarp) {
    const int count = min(kWarp, size - first);
    const int* const nodes = batch.nodes[first / kWarp % 2] + heads.group() * kUnroll;
    Packed<S> rows[kUnroll];
    const auto load_rows = [&](int base) {
      int of_rows[kUnroll];
      load_numbers(of_rows, nodes + base);
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) rows[u] = value_row(of_rows[u]);
    };
    load_rows(0);
    alignas(16) float s[kQuads][kQuad];
    float largest = -INFINITY;
    const auto for_own = [&](const auto& visit) {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
#pragma unroll
        for (int x = 0; x < kQuad; ++x) visit(s[quad][x], terms[quad][x], own + quad * kQuad + x);
      }
    };
    if (a.a_edge || a.bias || nowhere != 0) {
      for_own([&](float& logit, float term, int entry) {
        const int64_t e = edges.begin + min(first + entry, size - 1);
        logit = nowhere >> entry & 1 ? NAN : logit_of<Score::additive>(a, 0.0f, own_term, term, e, h).value;
      });
    } else {
      for_own([&](float& logit, float term, int) {
        logit = logit_of<Score::additive, false>(a, 0.0f, own_term, term, 0, h).value;
      });
    }
    for_own([&](float& logit, float, int entry) {
      if (entry >= count) logit = -INFINITY;
      largest = fmaxf(largest, logit);
    });
    if (__any_sync(kAllLanes, largest > m)) {
      largest = heads.over_groups(lanes_max<S::kLanes>(largest), [](float x, float y) { return fmaxf(x, y); });
      largest = fmaxf(m, largest);
      const float fade = exp_difference(m, largest);
      sum *= fade;
#pragma unroll
      for (float& x : out.x) x *= fade;
      m = largest;
    }
    const float base = m == -INFINITY ? 0 : m;
    for_own([&](float& p, float, int) {
      p = exp2_of((p - base) * kLog2e);
      sum += p;
    });
    if (dropout.active()) {
      for_own([&](float& p, float, int entry) { p *= dropout.factor(edges.begin + min(first + entry, size - 1), h); });
    }
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      *reinterpret_cast<float4*>(weights + own + quad * kQuad) = reinterpret_cast<const float4&>(s[quad]);
    }
    if (first + kWarp < size) {
      take(first + kWarp);
    } else {
      __syncwarp();
    }
    const auto add_rows = [&](int base) {
      float of_rows[kUnroll];
      const int entry = base + heads.group() * kUnroll;
      load_numbers(of_rows, weights + entry);
      add_step(out, of_rows, rows, base + step <= count, entry, count);
    };
    add_rows(0);
    for (int base = step; base < count; base += step) {
      load_rows(base);
      add_rows(base);
    }
    __syncwarp();
  }
  const auto add = [](float x, float y) { return x + y; };
  sum = heads.over_groups(lanes_sum<S::kLanes>(order < kOwners ? sum : 0), add);
  store_narrow(a, outputs, heads, i, HeadSum<S, false>{out, heads}, m, sum, piece);
}

// Whether there are kernels for shape S, and whether they take the heads: two to eight side by side, of so many lanes
// that a batch has a step's rows for each group.
template <class S>
constexpr bool kNarrowSoftmax = S::kSteps == 1 && !S::kLoop && sizeof(typename S::A) == 4;

template <class S>
bool takes_narrow_softmax(const Attention& a) {
  const int log = log_heads_side_by_side<S>(a.heads);
  return log >= 1 && log <= 3 && lanes_of_heads<S>(a.heads) >= 8;
}

// By times.
template <class S>
constexpr int narrow_softmax_warps() {
  return warps_here<S>(sizeof(typename S::T) == 4 ? 24 : 20);
}

template <class S, int kQuads>
__global__ void __launch_bounds__(RowUnits::kThreads, narrow_softmax_warps<S>())
    narrow_softmax_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                          RowUnits units, float* slots) {
  const WarpHeads<S> heads(a.heads);
  const Dropout dropout(a);
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t slot) {
    narrow_softmax_row<S, kQuads>(a, outputs, dropout, heads, i, edges, piece_in(a, slots, slot, heads.first()));
  });
}

template <class S>
cudaError_t launch_narrow_softmax(const Attention& a, const Outputs& outputs, const RowUnits& units,
                                  const UnitScratch<float>& scratch, cudaStream_t stream) {
  using T = typename S::T;
  const auto launch_of = [&]<int kQuads>() {
    const auto launch = [&](dim3 grid, const RowUnits& with, auto* kernel) {
      kernel<<<grid, with.block(), with.warps * sizeof(NarrowBatch<kQuads>), stream>>>(Typed<T>{a}, outputs, with,
                                                                                       scratch.slots);
    };
    return launch_units(units, a, a.num_dst, head_blocks<S>(a.heads), scratch.counters, stream,
                        narrow_softmax_kernel<S, kQuads>, nullptr, launch);
  };
  cudaError_t error = cudaSuccess;
  if constexpr (S::kGroups >= 8) {
    const bool has_eight = log_heads_side_by_side<S>(a.heads) == 3;
    error = has_eight ? launch_of.template operator()<2>() : launch_of.template operator()<1>();
  } else {
    error = launch_of.template operator()<1>();
  }
  return error == cudaSuccess ? merge_outputs<T>(a, outputs, units, scratch.slots, stream) : error;
}

}  // namespace dfgnn::cuda
