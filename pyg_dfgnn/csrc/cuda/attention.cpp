// Attention on CUDA tensors: allocation, device and stream around the kernels of cuda/.
#include "../../../cuda/attention.h"

#include <ATen/Context.h>
#include <ATen/cuda/EmptyTensor.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include "../../../cuda/tile_geometry.h"
#include "../derivative.h"
#include "../method.h"
#include "../operands.h"
#include "tensors.h"

namespace dfgnn {
namespace {

cuda::Score score_of(Score score) {
  switch (score) {
    case Score::dot:
      return cuda::Score::dot;
    case Score::cosine:
      return cuda::Score::cosine;
    case Score::additive_v2:
      return cuda::Score::additive_v2;
    default:
      return cuda::Score::additive;
  }
}

// The operands with features and tiles aligned; `src` and `value` stay one tensor where they are.
Attention align(Attention a) {
  if (a.tiles.defined()) a.tiles = aligned(a.tiles);
  if (a.score != Score::additive) {
    const bool same_value = a.src.is_same(a.value), same_dst = a.dst.is_same(a.src);
    a.src = aligned(a.src);
    a.dst = same_dst ? a.src : aligned(a.dst);
    a.value = same_value ? a.src : aligned(a.value);
  } else {
    a.value = aligned(a.value);
  }
  return a;
}

cuda::Attention operands_of(const Attention& a) {
  check_sizes(a.num_dst(), a.num_src(), a.heads(), a.head_dim());
  const auto* tiles = static_cast<const int*>(data_of(a.tiles));
  const auto size = a.tiles.defined() && a.tiles.scalar_type() == at::kInt ? a.tiles.numel() : 0;
  const auto parts = cuda::tile::parts_of(size, a.num_dst());
  const auto* windows = parts.masks ? tiles + cuda::tile::windows_begin(a.num_dst()) : nullptr;
  const auto* masks = parts.masks ? tiles + cuda::tile::masks_begin(a.num_dst()) : nullptr;
  const auto* list = parts.list ? tiles + size - cuda::tile::size_of_list(a.num_dst()) : nullptr;
  const bool has_orders = parts.orders && a.num_src() == a.num_dst();
  const auto* orders = has_orders ? tiles + cuda::tile::boundaries_of(a.num_dst()) : nullptr;
  return {type_of(a.value),
          score_of(a.score),
          a.num_dst(),
          a.num_src(),
          a.num_edges(),
          static_cast<int>(a.heads()),
          static_cast<int>(a.head_dim()),
          index_of(a.rowptr),
          index_of(a.col),
          index_of(a.colptr),
          index_of(a.row),
          index_of(a.perm),
          data_of(a.dst),
          data_of(a.src),
          data_of(a.value),
          data_of(a.dst_scale),
          data_of(a.src_scale),
          data_of(a.beta),
          a.beta.defined() ? static_cast<int>(a.beta.numel()) : 0,
          a.eps,
          data_of(a.att),
          data_of(a.a_edge),
          data_of(a.bias),
          a.scale,
          a.negative_slope,
          a.dropout_p,
          static_cast<const int64_t*>(data_of(a.seed)),
          index_of(a.tiles),
          cuda::tile::boundaries_of(a.num_dst()) - 1,
          windows,
          masks,
          masks ? masks + a.num_dst() * cuda::tile::kMaskWords : nullptr,
          a.max_degree,
          {list, false},
          a.tile_nodes,
          a.tile_batches,
          false,
          orders,
          orders ? orders + a.num_dst() : nullptr};
}

// The same, with what torch lets products of float32 matrices do: torch.set_float32_matmul_precision, or
// torch.backends.cuda.matmul.fp32_precision, of which Context::allowTF32CuBLAS takes the first alone.
cuda::Attention with_precision(cuda::Attention a) {
  const auto precision = at::globalContext().float32Precision(at::Float32Backend::CUDA, at::Float32Op::MATMUL);
  a.allow_tf32 = precision == at::Float32Precision::TF32;
  return a;
}

// Without the dispatcher, which takes longer than the allocation.
at::Tensor empty(at::IntArrayRef sizes, const at::TensorOptions& options) {
  return at::detail::empty_cuda(sizes, options);
}

// Device memory for a kernel.
class Workspace {
 public:
  Workspace(size_t bytes, const at::TensorOptions& options) {
    if (bytes > 0) memory_ = empty({static_cast<int64_t>(bytes)}, options.dtype(at::kByte));
  }
  operator void*() const { return memory_.defined() ? memory_.mutable_data_ptr() : nullptr; }

