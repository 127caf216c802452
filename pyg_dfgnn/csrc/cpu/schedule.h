// How a pass over the rows of a compressed graph is divided into work for threads.
#pragma once

#include <ATen/ATen.h>

#include <vector>

namespace dfgnn::cpu {

// A part of a row of more than kPieceEdges edges.
struct Piece {
  int64_t row, begin, end;
};

struct Schedule {
  std::vector<int64_t> chunks;     // chunk c holds rows chunks[c] .. chunks[c + 1] - 1 and costs about what others cost
  std::vector<Piece> pieces;       // of the long rows, in order
  std::vector<int64_t> long_rows;  // their first pieces, as positions in `pieces`, and a last entry pieces.size()
  bool complete;                   // every one of the num_edges entries belongs to a row
};

// `pointers` [rows + 1] is rowptr or colptr, `width` what an edge costs, as elements moved. Nothing here depends on the
// number of threads.
Schedule make_schedule(const at::Tensor& pointers, int64_t num_edges, int64_t width);

}  // namespace dfgnn::cpu
