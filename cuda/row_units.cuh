// Rows of a compressed form as units of work for one warp each, whatever their lengths: a short row whole, a long row
// in pieces. No warp waits for another, so that skewed rows leave none idle.
//
// The entries are cut into segments of equal size. A row of more entries than a segment is cut where it crosses from
// one segment into the next; each piece's sums go to a slot of a workspace, and a second kernel adds up the slots of a
// row in a fixed order, so that the result is the same bits run after run, whichever block took which unit. A segment
// holds parts of two such rows at most: one that began before (slot 2 s) and one that begins in it (slot 2 s + 1). Rows
// in a list (below) have pieces and slots of their own.
//
// Where rows are long, warps take units from counters, a window of them a multiprocessor at a time: what its warps
// gather for neighbouring rows they find in their L1 cache. They do so most if they are at the same place of their rows
// at the same time, so rows that are very long are listed: within neighbourhoods by their lengths, those that are
// longer than a segment in equal pieces, of rows side by side the first ones, then the second ones. Kernels that can
// take them by blocks of as many warps as a multiprocessor holds, which begin together and have as much to do.
#pragma once

#include <algorithm>
#include <cmath>

#include "device.h"
#include "find_row.cuh"
#include "logit.cuh"
#include "row_geometry.h"

namespace dfgnn::cuda {

// A row, or a piece of one, of `size` entries from `begin` on. Without a row there is nothing to do.
struct ListedUnit {
  int64_t begin;
  int row = -1, size, slot;
};

struct RowUnits {
  static constexpr int kThreads = kWarp;  // of a block, if it is one warp's
  static constexpr int64_t kShort = 16;

  int64_t segment;    // entries
  unsigned segments;  // 0: no row can be that long
  int rows_per_unit;
  unsigned count;               // units; without a list the first `segments` are there for the pieces
  unsigned* next = nullptr;     // counters that warps take units from (UnitCounters), or null: one unit a block
  unsigned* inexact = nullptr;  // set where a result is not what it should be,
  bool if_inexact = false;      // and whether to do the work only if it is set
  bool are_short = false;       // rows are so short, and so many, that groups of lanes should take one each:
  int64_t own_most = kShort;    // those of so many entries at the most,
  int64_t shortest = 0;         // and warps those of so many on
  int64_t listed = 0;           // units that are in a list, or none, where rows go as they are numbered
  const ListedUnit* list = nullptr;
  unsigned warps = 1;  // of a block, which launch_units() says

  dim3 block() const { return {kWarp, warps}; }

  void set_rows_per_unit(int rows, int64_t num_rows) {
    rows_per_unit = rows;
    count = segments + static_cast<unsigned>((num_rows + rows - 1) / rows);
  }

  // Leaves short rows to groups of lanes.
  void leave_short_rows(int64_t num_rows) {
    shortest = kShort + 1;
    set_rows_per_unit(kWarp, num_rows);
  }

  __host__ __device__ int64_t slots() const { return 2 * static_cast<int64_t>(segments); }

  // Of a listed row: its pieces, 1 if it is whole, and the first one's slot, which the others' follow. They are the
  // row's alone: with n >= 1 segments' entries and a rest it has n + 1 pieces, no more than 2 n, and the next such row
  // begins n segments further on, or more.
  __device__ __forceinline__ int64_t pieces(const Range& row) const {
    return segments > 0 && row.size() > segment ? (row.size() + segment - 1) / segment : 1;
  }
  __device__ __forceinline__ int64_t first_slot(const Range& row) const { return 2 * (row.begin / segment); }

