// SMMF forward of a graph of few edges, by runs of rows (row_runs.cuh).
#pragma once

#include "forward_pieces.cuh"
#include "row_runs.cuh"
#include "sddmm.cuh"

namespace dfgnn::cuda {

template <Score score, class S>
class RunForward {
 public:
  using W = WarpShape<S>;
  using T = typename S::T;
  using A = typename S::A;
  static constexpr bool kNeedsDots = score != Score::additive;
  static constexpr int kInFlight = kRunRows<S, 1>;
  using Batch = RunBatch<S, kNeedsDots, 1, kInFlight>;

  __device__ __forceinline__ RunForward(const Typed<T>& a, const Outputs& outputs, const Batch& batch, A* slots)
      : a_(a),
        outputs_(outputs),
        dropout_(a),
        batch_(batch),
        slots_(slots),
        src_rows_(a, a.src, h_),
        value_rows_(a, a.value, h_),
        pair_(a, h_, lane_) {}

  __device__ __forceinline__ int* rows() const { return batch_.rows(); }

  __device__ __forceinline__ void run(const Run& run, RunRows rows) {
    if (kNeedsDots && rows.any_left()) copy_own(run);
    for (unsigned empty = rows.empty_rows(); empty != 0; empty &= empty - 1) store_empty(run.row(__ffs(empty) - 1));
    if (!rows.any_left()) return;
    RunEntry entry = rows.next(a_.col, a_.num_src, batch_.begins());
#pragma unroll 1
    while (true) {
      whole_rows(run, entry);
      if (!rows.any_left()) return;
      __syncwarp();
      entry = rows.next(a_.col, a_.num_src, batch_.begins());
    }
  }

  __device__ __forceinline__ void share(int i, const Range& edges) {
    slice(i, edges, batch_.sums());
    add_up_slices(a_, outputs_, i, h_, 1, blockDim.x / kWarp, [&](int w) { return batch_.sums(w); });
  }

  __device__ __forceinline__ void piece(int i, const Range& edges, int64_t slot) {
    slice(i, edges, piece_in(a_, slots_, slot, h_));
    __syncwarp();
  }

 private:
  template <class Rows>
  __device__ __forceinline__ void copy_own(const Rows& rows) const {
    batch_.template copy_own<0>({a_, a_.dst, h_}, rows);
  }

  __device__ __forceinline__ void store_empty(int i) {
    Fragment<W> zeros;
    zeros.zero();
    zeros.template store<W::kSteps>(a_.features(outputs_.out, i, h_), lane_, a_.head_dim, 0);
    if (lane_ == 0) static_cast<A*>(outputs_.lse)[a_.scalar(i, h_)] = -INFINITY;
  }

  // Starts to copy group g of a batch's rows: those of src first, where there are dot products, then those of values.
  __device__ __forceinline__ void copy(int g, int count) const {
    const int first = g * kInFlight, groups = groups_of(count),
              of_values = first - (kNeedsDots ? groups : 0) * kInFlight;
    if (kNeedsDots && g < groups) {
      batch_.template copy<0>(g, src_rows_, first, count);
    } else if (of_values < count) {
      batch_.template copy<0>(g, value_rows_, of_values, count);
    }
    commit_copies();
  }

  __device__ __forceinline__ static int groups_of(int count) { return (count + kInFlight - 1) / kInFlight; }

  // The logit of the lane's entry, of row i: -inf past the last. The batch's first rows are on their way then.
  __device__ __forceinline__ A logit(int i, const RunEntry& entry) {
    const A own_term = dst_term<score>(a_, i, h_), term = src_term<score>(a_, max(entry.node, 0), h_);
    batch_.put(entry);
#pragma unroll 1
    for (int g = 0; g < Batch::kDepth; ++g) copy(g, entry.count);
    A dot = A(0);
    if constexpr (kNeedsDots) dot = dots(entry.count);
    const A s = logit_of<score>(a_, dot, own_term, term, entry.position, h_).value;
    return lane_ >= entry.count ? -INFINITY : entry.node == kNoNode ? NAN : s;
  }

  // The dot product of the lane's entry.
  __device__ __forceinline__ A dots(int count) const {
    A dot = A(0);
#pragma unroll 1
    for (int g = 0; g < groups_of(count); ++g) {
      int places[kInFlight];
      batch_.take_places(places, g * kInFlight);
      Batch::wait();
      A sums[kInFlight];
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        sums[u] = pair_(batch_.template own<0>(places[u]), batch_.template row<0>(g, u));
      }
      __syncwarp();
      copy(g + Batch::kDepth, count);
      const A sum = transposed_sum<kWarp>(sums);
      if (lane_ / kInFlight == g) dot = sum;
    }
    return dot;
  }

  // Adds up weights times values. Of whole rows, calls visit(row) behind the last entry of each, which `ends` says.
  template <bool kWholeRows, class Visit>
  __device__ __forceinline__ void add(Fragment<W>& sum, int count, unsigned ends, const Visit& visit) const {
    int g = kNeedsDots ? groups_of(count) : 0;
#pragma unroll 1
    for (int first = 0; first < count; first += kInFlight, ++g) {
      A weights[kInFlight];
      batch_.take_weights(weights, first);
      const unsigned ends_here = ends >> first;
      Batch::wait();
#pragma unroll
      for (int u = 0; u < kInFlight; ++u) {
        if (first + u >= count) break;
        sum.add(weights[u], batch_.template row<0>(g, u));
        if (kWholeRows && (ends_here >> u & 1)) {
          visit(batch_.number(batch_.place(first + u)));
          sum.zero();
        }
      }
      __syncwarp();
      copy(g + Batch::kDepth, count);
    }
  }

