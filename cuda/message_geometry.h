// Which attention over messages has kernels, as plain numbers: what chooses between these and other operators, for
// which nothing of CUDA need be there, reads them too.
#pragma once

#include <cstdint>

namespace dfgnn::cuda {

// How many numbers of `bytes` each a lane has of a row of features of nodes at a time, and of features of edges, which
// are whole vectors of these: with zeros behind them, if need be.
constexpr int message_vector(int bytes) { return bytes == 8 ? 2 : 4; }
constexpr int message_term(int bytes) { return 8 / bytes; }
constexpr int64_t whole_terms(int bytes, int64_t width) {
  const int term = message_term(bytes);
  return (width + term - 1) / term * term;
}

// Lanes of a head: four to a warp's, a power of two, with a vector of the edge's features each at the most. 0 where
// heads are of another size, or a node's are more than two vectors a lane.
constexpr int message_lanes(int bytes, int64_t heads, int64_t head_dim, int64_t width) {
  const int vector = message_vector(bytes);
  const int64_t lanes = head_dim / vector;
  const bool fits = head_dim % vector == 0 && lanes >= 4 && lanes <= 32 && (lanes & (lanes - 1)) == 0 &&
                    heads * lanes <= 64 && whole_terms(bytes, width) <= lanes * message_term(bytes);
  return fits ? static_cast<int>(lanes) : 0;
}

// Lanes of a row of all heads: of so many, as many as a group has, or twice those of a warp.
constexpr int message_row_lanes(int64_t lanes) { return lanes <= 8 ? 8 : lanes <= 16 ? 16 : lanes <= 32 ? 32 : 64; }

}  // namespace dfgnn::cuda
