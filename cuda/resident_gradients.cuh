// Resident backward of dot and additive scores (resident_bwd.cu). Until its edges are differentiated they are in the
// order of their sources: a chunk of dO gives dV, sums of columns, and with the columns' own rows of V dP; so does one
// of Q, with K, the dots. Then chunks of Q give dK, and, of the edges by row, chunks of K dQ.
#pragma once

#include "gradient.cuh"
#include "resident_dots.cuh"
#include "resident_layout.cuh"
#include "resident_sums.cuh"
#include "resident_terms.cuh"

namespace dfgnn::cuda::resident {

template <Score score, class S>
class TileGradients {
  using T = typename S::T;
  using List = typename Slices<S>::List;
  static constexpr bool kAdditive = score == Score::additive;

 public:
  __device__ __forceinline__ TileGradients(const Typed<T>& a, const Gradients& g, const Tile& tile, int h,
                                           unsigned char* memory, int bytes)
      : a_(a),
        g_(g),
        tile_(tile),
        h_(h),
        layout_{memory, bytes, tile.nodes, 0},
        chunk_{memory, tile.nodes},
        terms_{a, tile, h, nullptr},
        dropout_(a),
        sides_{Slices<S>(tile, layout_.rows()), Slices<S>(tile, layout_.columns())} {}

  // False where edges leave the tile, or it does not fit.
  __device__ __forceinline__ bool run() {
    if (!layout_.fit_nodes()) return false;
    const int chunks = chunks_of(a_);
    const int first = kAdditive ? chunks : 0;
    const Index* ptrs[] = {&a_.rowptr, &a_.colptr};
    const bool fits = sort_rows(sides_, ptrs, a_.num_edges, [&] {
      start_chunk(first / chunks, 0);
      chunk_.set_zeros();
    });
    if (!place_slots(fits)) {
      chunk_.wait();
      return false;
    }
    if (kAdditive) weigh();
    float *const weights = weights_, *const gradients = gradients_;  // a choice of members would put *this in memory
    Slices<S> edges = columns();
#pragma unroll 1
    for (int stage = first / chunks;; ++stage) {
#pragma unroll 1
      for (int c = 0; c < chunks; ++c) {
        if (stage == kDots || stage == kOfValue) {
          const bool is_dots = stage == kDots;
          OwnRows<S, false> own(edges, rows_of(is_dots ? a_.src : a_.value, c));
          chunk_.wait();
          own.add_dots(chunk_, c == 0, is_dots ? weights : gradients);
        } else {
          chunk_.wait();
        }
        if (stage != kDots) {
          store_sums<S>(edges, chunk_, stage == kOfSrc ? gradients : weights, rows_of(result_of(stage), c), nullptr,
                        stage == kOfValue ? kFromZero : kAll);
        }
        __syncthreads();
        if (c + 1 < chunks) start_chunk(stage, c + 1);
      }
      if (stage == kOfValue) {
        if (!differentiate()) return false;
        if (kAdditive) return true;
        chunk_.set_zeros();
      }
      if (stage == kOfDst) return true;
      start_chunk(stage + 1, 0);
      if (stage == kDots) weigh();
      if (stage == kOfSrc) {
        place_rows();
        edges = rows();
      }
    }
  }

 private:
  // What chunks are there for: of Q, of dO, of Q again and of K.
  enum Stage { kDots, kOfValue, kOfSrc, kOfDst };

  __device__ __forceinline__ Slices<S>& rows() { return sides_[0]; }
  __device__ __forceinline__ Slices<S>& columns() { return sides_[1]; }
  __device__ __forceinline__ Rows rows_of(const void* data, int chunk) const {
    return Rows(a_, data, tile_, h_, chunk);
  }
  __device__ __forceinline__ void* result_of(int stage) const {
    return stage == kOfValue ? g_.value : stage == kOfSrc ? g_.src : g_.dst;
  }
  __device__ __forceinline__ void start_chunk(int stage, int c) const {
    chunk_.start(rows_of(stage == kOfValue ? g_.grad_out : stage == kOfDst ? a_.src : a_.dst, c));
  }

  // Where slots have what; by column their other nodes and positions, among those of the tile; and what weigh() reads
  // of nodes. With a barrier at the end if all fits.
  __device__ __forceinline__ bool place_slots(bool fits) {
    edge_bytes_ = fits ? edge_bytes_of(max(rows().batches(), columns().batches())) : 0;
    if (!fits || rows().edges() != columns().edges() || !layout_.fit_edges(edge_bytes_, list_bytes_of(edge_bytes_))) {
      return false;
    }
    columns().offsets = reinterpret_cast<uint2*>(layout_.slots(0, edge_bytes_));
    weights_ = reinterpret_cast<float*>(layout_.slots(1, edge_bytes_));
    gradients_ = reinterpret_cast<float*>(layout_.slots(2, edge_bytes_));
    list_ = layout_.list_of_edges(edge_bytes_);
    auto* others = reinterpret_cast<uint16_t*>(weights_);
    columns().copy(
        {List{a_.row, tile_.first, tile_.nodes, others}, List{a_.perm, rows().first_edge, rows().edges(), list_}});
    if (has_node_numbers()) {
      for (int i = threadIdx.x; i < tile_.nodes; i += S::kThreads) {
        gradients_[i] = a_.at(g_.lse, scalar_of(i));
        if (!kAdditive) continue;
        gradients_[tile_.nodes + i] = terms_.dst(i);
        gradients_[2 * tile_.nodes + i] = terms_.src(i);
      }
    }
    __syncthreads();
    return __syncthreads_and(columns().fill(others));
  }