  // Whether a pass needs memory of its own, if it has no `exact` kernel.
  bool need_scratch(int64_t num_rows, int64_t num_entries) const {
    return segments > 0 || rows_are_long(num_rows, num_entries);
  }
};

constexpr int64_t kWhole = -1;  // the slot of a row that is no piece

// Warps a multiprocessor of a kernel of shape S: as many as were the fastest on 9.0, or, before 9.0, where code takes
// more registers, `before`, or five of eight, so that hot ones do not spill. Of float64, whatever registers leave room
// for.
template <class S>
constexpr int warps_here(int warps, [[maybe_unused]] int before = 0) {
  if (sizeof(typename S::A) == 8) return 1;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  return before > 0 ? before : warps * 5 / 8;
#else
  return warps;
#endif
}

// Launch bounds of a kernel of which a multiprocessor holds so many warps: in one block, which takes listed units
// together, or in blocks of a warp each.
constexpr int block_threads(int warps, bool together) { return together ? warps * kWarp : kWarp; }
constexpr int blocks_at_once(int warps, bool together) { return together ? 1 : warps; }

// Whether kernels do, by times on 9.0 (long-rows.md), but for those that say otherwise; before 9.0 they do the same.
template <class S>
constexpr bool kUnitsTogether = std::is_same_v<typename S::T, float>;

// How many entries a piece has at least. Where these are few, times the numbers of a piece, nothing hides the time that
// a warp takes for a long row, so pieces are smaller, and their time is the shorter, the fewer entries there are; but
// not where rows are of about equal lengths, most of which would be cut, unless they are long and too few for a device.
// The longest of a graph's rows says that of its columns, too.
inline int64_t least_piece(const Attention& a, int64_t num_rows, int64_t numbers) {
  constexpr int64_t kOneHead = 256, kLeast = kWarp, kUsual = 512, kEnoughRows = 512, kLongRow = 256;
  const int64_t num_entries = a.num_edges;
  const auto of_heads = static_cast<double>(num_entries * std::max<int64_t>(numbers / kOneHead, 1));
  const int64_t least = std::clamp(static_cast<int64_t>(std::sqrt(of_heads) / 5), kLeast, kUsual);
  const bool is_uneven = rows_are_uneven(a.num_dst, num_entries, a.max_degree);
  if (is_uneven || (num_rows < kEnoughRows && num_entries >= kLongRow * num_rows)) return least;
  return a.max_degree < 0 ? std::clamp(4 * num_entries / std::max<int64_t>(num_rows, 1), least, kUsual) : kUsual;
}

// Pieces of no fewer entries, then so that there are at least 16K of them, enough to fill any device. Slots, of which
// each has `numbers`, 4 bytes each, of all heads, take no more than 4 bytes an entry or 32 MiB. `longest`: entries of
// the longest row, if known.
inline RowUnits plan_units(const Attention& a, int64_t num_rows, int64_t numbers, int64_t longest = -1) {
  constexpr int64_t kPieces = 16384;
  constexpr int64_t kEntriesPerUnit = 32, kTwo = 80, kUnits = 8192, kFewEntries = 12, kVeryLong = 256;
  const bool is_listed = num_rows >= kUnits && a.num_edges >= kVeryLong * num_rows;
  const int64_t most = is_listed ? 1024 : 2048;
  const int64_t num_entries = a.num_edges, least = least_piece(a, num_rows, numbers);
  int64_t segment = (std::clamp(num_entries / kPieces, least, most) + kWarp - 1) / kWarp * kWarp;
  const int64_t bytes_allow = num_entries * numbers >> 22, entries_allow = 2 * numbers;
  const int64_t smallest = bytes_allow < entries_allow ? bytes_allow : entries_allow;
  if (segment < smallest) segment = smallest;
  const bool can_be_long = num_entries > segment && (longest < 0 || longest > segment);
  const auto segments = static_cast<unsigned>(can_be_long ? (num_entries + segment - 1) / segment : 0);
  // Of the shortest rows that warps take from counters, two at a time, if numbers have 16 bits: by times
  // (long-rows.md).
  const bool has_16_bits = a.type == Type::f16 || a.type == Type::bf16;
  const bool takes_two = has_16_bits && rows_are_long(num_rows, num_entries) && num_entries <= kTwo * num_rows;
  int rows = takes_two && num_rows >= 2 * kUnits ? 2 : 1;
  while (rows < 16 && 2 * rows * num_entries <= kEntriesPerUnit * num_rows && num_rows >= 2 * rows * kUnits) rows *= 2;
  RowUnits units{segment, segments, rows, segments + static_cast<unsigned>((num_rows + rows - 1) / rows)};
  units.are_short = num_rows >= 4 * kUnits && num_entries < kFewEntries * num_rows;
  if (is_listed) units.listed = units.count;
  return units;
}

// The counters of a launch and a head, 32 bytes apart: how many windows are taken, then, of each multiprocessor, its
// window. There are some for two launches, and none where heads are so many that these alone fill the device.
struct UnitCounters {
  static constexpr unsigned kWindow = 24, kMultiprocessors = 256;  // of more, some share a window
  static constexpr unsigned kApart = 32 / sizeof(unsigned), kCount = (1 + kMultiprocessors) * kApart;
  static constexpr int kMostHeads = 64;
  static constexpr size_t kFlag = 16;  // bytes before them, for the flag whether there has to be a second launch

