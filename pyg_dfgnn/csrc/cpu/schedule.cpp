#include "schedule.h"

#include <algorithm>

#include "kernels.h"

namespace dfgnn::cpu {
namespace {

// A chunk is some ten microseconds of work: enough to pay for handing it to a thread, little enough to balance.
constexpr int64_t kChunkElements = int64_t(1) << 16;
constexpr int64_t kMaxChunks = 4096;

template <class Index>
Schedule divide(const Index* pointers, int64_t rows, int64_t num_edges, int64_t width) {
  const auto clamped = [&](Index p) { return std::clamp<int64_t>(p, 0, num_edges); };
  int64_t cost = 0, begin = clamped(pointers[0]);
  const int64_t total = (std::max<int64_t>(clamped(pointers[rows]) - begin, 0) + rows) * width;
  const int64_t chunk_cost = std::max(kChunkElements, total / kMaxChunks);
  Schedule schedule;
  schedule.chunks.push_back(0);
  schedule.complete = pointers[0] == 0;
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t end = clamped(pointers[i + 1]), degree = std::max<int64_t>(end - begin, 0);
    schedule.complete &= pointers[i + 1] == end && begin <= end;
    if (degree > kPieceEdges) {
      schedule.long_rows.push_back(int64_t(schedule.pieces.size()));
      const int64_t count = (degree + kPieceEdges - 1) / kPieceEdges;
      for (int64_t k = 0; k < count; ++k) {
        schedule.pieces.push_back({i, begin + degree * k / count, begin + degree * (k + 1) / count});
      }
    } else {
      cost += (degree + 1) * width;  // the row itself is read and written once
    }
    if (cost >= chunk_cost) {
      schedule.chunks.push_back(i + 1);
      cost = 0;
    }
    begin = end;
  }
  schedule.complete &= begin == num_edges;
  if (schedule.chunks.back() != rows) schedule.chunks.push_back(rows);
  schedule.long_rows.push_back(int64_t(schedule.pieces.size()));
  return schedule;
}

}  // namespace

Schedule make_schedule(const at::Tensor& pointers, int64_t num_edges, int64_t width) {
  const int64_t rows = pointers.numel() - 1;
  return pointers.scalar_type() == at::kLong ? divide(pointers.const_data_ptr<int64_t>(), rows, num_edges, width)
                                             : divide(pointers.const_data_ptr<int32_t>(), rows, num_edges, width);
}

}  // namespace dfgnn::cpu
