// Dot attention, float32, one head of 128 features, with single techniques switched off: what each is worth.
//
// The structure is that of the DF-GNN paper's SMMF. A block takes WARPS units, which are rows or pieces of long rows.
// It scores all their edges (SDDMM), and each of its warps then takes one unit: softmax of its scores, and the sum of
// its values (SpMM). The kernels in cuda/ have the winners of such comparisons alone, and more than these techniques.
#include <cuda_runtime.h>

#include <cmath>
#include <cstddef>
#include <cstdint>

// What Python fills in; the fields and their order are those of techniques.py. All pointers are to the device.
struct DfgnnCall {
  const int32_t* col;         // [edges], fewer than 2^31 - CHUNK
  const int32_t* begin;       // [units + 1], the edges of the units
  const int32_t* row;         // [units]; read if SPLIT, as are the next three
  const int32_t* piece;       // [units], the number of the piece, -1 for a whole row
  const int32_t* long_row;    // [long_rows], those in pieces
  const int32_t* long_piece;  // [long_rows + 1], their pieces
  const float* q;             // [rows, HEAD_DIM], as are k, v and out
  const float* k;
  const float* v;
  float* out;
  float* scores;     // [edges], if not ONLINE and a block has more than CHUNK edges
  float* piece_max;  // [pieces]
  float* piece_sum;  // [pieces]
  float* piece_out;  // [pieces, HEAD_DIM]
  int32_t units;
  int32_t long_rows;
};

namespace {

enum Technique : int {
  BALANCED = 1,         // SDDMM: a block's edges evenly over its warps; off: a unit's edges to its warp
  REDUNDANCY_FREE = 2,  // exponentials are taken once and kept; off: by every lane again as it sums its features
  VECTORIZED = 4,       // a lane reads 16 bytes at once; off: four times 4 bytes
  SPLIT = 8,            // units are pieces of at most PIECE edges, merged afterwards; off: rows, however long
  ONLINE = 16,          // softmax in one pass, scores in shared memory; off: passes for maximum, sum and weights
};

template <int T, Technique ONE>
constexpr bool has = (T & ONE) != 0;

constexpr int WARPS = 8;  // of a block
constexpr int HEAD_DIM = 128;
constexpr int PIECE = 512;
constexpr int CHUNK = WARPS * PIECE;  // scores that a block has room for in shared memory
constexpr int IN_FLIGHT = 4;          // rows that a warp waits for at a time
constexpr unsigned ALL_LANES = 0xffffffff;
// log2(e) / sqrt(HEAD_DIM): exponentials are powers of two.
constexpr float SCALE = 1.44269504088896341f * 0.0883883476483184406f;

// A lane's features of a row: four adjacent ones if VECTORIZED, else each 32nd.
struct Features {
  float x[4] = {};
};

template <int T>
__device__ Features load(const float* table, int row) {
  const float* from = table + static_cast<size_t>(row) * HEAD_DIM;
  const int lane = threadIdx.x % 32;
  Features found;
  if constexpr (has<T, VECTORIZED>) {
    const float4 four = __ldg(reinterpret_cast<const float4*>(from) + lane);
    found.x[0] = four.x, found.x[1] = four.y, found.x[2] = four.z, found.x[3] = four.w;
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) found.x[i] = __ldg(from + 32 * i + lane);
  }
  return found;
}

template <int T>
__device__ void store(float* table, int row, const Features& features, float factor) {
  float* to = table + static_cast<size_t>(row) * HEAD_DIM;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < 4; ++i) to[has<T, VECTORIZED> ? 4 * lane + i : 32 * i + lane] = factor * features.x[i];
}

__device__ float warp_sum(float value) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) value += __shfl_xor_sync(ALL_LANES, value, i);
  return value;
}

__device__ float warp_max(float value) {
#pragma unroll
  for (int i = 16; i > 0; i /= 2) value = fmaxf(value, __shfl_xor_sync(ALL_LANES, value, i));
  return value;
}

