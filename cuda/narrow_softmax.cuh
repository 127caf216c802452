// SMMF forward of long rows of narrow heads side by side with additive scores, a warp each: what is a number for each
// edge and head is made for 32 edges at a time, by lanes that have four or eight of a head each; then rows of values,
// which are gathered as those of all heads, are summed up, with an online softmax (Milakov & Gimelshein 2018).
#pragma once

#include "narrow_forward.cuh"

namespace dfgnn::cuda {

// A batch's nodes and weights, and the nodes of the next one. kQuads: fours of edges of a lane; so there are no more
// than 4 kQuads heads.
template <int kQuads, int kSums = 1>
struct NarrowBatch {
  static constexpr int kHeads = 4 * kQuads, kPitch = kWarp + 4;  // so that heads' weights lie in different banks
  static constexpr int kOwn = 4 * kQuads, kOwners = kWarp / kOwn;
  alignas(16) int nodes[2][kWarp];
  alignas(16) float weights[kSums][kHeads][kPitch];

  // Those of the batch that begins with entry `first`.
  __device__ __forceinline__ int* nodes_of(int first) { return nodes[first / kWarp % 2]; }

  // Those of the lane's head in the first sum, and how much further on they are in sum k.
  template <class S>
  __device__ __forceinline__ float* weights_of(const WarpHeads<S>& heads) {
    return weights[0][static_cast<int>(threadIdx.x) / S::kLanes & (heads.apart() / S::kLanes - 1)];
  }
  __device__ __forceinline__ static constexpr int of_sum(int k) { return k * kHeads * kPitch; }

