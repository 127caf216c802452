// Graphs of few edges, whose kernels wait for memory and for exchanges between lanes: a warp takes a run of short rows
// and goes over their entries (edges) in batches of whole rows, an entry a lane where there is a number of each, and
// all lanes for a row of features, of which several are in flight whatever rows of the graph they are for. A long row
// is shared by the warps of a block, a very long one cut into pieces (row_units.cuh).
#pragma once

#include <algorithm>

#include "attention.h"
#include "device.h"
#include "row_copies.cuh"
#include "row_groups.cuh"
#include "row_units.cuh"
#include "run_geometry.h"

namespace dfgnn::cuda {

struct RunPlan {
  static constexpr int kMostRows = 4;
  static constexpr int kLong = kWarp + 1;   // entries from which on all warps of a block share a row
  static constexpr unsigned kDealt = 1024;  // blocks that deal rows among them: more than are at work at a time

  int rows, warps;                    // of a warp, a power of two, and of a block
  unsigned piece_blocks, row_blocks;  // the first blocks take pieces
  const int* order;                   // of the rows (graph.h), or null
  RowUnits units;                     // says which pieces there are: of rows of more entries than a segment
};

// The rows of a warp, in its shared memory.
struct Run {
  const int* rows;
  int count;
  __device__ __forceinline__ int row(int r) const { return rows[r]; }
};

// A row of which a warp has a slice.
struct LongRow {
  int number;
  static constexpr int count = 1;
  __device__ __forceinline__ int row(int) const { return number; }
};

// Blocks of few warps, each of which holds up no more than these with its longest row; of few rows, for which there are
// multiprocessors enough, twice as many, which share long rows, and all rows at a time. Rows that have an order are
// dealt among blocks, and a block's among its warps, so that all have as many entries, the longest at first. Where the
// graph has a row so long that the others do not hide its pieces (of columns nothing is known, and hubs are mostly
// both), pieces are smaller ones of fewer entries. A slot of a piece has `numbers`, 4 bytes each, of all heads; slots
// take 8 MiB at the most. `longest`: entries of the longest row, or -1.
inline RunPlan plan_runs(const Attention& a, int64_t num_rows, const int* order, int64_t numbers, int64_t longest) {
  const int64_t num_entries = a.num_edges;
  constexpr int64_t kManyRows = 8192, kWarps = 2048, kSlotBytes = int64_t{8} << 20;
  constexpr int64_t kUsual = 8 * kWarp, kLeast = 2 * kWarp, kPieces = 1024;
  RunPlan plan{};
  plan.warps = num_rows < kManyRows ? 8 : 4;
  const int few = a.head_dim > 128 ? 1 : 2;  // so that a block needs less than 99 KiB, which any device has
  plan.rows = num_rows < 2 * kWarps ? 1 : num_rows < kManyRows ? few : RunPlan::kMostRows;
  int64_t& segment = plan.units.segment;
  segment = kUsual;
  if (a.max_degree > kUsual) segment = std::clamp(num_entries / kPieces / kWarp * kWarp, kLeast, kUsual);
  while (segment < num_entries && 2 * ((num_entries + segment - 1) / segment) * numbers * 4 > kSlotBytes) segment *= 2;
  const bool has_pieces = num_entries > segment && (longest < 0 || longest > segment);
  if (has_pieces) plan.units.segments = static_cast<unsigned>((num_entries + segment - 1) / segment);
  plan.piece_blocks = (plan.units.segments + plan.warps - 1) / plan.warps;
  const int rows_per_block = plan.warps * plan.rows;
  plan.row_blocks = static_cast<unsigned>((num_rows + rows_per_block - 1) / rows_per_block);
  plan.order = order;
  return plan;
}

template <class S>
constexpr bool kHasRuns = !S::kLoop && runs_take_heads(sizeof(typename S::T), S::kFeatures);

// A row of features over all lanes of a warp.
template <class S>
using WarpShape = Shape<typename S::T, (S::kFeatures < kWarp * S::kVec ? S::kFeatures / kWarp : S::kVec), kWarp,
                        (S::kFeatures < kWarp * S::kVec ? 1 : S::kFeatures / (kWarp * S::kVec))>;

// Rows of a group of each of kMatrices matrices: eight of all, or what is 4 KiB.
template <class S, int kMatrices>
constexpr int kRunRows = std::min(8, 4096 / static_cast<int>(S::kFeatures * sizeof(typename S::T))) / kMatrices;

// Registers of a thread: with 96, five blocks of four warps run on a multiprocessor. Scores whose src is the value too
// need more, as do many features, and, before 9.0, all, so that hot kernels do not spill. Where a block's shared memory
// is for 128, so are its registers.
template <Score score, class S, bool kBackward>
constexpr int run_registers() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return 128;
#else
  const bool is_large = S::kFeatures > 128 || (kBackward && sizeof(typename S::T) == 4);
  return is_large || score == Score::cosine || score == Score::additive_v2 ? 128 : 96;
#endif
}