  // Other nodes by row, of the list, once columns have been summed up. With a barrier at the end.
  __device__ __forceinline__ void place_rows() {
    uint2* offsets = columns().offsets;
    for (int batch = threadIdx.x; batch < rows().batches() * kGroups; batch += S::kThreads) {
      const ushort2 nodes = reinterpret_cast<const ushort2*>(list_)[batch];
      offsets[batch] = {rows().offset_of(nodes.x), rows().offset_of(nodes.y)};
    }
    rows().offsets = offsets;
    __syncthreads();
  }

  // Whether lse, and additive's terms, of nodes have room where gradients will be.
  __device__ __forceinline__ bool has_node_numbers() const {
    return number_bytes_of(tile_.nodes) * (kAdditive ? 3 : 1) <= edge_bytes_;
  }
  __device__ __forceinline__ int64_t scalar_of(int node) const { return a_.scalar(tile_.first + node, h_); }

  // What weights of edges that are kept are scaled by, if that is not 0: a weight is P times that, with the sign of
  // less than 0 where dropout drops the edge.
  __device__ __forceinline__ float unit() const { return dropout_.kept() > 0 ? dropout_.kept() : 1.f; }

  // Dots, or what additive scores do without, become weights.
  __device__ __forceinline__ void weigh() {
    const bool has_terms = a_.bias || (kAdditive && a_.a_edge) || dropout_.active(), has_numbers = has_node_numbers();
    const Slices<S>& by_column = columns();
    float2* pairs = reinterpret_cast<float2*>(weights_);
    for (int t = threadIdx.x / kWarp; t < by_column.count(); t += S::kWarps) {
      const SliceRow column = by_column.row(t);
      const float src = kAdditive && has_numbers ? gradients_[2 * tile_.nodes + column.node] : terms_.src(column.node);
      const auto weight_of = [&](float dot, int slot, int edge) {
        const int row = by_column.node(slot);
        const int64_t position = has_terms ? rows().first_edge + min(int{list_[edge]}, rows().edges() - 1) : 0;
        const float lse = has_numbers ? gradients_[row] : a_.at(g_.lse, scalar_of(row));
        const float dst = kAdditive && has_numbers ? gradients_[tile_.nodes + row] : terms_.dst(row);
        const float logit = logit_of<score>(a_, dot, dst, src, position, h_).value;
        const float weight = exp_difference(logit, lse) * unit();
        return dropout_.active() && weight >= 0 && !dropout_.keeps(position, h_) ? -weight : weight;
      };
      by_column.for_shared_batches(t, column, [&](int batch, int edge, int left) {
        float2 x = pairs[batch];
        x.x = left > 0 ? weight_of(x.x, batch * kBatch, edge) : 0.f;
        x.y = left > 1 ? weight_of(x.y, batch * kBatch + 1, edge + 1) : 0.f;
        pairs[batch] = x;
      });
    }
  }

  // What is in the place of the chunk and its zeros while edges are differentiated. It has room
  // (chunk_or_edge_bytes_of): terms take half a number an edge, or there are so few edges that a chunk is larger.
  struct ByRow {
    float *probabilities, *gradients;  // of slots by row; P has a sign where additive's slope is not 1
    uint16_t* slots;                   // by row, of columns' edges
    uint16_t* places;                  // of rows in the order
    float *dst_terms, *src_terms;      // additive's, of nodes
  };
  __device__ __forceinline__ ByRow by_row() const {
    auto* numbers = reinterpret_cast<float*>(layout_.memory);
    uint16_t* places = layout_.list(1, edge_bytes_);
    auto* terms = reinterpret_cast<float*>(places + tile_.nodes + tile_.nodes % 2);
    return {numbers, numbers + edge_bytes_ / 4, layout_.list(0, edge_bytes_), places, terms, terms + tile_.nodes};
  }

  // dP and weights become the gradients of dots, the first by column, the second by row, and the list the other nodes
  // of slots by row; of additive scores, sums of the gradients by their numbers are stored. With a barrier at the end.
  __device__ __forceinline__ bool differentiate() {
    const ByRow to = by_row();
    for (int i = threadIdx.x; i < tile_.nodes; i += S::kThreads) {
      to.places[rows().order[i]] = static_cast<uint16_t>(i);
      if (!kAdditive) continue;
      to.dst_terms[i] = terms_.dst(i);
      to.src_terms[i] = terms_.src(i);
    }
    __syncthreads();
    if (!__syncthreads_and(put_by_row(to))) return false;
    rows().for_places([&](int place, int row) { differentiate_row(to, place, row); });
    __syncthreads();
    take_by_column(to);
    __syncthreads();
    return true;
  }

