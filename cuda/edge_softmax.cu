// A warp takes a row, 32 heads at a time: its numbers are neighbours in memory, and so are those of its lanes. Of long
// rows the warps of a block take slices, and sums are of doubles, as a lane adds up thousands of numbers; of
// very long ones, blocks take pieces (row_units.cuh), and a second kernel finishes them. Of graphs of short rows a
// thread takes a row of a head.
#include <algorithm>

#include "edge_softmax.h"
#include "edges.cuh"
#include "row_blocks.cuh"

namespace dfgnn::cuda {
namespace {

// Which numbers of a row are a lane's: those of one head, of every `apart`-th entry. Other lanes have the same head.
class HeadLanes {
 public:
  static constexpr int kKept = 16;  // numbers that are read once, and kept
  int head, first, apart;
  bool has_some;

  __device__ __forceinline__ HeadLanes(int heads, int base) : count_(min(heads - base, kWarp)) {
    const int lane = threadIdx.x % kWarp;
    apart = kWarp / count_;
    first = lane / count_;
    head = base + lane % count_;
    has_some = first < apart;
  }

  // Of what the lanes of a head have; the same in all of them. Others have what changes nothing.
  template <class X, class Combine>
  __device__ __forceinline__ X over_lanes(X x, const Combine& combine) const {
    if ((count_ & (count_ - 1)) == 0) {
      for (int offset = kWarp / 2; offset >= count_; offset /= 2) x = combine(x, shuffle(x, lane() ^ offset));
      return x;
    }
    const int first_of_head = lane() % count_;
    X total = shuffle(x, first_of_head);
    for (int k = 1; k < apart; ++k) total = combine(total, shuffle(x, first_of_head + k * count_));
    return total;
  }

  // Of what the warps of a block have, in their order.
  template <class X, class Combine>
  __device__ __forceinline__ X over_warps(X x, X (&scratch)[RowPlan::kWarps][kWarp], const Combine& combine) const {
    scratch[threadIdx.x / kWarp][lane()] = x;
    __syncthreads();
    X total = scratch[0][lane()];
#pragma unroll
    for (int w = 1; w < RowPlan::kWarps; ++w) total = combine(total, scratch[w][lane()]);
    __syncthreads();
    return total;
  }

 private:
  int count_;

  __device__ __forceinline__ static int lane() { return threadIdx.x % kWarp; }

  template <class X>
  __device__ __forceinline__ static X shuffle(X x, int from) {
    if constexpr (std::is_arithmetic_v<X>) {
      return __shfl_sync(kAllLanes, x, from);
    } else {
      return {__shfl_sync(kAllLanes, x.most, from), __shfl_sync(kAllLanes, x.sum, from)};
    }
  }
};

// A thread has all numbers of a head in a short row.
class OneLane {
 public:
  static constexpr int kKept = 8, first = 0, apart = 1;
  static constexpr bool has_some = true;
  int head;

  template <class X, class Combine>
  __device__ __forceinline__ X over_lanes(X x, const Combine&) const {
    return x;
  }
};

// Calls visit(k, e) with the entries of a row that are the lane's; k counts them. Of the first ones, such as all of a
// row that the registers of a head's lanes hold (is_kept), by a loop that compilers can unroll.
template <int kCount, class Lanes, class Visit>
__device__ __forceinline__ void for_first(const Lanes& lanes, const Range& row, const Visit& visit) {
#pragma unroll
  for (int k = 0; k < kCount; ++k) {
    const int64_t e = row.begin + lanes.first + k * lanes.apart;
    if (lanes.has_some && e < row.end) visit(k, e);
  }
}
template <class Lanes, class Visit>
__device__ __forceinline__ void for_all(const Lanes& lanes, const Range& row, const Visit& visit) {
  if (!lanes.has_some) return;
#pragma unroll 4
  for (int64_t e = row.begin + lanes.first; e < row.end; e += lanes.apart) visit(e);
}
template <class Lanes, class Visit>
__device__ __forceinline__ void for_kept(const Lanes& lanes, const Range& row, const Visit& visit) {
  for_first<Lanes::kKept>(lanes, row, visit);
}
template <class Lanes>
__device__ __forceinline__ bool is_kept(const Lanes& lanes, const Range& row) {
  return row.size() <= Lanes::kKept * lanes.apart;
}

struct Add {
  template <class A>
  __device__ __forceinline__ A operator()(A x, A y) const {
    return x + y;
  }
};

// What the lanes of a head do with a row r. Either take_kept() does all, where a lane can keep its numbers, and says
// so; or there are a Total of each lane's numbers, of all that have some of the row together, and what comes of that,
// `is_first` once for all that come from one row.
template <class A>
struct Sums {
  using Total = double;
  using Combine = Add;
  static constexpr bool kOfEdges = false;
  static constexpr int kBlocks = 10;  // a multiprocessor's, with float
  Typed<A> a;
  Index position;
  const A* values;
  A* result;

