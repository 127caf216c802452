// forward_cpu and backward_cpu: picks the kernels for this machine, allocates, and runs their passes in parallel.
#include "attention.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <cstdlib>
#include <memory>
#include <string_view>

#include "kernels.h"
#include "schedule.h"

namespace dfgnn {
namespace cpu {
namespace {

using KernelsOf = Kernels (*)(Logit, Type);

// The widest instruction set of this machine, or a narrower one that ATEN_CPU_CAPABILITY (torch's own variable, read
// once, as torch does) asks for.
KernelsOf choose_instruction_set() {
#if defined(__x86_64__)
  const char* variable = std::getenv("ATEN_CPU_CAPABILITY");
  const std::string_view limit = variable ? variable : "avx512";
  if (limit != "default") {
    if (limit != "avx2" && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      return avx512::kernels;
    }
    // Every processor with AVX2 and FMA has F16C too.
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return avx2::kernels;
  }
#endif
  return baseline::kernels;
}

Kernels kernels_for(const Attention& attention) {
  static const KernelsOf kernels = choose_instruction_set();
  const auto type = attention.value.scalar_type();
  return kernels(static_cast<Logit>(attention.score), type == at::kDouble     ? Type::f64
                                                      : type == at::kHalf     ? Type::f16
                                                      : type == at::kBFloat16 ? Type::bf16
                                                                              : Type::f32);
}

const void* data_of(const at::Tensor& t) { return t.defined() ? t.const_data_ptr() : nullptr; }
void* writable(const at::Tensor& t) { return t.defined() ? t.mutable_data_ptr() : nullptr; }

Args make_args(const Attention& a) {
  Args args{};
  args.rowptr = data_of(a.rowptr);
  args.col = data_of(a.col);
  args.colptr = data_of(a.colptr);
  args.row = data_of(a.row);
  args.perm = data_of(a.perm);
  args.wide_index = a.rowptr.scalar_type() == at::kLong;
  args.num_dst = a.num_dst();
  args.num_src = a.num_src();
  args.num_edges = a.num_edges();
  args.heads = a.heads();
  args.head_dim = a.head_dim();
  args.dst = data_of(a.dst);
  args.src = data_of(a.src);
  args.value = data_of(a.value);
  args.dst_scale = data_of(a.dst_scale);
  args.src_scale = data_of(a.src_scale);
  args.a_edge = data_of(a.a_edge);
  args.bias = data_of(a.bias);
  args.scale = a.scale;
  args.negative_slope = a.negative_slope;
  if (a.dropout_p > 0) {
    const auto seed = static_cast<uint64_t>(*a.seed.const_data_ptr<int64_t>());
    args.dropout = true;
    args.key[0] = static_cast<uint32_t>(seed);
    args.key[1] = static_cast<uint32_t>(seed >> 32);
    args.keep_threshold = static_cast<uint64_t>(std::ceil(a.dropout_p * 0x1p32));  // word * 2^-32 >= p
    args.keep_scale = a.dropout_p < 1 ? 1 / (1 - a.dropout_p) : 0;
  }
  return args;
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

}  // namespace
}  // namespace cpu

ForwardResult forward_cpu(const Attention& a) {
  const auto type = accumulate_type(a.value.scalar_type());
  const auto out = at::empty({a.num_dst(), a.heads(), a.head_dim()}, a.value.options());
  const auto lse = at::empty({a.num_dst(), a.heads()}, a.value.options().dtype(type));
  auto args = cpu::make_args(a);
  args.out = cpu::writable(out);
  args.lse = cpu::writable(lse);
  const auto schedule = cpu::make_schedule(a.rowptr, a.num_edges(), a.heads() * a.head_dim());
  cpu::run(cpu::kernels_for(a).forward, args, schedule, lse.element_size());
  return {out, lse};
}

Gradients backward_cpu(const Attention& a, const Saved& saved) {
  const auto per_edge = a.value.options().dtype(accumulate_type(a.value.scalar_type()));
  const int64_t width = a.heads() * a.head_dim();
  const auto rows = cpu::make_schedule(a.rowptr, a.num_edges(), width);
  const auto edge_tensor = [&] {  // where some entries belong to no row, their gradients are 0
    return rows.complete ? at::empty({a.num_edges(), a.heads()}, per_edge)
                         : at::zeros({a.num_edges(), a.heads()}, per_edge);
  };
  const bool additive = a.score == Score::additive;
  const auto weight = edge_tensor(), grad_score = edge_tensor();

  Gradients gradients;
  gradients.dst = at::empty_like(a.dst);
  gradients.src = at::empty_like(a.src);
  gradients.value = at::empty_like(a.value);
  if (a.a_edge.defined()) gradients.a_edge = grad_score;
  if (a.bias.defined()) gradients.bias = additive ? edge_tensor() : grad_score;

  auto args = cpu::make_args(a);
  args.grad_out = cpu::data_of(saved.grad_out);
  args.lse = const_cast<void*>(cpu::data_of(saved.lse));
  args.delta = cpu::data_of(saved.delta);
  args.weight = cpu::writable(weight);
  args.grad_score = cpu::writable(grad_score);
  args.grad_bias = additive ? cpu::writable(gradients.bias) : nullptr;
  args.grad_dst = cpu::writable(gradients.dst);
  args.grad_src = cpu::writable(gradients.src);
  args.grad_value = cpu::writable(gradients.value);
  const auto kernels = cpu::kernels_for(a);
  cpu::run(kernels.backward_dst, args, rows, weight.element_size());
  const auto columns = cpu::make_schedule(a.colptr, a.num_edges(), width);
  cpu::run(kernels.backward_src, args, columns, weight.element_size());
  return gradients;
}

}  // namespace dfgnn
