// SMMF's gradients by rows or by columns of a graph of few edges, by runs of rows (row_runs.cuh): the rows that an
// entry needs are gathered once, and go into its dot products and the sums while they are in registers. The columns
// begin while the last rows are at work, and wait for delta (dependent.cuh).
#pragma once

#include "gradient_pass.cuh"
#include "row_runs.cuh"

namespace dfgnn::cuda {

template <Side side, Score score, class S>
class RunGradient {
 public:
  using W = WarpShape<S>;
  using T = typename S::T;
  using A = typename S::A;
  static constexpr bool kRows = side == Side::rows, kAdditive = score == Score::additive;
  // Where src is the value too, it is gathered once by the rows and held once by the columns.
  static constexpr bool kShared = kValueIsSrc<score>;
  static constexpr bool kLoadsOthers = !kAdditive, kLoadsValues = !kShared || !kRows;
  static constexpr bool kHasOwn = !kAdditive, kHasOwnValue = !kShared || kRows;
  static constexpr int kOwn = kHasOwn + kHasOwnValue, kOwnValue = kHasOwn && kHasOwnValue ? 1 : 0;
  static constexpr int kMatrices = kLoadsOthers + kLoadsValues, kValues = kLoadsOthers && kLoadsValues ? 1 : 0;
  static constexpr int kInFlight = kRunRows<S, kMatrices>;
  using Batch = RunBatch<S, kOwn, kMatrices, kInFlight>;
  static_assert(slot_width<side, score>(S::kFeatures) * sizeof(A) <= Batch::kDepth * Batch::kGroupBytes);

  __device__ __forceinline__ RunGradient(const Typed<T>& a, const Gradients& g, const Batch& batch, A* slots)
      : a_(a),
        g_(g),
        pass_{a_, g_},
        dropout_(a),
        batch_(batch),
        slots_(slots),
        others_(a, pass_.other(), h_),
        other_values_(a, pass_.other_value(), h_),
        pair_(a, h_, lane_) {}

  __device__ __forceinline__ int* rows() const { return batch_.rows(); }

  __device__ __forceinline__ void run(const Run& run, RunRows rows) {
    const OwnRows<RunPlan::kMostRows> own_rows = start_rows<RunPlan::kMostRows>(run);
    for (unsigned empty = rows.empty_rows(); empty != 0; empty &= empty - 1) {
      const int n = run.row(__ffs(empty) - 1);
      store(n, Sums{});
      if (kAdditive && lane_ == 0) static_cast<A*>(pass_.grad())[a_.scalar(n, h_)] = A(0);
    }
    const bool has_entries = rows.any_left();
    RunEntry entry{};
    if (has_entries) {
      entry = rows.next(pass_.others(), pass_.num_others(), batch_.begins());
      start(entry);
    }
    RowNumbers numbers = take_rows(own_rows, run.count, has_entries);
    if (kRows && rows.has_one() && !g_.grad_lse) numbers.delta = no_delta<A>();
    // Of all rows, long ones too, and here alone: slices add delta up in another order.
    if (kRows && lane_ < run.count) static_cast<A*>(g_.delta)[a_.scalar(run.row(lane_), h_)] = numbers.delta;
    if (!has_entries) return;
#pragma unroll 1
    while (true) {
      const RowNumbers own{__shfl_sync(kAllLanes, numbers.lse, entry.row),
                           __shfl_sync(kAllLanes, numbers.delta, entry.row)};
      Sums sums{};
      A number = batch<true>(run.row(entry.row), entry, own, sums, [&](int r) { store(run.row(r), sums); });
      if constexpr (kAdditive) {
        number = over_run(number, entry.begin, entry.last, [](A x, A y) { return x + y; });
        if (lane_ == entry.last) static_cast<A*>(pass_.grad())[a_.scalar(run.row(entry.row), h_)] = number;
      }
      if (!rows.any_left()) return;
      __syncwarp();
      entry = rows.next(pass_.others(), pass_.num_others(), batch_.begins());
      start(entry);
    }
  }