  // P and dP, with dropout. False where positions are not those of the row.
  __device__ __forceinline__ bool put_by_row(const ByRow& to) {
    bool fits = true;
    const float share = 1 / unit();
    for (int t = threadIdx.x / kWarp; t < columns().count(); t += S::kWarps) {
      const SliceRow column = columns().row(t);
      const auto put = [&](int slot, int edge) {
        const int row = columns().node(slot), position = list_[edge], e = position - rows().begins[row];
        if (e < 0 || e >= rows().degree(row)) {
          fits = false;
          return;
        }
        const int target = rows().slot(to.places[row], e);
        const float weight = weights_[slot], p = fabsf(weight) * share;
        float slope = 1;
        if constexpr (kAdditive) {
          const float src = to.src_terms[column.node];
          slope = logit_of<score>(a_, 0.f, to.dst_terms[row], src, rows().first_edge + position, h_).slope;
        }
        to.probabilities[target] = slope == 1 ? p : -p;
        to.gradients[target] = signbit(weight) ? 0.f : dropout_.kept() * gradients_[slot];
        to.slots[edge] = static_cast<uint16_t>(target);
      };
      columns().for_shared_batches(t, column, [&](int batch, int edge, int left) {
        if (left > 0) put(batch * kBatch, edge);
        if (left > 1) put(batch * kBatch + 1, edge + 1);
      });
    }
    return fits;
  }

  // By one thread.
  __device__ __forceinline__ void differentiate_row(const ByRow& of, int place, int row) {
    if (row < 0 && kAdditive) return;
    const auto* ps = reinterpret_cast<const float2*>(of.probabilities);
    auto* gradients = reinterpret_cast<float2*>(of.gradients);
    float delta = g_.grad_lse && row >= 0 ? -a_.at(g_.grad_lse, scalar_of(row)) : 0.f, sum = 0;
    rows().for_batches(place, row, [&](int batch, int, int left) {
      const float2 p = ps[batch], dp = gradients[batch];
      if (left > 0) delta += fabsf(p.x) * dp.x;
      if (left > 1) delta += fabsf(p.y) * dp.y;
    });
    if (row >= 0 && !g_.grad_lse && rows().degree(row) == 1) delta = no_delta<float>();
    const auto gradient_of = [&](float p, float dp, int edge) {
      const float ds = logit_gradient(fabsf(p), 1.f, dp, delta);
      const int64_t number = a_.scalar(rows().first_edge + edge, h_);
      if (g_.bias) static_cast<float*>(g_.bias)[number] = ds;
      const float gradient = ds * (!kAdditive ? a_.logit_scale : signbit(p) ? a_.slope_below_zero : 1.f);
      if (kAdditive && g_.a_edge) static_cast<float*>(g_.a_edge)[number] = gradient;
      sum += gradient;
      return gradient;
    };
    rows().for_batches(place, row, [&](int batch, int edge, int left) {
      const float2 p = ps[batch], dp = gradients[batch];
      float2 gradient{};
      if (left > 0) gradient.x = gradient_of(p.x, dp.x, edge);
      if (left > 1) gradient.y = gradient_of(p.y, dp.y, edge + 1);
      gradients[batch] = gradient;
      if constexpr (!kAdditive) {
        reinterpret_cast<float2*>(weights_)[batch] = gradient;
        if (left < kBatch) reinterpret_cast<ushort2*>(list_)[batch] = {Slices<S>::kNone, Slices<S>::kNone};
      }
    });
    if (kAdditive) static_cast<float*>(g_.dst)[scalar_of(row)] = sum;
  }

  __device__ __forceinline__ void take_by_column(const ByRow& from) {
    for (int t = threadIdx.x / kWarp; t < columns().count(); t += S::kWarps) {
      const SliceRow column = columns().row(t);
      float sum = 0;
      const auto take = [&](int edge) {
        const int slot = from.slots[edge];
        const float gradient = from.gradients[slot];
        sum += gradient;
        if (!kAdditive) list_[slot] = static_cast<uint16_t>(column.node);
        return gradient;
      };
      columns().for_shared_batches(t, column, [&](int batch, int edge, int left) {
        float2 gradient{};
        if (left > 0) gradient.x = take(edge);
        if (left > 1) gradient.y = take(edge + 1);
        if (!kAdditive) reinterpret_cast<float2*>(gradients_)[batch] = gradient;
      });
      if constexpr (kAdditive) {
        sum = lanes_sum<kLanes>(sum);
        if (column.live && lane_in_group() == 0) static_cast<float*>(g_.src)[scalar_of(column.node)] = sum;
      }
    }
  }

  const Typed<T>& a_;
  const Gradients& g_;
  const Tile& tile_;
  const int h_;
  const Layout layout_;
  const Chunk<S> chunk_;
  const NodeTerms<score, T> terms_;
  const Dropout<float> dropout_;
  Slices<S> sides_[2];
  int64_t edge_bytes_ = 0;
  float *weights_ = nullptr, *gradients_ = nullptr;  // of slots
  uint16_t* list_ = nullptr;
};

}  // namespace dfgnn::cuda::resident
