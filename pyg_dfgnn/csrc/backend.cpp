// The operators on CPU and CUDA tensors.
#include <torch/library.h>

#include "../../cuda/tile_geometry.h"
#include "cuda/padding.h"
#include "graph.h"
#include "method.h"
#include "operands.h"

namespace dfgnn {
namespace {

struct Cpu {
  static ForwardResult forward(Call call) {
    auto attention = make_attention(call);
    set_scales(attention);
    choose_method(call, attention, Pass::forward);
    return forward_cpu(attention);
  }

  static CallGradients backward(Call call, BackwardInputs inputs) {
    auto attention = make_attention(call);
    set_scales(attention);
    choose_method(call, attention, Pass::backward);
    const auto saved = make_saved(call, inputs, attention);
    return finish_gradients(call, attention, backward_cpu(attention, saved));
  }
};

#ifdef DFGNN_WITH_CUDA
struct Cuda {
  static ForwardResult forward(Call call) {
    auto attention = make_attention(call);
    const auto head_dim = attention.head_dim();
    attention = with_whole_vectors(call, std::move(attention));
    const auto method = choose_method(call, attention, Pass::forward, tile_fits_cuda);
    auto [out, lse] = forward_cuda(with_tiles(std::move(attention), method, Pass::forward), method);
    return {with_head_dim(out, head_dim), lse};
  }

  static CallGradients backward(Call call, BackwardInputs inputs) {
    const auto given = make_attention(call);
    auto whole = with_whole_vectors(call, given);
    auto saved = make_saved(call, inputs, given);
    resize_heads({&saved.grad_out, &saved.out}, whole.head_dim());
    const auto method = choose_method(call, whole, Pass::backward, tile_fits_cuda);
    auto gradients = backward_cuda(with_tiles(whole, method, Pass::backward), saved, method);
    saved = {};
    return finish_whole(std::move(call), given, std::move(whole), std::move(gradients));
  }

 private:
  // The call's gradients, of those of operands that have zeros behind each head's features; frees these and those
  // first.
  static CallGradients finish_whole(Call call, const Attention& given, Attention whole, Gradients gradients) {
    const auto head_dim = given.head_dim(), padding = whole.head_dim() - head_dim;
    if (padding == 0) return finish_gradients(call, given, gradients);
    const bool has_att = call.score == Score::additive_v2;
    if (has_att) call.c = at::constant_pad_nd(call.c, {0, padding});
    auto all = finish_gradients(call, whole, gradients);
    whole = {};
    gradients = {};
    auto& [a, b, c, a_edge, bias] = all;
    if (has_att) c = c.narrow(-1, 0, head_dim).contiguous();
    resize_heads({&a, &b, value_is_src(call.score) ? &b : &c}, head_dim);  // c is not beta, of whatever shape, nor att
    return all;
  }

  // Tiles with the masks that the pass reads, where the method does.
  static Attention with_tiles(Attention a, Method method, Pass pass) {
    if (method != Method::tile) return a;
    a.tiles = a.tiles.defined() ? a.tiles.to(at::kInt) : std::get<0>(find_tiles_cuda(a.rowptr, a.col));
    if (!cuda::tile::parts_of(a.tiles.numel(), a.num_dst()).masks) {
      a.tiles = a.tiles.narrow(0, 0, cuda::tile::boundaries_of(a.num_dst()));
      const bool is_backward = pass == Pass::backward;
      const at::Tensor none;
      a.tiles = with_masks_cuda(a.tiles, a.rowptr, a.col, is_backward ? a.colptr : none, is_backward ? a.row : none);
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
