// Which attention over messages has kernels, as plain numbers: what chooses between these and other operators, for
// which nothing of CUDA need be there, reads them too.
#pragma once

#include <cstdint>

namespace dfgnn::cuda {

// How many numbers of `bytes` each a lane has at a time of a row of features of nodes, heads of which are of this size;
// and of features of edges, where these lie beside them, or of octets.
constexpr int message_vector(int bytes, int64_t head_dim) { return bytes == 8 || head_dim == 8 ? 2 : 4; }
constexpr int message_term(int bytes) { return 8 / bytes; }
constexpr int kOctetVector = 4, kOctetPiece = 32, kOctetHeads = 8;

// Lanes of a head; and in how many pieces of 32 kernels of octets (message_octets.cuh) take features of edges, 0 where
// the lanes of a head take them beside nodes'.
struct MessageShape {
  int lanes, pieces;
};

// Lanes: four to a warp's, a power of two. {} where there are no kernels: heads are of another size, a node's are more
// than two vectors a lane, or an edge's features too many.
constexpr MessageShape message_shape(int bytes, int64_t heads, int64_t head_dim, int64_t width) {
  const int vector = message_vector(bytes, head_dim);
  const int64_t lanes = head_dim / vector;
  if (head_dim % vector != 0 || lanes < 4 || lanes > 32 || (lanes & (lanes - 1)) != 0 || heads * lanes > 64) return {};
  if (width <= lanes * message_term(bytes)) return {static_cast<int>(lanes), 0};
  if (bytes == 8 || heads > kOctetHeads || width > 4 * kOctetPiece) return {};
  return {static_cast<int>(lanes), width <= kOctetPiece ? 1 : width <= 2 * kOctetPiece ? 2 : 4};
}

// The width with zeros behind it, if need be, so that lanes read whole vectors.
constexpr int64_t whole_width(int bytes, const MessageShape& shape, int64_t width) {
  const int vector = shape.pieces > 0 ? kOctetVector : message_term(bytes);
  return (width + vector - 1) / vector * vector;
}

// Lanes of a row of all heads: of so many, as many as a group has, or twice those of a warp.
constexpr int message_row_lanes(int64_t lanes) { return lanes <= 8 ? 8 : lanes <= 16 ? 16 : lanes <= 32 ? 32 : 64; }

}  // namespace dfgnn::cuda