  static size_t bytes(int heads) { return kFlag + (heads <= kMostHeads ? 2 * heads * kCount * sizeof(unsigned) : 0); }
  static unsigned* of_launch(unsigned* flag, int launch, int heads) {
    return flag && heads <= kMostHeads ? flag + kFlag / sizeof(unsigned) + launch * heads * kCount : nullptr;
  }
};

// Memory for a pass over units: counters, the list of units, and a slot's `width` numbers a head.
template <class A>
struct UnitScratch {
  unsigned* counters;
  ListedUnit* list;
  A* slots;

  UnitScratch(void* memory, int heads, const RowUnits& units)
      : counters(static_cast<unsigned*>(memory)),
        list(reinterpret_cast<ListedUnit*>(static_cast<char*>(memory) + UnitCounters::bytes(heads))),
        slots(reinterpret_cast<A*>(reinterpret_cast<char*>(list) + list_bytes(units))) {}

  static size_t list_bytes(const RowUnits& units) { return (units.listed * sizeof(ListedUnit) + 15) / 16 * 16; }
  static size_t bytes(const RowUnits& units, int heads, int width) {
    const size_t numbers = static_cast<size_t>(units.slots()) * heads * width;
    return UnitCounters::bytes(heads) + list_bytes(units) + numbers * sizeof(A);
  }
};

// The warps that a block of the kernel may have, by its launch bounds.
template <class Kernel>
cudaError_t warps_of_block(Kernel* kernel, unsigned& warps) {
  cudaFuncAttributes attributes;
  const cudaError_t error = cudaFuncGetAttributes(&attributes, kernel);
  if (error == cudaSuccess) warps = static_cast<unsigned>(attributes.maxThreadsPerBlock) / kWarp;
  return error;
}

// Calls launch(grid, units, kernel), the grid's second dimension being `head_blocks`, for blocks of units.block().
// Listed units go by blocks of units.warps warps, if the kernel's may have more than one, and if there are some for
// each multiprocessor. Else, where rows are long, the grid is what a device holds at once at the most, and warps take
// units from counters. Where there is an `exact` kernel, `kernel` may report that a result is not what it should be:
// then the exact one does all again.
template <class Kernel, class Launch>
cudaError_t launch_units(RowUnits units, const Attention& a, int64_t num_rows, unsigned head_blocks, unsigned* counters,
                         cudaStream_t stream, Kernel* kernel, std::type_identity_t<Kernel>* exact,
                         const Launch& launch) {
  constexpr int64_t kBlocksPerMultiprocessor = 32;
  constexpr unsigned kEnoughBlocks = 4;
  int multiprocessors = 0;
  cudaError_t error = device_attribute(cudaDevAttrMultiProcessorCount, multiprocessors);
  const auto resident = static_cast<unsigned>(multiprocessors * kBlocksPerMultiprocessor);
  unsigned* const taken = UnitCounters::of_launch(counters, 0, a.heads);
  unsigned warps = 1;
  if (error == cudaSuccess && units.list) error = warps_of_block(kernel, warps);
  const bool by_blocks = warps > 1 && units.count >= kEnoughBlocks * multiprocessors * warps;
  const bool take = !by_blocks && taken && units.count > resident && rows_are_long(num_rows, a.num_edges);
  if (error == cudaSuccess && (take || exact)) {
    error = cudaMemsetAsync(counters, 0, UnitCounters::bytes(a.heads), stream);
  }
  if (error != cudaSuccess) return error;
  if (exact) units.inexact = counters;
  if (by_blocks) {
    RowUnits of_blocks = units;
    of_blocks.warps = warps;
    launch(dim3((units.count + warps - 1) / warps, head_blocks), of_blocks, kernel);
  } else {
    if (take) units.next = taken;
    launch(dim3(take ? resident : units.count, head_blocks), units, kernel);
  }
  if (exact) {
    units.next = UnitCounters::of_launch(counters, 1, a.heads);
    units.if_inexact = true;
    launch(dim3(units.next && units.count > resident ? resident : units.count, head_blocks), units, exact);
  }
  return cudaGetLastError();
}

// The warp's number in a block of [kWarp, warps] threads. By a shuffle, so that compilers know that it is the same for
// all of its lanes: what follows from it takes no registers of each.
__device__ __forceinline__ unsigned warp_in_block() { return __shfl_sync(kAllLanes, threadIdx.y, 0); }

// What a warp of a block has of the block's dynamic shared memory, of which the block has as much for each.
template <class Storage>
__device__ __forceinline__ Storage& warp_storage() {
  extern __shared__ __align__(16) char block_storage[];
  static_assert(sizeof(Storage) % 16 == 0);
  return reinterpret_cast<Storage*>(block_storage)[warp_in_block()];
}

// The warp's next unit of its multiprocessor's window, of those after the grid's first. A window is a word: in the
// upper half its number plus 1, in the lower how many units were asked for. Who asks for the first that it has not
// takes the next window; who asks meanwhile, asks again.
__device__ __forceinline__ unsigned take_unit(const RowUnits& units) {
  using Word = unsigned long long;
  using Counters = UnitCounters;
  constexpr unsigned kWindow = Counters::kWindow;
  unsigned* const windows = units.next + blockIdx.y * Counters::kCount;
  unsigned multiprocessor;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(multiprocessor));
  auto* own = reinterpret_cast<Word*>(windows + (1 + multiprocessor % Counters::kMultiprocessors) * Counters::kApart);
  while (true) {
    Word before = 0;
    if (threadIdx.x == 0) before = atomicAdd(own, Word{1});
    before = __shfl_sync(kAllLanes, before, 0);
    const unsigned window = before >> 32, taken = static_cast<unsigned>(before);
    if (window > 0 && taken < kWindow) return (window - 1) * kWindow + taken;
    if (taken == (window > 0 ? kWindow : 0)) {
      unsigned next = 0;
      if (threadIdx.x == 0) {
        next = atomicAdd(windows, 1u);
        atomicExch(own, Word{next + 1} << 32 | 1);
      }
      return __shfl_sync(kAllLanes, next, 0) * kWindow;
    }
  }
}