// A lane's entry of a batch; past the last, that one again.
struct RunEntry {
  int count;         // of the batch,
  unsigned ends;     // where its rows end: a bit each;
  int begin, last;   // of the lane's row,
  int row, node;     // its number in the run; the entry's other node, or kNoNode,
  int64_t position;  // and its place in the compressed form
};

// The rows of a run, one a lane, and the batches of their entries: of those that are not long.
class RunRows {
 public:
  // The lane's row, as far as there is one, has entries [begin, begin + size).
  __device__ __forceinline__ RunRows(int begin, int size, bool is_row)
      : begin_(begin), size_(size < RunPlan::kLong ? size : 0), end_(size_) {
    empty_ = __ballot_sync(kAllLanes, is_row && size == 0);
    const int lane = threadIdx.x % kWarp;
#pragma unroll
    for (int apart = 1; apart < RunPlan::kMostRows; apart *= 2) {
      const int below = __shfl_up_sync(kAllLanes, end_, apart);
      if (lane >= apart) end_ += below;
    }
    total_ = __shfl_sync(kAllLanes, end_, RunPlan::kMostRows - 1);
    if (lane >= RunPlan::kMostRows) end_ = total_;
  }

  __device__ __forceinline__ unsigned empty_rows() const { return empty_; }  // a bit each
  __device__ __forceinline__ bool has_one() const { return size_ == 1; }     // entry, the lane's row
  __device__ __forceinline__ bool any_left() const { return done_ < total_; }

  // The lane's entry of the next batch. begins: memory of the warp, for as many as there are lanes.
  __device__ __forceinline__ RunEntry next(const Index& others, int64_t num_others, int2* begins) {
    const int lane = threadIdx.x % kWarp, begin = end_ - size_ - done_;
    const bool fits = end_ <= done_ + kWarp, is_here = size_ > 0 && begin >= 0 && fits;
    const int behind = __shfl_sync(kAllLanes, end_, __popc(__ballot_sync(kAllLanes, fits)) - 1);
    const unsigned all_begins = __reduce_or_sync(kAllLanes, is_here ? 1u << begin : 0u);
    if (is_here) begins[begin] = {lane, begin_};
    __syncwarp();
    RunEntry entry;
    entry.count = behind - done_;
    done_ = behind;
    const int t = min(lane, entry.count - 1);
    const unsigned up_to_here = (2u << t) - 1, after = all_begins & ~up_to_here;
    entry.begin = kWarp - 1 - __clz(all_begins & up_to_here);
    entry.last = after ? __ffs(after) - 2 : entry.count - 1;
    entry.ends = all_begins >> 1 | 1u << (entry.count - 1);
    const int2 row = begins[entry.begin];
    entry.row = row.x;
    entry.position = row.y + (t - entry.begin);
    entry.node = checked_node(others[entry.position], num_others);
    return entry;
  }

 private:
  int begin_, size_, end_, total_, done_ = 0;
  unsigned empty_;
};

// The lane's of at most kWarp entries of one row, from `first` on.
__device__ __forceinline__ RunEntry entry_of_row(const Index& others, int64_t num_others, int64_t first, int64_t end) {
  RunEntry entry{};
  entry.count = static_cast<int>(min(end - first, int64_t{kWarp}));
  entry.last = entry.count - 1;
  entry.position = first + min(static_cast<int>(threadIdx.x) % kWarp, entry.last);
  entry.node = checked_node(others[entry.position], num_others);
  return entry;
}

// A warp's shared memory: what lanes exchange of a batch; kOwn rows of features that each row of the run has; and a
// ring of groups of rows that are gathered, each kInFlight of kMatrices matrices. While one is in use, the next ones
// are under way. Of a slice of a long row, what the block is to have of its sums takes the ring's place.
template <class S, int kOwn, int kMatrices, int kInFlight>
class RunBatch {
 public:
  using W = WarpShape<S>;
  using A = typename S::A;
  using Copies = RowCopies<W>;
  static constexpr int kGroupBytes = kMatrices * kInFlight * Copies::kBytes;
  static constexpr int kDepth = 2;  // groups

  // Of a warp that has runs of so many rows.
  __host__ __device__ static constexpr int bytes(int rows) {
    return static_cast<int>(sizeof(Lanes)) + kDepth * kGroupBytes + (kOwn > 0 ? rows * kOwnBytes : 0);
  }

  // In the memory of the block, whose warps have runs of so many rows.
  __device__ __forceinline__ RunBatch(void* memory, int rows)
      : first_(static_cast<char*>(memory)), stride_(bytes(rows)) {}