  __device__ __forceinline__ void share(int n, const Range& entries) {
    slice(n, entries, batch_.sums());
    __syncthreads();
    for (int f = threadIdx.x; f < slot_width<side, score>(a_.head_dim); f += blockDim.x) {
      A sum = A(0);
      for (int w = 0; w < static_cast<int>(blockDim.x) / kWarp; ++w) sum += batch_.sums(w)[f];
      const int of_grad = slot_width<Side::rows, score>(a_.head_dim);
      if (f >= of_grad) {
        a_.features(g_.value, n, h_)[f - of_grad] = from_accumulate<T>(sum);
      } else if constexpr (kAdditive) {
        static_cast<A*>(pass_.grad())[a_.scalar(n, h_)] = sum;
      } else {
        a_.features(pass_.grad(), n, h_)[f] = from_accumulate<T>(sum);
      }
    }
    __syncthreads();
  }

  __device__ __forceinline__ void piece(int n, const Range& entries, int64_t slot) {
    slice(n, entries, slots_ + (slot * a_.heads + h_) * slot_width<side, score>(a_.head_dim));
    __syncwarp();
  }

 private:
  // Of a row of the run, which a lane has, or of a lane's entry.
  struct RowNumbers {
    A lse, delta;
  };
  struct Sums {
    Fragment<W> grad{}, grad_value{};
  };

  // Of a warp's rows: what makes their delta, and the lane's numbers, before they are there.
  template <int kMost>
  struct OwnRows {
    Packed<W> out[kRows ? kMost : 1];
    RowNumbers numbers;
  };

  // Starts to read a run's rows, or a long one.
  template <int kMost, class Rows>
  __device__ __forceinline__ OwnRows<kMost> start_rows(const Rows& run) const {
    if constexpr (kHasOwn) batch_.template copy_own<0>({a_, pass_.own(), h_}, run);
    if constexpr (kHasOwnValue) batch_.template copy_own<kOwnValue>({a_, pass_.own_value(), h_}, run);
    commit_copies();
    OwnRows<kMost> rows{};
    if constexpr (kRows) {
      const RowReader<W> out(a_, g_.out, h_, lane_);
#pragma unroll
      for (int r = 0; r < kMost; ++r) {
        if (r < run.count) rows.out[r] = out(run.row(r));
      }
      if (lane_ < run.count) {
        const int64_t t = a_.scalar(run.row(lane_), h_);
        rows.numbers.lse = a_.at(g_.lse, t);
        if (g_.grad_lse) rows.numbers.delta = -a_.at(g_.grad_lse, t);
      }
    }
    return rows;
  }

  // Lane r's numbers of the r-th, of rows alone. has_entries: whether a batch has been started since.
  template <int kMost>
  __device__ __forceinline__ RowNumbers take_rows(const OwnRows<kMost>& rows, int count, bool has_entries) const {
    if (has_entries) {
      wait_for_groups<Batch::kDepth>();
    } else {
      wait_for_copies();
    }
    __syncwarp();
    RowNumbers numbers = rows.numbers;
    if constexpr (kRows) {
      A deltas[kMost] = {};
#pragma unroll
      for (int r = 0; r < kMost; ++r) {
        if (r < count) deltas[r] = batch_.template own_of_row<kOwnValue>(r).dot(rows.out[r]);
      }
      numbers.delta += transposed_sum<kWarp>(deltas);
    }
    return numbers;
  }

  // Starts to copy the first groups of what a batch gathers.
  __device__ __forceinline__ void start(const RunEntry& entry) const {
    batch_.put(entry);
#pragma unroll 1
    for (int g = 0; g < Batch::kDepth; ++g) copy(g, entry.count);
  }

  __device__ __forceinline__ void copy(int g, int count) const {
    const int first = g * kInFlight;
    if (first < count) {
      if constexpr (kLoadsOthers) batch_.template copy<0>(g, others_, first, count);
      if constexpr (kLoadsValues) batch_.template copy<kValues>(g, other_values_, first, count);
    }
    commit_copies();
  }

