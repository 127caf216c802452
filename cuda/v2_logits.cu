// GATv2's scores of edges that have features, by runs of edges, and the launches of their derivatives
// (v2_gradients.cuh), or both on tensor cores (v2_octets.cuh, v2_octet_gradients.cuh).
#include <algorithm>

#include "column_sums.h"
#include "edges.cuh"
#include "merge.cuh"
#include "shapes.cuh"
#include "v2_gradients.cuh"
#include "v2_octet_gradients.cuh"

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

  clear_no_edges(terms, logits);
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
          logits[(first + at[u]) * terms.heads + heads[s]] = is_known[u] ? dot : A(NAN);
        }
      }
    }
  });
}

template <class Launch>
cudaError_t for_terms(const V2Logits& task, const Launch& launch) {
  return for_type_and_shape(task.type, task.heads * task.channels, [&]<class S>() {
    using Wide = typename S::Wide;
    return launch(V2Terms<Shape<typename S::T, Wide::kVec, Wide::kLanes, Wide::kSteps>>(task));
  });
}

int width_of(const V2Logits& task) { return task.heads * task.channels; }
RowPlan plan_of(const V2Logits& task, int64_t num_rows) {
  return plan_pieces(num_rows, task.num_edges, width_of(task));
}

// Blocks whose sums are added up in the end: what fills the device, as far as they take 64 MiB.
int64_t blocks_with_sums(const V2Logits& task) {
  const int64_t numbers = int64_t{1 + task.edge_dim} * width_of(task);
  const int64_t most = std::max<int64_t>(1, std::min<int64_t>(1024, (int64_t{1} << 24) / numbers));
  return std::min<int64_t>(most, plan_of(task, task.num_dst).blocks);
}

// What so many blocks take of the workspace, and the sums over them after it. What slots of pieces take comes after
// that.
int64_t numbers_of_blocks(const V2Logits& task, int64_t blocks) {
  const int64_t columns = int64_t{1 + task.edge_dim} * width_of(task);
  return blocks * columns + column_sums_partial(blocks, columns);
}

// The passes by octets over rows of both compressed forms.
struct OctetPlan {
  struct Pass {
    RowUnits units;
    bool takes_several;  // rows of a unit at once
    unsigned blocks;     // as many as a device has room for
  };
  int chunks;  // where features are more than eight, a block takes sixteen
  Pass by_destination, by_source;

  explicit OctetPlan(const V2Logits& task) : chunks(task.edge_dim > kV2Octet ? 2 : 1) {
    int multiprocessors = 0;
    if (device_attribute(cudaDevAttrMultiProcessorCount, multiprocessors) != cudaSuccess) multiprocessors = 1;
    by_destination = pass(task, task.rowptr, task.num_dst, multiprocessors * V2Octets::blocks(true, chunks));
    by_source = pass(task, task.colptr, task.num_src, multiprocessors * V2Octets::blocks(false, 1));
  }

 private:
  // Where rows are short, with units of some 128 entries.
  static Pass pass(const V2Logits& task, const Index& ptr, int64_t num_rows, unsigned most_blocks) {
    constexpr int64_t kEntries = 128, kUnits = 8192;
    if (num_rows == 0) return {};
    RowUnits units = RowPass(ptr, num_rows, task.num_edges, width_of(task)).units();
    const int64_t num_edges = std::max<int64_t>(task.num_edges, 1);
    const int64_t rows = std::min({kEntries * num_rows / num_edges, num_rows / kUnits, int64_t{kWarp}});
    const bool takes_several = num_edges < RowUnits::kShort * num_rows && rows > 1;
    if (takes_several) units.set_rows_per_unit(static_cast<int>(rows), num_rows);
    return {units, takes_several, std::min(most_blocks, (units.count + V2Octets::kWarps - 1) / V2Octets::kWarps)};
  }
};

}  // namespace

bool v2_takes(Type type, int heads, int channels) {
  const int vector = type == Type::f64 ? 1 : type == Type::f32 ? 4 : 8, lanes = channels / vector;
  const int64_t width = int64_t{heads} * channels;
  return channels % vector == 0 && lanes <= kWarp && (lanes & (lanes - 1)) == 0 &&
         width <= (type == Type::f64 ? 128 : 512);
}

cudaError_t v2_logits(const V2Logits& task, void* logits, cudaStream_t stream) {
  if (task.num_edges == 0 || task.num_dst == 0) return cudaSuccess;
  const EdgePlan plan = plan_edges(task.num_edges);
  if (takes_octets(task)) {
    return for_octets(task, [&]<class S>() {
      const int bytes = v2_factor_bytes<S>(task.edge_dim);
      auto* const kernel = v2_octet_logits_kernel<S>;
      const cudaError_t error = allow_shared_memory(kernel, bytes);
      if (error != cudaSuccess) return error;
      kernel<<<plan.blocks, EdgePlan::kThreads, bytes, stream>>>(V2Terms<S>(task), static_cast<float*>(logits), plan);
      return cudaGetLastError();
    });
  }
  return for_terms(task, [&]<class S>(const V2Terms<S>& terms) {
    v2_logits_kernel<S>
        <<<plan.blocks, EdgePlan::kThreads, 0, stream>>>(terms, static_cast<typename S::A*>(logits), plan);
    return cudaGetLastError();
  });
}