  __device__ __forceinline__ int2* begins() const { return lanes().begins; }
  __device__ __forceinline__ int* rows() const { return lanes().rows; }
  __device__ __forceinline__ void put_weight(A weight) const { lanes().weights[lane()] = weight; }

  __device__ __forceinline__ void put(const RunEntry& entry) const {
    lanes().nodes[lane()] = max(entry.node, 0);
    lanes().places[lane()] = entry.row * kOwnBytes;
    __syncwarp();
  }

  // Where the row of entry t has its features, and which one of the run it is.
  __device__ __forceinline__ int place(int t) const { return lanes().places[t]; }
  __device__ __forceinline__ static int number(int place) { return place / kOwnBytes; }

  // Starts to copy the k-th features of a run's rows, or of a long one.
  template <int k, class Rows>
  __device__ __forceinline__ void copy_own(const Copies& copies, const Rows& rows) const {
    copies.template start<RunPlan::kMostRows>(shared_address(own_memory()) + k * Copies::kBytes, kOwnBytes, rows.count,
                                              [&](int r) { return rows.row(r); });
  }

  // The lane's share of those.
  template <int k>
  __device__ __forceinline__ Packed<W> own(int place) const {
    return Copies::row(own_memory() + place + k * Copies::kBytes);
  }
  template <int k>
  __device__ __forceinline__ Packed<W> own_of_row(int row) const {
    return own<k>(row * kOwnBytes);
  }

  // Starts to copy the k-th rows of group g, those of entries [first, first + kInFlight) of `count`.
  template <int k>
  __device__ __forceinline__ void copy(int g, const Copies& copies, int first, int count) const {
    const int* const from = lanes().nodes + first;
    const auto start = [&](const auto& node_of) {
      copies.template start<kInFlight>(shared_address(ring(g)) + k * kInFlight * Copies::kBytes, Copies::kBytes,
                                       count - first, node_of);
    };
    if constexpr (Copies::kAtOnce == 1) {
      int nodes[kInFlight];
      load_numbers(nodes, from);
      start([&](int r) { return nodes[r]; });
    } else {
      start([&](int r) { return from[r]; });
    }
  }

  // The lane's share of the u-th of those.
  template <int k>
  __device__ __forceinline__ Packed<W> row(int g, int u) const {
    return Copies::row(ring(g) + (k * kInFlight + u) * Copies::kBytes);
  }

  // Until group g is there, all that were committed before it, and kDepth - 1 behind it at the most.
  __device__ __forceinline__ static void wait() {
    wait_for_groups<kDepth - 1>();
    __syncwarp();
  }

  // A warp's sums of a slice.
  __device__ __forceinline__ A* sums(int warp) const {
    return reinterpret_cast<A*>(first_ + warp * stride_ + sizeof(Lanes));
  }
  __device__ __forceinline__ A* sums() const { return sums(threadIdx.x / kWarp); }

  // The numbers of entries [first, first + kInFlight) that lanes have put there.
  __device__ __forceinline__ void take_places(int (&places)[kInFlight], int first) const {
    load_numbers(places, lanes().places + first);
  }
  __device__ __forceinline__ void take_weights(A (&weights)[kInFlight], int first) const {
    load_numbers(weights, lanes().weights + first);
  }

 private:
  struct alignas(128) Lanes {  // so that no row of a group lies across the lines of another
    int nodes[kWarp], places[kWarp];
    A weights[kWarp];
    int2 begins[kWarp];
    int rows[RunPlan::kMostRows];
  };
  // Where a row has no features of its own, its place is its number.
  static constexpr int kOwnBytes = kOwn > 0 ? kOwn * Copies::kBytes : 1;

  __device__ __forceinline__ static int lane() { return threadIdx.x % kWarp; }
  __device__ __forceinline__ char* memory() const { return first_ + threadIdx.x / kWarp * stride_; }
  __device__ __forceinline__ Lanes& lanes() const { return *reinterpret_cast<Lanes*>(memory()); }
  __device__ __forceinline__ char* ring(int g) const { return memory() + sizeof(Lanes) + g % kDepth * kGroupBytes; }
  __device__ __forceinline__ char* own_memory() const { return memory() + sizeof(Lanes) + kDepth * kGroupBytes; }

  char* first_;
  int stride_;
};

// Of lanes that form runs, each with lanes [begin, last] of one: x combined over the run, in all of its lanes.
template <class A, class Combine>
__device__ __forceinline__ A over_run(A x, int begin, int last, const Combine& combine) {
  const int lane = threadIdx.x % kWarp;
#pragma unroll
  for (int apart = 1; apart < kWarp; apart *= 2) {
    const A below = __shfl_up_sync(kAllLanes, x, apart);
    if (lane - apart >= begin) x = combine(below, x);
  }
  return __shfl_sync(kAllLanes, x, last);
}

