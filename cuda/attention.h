// Fused graph attention on CUDA: what callers of the kernels see. Raw pointers, sizes, a stream; no torch.
// The meaning of each operand and the formulas are those of the operators (docs/operators.md):
//   s_e = score(dst_i, src_j) + bias_e,  out_i = sum_j dropout(softmax_j(s)) value_j,  lse_i = log sum_j exp(s_ij)
// for edge e = (i <- j), the e-th of the CSR. All arrays are contiguous, T is `type`, A its accumulation type (double
// for f64, float otherwise); pointers to features are 16-byte aligned, to masks 8-byte.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>

namespace dfgnn::cuda {

enum class Type { f32, f16, bf16, f64 };
enum class Score { dot, cosine, additive, additive_v2 };

// Whether the value is src, so that one row a source serves both.
template <Score score>
inline constexpr bool kValueIsSrc = score == Score::cosine || score == Score::additive_v2;

// int32 or int64 indices; the branch is uniform and costs nothing beside the gather that follows.
struct Index {
  const void* data = nullptr;
  bool wide = false;  // int64

#ifdef __CUDACC__
  template <class I>  // of 32 bits where that will do: registers
  __device__ __forceinline__ int64_t operator[](I i) const {
    return wide ? __ldg(static_cast<const long long*>(data) + i) : __ldg(static_cast<const int*>(data) + i);
  }
  // Calls visit with a pointer of the type that the numbers have.
  template <class Visit>
  __device__ __forceinline__ void typed(const Visit& visit) const {
    wide ? visit(static_cast<const long long*>(data)) : visit(static_cast<const int*>(data));
  }
  // From the i-th on.
  __device__ __forceinline__ Index from(int64_t i) const {
    return {wide ? static_cast<const void*>(static_cast<const long long*>(data) + i)
                 : static_cast<const void*>(static_cast<const int*>(data) + i),
            wide};
  }
#endif
};

struct Attention {
  Type type;
  Score score;
  int64_t num_dst, num_src, num_edges;
  int heads, head_dim;
  Index rowptr, col;                  // CSR by destination; entries of col at or past rowptr[num_dst] are not edges
  Index colptr, row, perm;            // CSC by source, perm: CSC to CSR position; in a backward pass
  const void *dst, *src;              // T [nodes, heads, head_dim]; additive: A [nodes, heads]
  const void* value;                  // T [num_src, heads, head_dim]; cosine, additive_v2: the same as src
  const void *dst_scale, *src_scale;  // cosine: A [nodes, heads], of which dst's has the factor beta; not of tile and
  const void* beta;                   // resident, which make them of A [betas], 1 or a head each,
  int betas;                          // and of norms, which count from eps on
  double eps;
  const void* att;            // additive_v2: A [heads, head_dim]
  const void *a_edge, *bias;  // A [num_edges, heads] or null
  double scale, negative_slope, dropout_p;
  const int64_t* seed;  // on the device; null without dropout
  // Where tiles begin, [num_tiles + 1]; of the tile kernels, windows, and masks of rows, and backward of columns
  // (graph.h)
  Index tiles;
  int64_t num_tiles;
  const int *windows, *row_masks, *column_masks;
  int64_t max_degree = -1;  // edges of the longest row, where it is known, to go the shorter way where none is long
  // Of the resident kernels: boundaries of tiles, each once, [num_tiles + 1]; the most nodes of a tile, and the most
  // batches of its edges (resident_slices.cuh), more or less.
  Index tile_list;
  int64_t tile_nodes = -1, tile_batches = -1;
  bool allow_tf32 = false;  // whether products of float32 on tensor cores may have the accuracy of TF32
  // Of the kernels by runs: rows and columns by their numbers of edges (graph.h), or null.
  const int *row_order = nullptr, *column_order = nullptr;
};

struct Outputs {
  void* out;                   // T [num_dst, heads, head_dim]
  void* lse;                   // A [num_dst, heads]
  void* derivative = nullptr;  // of additive_fwd: T [num_dst, heads, head_dim]
};

struct Gradients {
  const void *grad_out, *out;  // T [num_dst, heads, head_dim]
  const void *lse, *grad_lse;  // A [num_dst, heads]; grad_lse may be null
  void* delta;                 // scratch A [num_dst, heads], and, of tile with cosine scores, another
  void* scale;
  void *dst, *src, *value;  // shaped like their operands; additive_v2: of dst + src, without the factor att
  void *a_edge, *bias;      // A [num_edges, heads] or null
  void* by_beta;  // cosine, where src is dst, of tile and of resident, which takes no other: A [nodes, heads],
                  // the terms of beta's gradient; that of src is then in `value`, with dst's
  const void* derivative = nullptr;  // of additive_bwd: what additive_fwd made
};

// A workspace is device memory of as many bytes as *_workspace says, aligned to 16; null where that is 0.

// SMMF, Shared Memory Maximization Fusion: one pass over the edges forward, and backward one a side. Short rows have a
// kernel of their own, and graphs of few edges. Workspaces are for pieces of long rows: at the most 4 bytes an edge or
// 32 MiB, twice that of float64, whichever is more; and for who takes them when, 24 bytes a row
// and a piece, and 1 MiB.
size_t smmf_fwd_workspace(const Attention& attention);
cudaError_t smmf_fwd(const Attention& attention, const Outputs& outputs, void* workspace, cudaStream_t stream);
size_t smmf_bwd_workspace(const Attention& attention);
cudaError_t smmf_bwd(const Attention& attention, const Gradients& gradients, void* workspace, cudaStream_t stream);

// Whether smmf_bwd can run: a row of features must fit a warp's registers. pmf_bwd takes any head size.
bool smmf_bwd_supports(Type type, int head_dim);

// PMF, Parallelism Maximization Fusion: an SDDMM balanced over edges, then the rest by rows; backward, the gradient of
// every edge and head is stored, then used by rows and by columns. Workspaces grow with num_edges * heads.
size_t pmf_fwd_workspace(const Attention& attention);
cudaError_t pmf_fwd(const Attention& attention, const Outputs& outputs, void* workspace, cudaStream_t stream);
size_t pmf_bwd_workspace(const Attention& attention);
cudaError_t pmf_bwd(const Attention& attention, const Gradients& gradients, void* workspace, cudaStream_t stream);

// Additive scores in two passes over the edges, for long rows and columns. Forward, out's derivative by dst comes with
// out, of rows that are gathered anyhow; so backward it is the columns alone that gather rows, of grad_out, and make
// the gradients of value and of src of them. There is none of a_edge and of bias, nor one of lse. Workspaces are
// smmf's, forward with twice as much for pieces, and backward with four numbers for each row and head.
enum class AdditiveHeads { none, apart, side_by_side };  // how kernels take heads, if there are any
AdditiveHeads additive_heads(Type type, int heads, int head_dim);
size_t additive_fwd_workspace(const Attention& attention);
cudaError_t additive_fwd(const Attention& attention, const Outputs& outputs, void* workspace, cudaStream_t stream);
size_t additive_bwd_workspace(const Attention& attention);
cudaError_t additive_bwd(const Attention& attention, const Gradients& gradients, void* workspace, cudaStream_t stream);

// Tile: masked dense attention on tensor cores within tiles, runs of nodes whose edges stay inside them (num_dst ==
// num_src). Correct for any graph, wherever `tiles` cuts it, fast where most pairs of nodes of a tile are edges.
cudaError_t tile_fwd(const Attention& attention, const Outputs& outputs, cudaStream_t stream);
cudaError_t tile_bwd(const Attention& attention, const Gradients& gradients, cudaStream_t stream);

// Whether a block of the current device has the shared memory (docs/portability.md): float32 heads of more than 64
// features with dot and cosine scores need 107 KiB in the backward pass, and there are 99 on compute capability 8.6,
// 8.9 and 12.0. Of `attention` they ask for type, score and head_dim.
bool tile_fwd_fits(const Attention& attention);
bool tile_bwd_fits(const Attention& attention);

// Resident: within tiles, matrices pass through shared memory in chunks of features, from which edges gather (num_dst
// == num_src, all scores but additive_v2; cosine where dst is src, with by_beta). Correct for any graph, wherever
// tile_list cuts it, fast where tiles are sparse and tile_nodes and tile_batches are right.
cudaError_t resident_fwd(const Attention& attention, const Outputs& outputs, cudaStream_t stream);
cudaError_t resident_bwd(const Attention& attention, const Gradients& gradients, cudaStream_t stream);

// Whether a pass can run on the current device: whether it has kernels for the call, and shared memory for its tiles.
bool resident_fwd_fits(const Attention& attention);
bool resident_bwd_fits(const Attention& attention);

}  // namespace dfgnn::cuda