int64_t v2_partial(const V2Logits& task) {
  if (takes_octets(task)) {
    const OctetPlan plan(task);
    const int64_t slots = std::max(plan.by_destination.units.slots(), plan.by_source.units.slots());
    return numbers_of_blocks(task, plan.by_destination.blocks) + slots * width_of(task);
  }
  return numbers_of_blocks(task, blocks_with_sums(task)) +
         cut_rows(task.num_edges, width_of(task)).slots() * width_of(task);
}

cudaError_t v2_gradients(const V2Logits& task, const V2Gradients& g, cudaStream_t stream) {
  const auto blocks_of_features = [&](int of_block) {
    return static_cast<unsigned>(std::max(1, (task.edge_dim + of_block - 1) / of_block));
  };
  // The passes by destination, of so many blocks, and by source, which launch.operator()<by_destination>(partial,
  // slots) begins; what these units left in slots; then sums over blocks.
  const auto passes = [&]<class T>(int64_t blocks, const RowUnits& by_destination, const RowUnits& by_source,
                                   const auto& launch) {
    using A = typename Accumulate<T>::type;
    const int64_t width = int64_t{1 + task.edge_dim} * width_of(task);
    A *partial = static_cast<A*>(g.partial), *slots = partial + numbers_of_blocks(task, blocks);
    const auto merge = [&](const Index& ptr, int64_t num_rows, const RowUnits& units, void* result) {
      const int numbers = width_of(task);
      Merge<T, false> sums{ptr, num_rows, task.num_edges, units, 1, slots, numbers, numbers};
      sums.results = 1;
      sums.rows[0] = static_cast<T*>(result);
      return launch_merge(sums, stream);
    };
    cudaError_t error = cudaSuccess;
    if (task.num_dst > 0) {
      error = launch.template operator()<true>(partial, slots);
      if (error == cudaSuccess) error = merge(task.rowptr, task.num_dst, by_destination, g.x_dst);
    }
    if (error == cudaSuccess && task.num_src > 0) {
      error = launch.template operator()<false>(partial, slots);
      if (error == cudaSuccess) error = merge(task.colptr, task.num_src, by_source, g.x_src);
    }
    if (error != cudaSuccess) return error;
    return column_sums(task.type, partial, blocks, width, partial + blocks * width, g.terms, stream);
  };
  if (takes_octets(task)) {
    return for_octets(task, [&]<class S>() {
      const OctetPlan plan(task);
      const V2Terms<S> terms(task);
      const auto launch = [&]<bool by_destination>(float* partial, float* slots) {
        const OctetPlan::Pass& pass = by_destination ? plan.by_destination : plan.by_source;
        const auto with = [&]<int kChunks, bool kSeveral>() {
          auto* const kernel = v2_octet_gradients_kernel<S, by_destination, kChunks, kSeveral>;
          const int bytes = v2_gradients_bytes<S, by_destination, kChunks, kSeveral>(task.edge_dim);
          const cudaError_t error = allow_shared_memory(kernel, bytes);
          if (error != cudaSuccess) return error;
          const dim3 grid(pass.blocks, by_destination ? blocks_of_features(kChunks * kV2Octet) : 1);
          kernel<<<grid, V2Octets::kThreads, bytes, stream>>>(terms, g, pass.units, partial, slots);
          return cudaGetLastError();
        };
        const auto with_chunks = [&]<bool kSeveral>() {
          if constexpr (by_destination) {
            if (plan.chunks == 2) return with.template operator()<2, kSeveral>();
          }
          return with.template operator()<1, kSeveral>();
        };
        return pass.takes_several ? with_chunks.template operator()<true>() : with_chunks.template operator()<false>();
      };
      return passes.template operator()<typename S::T>(plan.by_destination.blocks, plan.by_destination.units,
                                                       plan.by_source.units, launch);
    });
  }
  return for_terms(task, [&]<class S>(const V2Terms<S>& terms) {
    const RowPlan by_rows = plan_of(task, task.num_dst), by_columns = plan_of(task, task.num_src);
    const int64_t blocks = blocks_with_sums(task);
    const auto launch = [&]<bool by_destination>(auto* partial, auto* slots) {
      const RowPlan& plan = by_destination ? by_rows : by_columns;
      const dim3 grid(by_destination ? static_cast<unsigned>(blocks) : plan.blocks,
                      by_destination ? blocks_of_features(kFeaturesOfBlock<S>) : 1);
      v2_gradients_kernel<S, by_destination><<<grid, RowPlan::kThreads, 0, stream>>>(terms, g, plan, partial, slots);
      return cudaGetLastError();
    };
    return passes.template operator()<typename S::T>(blocks, by_rows.units, by_columns.units, launch);
  });
}

}  // namespace dfgnn::cuda