 private:
  at::Tensor memory_;
};

}  // namespace

bool tile_fits_cuda(const Attention& a, Pass pass) {
  const c10::cuda::CUDAGuard guard(a.value.device());
  cuda::Attention shape{};
  shape.type = type_of(a.value);
  shape.score = score_of(a.score);
  shape.head_dim = static_cast<int>(a.head_dim());
  return pass == Pass::forward ? cuda::tile_fwd_fits(shape) : cuda::tile_bwd_fits(shape);
}

ForwardResult forward_cuda(Attention given, Method method) {
  const c10::cuda::CUDAGuard guard(given.value.device());
  auto a = align(std::move(given));
  const bool by_resident = method == Method::resident && cuda::resident_fwd_fits(operands_of(a));
  if (!by_resident && method != Method::tile) set_scales(a);
  const auto options = a.value.options();
  const auto scalars = options.dtype(accumulate_type(a.value.scalar_type()));
  auto out = empty({a.num_dst(), a.heads(), a.head_dim()}, options);
  auto lse = empty({a.num_dst(), a.heads()}, scalars);
  const cuda::Outputs outputs{out.mutable_data_ptr(), lse.mutable_data_ptr()};
  const auto stream = c10::cuda::getCurrentCUDAStream(a.value.device().index());
  const auto operands = operands_of(a);
  if (method == Method::pmf) {
    const Workspace workspace(cuda::pmf_fwd_workspace(operands), options);
    C10_CUDA_CHECK(cuda::pmf_fwd(operands, outputs, workspace, stream));
  } else if (method == Method::tile) {
    C10_CUDA_CHECK(cuda::tile_fwd(with_precision(operands), outputs, stream));
  } else if (by_resident) {
    C10_CUDA_CHECK(cuda::resident_fwd(operands, outputs, stream));
  } else {
    const Workspace workspace(cuda::smmf_fwd_workspace(operands), options);
    C10_CUDA_CHECK(cuda::smmf_fwd(operands, outputs, workspace, stream));
  }
  return {out, lse};
}

DerivativeResult forward_with_derivative_cuda(Attention given) {
  const c10::cuda::CUDAGuard guard(given.value.device());
  const auto a = align(std::move(given));
  const auto options = a.value.options();
  const auto features = [&] { return empty({a.num_dst(), a.heads(), a.head_dim()}, options); };
  auto out = features(), derivative = features();
  auto lse = empty({a.num_dst(), a.heads()}, options.dtype(accumulate_type(a.value.scalar_type())));
  const cuda::Outputs outputs{out.mutable_data_ptr(), lse.mutable_data_ptr(), derivative.mutable_data_ptr()};
  const auto operands = operands_of(a);
  const Workspace workspace(cuda::additive_fwd_workspace(operands), options);
  C10_CUDA_CHECK(
      cuda::additive_fwd(operands, outputs, workspace, c10::cuda::getCurrentCUDAStream(a.value.device().index())));
  return {out, lse, derivative};
}

Gradients backward_from_derivative_cuda(Attention given, const Saved& saved, const at::Tensor& derivative) {
  const c10::cuda::CUDAGuard guard(given.value.device());
  const auto a = align(std::move(given));
  const auto grad_out = aligned(saved.grad_out), out = aligned(saved.out), of_out = aligned(derivative);
  const auto empty_like = [](const at::Tensor& t) { return empty(t.sizes(), t.options()); };
  const Gradients gradients{empty_like(a.dst), empty_like(a.src), empty_like(a.value), {}, {}, {}};
  cuda::Gradients pointers{};
  pointers.grad_out = data_of(grad_out);
  pointers.out = data_of(out);
  pointers.lse = data_of(saved.lse);
  pointers.derivative = data_of(of_out);
  pointers.dst = writable(gradients.dst);
  pointers.src = writable(gradients.src);
  pointers.value = writable(gradients.value);
  const auto operands = operands_of(a);
  const Workspace workspace(cuda::additive_bwd_workspace(operands), a.value.options());
  C10_CUDA_CHECK(
      cuda::additive_bwd(operands, pointers, workspace, c10::cuda::getCurrentCUDAStream(a.value.device().index())));
  return gradients;
}

Gradients backward_cuda(Attention given, const Saved& saved, Method method) {
  const c10::cuda::CUDAGuard guard(given.value.device());
  auto a = align(std::move(given));
  const bool by_resident = method == Method::resident && cuda::resident_bwd_fits(operands_of(a));
  const bool by_tile = method == Method::tile;
  const bool is_one_x = saved.sum_x && a.dst.is_same(a.src) && (by_resident || by_tile);
  if (!by_resident && !by_tile) set_scales(a);
  const auto grad_out = aligned(saved.grad_out), out = aligned(saved.out);
  const auto scalars = a.value.options().dtype(accumulate_type(a.value.scalar_type()));
  // Entries of col past the last edge are no edges, and their gradients are 0.
  const auto edge_gradient = [](const at::Tensor& operand) {
    return operand.defined() ? at::zeros_like(operand) : at::Tensor();
  };
  const auto empty_like = [](const at::Tensor& t) { return empty(t.sizes(), t.options()); };
  const auto node_scalars = [&] { return empty({a.num_dst(), a.heads()}, scalars); };
  const auto delta = node_scalars(), scale = by_tile && a.score == Score::cosine ? node_scalars() : at::Tensor();
  Gradients gradients{{}, {}, empty_like(a.value), edge_gradient(a.a_edge), edge_gradient(a.bias), {}};
  if (is_one_x) {
    gradients.by_beta = node_scalars();
  } else {
    gradients.dst = empty_like(a.dst);
    gradients.src = empty_like(a.src);
  }
  const cuda::Gradients pointers{data_of(grad_out),         data_of(out),
                                 data_of(saved.lse),        data_of(saved.grad_lse),
                                 writable(delta),           writable(scale),
                                 writable(gradients.dst),   writable(gradients.src),
                                 writable(gradients.value), writable(gradients.a_edge),
                                 writable(gradients.bias),  writable(gradients.by_beta)};
  const auto stream = c10::cuda::getCurrentCUDAStream(a.value.device().index());
  const auto operands = operands_of(a);
  if (by_tile) {
    C10_CUDA_CHECK(cuda::tile_bwd(with_precision(operands), pointers, stream));
  } else if (by_resident) {
    C10_CUDA_CHECK(cuda::resident_bwd(operands, pointers, stream));
  } else if (method != Method::pmf && cuda::smmf_bwd_supports(operands.type, operands.head_dim)) {
    const Workspace workspace(cuda::smmf_bwd_workspace(operands), a.value.options());
    C10_CUDA_CHECK(cuda::smmf_bwd(operands, pointers, workspace, stream));
  } else {
    const Workspace workspace(cuda::pmf_bwd_workspace(operands), a.value.options());
    C10_CUDA_CHECK(cuda::pmf_bwd(operands, pointers, workspace, stream));
  }
  return gradients;
}

}  // namespace dfgnn