// What is subtracted from scores before they become exponents: no NaN where all scores are -inf.
__device__ float finite(float max) { return max == -INFINITY ? 0.0f : max; }

// A warp's softmax of a unit as far as it is known: weights are relative to max.
struct Softmax {
  float max = -INFINITY;
  float sum = 0;
  Features out;
};

// SDDMM of edges from start to stop, all of one row. scores[0] is of edge `origin`.
template <int T>
__device__ void score_row(const DfgnnCall& call, int row, int start, int stop, float* scores, int origin) {
  const int lane = threadIdx.x % 32;
  const Features q = load<T>(call.q, row);
  for (int slice = start; slice < stop; slice += 32) {
    const int count = min(32, stop - slice);
    const int col = lane < count ? call.col[slice + lane] : 0;
    float mine = 0;
    for (int j = 0; j < count; j += IN_FLIGHT) {
      Features k[IN_FLIGHT];
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; ++i) {
        const int source = __shfl_sync(ALL_LANES, col, j + i);
        if (j + i < count) k[i] = load<T>(call.k, source);
      }
#pragma unroll
      for (int i = 0; i < IN_FLIGHT; ++i) {
        const Features& other = k[i];
        const float part = q.x[0] * other.x[0] + q.x[1] * other.x[1] + q.x[2] * other.x[2] + q.x[3] * other.x[3];
        const float score = warp_sum(part);
        if (lane == j + i) mine = score;
      }
    }
    if (lane < count) scores[slice - origin + lane] = SCALE * mine;
  }
}

// SDDMM of a block's edges from start to stop, a contiguous part of each warp's.
template <int T>
__device__ void score_edges(const DfgnnCall& call, const int* bound, int start, int stop, float* scores) {
  const int warp = threadIdx.x / 32;
  int low = start, high = stop, from = warp, to = warp + 1;
  if constexpr (has<T, BALANCED>) {
    const int each = (stop - start + WARPS - 1) / WARPS;
    low = min(start + warp * each, stop);
    high = min(low + each, stop);
    from = 0;
    to = WARPS;
  }
  for (int i = from; i < to; ++i) {
    const int first = max(low, bound[i]), last = min(high, bound[i + 1]);
    if (first >= last) continue;  // also all units beyond the last
    const int unit = blockIdx.x * WARPS + i;
    score_row<T>(call, has<T, SPLIT> ? call.row[unit] : unit, first, last, scores, start);
  }
}

// SpMM of the edges from slice on, at most 32, and their weights if they are not taken before: REDUNDANCY_FREE takes
// `scores` for weights. Sums of slices are summed, which is more exact than to add edge after edge.
template <int T>
__device__ Softmax sum_slice(const DfgnnCall& call, const float* scores, int slice, int count, float shift) {
  const int lane = threadIdx.x % 32;
  const int col = lane < count ? call.col[slice + lane] : 0;
  Softmax part;
  for (int j = 0; j < count; j += IN_FLIGHT) {
    Features v[IN_FLIGHT];
    float weight[IN_FLIGHT];
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) {
      const int source = __shfl_sync(ALL_LANES, col, j + i);
      weight[i] = 0;
      if (j + i < count) {
        v[i] = load<T>(call.v, source);
        weight[i] = scores[j + i];
        if constexpr (!has<T, REDUNDANCY_FREE>) weight[i] = exp2f(weight[i] - shift);
      }
    }
#pragma unroll
    for (int i = 0; i < IN_FLIGHT; ++i) {
      part.sum += weight[i];
#pragma unroll
      for (int x = 0; x < 4; ++x) part.out.x[x] += weight[i] * v[i].x[x];
    }
  }
  return part;
}

