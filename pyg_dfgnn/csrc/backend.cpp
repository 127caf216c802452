// The operators on CPU and CUDA tensors.
#include <torch/library.h>

#include "../../cuda/tile_geometry.h"
#include "graph.h"
#include "method.h"
#include "operands.h"

namespace dfgnn {
namespace {

struct Cpu {
  static ForwardResult forward(Call call) {
    const auto attention = make_attention(call);
    choose_method(call, attention, Pass::forward);
    return forward_cpu(attention);
  }

  static CallGradients backward(Call call, BackwardInputs inputs) {
    const auto attention = make_attention(call);
    choose_method(call, attention, Pass::backward);
    auto saved = make_saved(call, inputs, attention);
    const auto type = saved.lse.scalar_type();
    saved.delta = (saved.grad_out.to(type) * saved.out.to(type)).sum(-1);
    if (saved.grad_lse.defined()) saved.delta = saved.delta - saved.grad_lse;
    return finish_gradients(call, attention, backward_cpu(attention, saved));
  }
};

#ifdef DFGNN_WITH_CUDA
struct Cuda {
  static ForwardResult forward(Call call) {
    auto attention = make_attention(call);
    const auto method = choose_method(call, attention, Pass::forward);
    return forward_cuda(with_tiles(std::move(attention), method), method);
  }

  static CallGradients backward(Call call, BackwardInputs inputs) {
    auto attention = make_attention(call);
    const auto saved = make_saved(call, inputs, attention);
    const auto method = choose_method(call, attention, Pass::backward);
    attention = with_tiles(std::move(attention), method);
    return finish_gradients(call, attention, backward_cuda(attention, saved, method));
  }

 private:
  static Attention with_tiles(Attention a, Method method) {
    if (method != Method::tile) return a;
    if (!a.tiles.defined()) a.tiles = std::get<0>(find_tiles_cuda(a.rowptr, a.col));
    if (a.tiles.numel() != cuda::tile::size_with_masks(a.num_dst())) {
      a.tiles = with_masks_cuda(a.tiles, a.rowptr, a.col, a.colptr, a.row);
    }
    return a;
  }
};
#endif

}  // namespace

TORCH_LIBRARY_IMPL(dfgnn, CPU, m) {
  register_forward<Cpu>(m);
  register_backward<Cpu>(m);
}

#ifdef DFGNN_WITH_CUDA
TORCH_LIBRARY_IMPL(dfgnn, CUDA, m) {
  register_forward<Cuda>(m);
  register_backward<Cuda>(m);
}
#endif

}  // namespace dfgnn