  // Adds the entries of a batch that was started to the sums; of whole rows, calls flush(r) behind the last entry of
  // each. Returns the gradient of the lane's sum of terms (additive).
  template <bool kWholeRows, class Flush>
  __device__ __forceinline__ A batch(int n, const RunEntry& entry, RowNumbers own, Sums& sums, const Flush& flush) {
    const int node = max(entry.node, 0);
    int64_t position = entry.position;
    if (!kRows && (dropout_.active() || a_.bias || a_.a_edge)) {
      position = clamp_to(a_.perm[position], a_.num_edges - 1);
    }
    if constexpr (!kRows) {
      const int64_t t = a_.scalar(node, h_);
      own = {a_.at(g_.lse, t), __ldcg(static_cast<const A*>(when_written(g_.delta)) + t)};
    }
    const A keep = dropout_.factor(position, h_);
    const A other_scale = score == Score::cosine ? A(a_.at(pass_.other_scale(), a_.scalar(node, h_))) : A(1);
    A number = A(0);
#pragma unroll 1
    for (int g = 0; g * kInFlight < entry.count; ++g) {
      const int first = g * kInFlight;
      int places[kInFlight];
      batch_.take_places(places, first);
      Batch::wait();
      Packed<W> others[kInFlight], values[kInFlight];
      A dots[kInFlight], dps[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if constexpr (kLoadsOthers) others[u] = batch_.template row<0>(g, u);
        if constexpr (kLoadsValues) values[u] = batch_.template row<kValues>(g, u);
        if constexpr (kHasOwn) dots[u] = pair_(batch_.template own<0>(places[u]), others[u]);
        const auto& value = kLoadsValues ? values[u] : others[u];
        dps[u] = batch_.template own<kOwnValue>(places[u]).dot(value);
      }
      __syncwarp();
      copy(g + Batch::kDepth, entry.count);
      A dot = A(0);
      if constexpr (kHasOwn) dot = transposed_sum<kWarp>(dots);
      const A dp = transposed_sum<kWarp>(dps);
      // Of the lanes whose entries these are; others have something else.
      const auto s = logit<score>(a_, dot, kRows ? n : node, kRows ? entry.node : n, position, h_);
      const auto d = edge_gradient(s, dp, own.lse, own.delta, keep);
      const bool is_here = lane_ / kInFlight == first / kInFlight && lane_ < entry.count;
      if (kRows && is_here) {
        if (g_.bias) static_cast<A*>(g_.bias)[a_.scalar(position, h_)] = d.ds;
        if (g_.a_edge) static_cast<A*>(g_.a_edge)[a_.scalar(position, h_)] = d.operand;
      }
      const bool counts = is_here && (kRows || entry.node != kNoNode);
      const A weight = counts ? d.weight : A(0), operand = counts ? d.operand * other_scale : A(0);
      if (is_here) number = operand;
      const unsigned ends_here = entry.ends >> first;
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (first + u >= entry.count) break;
        if constexpr (!kRows) sums.grad_value.add(__shfl_sync(kAllLanes, weight, first + u), values[u]);
        if constexpr (!kAdditive) {
          const A row_operand = __shfl_sync(kAllLanes, operand, first + u);
          if constexpr (score == Score::additive_v2) {
            pair_.add_slopes(sums.grad, row_operand, batch_.template own<0>(places[u]), others[u]);
          } else {
            sums.grad.add(row_operand, others[u]);
          }
        }
        if (kWholeRows && (ends_here >> u & 1)) {
          flush(batch_.number(places[u]));
          sums = {};
        }
      }
    }
    return number;
  }

  __device__ __forceinline__ A factor() const { return score == Score::dot ? a_.logit_scale : A(1); }

  __device__ __forceinline__ void store(int n, const Sums& sums) const {
    const int left = a_.head_dim - lane_ * W::kVec;
    const auto put = [&](const Fragment<W>& sum, void* data, A times) {
      sum.template store<W::kSteps>(a_.features(data, n, h_) + lane_ * W::kVec, 0, left, 0, times);
    };
    if constexpr (!kAdditive) put(sums.grad, pass_.grad(), factor());
    if constexpr (!kRows) put(sums.grad_value, g_.value, A(1));
  }