  static __device__ __forceinline__ Total nothing() { return 0; }
  template <class Lanes>
  __device__ __forceinline__ bool take_kept(const Lanes&, const Range&) const {
    return false;
  }
  template <class Lanes>
  __device__ __forceinline__ Total total(const Lanes& lanes, const Range& row) const {
    Total sum = nothing();
    for_all(lanes, row, [&](int64_t c) {
      const int64_t e = position.data ? clamp_to(position[c], a.num_edges - 1) : c;
      sum += values[a.scalar(e, lanes.head)];
    });
    return sum;
  }
  template <class Lanes>
  __device__ __forceinline__ void finish(const Lanes& lanes, int r, const Range&, Total sum, bool is_first) const {
    if (is_first && lanes.first == 0) result[a.scalar(r, lanes.head)] = static_cast<A>(sum);
  }
};

// The largest logit, and the sum of exp(logit - most).
template <class A>
struct Weights {
  A most;
  double sum;
};
struct Merge {
  template <class A>
  __device__ __forceinline__ Weights<A> operator()(const Weights<A>& x, const Weights<A>& y) const {
    const A most = max(x.most, y.most);
    return {most, x.sum * exp_difference(x.most, most) + y.sum * exp_difference(y.most, most)};
  }
};

template <class A>
struct Softmax {
  using Total = Weights<A>;
  using Combine = Merge;
  static constexpr bool kOfEdges = true;  // what results are of
  static constexpr int kBlocks = 5;
  Typed<A> a;
  const A* logits;
  A scale;
  A* result;

  static __device__ __forceinline__ Total nothing() { return {-INFINITY, 0}; }
  static __device__ __forceinline__ A share_of(A sum) { return sum == A(0) ? A(0) : A(1) / sum; }
  template <class Lanes>
  __device__ __forceinline__ bool take_kept(const Lanes& lanes, const Range& row) const {
    if (!is_kept(lanes, row)) return false;
    A kept[Lanes::kKept], most = -INFINITY, sum = A(0);
    for_kept(lanes, row,
             [&](int k, int64_t e) { most = max(most, kept[k] = scale * logits[a.scalar(e, lanes.head)]); });
    most = lanes.over_lanes(most, [](A x, A y) { return max(x, y); });
    for_kept(lanes, row, [&](int k, int64_t) { sum += kept[k] = exp_difference(kept[k], most); });
    const A share = share_of(lanes.over_lanes(sum, Add()));
    for_kept(lanes, row, [&](int k, int64_t e) { result[a.scalar(e, lanes.head)] = kept[k] * share; });
    return true;
  }
  template <class Lanes>
  __device__ __forceinline__ Total total(const Lanes& lanes, const Range& row) const {
    Total weights = nothing();
    constexpr int kAtOnce = 8;
#pragma unroll 1
    for (Range rest = row; rest.begin < rest.end; rest.begin += kAtOnce * lanes.apart) {
      A some[kAtOnce], most = weights.most, sum = A(0);
      for_first<kAtOnce>(
          lanes, rest, [&](int k, int64_t e) { most = max(most, some[k] = scale * logits[a.scalar(e, lanes.head)]); });
      for_first<kAtOnce>(lanes, rest, [&](int k, int64_t) { sum += exp_difference(some[k], most); });
      weights = {most, weights.sum * exp_difference(weights.most, most) + sum};
    }
    return weights;
  }
  template <class Lanes>
  __device__ __forceinline__ void finish(const Lanes& lanes, int, const Range& row, const Total& weights, bool) const {
    const A share = share_of(static_cast<A>(weights.sum));
    for_all(lanes, row, [&](int64_t e) {
      const int64_t at = a.scalar(e, lanes.head);
      result[at] = exp_difference(scale * logits[at], weights.most) * share;
    });
  }
};

template <class A>
struct SoftmaxBackward {
  using Total = double;
  using Combine = Add;
  static constexpr bool kOfEdges = true;
  static constexpr int kBlocks = 4;
  Typed<A> a;
  const A *grad, *alpha;
  A scale;
  A* result;

