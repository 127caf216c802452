// A thread has a tile of a head's rows and columns in registers and goes over some nodes; neighbouring threads have
// neighbouring tiles, so that they read whole lines, and groups of as many as there are tiles have nodes of their own.
#include <algorithm>

#include "projection_gradient.h"
#include "shapes.cuh"

namespace dfgnn::cuda {
namespace {

// Rows and columns of a tile are two times four, so far apart that neighbours' lie side by side.
struct ProjectionTiles {
  static constexpr int kThreads = 128, kVec = 4, kQuads = 2, kNumbers = kQuads * kVec;
  static constexpr int kAtOnce = 4;  // nodes that a thread has on their way
  static constexpr int64_t kBlocks = 1024, kNodes = 64;
  int rows, columns, count;  // along a head's, and of all heads
  int lanes;                 // of a group, a power of two
  unsigned blocks, parts;    // of a group's tiles; groups

  explicit ProjectionTiles(const ProjectionGradient& task)
      : rows(task.size / kNumbers),
        columns((task.width + kNumbers - 1) / kNumbers),
        count(task.heads * rows * columns),
        lanes(1) {
    while (lanes < kThreads && lanes < count) lanes *= 2;
    blocks = static_cast<unsigned>((count + lanes - 1) / lanes);
    const int64_t of_block = kThreads / lanes, most = std::max<int64_t>(kBlocks / blocks, 1);
    const int64_t some = std::clamp<int64_t>(task.nodes / (kNodes * of_block), 1, most);
    parts = static_cast<unsigned>(some * of_block);
  }
};

// The lane's share of a row, of which `left` numbers are left: four, and four more `step` numbers behind them.
template <class Quads, class T>
__device__ __forceinline__ void load(Quads& quads, const T* row, int step, int left) {
  using Quad = typename Quads::Vector;
#pragma unroll
  for (int q = 0; q < ProjectionTiles::kQuads; ++q) {
    quads.steps[q] = q * step < left ? *reinterpret_cast<const Quad*>(row + q * step) : Quad{};
  }
}

template <class T>
__global__ void __launch_bounds__(ProjectionTiles::kThreads, 3)
    projection_gradient_kernel(const __grid_constant__ ProjectionGradient task, const ProjectionTiles tiles,
                               typename Accumulate<T>::type* sums) {
  using Tiles = ProjectionTiles;
  using A = typename Accumulate<T>::type;
  using Quads = Packed<Shape<T, Tiles::kVec, 1, Tiles::kQuads>>;
  constexpr int kVec = Tiles::kVec, kNumbers = Tiles::kNumbers, kAtOnce = Tiles::kAtOnce;
  const int lane = static_cast<int>(threadIdx.x) % tiles.lanes, group = static_cast<int>(threadIdx.x) / tiles.lanes;
  const int tile = static_cast<int>(blockIdx.y) * tiles.lanes + lane;
  if (tile >= tiles.count) return;
  const int head = tile / (tiles.rows * tiles.columns), row = tile / tiles.columns % tiles.rows * kVec,
            column = tile % tiles.columns * kVec;
  const int row_step = tiles.rows * kVec, column_step = tiles.columns * kVec;
  const int64_t part = static_cast<int64_t>(blockIdx.x) * (Tiles::kThreads / tiles.lanes) + group;
  const int64_t of_part = (task.nodes + tiles.parts - 1) / tiles.parts, begin = part * of_part,
                end = min(begin + of_part, task.nodes);
  A sum[kNumbers][kNumbers] = {};
#pragma unroll 1
  for (int pair = 0; pair < ProjectionGradient::kPairs; ++pair) {
    const T* const xs = static_cast<const T*>(task.x[pair]) + head * task.size + row;
    const T* const zs = static_cast<const T*>(task.z[pair]) + head * task.width + column;
#pragma unroll 1
    for (int64_t first = begin; first < end; first += kAtOnce) {
      Quads x[kAtOnce], z[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const bool is_there = first + u < end;
        const int64_t node = is_there ? first + u : first;
        load(x[u], xs + node * (task.heads * task.size), row_step, is_there ? task.size : 0);
        load(z[u], zs + node * (task.heads * task.width), column_step, is_there ? task.width - column : 0);
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
#pragma unroll
        for (int r = 0; r < kNumbers; ++r) {
#pragma unroll
          for (int f = 0; f < kNumbers; ++f) sum[r][f] += x[u][r] * z[u][f];
        }
      }
    }
  }
  A* const to = sums + (part * task.heads + head) * task.size * task.width;
#pragma unroll
  for (int r = 0; r < kNumbers; ++r) {
    const int of_head = row + r / kVec * row_step + r % kVec;
#pragma unroll
    for (int f = 0; f < kNumbers; ++f) {
      const int at = column + f / kVec * column_step + f % kVec;
      if (at < task.width) to[of_head * task.width + at] = sum[r][f];
    }
  }
}

}  // namespace

int64_t projection_gradient_parts(const ProjectionGradient& task) { return ProjectionTiles(task).parts; }

cudaError_t projection_gradient(const ProjectionGradient& task, void* sums, cudaStream_t stream) {
  const ProjectionTiles tiles(task);
  const dim3 grid(tiles.parts / (ProjectionTiles::kThreads / tiles.lanes), tiles.blocks);
  return for_type(task.type, [&]<class T>() {
    if constexpr (sizeof(T) == 8) {
      return cudaErrorInvalidValue;
    } else {
      projection_gradient_kernel<T>
          <<<grid, ProjectionTiles::kThreads, 0, stream>>>(task, tiles, static_cast<float*>(sums));
      return cudaGetLastError();
    }
  });
}

}  // namespace dfgnn::cuda