// Calls visit(row, entries, slot) for the rows or pieces of a unit, by a warp, of which the thread is lane `lane`.
template <class Visit>
__device__ __forceinline__ void for_unit(const Index& ptr, int64_t num_rows, int64_t num_entries, const RowUnits& units,
                                         unsigned unit, int lane, const Visit& visit) {
  const bool pieces = !units.list && unit < units.segments;
  const auto has_length = [&](const Range& entries) {
    return (units.segments > 0 && entries.size() > units.segment) == pieces && entries.size() >= units.shortest;
  };
  const auto segment = [&] {
    const int64_t begin = unit * units.segment;
    return Range{begin, min(begin + units.segment, num_entries)};
  };
  unsigned first = 0, second = 0;
  if (pieces) {
    int64_t found[2];
    warp_find_rows<2>(ptr, num_rows, {segment().begin, segment().end - 1}, found);
    first = static_cast<unsigned>(found[0]);
    second = static_cast<unsigned>(found[1]);
  } else if (!units.list) {
    first = (unit - units.segments) * units.rows_per_unit;
    second = first + 1;
  }
  // Of two rows of a segment, or of a run of rows, those that are wanted, a lane each; then one after another.
  const auto row_of = [&](int t) { return t == 0 ? first : second + (t - 1); };
  const auto is_wanted = [&](int t) {
    if (t >= (pieces ? 2 : units.rows_per_unit) || row_of(t) >= num_rows || (t == 1 && second == first)) return false;
    return has_length(row_range(ptr, row_of(t), num_entries));
  };
  const bool is_one_row = units.list || (!pieces && units.rows_per_unit == 1);
#pragma unroll 1
  for (unsigned left = is_one_row ? 1 : __ballot_sync(kAllLanes, is_wanted(lane)); left != 0; left &= left - 1) {
    unsigned row;
    Range entries;
    int64_t slot = kWhole;
    if (units.list) {  // read here, so that nothing of it has to be kept
      const ListedUnit listed = units.list[unit];
      if (listed.row < 0) return;
      row = listed.row;
      entries = {listed.begin, min(listed.begin + listed.size, num_entries)};
      slot = listed.slot;
    } else {
      row = row_of(__ffs(left) - 1);
      entries = row_range(ptr, row, num_entries);
      if (is_one_row && !has_length(entries)) return;
    }
    if (pieces) {
      const Range within = segment();
      slot = 2 * static_cast<int64_t>(unit) + (entries.begin > within.begin);
      entries = {max(entries.begin, within.begin), min(entries.end, within.end)};
    }
    visit(static_cast<int>(row), entries, slot);
  }
}

