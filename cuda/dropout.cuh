// Attention dropout, as all kernels draw it.
#pragma once

#include <cstdint>

namespace dfgnn::cuda {

// Dropout of edge e and head h: 0 where dropped, 1 / (1 - p) where kept. Philox2x32-7 (Salmon et al., SC'11), keyed by
// the seed's low half and counted by e / 4 and by h plus the seed's high half, all of 32 bits, makes two words for four
// edges that follow each other in the CSR: the first for two of them, as it is and with its halves swapped, the second
// for the others. So the backward pass, the other methods and the CPU draw the same.
template <class A>
class Dropout {
 public:
  template <class Arguments>
  __device__ __forceinline__ explicit Dropout(const Arguments& a)
      : drops_(a.drops),
        last_dropped_(a.last_dropped),
        kept_(a.dropout_kept),
        seed_(a.seed ? static_cast<uint64_t>(*a.seed) : 0) {}

  __device__ __forceinline__ bool active() const { return drops_; }

  __device__ __forceinline__ A factor(int64_t e, int h) const {
    if (!active()) return A(1);
    return keeps(e, h) ? kept_ : A(0);
  }

  // Where active, whether that edge is kept; of edges 4 g to 4 g + 3, as bits.
  __device__ __forceinline__ bool keeps(int64_t e, int h) const {
    const Words words = draw(e >> 2, h);
    const uint32_t word = (e & 2) != 0 ? words.second : words.first;
    return is_kept((e & 1) != 0 ? swap_halves(word) : word);
  }
  __device__ __forceinline__ uint32_t keeps_four(int64_t g, int h) const {
    const Words words = draw(g, h);
    return (is_kept(words.first) ? 1 : 0) | (is_kept(swap_halves(words.first)) ? 2 : 0) |
           (is_kept(words.second) ? 4 : 0) | (is_kept(swap_halves(words.second)) ? 8 : 0);
  }
  // Of kCount edges from e on, in the lowest bits.
  template <int kCount>
  __device__ __forceinline__ uint32_t keeps_next(int64_t e, int h) const {
    const int fours = kCount / 4 + ((e & 3) != 0);
    uint32_t kept = 0;
#pragma unroll 1
    for (int g = 0; g < fours; ++g) kept |= keeps_four((e >> 2) + g, h) << 4 * g;
    return kept >> (e & 3);
  }
  // What edges that are kept are scaled by.
  __device__ __forceinline__ A kept() const { return active() ? kept_ : A(1); }

 private:
  struct Words {
    uint32_t first, second;
  };

  __device__ __forceinline__ Words draw(int64_t g, int h) const {
    Words counter = {static_cast<uint32_t>(g), static_cast<uint32_t>(h) + static_cast<uint32_t>(seed_ >> 32)};
    auto key = static_cast<uint32_t>(seed_);
#pragma unroll
    for (int round = 0; round < 7; ++round) {
      const Words product = times_multiplier(counter.first);
      counter = {product.second ^ key ^ counter.second, product.first};
      key += 0x9E3779B9u;
    }
    return counter;
  }

  // Its low half first. (nvcc would add to the high half of a product in C++ what is 0, by an instruction of its own.)
  __device__ __forceinline__ static Words times_multiplier(uint32_t x) {
    Words product;
    asm("{ .reg .u64 product; mul.wide.u32 product, %2, 0xD256D193; mov.b64 {%0, %1}, product; }"
        : "=r"(product.first), "=r"(product.second)
        : "r"(x));
    return product;
  }

  __device__ __forceinline__ static uint32_t swap_halves(uint32_t word) { return __funnelshift_l(word, word, 16); }
  __device__ __forceinline__ bool is_kept(uint32_t word) const { return word > last_dropped_; }

  bool drops_;
  uint32_t last_dropped_;
  A kept_;
  uint64_t seed_;
};

template <class Arguments>
Dropout(const Arguments&) -> Dropout<typename Arguments::A>;

}  // namespace dfgnn::cuda