  // Takes up the node of the lane's entry of that batch. Returns the entries whose nodes are out of range, a bit each.
  __device__ __forceinline__ unsigned take(int first, const LoadedNode& loaded, int64_t num_nodes) {
    const int node = loaded.check(num_nodes);
    nodes_of(first)[static_cast<int>(threadIdx.x)] = max(node, 0);
    return __ballot_sync(kAllLanes, node == kNoNode);
  }
};

// Adds a group's rows, entries from `first` on, times their weights to each sum: those before `count`.
template <class Batch, class S, int kSums, int kCount>
__device__ __forceinline__ void add_narrow_step(Fragment<S> (&sums)[kSums], const float* weights,
                                                const Packed<S> (&rows)[kCount], bool is_whole, int first, int count) {
#pragma unroll
  for (int u = 0; u < kCount; u += 4) {
    float of_rows[kSums][4];
#pragma unroll
    for (int k = 0; k < kSums; ++k) load_numbers(of_rows[k], weights + Batch::of_sum(k) + u);
#pragma unroll
    for (int x = 0; x < 4; ++x) {
      if (is_whole || first + u + x < count) {
#pragma unroll
        for (int k = 0; k < kSums; ++k) sums[k].add(of_rows[k][x], rows[u + x]);
      }
    }
  }
}

// A row, or a piece of one; with two sums, the derivative, too (forward_pieces.cuh).
template <class S, int kQuads, int kSums>
__device__ __forceinline__ void narrow_softmax_row(const Typed<typename S::T>& a, const Outputs& outputs,
                                                   const Dropout<float>& dropout, const WarpHeads<S>& heads, int i,
                                                   const Range& edges, float* piece) {
  constexpr int kUnroll = 8;  // rows of a group in flight
  constexpr int kQuad = 4;
  using Batch = NarrowBatch<kQuads, kSums>;
  auto& batch = warp_storage<Batch>();
  const int h = heads.head, t = threadIdx.x, step = kUnroll * heads.groups();
  // Of a batch's edges, those for which the lane makes numbers of its head. If that has more than Batch::kOwners lanes,
  // some do what others do.
  const int order = heads.group() * S::kLanes + heads.lane, own = order % Batch::kOwners * Batch::kOwn;
  float* const weights = batch.weights_of(heads);
  const RowReader<S> value_row(a, a.value, h, heads.lane);
  const float own_term = dst_term<Score::additive>(a, i, h), *const src_terms = static_cast<const float*>(a.src) + h;
  const unsigned terms_bytes = a.heads * sizeof(float);

  Fragment<S> out[kSums];
#pragma unroll
  for (auto& one : out) one.zero();
  float m = -INFINITY, sums[kSums] = {};
  const int size = static_cast<int>(edges.size());  // what is longer comes in pieces
  const Index col = a.col.from(edges.begin);
  const auto load_node = [&](int entry) { return LoadedNode(col, min(entry, size - 1)); };
  LoadedNode next;
  float terms[kQuads][kQuad];
  unsigned nowhere;  // edges of nodes that are out of range, a bit each
  // Takes up the nodes of the batch that begins with edge `first`, and asks for what they bring to the logits.
  const auto take = [&](int first) {
    const int* const nodes = batch.nodes_of(first);
    nowhere = batch.take(first, next, a.num_src);
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
    const int count = min(kWarp, size - first), left = count - own;
    const int* const nodes = batch.nodes_of(first) + heads.group() * kUnroll;
    Packed<S> rows[kUnroll];
    load_rows(rows, nodes, value_row);
    alignas(16) float s[kQuads][kQuad];
    float largest = -INFINITY;
    unsigned above = 0;  // of the lane's own edges, whose logits have slope 1 (or, if all have, some), a bit each
    const auto for_own = [&](const auto& visit) {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
#pragma unroll
        for (int x = 0; x < kQuad; ++x) visit(s[quad][x], terms[quad][x], quad * kQuad + x);
      }
    };
    if (a.a_edge || a.bias || nowhere != 0) {
      for_own([&](float& logit, float term, int x) {
        const int64_t e = edges.begin + min(first + own + x, size - 1);
        const auto made =
            nowhere >> own >> x & 1 ? Logit<float>{NAN, 1} : logit_of<Score::additive>(a, 0.0f, own_term, term, e, h);
        logit = made.value;
        if (kSums == 2 && made.slope == 1) above |= 1u << x;
      });
    } else {
      for_own([&](float& logit, float term, int x) {
        logit = logit_of<Score::additive, false>(a, 0.0f, own_term, term, 0, h).value;
        if (kSums == 2 && own_term + term > 0) above |= 1u << x;
      });
    }
    if (count < kWarp) {
      for_own([&](float& logit, float, int x) {
        if (x >= left) logit = -INFINITY;
      });
    }
    for_own([&](float& logit, float, int) { largest = fmaxf(largest, logit); });
    if (__any_sync(kAllLanes, largest > m + kMostAbove)) {
      largest = heads.over_groups(lanes_max<S::kLanes>(largest), [](float x, float y) { return fmaxf(x, y); });
      if (!(largest > m + kMostAbove)) largest = m;  // of another head, by which nothing may change here
      const float fade = exp_difference(m, largest);
#pragma unroll
      for (int k = 0; k < kSums; ++k) {
        sums[k] *= fade;
#pragma unroll
        for (float& x : out[k].x) x *= fade;
      }
      m = largest;
    }
    asm("" : "+r"(above));  // else each bit is a predicate, and put together again for want of these
    const float base = m == -INFINITY ? 0 : m;
    for_own([&](float& p, float, int x) {
      p = exp_from(p, base);
      sums[0] += p;
      if (kSums == 2 && above >> x & 1) sums[kSums - 1] += p;
    });
    if (dropout.active()) {
      const uint32_t kept = dropout.template keeps_next<Batch::kOwn>(edges.begin + first + own, h);
      for_own([&](float& p, float, int x) { p *= kept >> x & 1 ? dropout.kept() : 0; });
    }
    const auto put = [&](float* to) {
#pragma unroll
      for (int quad = 0; quad < kQuads; ++quad) {
        *reinterpret_cast<float4*>(to + own + quad * kQuad) = reinterpret_cast<const float4&>(s[quad]);
      }
    };
    put(weights);
    if constexpr (kSums == 2) {
      for_own([&](float& p, float, int x) {
        if (!(above >> x & 1)) p = 0;
      });
      put(weights + Batch::of_sum(1));
    }
    if (first + kWarp < size) {
      take(first + kWarp);
    } else {
      __syncwarp();
    }
    const auto add_rows = [&](int base) {
      const int entry = base + heads.group() * kUnroll;
      add_narrow_step<Batch>(out, weights + entry, rows, base + step <= count, entry, count);
    };
    add_rows(0);
    for (int base = step; base < count; base += step) {
      load_rows(rows, nodes + base, value_row);
      add_rows(base);
    }
    __syncwarp();
  }
  const auto add = [](float x, float y) { return x + y; };
#pragma unroll
  for (float& sum : sums) sum = heads.over_groups(lanes_sum<S::kLanes>(order < Batch::kOwners ? sum : 0), add);
  HeadSum<S, false> total{out[0], heads};
  if constexpr (kSums == 1) {
    store_narrow(a, outputs, heads, i, total, m, sums[0], piece);
  } else {
    HeadSum<S, false> above{out[1], heads};
    if (piece) piece += (h - heads.first()) * forward_slot_width(a, kSums);
    store_with_derivative(a, outputs, i, h, total, above, m, sums[0], sums[1], heads.is_first(), piece);
  }
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
template <class S, int kSums>
constexpr int narrow_softmax_warps() {
  return warps_here<S>(kSums == 2 ? 16 : sizeof(typename S::T) == 4 ? 24 : 20);
}

template <class S, int kQuads, int kSums>
__global__ void __launch_bounds__(RowUnits::kThreads, (narrow_softmax_warps<S, kSums>()))
    narrow_softmax_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                          RowUnits units, float* slots) {
  const WarpHeads<S> heads(a.heads);
  const Dropout dropout(a);
  for_units(a.rowptr, a.num_dst, a.num_edges, units, [&](int i, const Range& edges, int64_t slot) {
    float* const piece = piece_in(a, slots, slot, heads.first(), kSums);
    narrow_softmax_row<S, kQuads, kSums>(a, outputs, dropout, heads, i, edges, piece);
  });
}

// Calls launch.operator()<kQuads>() for heads that it takes.
template <class S, class Launch>
cudaError_t for_narrow_quads(int heads, const Launch& launch) {
  if constexpr (S::kGroups >= 8) {
    if (log_heads_side_by_side<S>(heads) == 3) return launch.template operator()<2>();
  }
  return launch.template operator()<1>();
}

template <class S, int kSums = 1>
cudaError_t launch_narrow_softmax(const Attention& a, const Outputs& outputs, const RowUnits& units,
                                  const UnitScratch<float>& scratch, cudaStream_t stream) {
  using T = typename S::T;
  const cudaError_t error = for_narrow_quads<S>(a.heads, [&]<int kQuads>() {
    const auto launch = [&](dim3 grid, const RowUnits& with, auto* kernel) {
      kernel<<<grid, with.block(), with.warps * sizeof(NarrowBatch<kQuads, kSums>), stream>>>(Typed<T>{a}, outputs,
                                                                                              with, scratch.slots);
    };
    return launch_units(units, a, a.num_dst, head_blocks<S>(a.heads), scratch.counters, stream,
                        narrow_softmax_kernel<S, kQuads, kSums>, nullptr, launch);
  });
  return error == cudaSuccess ? merge_outputs<T, kSums>(a, outputs, units, scratch.slots, stream) : error;
}

}  // namespace dfgnn::cuda
