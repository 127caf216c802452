// How CUDA kernels take the heads of additive_v2_logits: groups of them, as rows of up to 128 numbers.
#pragma once

#include <ATen/ATen.h>

#include <algorithm>
#include <vector>

namespace dfgnn {

class V2Parts {
 public:
  // Parts one after another from `first` on; with zeros behind them they are a row of `width` numbers.
  struct Group {
    int64_t first, size, width;
    bool octets;  // by tensor cores (cuda/v2_logits.h)
    // Of an edge, which the forward pass leaves to the backward pass.
    int64_t sign_bytes() const { return !octets ? 0 : width > 64 ? 16 : 8; }
  };

  // with_signs: with a backward pass, for which rows of few numbers get zeros, too.
  V2Parts(at::ScalarType type, int64_t heads, int64_t head_dim, int64_t edge_dim, double negative_slope,
          bool with_signs)
      : heads_(heads), head_dim_(head_dim) {
    const int64_t vector = type == at::kDouble ? 1 : 16 / static_cast<int64_t>(at::elementSize(type));
    const int64_t least = 8 * vector;  // of octets, of which eight lanes have a row
    most_ = kMost;
    while (most_ >= least && most_ * factor_bytes(type, edge_dim) > kFactor) most_ /= 2;
    // The slope, as leaky_relu of x is the larger of x and slope times x.
    octets_ = type != at::kDouble && negative_slope <= 1 && most_ >= least;
    if (!octets_) most_ = kMost;
    least_ = octets_ ? (with_signs ? least : vector) : 0;
    octet_ = least;
    channels_ = std::min(power_of_two(head_dim, vector), std::min(most_, kLanes * vector));
    const auto with_zeros = [&](int64_t channels) { return (head_dim + channels - 1) / channels * channels; };
    for (int64_t fewer = channels_ / 2; fewer >= kFewest; fewer /= 2) {  // more parts, if that saves an eighth of them
      if (8 * with_zeros(fewer) <= 7 * with_zeros(channels_)) channels_ = fewer;
    }
    parts_ = with_zeros(channels_) / channels_;
  }

  // A score is a sum over channels, so that a head may be several parts, each a head to kernels, of as many channels, a
  // power of two of whole vectors, with zeros behind them.
  int64_t heads() const { return heads_; }
  int64_t head_dim() const { return head_dim_; }
  int64_t of_head() const { return parts_; }
  int64_t count() const { return heads_ * parts_; }
  int64_t channels() const { return channels_; }

  std::vector<Group> groups() const {
    std::vector<Group> groups;
    const int64_t most = most_ / channels_;
    for (int64_t first = 0; first < count(); first += most) {
      const int64_t size = std::min(most, count() - first);
      const int64_t width = size * channels_, with_zeros = power_of_two(std::max(width, least_), channels_);
      const bool octets = octets_ && with_zeros >= octet_;
      groups.push_back({first, size, octets ? with_zeros : width, octets});
    }
    return groups;
  }

  int64_t sign_bytes() const {  // of an edge
    int64_t bytes = 0;
    for (const Group& group : groups()) bytes += group.sign_bytes();
    return bytes;
  }

 private:
  static constexpr int64_t kMost = 128, kLanes = 32, kFewest = 32;
  // Of W as a factor of octets in shared memory, of which all devices have so much, and a multiprocessor of 9.0 three
  // times.
  static constexpr int64_t kFactor = 64 << 10;
  static int64_t factor_bytes(at::ScalarType type, int64_t edge_dim) {  // of a channel; float32 has low parts
    return (edge_dim + 7) / 8 * 8 * (type == at::kFloat ? 8 : 4);
  }
  static int64_t power_of_two(int64_t least, int64_t from) {
    while (from < least) from *= 2;
    return from;
  }

  int64_t heads_, head_dim_, parts_, channels_, most_, least_, octet_;
  bool octets_;
};

}  // namespace dfgnn