// Leaves a warp's sums, a row over its lanes, as numbers.
template <class W>
__device__ __forceinline__ void put_numbers(typename W::A* numbers, const Fragment<W>& sum, int features,
                                            typename W::A factor = 1) {
#pragma unroll
  for (int x = 0; x < Fragment<W>::kSize; ++x) {
    const int f = (x / W::kVec * kWarp + static_cast<int>(threadIdx.x) % kWarp) * W::kVec + x % W::kVec;
    if (f < features) numbers[f] = sum.x[x] * factor;
  }
}

// Calls work.piece(row, entries, slot) with the pieces of very long rows; work.share(row, entries), all warps of a
// block, with slices of its long rows; and work.run(run, rows) with the run of a warp.
template <class Work>
__device__ __forceinline__ void for_runs(const Index& ptr, int64_t num_rows, int64_t num_entries, const RunPlan& plan,
                                         Work& work) {
  const int warp = threadIdx.x / kWarp, lane = threadIdx.x % kWarp;
  if (blockIdx.x < plan.piece_blocks) {
    const unsigned segment = blockIdx.x * plan.warps + warp;
    if (segment >= plan.units.segments) return;
    const int64_t begin = segment * plan.units.segment, end = min(begin + plan.units.segment, num_entries);
    int64_t ends[2];
    warp_find_rows<2>(ptr, num_rows, {begin, end - 1}, ends);
    const int64_t second = ends[1];
#pragma unroll 1
    for (int64_t row = ends[0];; row = second) {
      const Range all = row_range(ptr, row, num_entries);
      if (all.size() > plan.units.segment) {
        const Range entries{max(all.begin, begin), min(all.end, end)};
        work.piece(static_cast<int>(row), entries, 2 * static_cast<int64_t>(segment) + (all.begin > begin));
      }
      if (row == second) return;
    }
  }
  const int rows_per_block = plan.warps * plan.rows;  // a lane looks at each
  const unsigned block = blockIdx.x - plan.piece_blocks;
  int64_t row = static_cast<int64_t>(block) * rows_per_block + lane;
  if (plan.order) {  // the r-th of a warp's
    const unsigned before = block / RunPlan::kDealt * RunPlan::kDealt,
                   among = min(RunPlan::kDealt, plan.row_blocks - before);
    const int r = lane & (plan.rows - 1), of_warp = lane / plan.rows;
    // There and back, so that who has the longest rows of a round has the shortest of the next one.
    const int round = r * plan.warps + (r % 2 == 0 ? of_warp : plan.warps - 1 - of_warp);
    row = static_cast<int64_t>(before) * rows_per_block + static_cast<int64_t>(round) * among +
          (round % 2 == 0 ? block - before : among - 1 - (block - before));
  }
  Range entries{0, 0};
  const bool is_row = lane < rows_per_block && row < num_rows;
  if (is_row && plan.order) {
    const int* const at = plan.order + row;
    entries.begin = clamp_to(__ldg(at + 2 * num_rows), num_entries);
    entries.end = entries.begin + clamp_to(__ldg(at + 4 * num_rows), num_entries - entries.begin);
    row = clamp_to(__ldg(at), num_rows - 1);
  } else if (is_row) {
    entries = row_range(ptr, row, num_entries);
  }
  const int begin = static_cast<int>(entries.begin), size = static_cast<int>(entries.size());
  const bool is_shared = size >= RunPlan::kLong && (plan.units.segments == 0 || size <= plan.units.segment);
#pragma unroll 1
  for (unsigned left = __ballot_sync(kAllLanes, is_shared); left != 0; left &= left - 1) {
    const int r = __ffs(left) - 1, all = __shfl_sync(kAllLanes, size, r);
    const int slice = (all + plan.warps - 1) / plan.warps;
    const int64_t row_begin = __shfl_sync(kAllLanes, begin, r);
    const int number = __shfl_sync(kAllLanes, static_cast<int>(row), r);
    work.share(number, Range{row_begin + min(warp * slice, all), row_begin + min((warp + 1) * slice, all)});
  }
  const int own = warp * plan.rows, from = min(own + lane, kWarp - 1);
  const int count = __popc(__ballot_sync(kAllLanes, is_row) >> own & ((1 << plan.rows) - 1));
  const int own_begin = __shfl_sync(kAllLanes, begin, from), own_size = __shfl_sync(kAllLanes, size, from);
  if (const int own_row = __shfl_sync(kAllLanes, static_cast<int>(row), from); lane < count)
    work.rows()[lane] = own_row;
  __syncwarp();
  work.run({work.rows(), count}, RunRows(own_begin, lane < count ? own_size : 0, lane < count));
}

}  // namespace dfgnn::cuda
