// GATv2's scores of edges that have features, by runs of edges, and the launches of their derivatives
// (v2_gradients.cuh), or those of both by octets (v2_octets.cuh, v2_nodes.cuh, v2_features.cuh).
#include <algorithm>
#include <vector>

#include "column_sums.h"
#include "edges.cuh"
#include "merge.cuh"
#include "shapes.cuh"
#include "v2_features.cuh"
#include "v2_gradients.cuh"
#include "v2_nodes.cuh"

namespace dfgnn::cuda {
namespace {

template <class S>
__global__ void __launch_bounds__(EdgePlan::kThreads)
    v2_logits_kernel(V2Terms<S> terms, typename S::A* logits, EdgePlan plan) {
  using A = typename S::A;
  constexpr int kCount = kV2Edges<S>;
  __shared__ EdgeBatch batches[EdgePlan::kWarps];
  EdgeBatch& batch = batches[threadIdx.x / kWarp];
  const int lane = threadIdx.x % S::kLanes, group = threadIdx.x % kWarp / S::kLanes;
  const A slope = static_cast<A>(terms.negative_slope);
  const auto att = terms.numbers(terms.att, lane);
  const bool is_first = lane % terms.lanes == 0;  // of a head
  int heads[S::kSteps];
#pragma unroll
  for (int s = 0; s < S::kSteps; ++s) heads[s] = terms.head(s, lane);

  clear_no_edges(terms, logits, terms.stride);
  for_edge_batches(terms, plan, batch, [&](int64_t first, int count) {
    // Of all edges of the batch at a time, as what a load is asked for at once is waited for.
    const int64_t lane_offset = terms.offset_of_features(first + min(static_cast<int>(threadIdx.x) % kWarp, count - 1));
    for (int base = 0; base < count; base += kCount * S::kGroups) {
      Fragment<S> z[kCount];
      int at[kCount];
      int64_t offsets[kCount];
      bool is_known[kCount];
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
        at[u] = min(base + u * S::kGroups + group, count - 1);  // past the end, the last again
        const int node = batch.source[at[u]];
        offsets[u] = __shfl_sync(kAllLanes, lane_offset, at[u]);
        is_known[u] = node != kNoNode && offsets[u] >= 0;
        Packed<S> own, other;
        own.load(terms.node(terms.x_dst, batch.row[at[u]]), lane, terms.width);
        other.load(terms.node(terms.x_src, max(node, 0)), lane, terms.width);
#pragma unroll
        for (int i = 0; i < kV2Size<S>; ++i) z[u].x[i] = own[i] + other[i];
      }
      terms.add_features(z, offsets, lane);
#pragma unroll
      for (int u = 0; u < kCount; ++u) {
#pragma unroll
        for (int s = 0; s < S::kSteps; ++s) {
          A dot = A(0);
#pragma unroll
          for (int i = s * S::kVec; i < (s + 1) * S::kVec; ++i) {
            dot += att[i] * (z[u][i] > A(0) ? z[u][i] : slope * z[u][i]);
          }
          dot = lanes_sum(dot, terms.lanes);
          if (base + u * S::kGroups + group >= count || !is_first || heads[s] >= terms.heads) continue;
          logits[(first + at[u]) * terms.stride + heads[s]] = is_known[u] ? dot : A(NAN);
        }
      }
    }
  });
}

// Calls launch(terms) with the shape of a row of all heads by lanes.
template <class Launch>
cudaError_t for_terms(const V2Logits& task, const Launch& launch) {
  return for_type(task.type, [&]<class T>() {
    if constexpr (sizeof(T) == 8) {
      return launch(V2Terms<Shape<T, 1, kWarp, 4>>(task));
    } else {
      constexpr int kVec = 16 / sizeof(T);
      const int vectors = task.width / kVec;
      if (vectors <= 2) return launch(V2Terms<Shape<T, kVec, 2, 1>>(task));
      if (vectors <= 4) return launch(V2Terms<Shape<T, kVec, 4, 1>>(task));
      if (vectors <= 8) return launch(V2Terms<Shape<T, kVec, 8, 1>>(task));
      if constexpr (kVec == 4) {
        if (vectors > 16) return launch(V2Terms<Shape<T, kVec, kWarp, 1>>(task));
      }
      return launch(V2Terms<Shape<T, kVec, 16, 1>>(task));
    }
  });
}

unsigned blocks_of_features(const V2Logits& task, int of_block) {
  return static_cast<unsigned>(std::max(1, (task.edge_dim + of_block - 1) / of_block));
}

// The passes by octets: over rows of both compressed forms, and over edges that have features.
struct OctetPlan {
  struct Rows {
    RowUnits units;
    bool takes_several;  // rows of a unit at once
    unsigned blocks;     // as many as a device has room for
  };
  Rows by_destination, by_source;
  int chunks;            // where features are more than eight, a block takes sixteen
  unsigned y;            // blocks that share features
  unsigned of_features;  // blocks, 0: there are no features