// The same for the block's units, those of the heads that blockIdx.y stands for.
template <class Visit>
__device__ __forceinline__ void for_units(const Index& ptr, int64_t num_rows, int64_t num_entries,
                                          const RowUnits& units, const Visit& visit) {
  if (units.if_inexact && *units.inexact == 0) return;
#pragma unroll 1
  for (unsigned unit = blockIdx.x * units.warps + warp_in_block(); unit < units.count;) {
    for_unit(ptr, num_rows, num_entries, units, unit, threadIdx.x, visit);
    if (!units.next) return;
    unit = gridDim.x + take_unit(units);
  }
}

// Where rows are short, launches `own` for those of at most RowUnits::kShort entries, by groups of `apart` lanes, a row
// each, and leaves the others in units. Returns whether there can be any, the longest having `longest` entries; if not,
// `own` takes all, were that number wrong.
template <class Kernel, class Launch>
bool launch_short_rows(RowUnits& units, int64_t num_rows, int64_t num_entries, int64_t longest, int apart,
                       unsigned head_blocks, Kernel* own, const Launch& launch) {
  if (!own || !units.are_short || apart >= kWarp) return true;
  const int64_t rows = kWarp / apart;
  const bool leaves_any = longest < 0 || longest > RowUnits::kShort;
  if (!leaves_any) units.own_most = num_entries;
  launch(dim3(static_cast<unsigned>((num_rows + rows - 1) / rows), head_blocks), units, own);
  units.leave_short_rows(num_rows);
  return leaves_any;
}

// The row of a group of `apart` lanes, of a block that has `rows` of them.
__device__ __forceinline__ unsigned own_row(unsigned block, unsigned rows, unsigned apart) {
  return block * rows + threadIdx.x / apart;
}

// Calls visit(has_row, row, entries) once, for a row of at most `most` entries.
template <class Visit>
__device__ __forceinline__ void for_own_row(const Index& ptr, int64_t num_rows, int64_t num_entries, unsigned row,
                                            int64_t most, const Visit& visit) {
  const unsigned last = static_cast<unsigned>(num_rows) - 1, safe_row = min(row, last);
  Range entries = row_range(ptr, safe_row, num_entries);
  const bool has_row = row <= last && entries.size() <= most;
  if (!has_row || entries.size() == 0) entries = {0, 0};  // others' entries may make the lanes read the first
  visit(has_row, static_cast<int>(safe_row), entries);
}

}  // namespace dfgnn::cuda