  // Leaves what a slice of a long row adds to its sums, as a piece has it.
  __device__ __forceinline__ void slice(int n, const Range& entries, A* piece) {
    Sums sums{};
    A number = A(0);
    if (entries.size() > 0) {
      const OwnRows<1> own_rows = start_rows<1>(LongRow{n});
      RunEntry entry = entry_of_row(pass_.others(), pass_.num_others(), entries.begin, entries.end);
      start(entry);
      const RowNumbers numbers = take_rows(own_rows, 1, true);
      const RowNumbers own{__shfl_sync(kAllLanes, numbers.lse, 0), __shfl_sync(kAllLanes, numbers.delta, 0)};
      int64_t first = entries.begin;
#pragma unroll 1
      while (true) {
        number += batch<false>(n, entry, own, sums, [](int) {});
        __syncwarp();
        first += kWarp;
        if (first >= entries.end) break;
        entry = entry_of_row(pass_.others(), pass_.num_others(), first, entries.end);
        start(entry);
      }
    }
    if constexpr (kAdditive) {
      number = lanes_sum<kWarp>(number);
      if (lane_ == 0) *piece = number;
    } else {
      put_numbers(piece, sums.grad, a_.head_dim, factor());
    }
    if constexpr (!kRows) put_numbers(piece + (kAdditive ? 1 : a_.head_dim), sums.grad_value, a_.head_dim);
  }

  const Typed<T>& a_;
  const Gradients& g_;
  const Pass<side> pass_;
  const Dropout<A> dropout_;
  const Batch batch_;
  A* const slots_;
  const int h_ = blockIdx.y, lane_ = threadIdx.x % kWarp;
  const typename Batch::Copies others_, other_values_;
  const PairScore<score, W, true> pair_;
};

template <Side side, Score score, class S>
__global__ void __maxnreg__((run_registers<score, S, true>()))
    gradient_runs_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                         const __grid_constant__ RunPlan plan, typename S::A* slots) {
  using Gradient = RunGradient<side, score, S>;
  extern __shared__ uint4 memory[];
  let_next_begin();
  const Pass<side> pass{a, g};
  Gradient gradient(a, g, typename Gradient::Batch(memory, plan.rows), slots);
  for_runs(pass.ptr(), pass.num_own(), a.num_edges, plan, gradient);
  if (side == Side::columns) when_written(g.delta);  // those without entries, too, so that rows have ended
}

template <Side side, Score score>
RunPlan plan_gradient_runs(const Attention& a) {
  const int numbers = a.heads * slot_width<side, score>(a.head_dim);
  return side == Side::rows ? plan_runs(a, a.num_dst, a.row_order, numbers, a.max_degree)
                            : plan_runs(a, a.num_src, a.column_order, numbers, -1);
}

template <Side side, Score score>
size_t gradient_runs_workspace(const Attention& a) {
  return plan_gradient_runs<side, score>(a).units.slots() * a.heads * slot_width<side, score>(a.head_dim) *
         sizeof(float);
}

template <Side side, class S>
bool gradients_go_by_runs(const Attention& a) {
  return kHasRuns<S> && has_runs(side == Side::rows ? a.num_dst : a.num_src, a.num_edges, a.max_degree);
}

template <Side side, Score score, class S>
cudaError_t launch_gradient_runs(const Attention& a, const Gradients& g, void* workspace, cudaStream_t stream) {
  using A = typename S::A;
  if (Pass<side>{a, g}.num_own() == 0) return cudaSuccess;
  auto* slots = static_cast<A*>(workspace);
  const RunPlan plan = plan_gradient_runs<side, score>(a);
  const int bytes = plan.warps * RunGradient<side, score, S>::Batch::bytes(plan.rows);
  const auto kernel = gradient_runs_kernel<side, score, S>;
  cudaError_t error = allow_shared_memory(kernel, bytes);
  if (error != cudaSuccess) return error;
  const dim3 grid(plan.piece_blocks + plan.row_blocks, a.heads);
  const int threads = plan.warps * kWarp;
  const Typed<typename S::T> typed{a};
  // Columns depend on their rows alone: where there are none, on what came before, of which they know nothing.
  if (side == Side::columns && a.num_dst > 0) {
    error = launch_dependent(kernel, grid, threads, bytes, stream, typed, g, plan, slots);
  } else {
    kernel<<<grid, threads, bytes, stream>>>(typed, g, plan, slots);
    error = cudaGetLastError();
  }
  return error == cudaSuccess ? merge_gradients<side, score, S>(a, g, plan.units, slots, stream) : error;
}

}  // namespace dfgnn::cuda