  explicit OctetPlan(const V2Logits& task) : chunks(task.edge_dim > kV2Octet ? 2 : 1) {
    const unsigned of_rows = room(V2Nodes::kBlocks, V2Nodes::bytes(task));
    by_destination = rows(task, task.rowptr, task.num_dst, of_rows);
    by_source = rows(task, task.colptr, task.num_src, of_rows);
    y = task.edge_dim > 0 ? blocks_of_features(task, chunks * kV2Octet) : 0;
    const int64_t most = (task.num_edges + V2Features::kThreads - 1) / V2Features::kThreads;
    const unsigned of_edges = room(V2Features::blocks(task.width, chunks), V2Features::bytes(task, chunks));
    of_features = task.edge_dim > 0 ? static_cast<unsigned>(std::min<int64_t>(most, of_edges)) : 0;
  }

 private:
  // Blocks that a device has room for, of so many a multiprocessor by registers, with so much shared memory.
  static unsigned room(int of_multiprocessor, int bytes) {
    constexpr int kBesides = 6 << 10;  // a block's static memory, and what the device takes
    int multiprocessors = 0, all_bytes = 0;
    if (device_attribute(cudaDevAttrMultiProcessorCount, multiprocessors) != cudaSuccess) multiprocessors = 1;
    if (device_attribute(cudaDevAttrMaxSharedMemoryPerMultiprocessor, all_bytes) != cudaSuccess) all_bytes = 0;
    return multiprocessors * std::clamp(all_bytes / (bytes + kBesides), 1, of_multiprocessor);
  }

  // Where rows are short, with units of some 128 entries.
  static Rows rows(const V2Logits& task, const Index& ptr, int64_t num_rows, unsigned most) {
    constexpr int64_t kEntries = 128, kUnits = 8192;
    RowUnits units = RowPass(ptr, num_rows, task.num_edges, task.width).units();
    units.listed = 0;  // warps go over them as they are numbered
    const int64_t num_edges = std::max<int64_t>(task.num_edges, 1);
    const int64_t rows = std::min({kEntries * num_rows / num_edges, num_rows / kUnits, int64_t{kWarp}});
    const bool takes_several = num_edges < RowUnits::kShort * num_rows && rows > 1;
    if (takes_several) units.set_rows_per_unit(static_cast<int>(rows), num_rows);
    return {units, takes_several, std::min(most, (units.count + V2Nodes::kWarps - 1) / V2Nodes::kWarps)};
  }
};

// The passes by lanes.
struct LanesPlan {
  RowPlan by_destination, by_source;
  unsigned blocks_with_sums;  // what fills the device, as far as they take 64 MiB

  explicit LanesPlan(const V2Logits& task)
      : by_destination(plan_pieces(task.num_dst, task.num_edges, task.width)),
        by_source(plan_pieces(task.num_src, task.num_edges, task.width)) {
    const int64_t numbers = int64_t{1 + task.edge_dim} * task.width;
    const int64_t most = std::max<int64_t>(1, std::min<int64_t>(1024, (int64_t{1} << 24) / numbers));
    blocks_with_sums = static_cast<unsigned>(std::min<int64_t>(most, by_destination.blocks));
  }
};

// What a pass leaves: pieces of its units, and of each block some rows of sums.
struct V2Pass {
  RowUnits units;
  int64_t blocks, sums;

