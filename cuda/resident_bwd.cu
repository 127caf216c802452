// Resident backward: one block makes all gradients of a tile (resident.cuh).
//
//   dP = dO V^T, P = exp(scale Q K^T - lse), dS = P (keep dP - delta), delta = sum over a row's edges of keep P dP
//   dQ = scale dS K, dK = scale dS^T Q, dV = (keep P)^T dO
//
// keep P and dS of the edges stay in shared memory, in the order of those whose sums they are for: by source for dK and
// dV, by row for dQ (resident_gradients.cuh). No atomics on numbers, so that results are the same bits. Additive scores
// do without Q, K and scale: their P comes of two numbers, and dS times the slope sums up to the gradients of those.
//
// With cosine scores Q, K and V are one matrix X, of which there is one gradient. scale is a number of each edge, beta
// r_i r_j, with r = 1 / |x|, which depends on X as well: with it dots have the gradient D = scale dS, and
//   dX = D X + D^T X + (keep P)^T dO - (row sums + column sums of D QK^T) r^2 X.
// What stays of the edges are dots, whose P is made again, and D (resident_one_x.cuh).
#include "resident_gradients.cuh"
#include "resident_one_x.cuh"
#include "resident_shapes.cuh"

namespace dfgnn::cuda {
namespace {

using namespace resident;

template <Score score, class S>
__global__ void __launch_bounds__(S::kThreads, S::kBlocks)
    resident_bwd_kernel(const __grid_constant__ Typed<typename S::T> a, const __grid_constant__ Gradients g,
                        int bytes) {
  constexpr int kMost = S::kUsual ? kMostUsual : kMostFeatures;  // the fewer, the smaller is a call's stack frame
  extern __shared__ __align__(128) unsigned char memory[];
  const int h = blockIdx.y;
  for_tiles<S>(
      a,
      [&](const Tile& tile) {
        if constexpr (score == Score::cosine) return one_x_tile<S>(a, g, tile, h, memory, bytes);
        if constexpr (score != Score::cosine) return TileGradients<score, S>(a, g, tile, h, memory, bytes).run();
      },
      [&a, &g, h](int n) {
        edge_by_edge::backward_row<score, kMost, false>(a, g, n, h);
        edge_by_edge::backward_column<score, kMost, false>(a, g, n, h);
      });
}

}  // namespace

bool resident_bwd_fits(const Attention& a) { return fits_device<Pass::backward>(a); }

cudaError_t resident_bwd(const Attention& a, const Gradients& g, cudaStream_t stream) {
  return for_resident_shape<Pass::backward>(a, [&]<Score score, class S>() {
    return launch_resident<S>(resident_bwd_kernel<score, S>, a, stream, Typed<typename S::T>{a}, g);
  });
}

}  // namespace dfgnn::cuda
