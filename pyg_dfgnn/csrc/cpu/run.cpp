#include "run.h"

#include <ATen/Dispatch.h>
#include <ATen/Parallel.h>

#include <array>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace dfgnn::cpu {
namespace {

InstructionSet choose_instruction_set() {
#if defined(__x86_64__)
  const char* variable = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string_view limit = variable ? variable : "avx512";
  if (limit != "default") {
    if (limit != "avx2" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return {avx512::kernels,      avx512::product_kernels, avx512::norm_kernels, avx512::att_kernel,
              avx512::node_kernels, avx512::v2_kernels,      avx512::dropout_mask};
    }
    // Every processor with AVX2 and FMA has F16C too.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
      return {avx2::kernels,      avx2::product_kernels, avx2::norm_kernels, avx2::att_kernel,
              avx2::node_kernels, avx2::v2_kernels,      avx2::dropout_mask};
    }
  }
#endif
  return {baseline::kernels,      baseline::product_kernels, baseline::norm_kernels, baseline::att_kernel,
          baseline::node_kernels, baseline::v2_kernels,      baseline::dropout_mask};
}

}  // namespace

const InstructionSet& instruction_set() {
  static const InstructionSet chosen = choose_instruction_set();
  return chosen;
}

Args args_of(const Compressed& graph, int64_t heads, int64_t head_dim) {
  Args args{};
  args.rowptr = data_of(graph.ptr);
  args.col = data_of(graph.node);
  args.perm = data_of(graph.position);
  args.wide_index = graph.ptr.scalar_type() == at::kLong;
  args.num_dst = graph.num_rows();
  args.num_src = graph.num_nodes;
  args.num_edges = graph.num_edges();
  args.heads = heads;
  args.head_dim = head_dim;
  return args;
}

at::Tensor numbers_of_edges(const Schedule& schedule, int64_t num_edges, int64_t heads, at::TensorOptions options) {
  const std::array<int64_t, 2> shape = {num_edges, heads};
  return schedule.complete ? at::empty(shape, options) : at::zeros(shape, options);
}

at::Tensor sum_of_parts(const at::Tensor& given) {
  const auto sizes = given.sizes().slice(1);
  int64_t count = given.size(0);
  if (count == 0) return at::zeros(sizes, given.options());
  const auto parts = given.contiguous();
  const int64_t size = parts.numel() / count;
  const auto halves = at::empty({(count + 1) / 2 * size}, given.options());
  AT_DISPATCH_FLOATING_TYPES(given.scalar_type(), "sum_of_parts", [&] {
    const auto* from = parts.const_data_ptr<scalar_t>();
    auto* sums = halves.mutable_data_ptr<scalar_t>();
    do {
      const int64_t half = (count + 1) / 2, paired = (count - half) * size;
      at::parallel_for(0, half * size, 1 << 15, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i) sums[i] = i < paired ? from[i] + from[half * size + i] : from[i];
      });
      from = sums;
      count = half;
    } while (count > 1);
  });
  return halves.narrow(0, 0, size).view(sizes).clone();
}

void set_dropout(Args& args, double dropout_p, const at::Tensor& seed) {
  const auto all = static_cast<uint64_t>(*seed.const_data_ptr<int64_t>());
  args.dropout = true;
  args.seed[0] = static_cast<uint32_t>(all);
  args.seed[1] = static_cast<uint32_t>(all >> 32);
  args.keep_threshold = static_cast<uint64_t>(std::ceil(dropout_p * 0x1p32));  // word * 2^-32 >= p
  args.keep_scale = dropout_p < 1 ? 1 / (1 - dropout_p) : 0;
}

void run(const Pass& pass, const Args& args, const Schedule& schedule, int64_t element_size) {
  const int64_t size = pass.state_size(args) * element_size;
  const auto allocate = [&](int64_t states) { return std::make_unique_for_overwrite<char[]>(states * size); };
  const auto& pieces = schedule.pieces;
  const int64_t num_pieces = int64_t(pieces.size());
  const auto states = allocate(num_pieces);
  at::parallel_for(0, num_pieces, 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      pass.piece(args, pieces[k].row, pieces[k].begin, pieces[k].end, states.get() + k * size);
    }
  });
  at::parallel_for(0, int64_t(schedule.long_rows.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) {
      const int64_t first = schedule.long_rows[k], count = schedule.long_rows[k + 1] - first;
      pass.merge(args, pieces[first].row, states.get() + first * size, count);
    }
  });
  at::parallel_for(0, int64_t(schedule.chunks.size()) - 1, 1, [&](int64_t begin, int64_t end) {
    const auto state = allocate(1);
    for (int64_t c = begin; c < end; ++c) pass.rows(args, schedule.chunks[c], schedule.chunks[c + 1], state.get());
  });
}

}  // namespace dfgnn::cpu