  static __device__ __forceinline__ Total nothing() { return 0; }
  template <class Lanes>
  __device__ __forceinline__ bool take_kept(const Lanes& lanes, const Range& row) const {
    if (!is_kept(lanes, row)) return false;
    A sum = A(0), weight[Lanes::kKept], weighted[Lanes::kKept];
    for_kept(lanes, row, [&](int k, int64_t e) {
      const int64_t at = a.scalar(e, lanes.head);
      weight[k] = alpha[at];
      sum += weighted[k] = weight[k] * grad[at];
    });
    sum = lanes.over_lanes(sum, Add());
    for_kept(lanes, row,
             [&](int k, int64_t e) { result[a.scalar(e, lanes.head)] = scale * (weighted[k] - weight[k] * sum); });
    return true;
  }
  template <class Lanes>
  __device__ __forceinline__ Total total(const Lanes& lanes, const Range& row) const {
    Total sum = nothing();
    for_all(lanes, row, [&](int64_t e) {
      const int64_t at = a.scalar(e, lanes.head);
      sum += alpha[at] * grad[at];
    });
    return sum;
  }
  template <class Lanes>
  __device__ __forceinline__ void finish(const Lanes& lanes, int, const Range& row, Total total, bool) const {
    const A sum = static_cast<A>(total);
    for_all(lanes, row, [&](int64_t e) {
      const int64_t at = a.scalar(e, lanes.head);
      result[at] = scale * alpha[at] * (grad[at] - sum);
    });
  }
};

constexpr int64_t kShortRow = 32, kLongRow = 256;  // the longest for a thread and for a warp

// How lanes and warps share rows with a block's scratch, up to 32 heads at a time.
template <class Task>
using Scratch = typename Task::Total[RowPlan::kWarps][kWarp];

// Calls visit(lanes) for all heads.
template <class Visit>
__device__ __forceinline__ void for_head_lanes(int heads, const Visit& visit) {
  for (int base = 0; base < heads; base += kWarp) {
    visit(HeadLanes(heads, base));
    __syncwarp();
  }
}

// A row by a warp, and by all warps of a block.
template <class Task>
__device__ __forceinline__ void take_row(const Task& task, int r, const Range& row) {
  for_head_lanes(task.a.heads, [&](const HeadLanes& lanes) {
    if (task.take_kept(lanes, row)) return;
    task.finish(lanes, r, row, lanes.over_lanes(task.total(lanes, row), typename Task::Combine()), true);
  });
}
template <class Task>
__device__ __forceinline__ void take_long_row(const Task& task, int r, const Range& row, Scratch<Task>& scratch) {
  using Combine = typename Task::Combine;
  const Range slice = warp_slice(row);
  for_head_lanes(task.a.heads, [&](const HeadLanes& lanes) {
    const auto total = lanes.over_lanes(task.total(lanes, slice), Combine());
    task.finish(lanes, r, slice, lanes.over_warps(total, scratch, Combine()), threadIdx.x < kWarp);
  });
}

// A piece by a block: first its total, into its slot of slots [slots][heads]; then, when those of all pieces are there,
// what comes of them.
template <class Task>
__device__ __forceinline__ void take_piece(const Task& task, const Piece& piece, typename Task::Total* slot,
                                           Scratch<Task>& scratch) {
  using Combine = typename Task::Combine;
  const Range slice = warp_slice(piece.edges);
  for_head_lanes(task.a.heads, [&](const HeadLanes& lanes) {
    auto total = lanes.over_lanes(task.total(lanes, slice), Combine());
    total = lanes.over_warps(total, scratch, Combine());
    if (threadIdx.x < kWarp && lanes.first == 0) slot[lanes.head] = total;
  });
}
template <class Task>
__device__ __forceinline__ void finish_piece(const Task& task, const Piece& piece, const RowUnits& units,
                                             const typename Task::Total* slots, Scratch<Task>& scratch) {
  using Combine = typename Task::Combine;
  const Range& row = piece.of_row;
  const int64_t begin = row.begin / units.segment, end = (row.end - 1) / units.segment + 1;
  const Range slice = warp_slice(piece.edges), segments = warp_slice({begin, end});
  for_head_lanes(task.a.heads, [&](const HeadLanes& lanes) {
    auto total = Task::nothing();
    for_all(lanes, segments, [&](int64_t s) {
      const int64_t slot = 2 * s + (row.begin > s * units.segment);
      total = Combine()(total, slots[slot * task.a.heads + lanes.head]);
    });
    total = lanes.over_warps(lanes.over_lanes(total, Combine()), scratch, Combine());
    task.finish(lanes, piece.row, slice, total, threadIdx.x < kWarp && piece.edges.begin == row.begin);
  });
}

template <class Task>
constexpr int rows_blocks() {
  return blocks_here(sizeof(*Task::result) == 4 ? Task::kBlocks : 1);
}

// Of every so many rows a warp takes those of `shortest` edges and more, and the block those of more than kLongRow. The
// first blocks take pieces.
template <class Task>
__global__ void __launch_bounds__(RowPlan::kThreads, (rows_blocks<Task>()))
    rows_kernel(Task task, int rows_per_warp, int64_t shortest, RowUnits units, typename Task::Total* slots) {
  __shared__ Scratch<Task> scratch;
  __shared__ unsigned long_rows[RowPlan::kWarps];
  const auto& a = task.a;
  if constexpr (Task::kOfEdges) clear_no_edges(a, task.result);
  const auto num_slots = static_cast<unsigned>(units.slots());
  if (blockIdx.x < num_slots) {
    const Piece piece(a.rowptr, a.num_dst, a.num_edges, units, blockIdx.x);
    if (piece.is_there) take_piece(task, piece, slots + static_cast<int64_t>(blockIdx.x) * a.heads, scratch);
    return;
  }
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  const auto first_row = [&](int w) {
    return (static_cast<int64_t>(blockIdx.x - num_slots) * RowPlan::kWarps + w) * rows_per_warp;
  };
  const auto take = [&](int64_t row, bool is_long) {
    const int r = static_cast<int>(row);
    const Range edges = row_range(a.rowptr, r, a.num_edges);
    if (!is_long) {
      take_row(task, r, edges);
    } else if (num_slots == 0 || edges.size() <= units.segment) {
      take_long_row(task, r, edges, scratch);
    }
  };
  const int64_t own = first_row(warp) + lane;
  int64_t size = -1;
  if (lane < rows_per_warp && own < a.num_dst) size = row_range(a.rowptr, static_cast<int>(own), a.num_edges).size();
  const unsigned of_block = __ballot_sync(kAllLanes, size > kLongRow);
  if (lane == 0) long_rows[warp] = of_block;
  for (unsigned left = __ballot_sync(kAllLanes, size >= shortest && size <= kLongRow); left != 0; left &= left - 1) {
    take(first_row(warp) + __ffs(left) - 1, false);
  }
  __syncthreads();
  for (int w = 0; w < RowPlan::kWarps; ++w) {
    for (unsigned left = long_rows[w]; left != 0; left &= left - 1) take(first_row(w) + __ffs(left) - 1, true);
  }
}

// After rows_kernel().
template <class Task>
__global__ void __launch_bounds__(RowPlan::kThreads)
    pieces_kernel(Task task, RowUnits units, const typename Task::Total* slots) {
  __shared__ Scratch<Task> scratch;
  const Piece piece(task.a.rowptr, task.a.num_dst, task.a.num_edges, units, blockIdx.x);
  if (piece.is_there) finish_piece(task, piece, units, slots, scratch);
}

// Short rows by a thread for each head.
template <class Task>
__global__ void __launch_bounds__(RowPlan::kThreads) short_rows_kernel(Task task) {
  const auto& a = task.a;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * RowPlan::kThreads + threadIdx.x;
  if (i >= a.num_dst * a.heads) return;
  const int r = static_cast<int>(i / a.heads);
  const Range row = row_range(a.rowptr, r, a.num_edges);
  if (row.size() > kShortRow) return;
  const OneLane lanes{static_cast<int>(i % a.heads)};
  if (!task.take_kept(lanes, row)) task.finish(lanes, r, row, task.total(lanes, row), true);
}

// Where a warp would have little to do with most rows, threads take the short ones.
template <class Task>
cudaError_t launch(const Task& task, void* scratch, cudaStream_t stream) {
  const auto& a = task.a;
  constexpr int64_t kMean = 16, kThreads = RowPlan::kThreads;
  const bool is_short = a.num_edges <= kMean * a.num_dst;
  if (is_short) {
    const auto blocks = static_cast<unsigned>((a.num_dst * a.heads + kThreads - 1) / kThreads);
    short_rows_kernel<<<blocks, kThreads, 0, stream>>>(task);
  }
  const int rows_per_block = plan_rows(a.num_dst, a.num_edges).rows_per_block;
  const int rows_per_warp = is_short ? kWarp : std::max(1, rows_per_block / RowPlan::kWarps);
  const int64_t rows = int64_t{rows_per_warp} * RowPlan::kWarps;
  const RowUnits units = cut_rows(a.num_edges, a.heads);
  auto* slots = static_cast<typename Task::Total*>(scratch);
  const auto pieces = static_cast<unsigned>(units.slots()),
             blocks = static_cast<unsigned>((a.num_dst + rows - 1) / rows);
  rows_kernel<<<pieces + blocks, kThreads, 0, stream>>>(task, rows_per_warp, is_short ? kShortRow + 1 : 0, units,
                                                        slots);
  if (pieces > 0) pieces_kernel<<<pieces, kThreads, 0, stream>>>(task, units, slots);
  return cudaGetLastError();
}

// Calls of_type.operator()<A>(a Typed) where there are rows.
template <class OfType>
cudaError_t for_type_of(const Products& graph, const OfType& of_type) {
  if (graph.num_rows == 0) return cudaSuccess;
  const Attention a = operands_of(graph);
  return graph.type == Type::f64 ? of_type(Typed<double>{a}) : of_type(Typed<float>{a});
}

}  // namespace

size_t edge_scratch(const Products& graph) {
  return cut_rows(graph.num_edges, graph.heads).slots() * graph.heads * sizeof(Weights<double>);
}

cudaError_t sum_edges(const Products& graph, const void* values, void* result, void* scratch, cudaStream_t stream) {
  return for_type_of(graph, [&]<class A>(const Typed<A>& a) {
    return launch(Sums<A>{a, graph.position, static_cast<const A*>(values), static_cast<A*>(result)}, scratch, stream);
  });
}

cudaError_t edge_softmax(const Products& graph, const void* logits, double scale, void* result, void* scratch,
                         cudaStream_t stream) {
  return for_type_of(graph, [&]<class A>(const Typed<A>& a) {
    return launch(Softmax<A>{a, static_cast<const A*>(logits), static_cast<A>(scale), static_cast<A*>(result)}, scratch,
                  stream);
  });
}

cudaError_t edge_softmax_backward(const Products& graph, const void* grad, const void* alpha, double scale,
                                  void* result, void* scratch, cudaStream_t stream) {
  return for_type_of(graph, [&]<class A>(const Typed<A>& a) {
    return launch(SoftmaxBackward<A>{a, static_cast<const A*>(grad), static_cast<const A*>(alpha),
                                     static_cast<A>(scale), static_cast<A*>(result)},
                  scratch, stream);
  });
}

}  // namespace dfgnn::cuda