// Takes in edges of a warp's unit, each score read once: what was summed so far is scaled as the maximum grows.
template <int T>
__device__ void take_in(const DfgnnCall& call, float* scores, int origin, int start, int stop, Softmax& softmax) {
  const int lane = threadIdx.x % 32;
  for (int slice = start; slice < stop; slice += 32) {
    const int count = min(32, stop - slice);
    float* mine = scores + (slice - origin);
    const float score = lane < count ? mine[lane] : -INFINITY;
    const float max = fmaxf(softmax.max, warp_max(score));
    const float shift = finite(max), rescale = exp2f(softmax.max - shift);
    if constexpr (has<T, REDUNDANCY_FREE>) {
      if (lane < count) mine[lane] = exp2f(score - shift);
      __syncwarp();
    }
    const Softmax part = sum_slice<T>(call, mine, slice, count, shift);
    softmax.max = max;
    softmax.sum = softmax.sum * rescale + part.sum;
#pragma unroll
    for (int x = 0; x < 4; ++x) softmax.out.x[x] = softmax.out.x[x] * rescale + part.out.x[x];
  }
}

// The softmax of a warp's unit by three passes over its scores; scores[0] is of edge start.
template <int T>
__device__ Softmax three_passes(const DfgnnCall& call, float* scores, int start, int stop) {
  const int lane = threadIdx.x % 32;
  Softmax softmax;
  for (int i = lane; i < stop - start; i += 32) softmax.max = fmaxf(softmax.max, scores[i]);
  softmax.max = warp_max(softmax.max);
  const float shift = finite(softmax.max);
  for (int i = lane; i < stop - start; i += 32) {
    const float weight = exp2f(scores[i] - shift);
    softmax.sum += weight;
    if constexpr (has<T, REDUNDANCY_FREE>) scores[i] = weight;
  }
  softmax.sum = warp_sum(softmax.sum);
  __syncwarp();
  for (int slice = start; slice < stop; slice += 32) {
    const Softmax part = sum_slice<T>(call, scores + (slice - start), slice, min(32, stop - slice), shift);
#pragma unroll
    for (int x = 0; x < 4; ++x) softmax.out.x[x] += part.out.x[x];
  }
  return softmax;
}

template <int T>
__global__ void __launch_bounds__(32 * WARPS, 4) attention_kernel(DfgnnCall call) {
  __shared__ float shared[CHUNK];
  __shared__ int bound[WARPS + 1];
  const int warp = threadIdx.x / 32, unit = blockIdx.x * WARPS + warp;
  if (threadIdx.x <= WARPS) bound[threadIdx.x] = call.begin[min(unit - warp + int(threadIdx.x), call.units)];
  __syncthreads();
  const int start = bound[0], stop = bound[WARPS];
  Softmax softmax;
  if constexpr (has<T, ONLINE>) {
    for (int chunk = start; chunk < stop; chunk += CHUNK) {
      const int end = min(chunk + CHUNK, stop);
      score_edges<T>(call, bound, chunk, end, shared);
      __syncthreads();
      take_in<T>(call, shared, chunk, max(chunk, bound[warp]), min(end, bound[warp + 1]), softmax);
      __syncthreads();
    }
  } else {
    float* scores = stop - start <= CHUNK ? shared : call.scores + start;
    score_edges<T>(call, bound, start, stop, scores);
    __syncthreads();
    softmax = three_passes<T>(call, scores + (bound[warp] - start), bound[warp], bound[warp + 1]);
  }
  if (unit >= call.units) return;
  const int piece = has<T, SPLIT> ? call.piece[unit] : -1;
  if (piece < 0) {
    const float norm = softmax.sum > 0 ? 1 / softmax.sum : 0.0f;  // a row without edges is 0
    store<T>(call.out, has<T, SPLIT> ? call.row[unit] : unit, softmax.out, norm);
    return;
  }
  store<T>(call.piece_out, piece, softmax.out, 1.0f);
  if (threadIdx.x % 32 == 0) {
    call.piece_max[piece] = softmax.max;
    call.piece_sum[piece] = softmax.sum;
  }
}