  // In the workspace: sums of blocks, behind them what adds them up, then slots.
  int64_t numbers_of_blocks(int width) const {
    return blocks * sums * width + column_sums_partial(blocks, sums * width);
  }
  int64_t partial(int width) const { return numbers_of_blocks(width) + units.slots() * width; }
};

// In the order of their sums in terms.
std::vector<V2Pass> passes_of(const OctetPlan& plan, const V2Logits& task) {
  const auto rows = [](const OctetPlan::Rows& of) { return V2Pass{of.units, of.blocks, 1}; };
  return {rows(plan.by_source), rows(plan.by_destination), {{}, plan.of_features, plan.y + task.edge_dim}};
}
std::vector<V2Pass> passes_of(const LanesPlan& plan, const V2Logits& task) {
  return {{plan.by_source.units, 0, 0}, {plan.by_destination.units, plan.blocks_with_sums, 1 + task.edge_dim}};
}

template <class Plan>
int64_t partial_of(const V2Logits& task) {
  int64_t numbers = 0;
  for (const V2Pass& pass : passes_of(Plan(task), task)) numbers = std::max(numbers, pass.partial(task.width));
  return numbers;
}

// Runs passes: launch(index, partial, slots), then what units left in slots goes to the gradients of nodes, if there
// are any, and sums over blocks to terms.
template <class T, class Plan, class Launch>
cudaError_t run_passes(const V2Logits& task, const V2Gradients& g, const Plan& plan, cudaStream_t stream,
                       const Launch& launch) {
  using A = typename Accumulate<T>::type;
  A* terms = static_cast<A*>(g.terms);
  int index = 0;
  for (const V2Pass& pass : passes_of(plan, task)) {
    A *const partial = static_cast<A*>(g.partial), *const slots = partial + pass.numbers_of_blocks(task.width);
    cudaError_t error = launch(index, partial, slots);
    if (error == cudaSuccess && pass.units.segments > 0) {
      const bool by_source = index == 0;
      Merge<T, false> merge{by_source ? task.colptr : task.rowptr,
                            by_source ? task.num_src : task.num_dst,
                            task.num_edges,
                            pass.units,
                            1,
                            slots,
                            task.width,
                            task.heads * task.channels};
      merge.results = 1;
      merge.rows[0] = static_cast<T*>(by_source ? g.x_src : g.x_dst);
      merge.pitch = task.pitch;
      error = launch_merge(merge, stream);
    }
    const int64_t columns = pass.sums * task.width;
    if (error == cudaSuccess && pass.blocks > 0) {
      error = column_sums(task.type, partial, pass.blocks, columns, partial + pass.blocks * columns, terms, stream);
      terms += columns;
    }
    if (error != cudaSuccess) return error;
    ++index;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t v2_logits(const V2Logits& task, void* logits, void* signs, cudaStream_t stream) {
  if (task.num_edges == 0 || task.num_dst == 0) return cudaSuccess;
  const EdgePlan plan = plan_edges(task.num_edges);
  if (task.octets) {
    return for_octets(task, [&]<class S>() {
      const int bytes = v2_factor_bytes<S>(task.edge_dim);
      auto* const kernel = v2_octet_logits_kernel<S>;
      const cudaError_t error = allow_shared_memory(kernel, bytes);
      if (error != cudaSuccess) return error;
      kernel<<<plan.blocks, EdgePlan::kThreads, bytes, stream>>>(V2Terms<S>(task), static_cast<float*>(logits),
                                                                 static_cast<typename V2Octet<S>::Signs*>(signs), plan);
      return cudaGetLastError();
    });
  }
  return for_terms(task, [&]<class S>(const V2Terms<S>& terms) {
    v2_logits_kernel<S>
        <<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(terms, static_cast<typename S::A*>(logits), plan);
    return cudaGetLastError();
  });
}

int v2_shares(const V2Logits& task) { return task.octets ? 2 + static_cast<int>(OctetPlan(task).y) : 1; }

int64_t v2_partial(const V2Logits& task) {
  return task.octets ? partial_of<OctetPlan>(task) : partial_of<LanesPlan>(task);
}

cudaError_t v2_gradients(const V2Logits& task, const V2Gradients& g, cudaStream_t stream) {
  if (task.octets) {
    return for_octets(task, [&]<class S>() {
      const OctetPlan plan(task);
      const V2Terms<S> terms(task);
      const auto rows = [&]<bool by_destination>(float* partial, float* slots) {
        const OctetPlan::Rows& of = by_destination ? plan.by_destination : plan.by_source;
        auto* const kernel = v2_nodes_kernel<S, by_destination>;
        const int bytes = V2Nodes::bytes(task);
        const cudaError_t error = allow_shared_memory(kernel, bytes);
        if (error != cudaSuccess) return error;
        kernel<<<of.blocks, V2Nodes::kThreads, bytes, stream>>>(terms, g, of.units, of.takes_several, partial, slots);
        return cudaGetLastError();
      };
      const auto features = [&]<int kChunks>(float* partial) {
        auto* const kernel = v2_features_kernel<S, kChunks>;
        const int bytes = V2Features::bytes(task, kChunks);
        const cudaError_t error = allow_shared_memory(kernel, bytes);
        if (error != cudaSuccess) return error;
        kernel<<<dim3(plan.of_features, plan.y), V2Features::kThreads, bytes, stream>>>(terms, g, partial);
        return cudaGetLastError();
      };
      return run_passes<typename S::T>(task, g, plan, stream, [&](int index, float* partial, float* slots) {
        if (index == 0) return rows.template operator()<false>(partial, slots);
        if (index == 1) return rows.template operator()<true>(partial, slots);
        if (plan.of_features == 0) return cudaSuccess;
        return plan.chunks == 1 ? features.template operator()<1>(partial) : features.template operator()<2>(partial);
      });
    });
  }
  return for_terms(task, [&]<class S>(const V2Terms<S>& terms) {
    const LanesPlan plan(task);
    const auto rows = [&]<bool by_destination>(auto* partial, auto* slots) {
      const RowPlan& of = by_destination ? plan.by_destination : plan.by_source;
      const dim3 grid(by_destination ? plan.blocks_with_sums : of.blocks,
                      by_destination ? blocks_of_features(task, kFeaturesOfBlock<S>) : 1);
      v2_gradients_kernel<S, by_destination><<<grid, RowPlan::kThreads, 0, stream>>>(terms, g, of, partial, slots);
      return cudaGetLastError();
    };
    return run_passes<typename S::T>(task, g, plan, stream, [&](int index, auto* partial, auto* slots) {
      return index == 0 ? rows.template operator()<false>(partial, slots)
                        : rows.template operator()<true>(partial, slots);
    });
  });
}

}  // namespace dfgnn::cuda