  __device__ __forceinline__ void whole_rows(const Run& run, const RunEntry& entry) {
    const int i = run.row(entry.row);
    const A s = logit(i, entry);
    const A m = over_run(s, entry.begin, entry.last, [](A x, A y) { return max(x, y); });
    const A p = lane_ < entry.count ? exp_difference(s, m) : A(0);
    const A sum = over_run(p, entry.begin, entry.last, [](A x, A y) { return x + y; });
    batch_.put_weight(p * dropout_.factor(entry.position, h_) * (sum == A(0) ? A(0) : A(1) / sum));
    if (lane_ == entry.last) static_cast<A*>(outputs_.lse)[a_.scalar(i, h_)] = m + log(sum);
    __syncwarp();
    Fragment<W> total;
    total.zero();
    auto* const out = reinterpret_cast<char*>(a_.features(outputs_.out, 0, h_) + lane_ * W::kVec);
    const unsigned row_bytes = static_cast<unsigned>(a_.heads * a_.head_dim) * sizeof(T);
    const int left = a_.head_dim - lane_ * W::kVec;
    add<true>(total, entry.count, entry.ends, [&](int r) {
      total.template store<W::kSteps>(reinterpret_cast<T*>(out + row_offset(run.row(r), row_bytes)), 0, left, 0);
    });
  }

  // A slice of a long row, the sum of whose weights, relative to the largest logit, goes to the piece.
  __device__ __forceinline__ void slice(int i, const Range& edges, A* piece) {
    if (kNeedsDots && edges.size() > 0) copy_own(LongRow{i});
    Fragment<W> out;
    out.zero();
    A m = -INFINITY, sum = A(0);
#pragma unroll 1
    for (int64_t first = edges.begin; first < edges.end; first += kWarp) {
      const RunEntry entry = entry_of_row(a_.col, a_.num_src, first, edges.end);
      const A s = logit(i, entry);
      const A largest = max(m, warp_max(s)), fade = exp_difference(m, largest);
      m = largest;
      const A p = exp_difference(s, m);
      sum = sum * fade + p;
#pragma unroll
      for (int x = 0; x < Fragment<W>::kSize; ++x) out.x[x] *= fade;
      batch_.put_weight(p * dropout_.factor(entry.position, h_));
      __syncwarp();
      add<false>(out, entry.count, 0, [](int) {});
      __syncwarp();
    }
    sum = lanes_sum<kWarp>(sum);
    __syncwarp();  // where there was no entry
    put_numbers(piece, out, a_.head_dim);
    if (lane_ == 0) {
      piece[a_.head_dim] = m;
      piece[a_.head_dim + 1] = sum;
    }
  }

  const Typed<T>& a_;
  const Outputs& outputs_;
  const Dropout<A> dropout_;
  const Batch batch_;
  A* const slots_;
  const int h_ = blockIdx.y, lane_ = threadIdx.x % kWarp;
  const typename Batch::Copies src_rows_, value_rows_;
  const PairScore<score, W> pair_;
};

template <Score score, class S>
__global__ void __maxnreg__((run_registers<score, S, false>()))
    forward_runs_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Outputs outputs,
                        const __grid_constant__ RunPlan plan, typename S::A* slots) {
  using Forward = RunForward<score, S>;
  extern __shared__ uint4 memory[];
  Forward forward(a, outputs, typename Forward::Batch(memory, plan.rows), slots);
  for_runs(a.rowptr, a.num_dst, a.num_edges, plan, forward);
}

inline RunPlan plan_forward_runs(const Attention& a) {
  return plan_runs(a, a.num_dst, a.row_order, a.heads * forward_slot_width(a), a.max_degree);
}

inline size_t forward_runs_workspace(const Attention& a) {
  return plan_forward_runs(a).units.slots() * a.heads * forward_slot_width(a) * sizeof(float);
}

template <Score score, class S>
cudaError_t launch_forward_runs(const Attention& a, const Outputs& outputs, void* workspace, cudaStream_t stream) {
  using T = typename S::T;
  auto* slots = static_cast<typename S::A*>(workspace);
  const RunPlan plan = plan_forward_runs(a);
  const int bytes = plan.warps * RunForward<score, S>::Batch::bytes(plan.rows);
  const auto kernel = forward_runs_kernel<score, S>;
  cudaError_t error = allow_shared_memory(kernel, bytes);
  if (error != cudaSuccess) return error;
  kernel<<<dim3(plan.piece_blocks + plan.row_blocks, a.heads), plan.warps * kWarp, bytes, stream>>>(
      Typed<T>{a}, outputs, plan, slots);
  error = cudaGetLastError();
  return error == cudaSuccess ? merge_outputs<T>(a, outputs, plan.units, slots, stream) : error;
}

}  // namespace dfgnn::cuda