// The pieces of a long row, a row a block: each warp adds every WARPSth, and the warps' sums are added in their order.
template <int T>
__global__ void __launch_bounds__(32 * WARPS) merge_kernel(DfgnnCall call) {
  __shared__ float highest[WARPS], sums[WARPS], outs[WARPS * HEAD_DIM];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int start = call.long_piece[blockIdx.x], stop = call.long_piece[blockIdx.x + 1];
  float max = -INFINITY;
  for (int i = start + threadIdx.x; i < stop; i += 32 * WARPS) max = fmaxf(max, call.piece_max[i]);
  max = warp_max(max);
  if (lane == 0) highest[warp] = max;
  __syncthreads();
  for (int i = 0; i < WARPS; ++i) max = fmaxf(max, highest[i]);
  const float shift = finite(max);

  Features out;
  float sum = 0;
#pragma unroll 4
  for (int i = start + warp; i < stop; i += WARPS) {
    const float weight = exp2f(call.piece_max[i] - shift);
    const Features part = load<T>(call.piece_out, i);
    sum += weight * call.piece_sum[i];
#pragma unroll
    for (int x = 0; x < 4; ++x) out.x[x] += weight * part.x[x];
  }
  store<T>(outs, warp, out, 1.0f);
  if (lane == 0) sums[warp] = sum;
  __syncthreads();
  if (threadIdx.x >= HEAD_DIM) return;
  float total = 0, feature = 0;
  for (int i = 0; i < WARPS; ++i) {
    total += sums[i];
    feature += outs[i * HEAD_DIM + threadIdx.x];
  }
  const size_t place = static_cast<size_t>(call.long_row[blockIdx.x]) * HEAD_DIM + threadIdx.x;
  call.out[place] = total > 0 ? feature / total : 0.0f;
}

template <int T>
cudaError_t launch(const DfgnnCall& call, cudaStream_t stream) {
  attention_kernel<T><<<(call.units + WARPS - 1) / WARPS, 32 * WARPS, 0, stream>>>(call);
  if (has<T, SPLIT> && call.long_rows > 0) {
    merge_kernel<T & VECTORIZED><<<call.long_rows, 32 * WARPS, 0, stream>>>(call);
  }
  return cudaGetLastError();
}

constexpr int ALL = BALANCED | REDUNDANCY_FREE | VECTORIZED | SPLIT | ONLINE;

cudaError_t launch(int techniques, const DfgnnCall& call, cudaStream_t stream) {
  switch (techniques) {
    case ALL:
      return launch<ALL>(call, stream);
    case ALL & ~BALANCED:
      return launch<ALL & ~BALANCED>(call, stream);
    case ALL & ~REDUNDANCY_FREE:
      return launch<ALL & ~REDUNDANCY_FREE>(call, stream);
    case ALL & ~VECTORIZED:
      return launch<ALL & ~VECTORIZED>(call, stream);
    case ALL & ~SPLIT:
      return launch<ALL & ~SPLIT>(call, stream);
    case ALL & ~ONLINE:
      return launch<ALL & ~ONLINE>(call, stream);
    case 0:
      return launch<0>(call, stream);
    default:
      return cudaErrorInvalidValue;
  }
}

}  // namespace

extern "C" {

// The most edges of a unit if SPLIT, the units of a block, the scores that fit in shared memory, the bytes of a call.
int dfgnn_piece() { return PIECE; }
int dfgnn_units() { return WARPS; }
int dfgnn_chunk() { return CHUNK; }
int dfgnn_call_bytes() { return sizeof(DfgnnCall); }

// The words of an error; null for none.
const char* dfgnn_attention(int techniques, const DfgnnCall* call, cudaStream_t stream) {
  const cudaError_t error = call->units > 0 ? launch(techniques, *call, stream) : cudaSuccess;
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}
}
