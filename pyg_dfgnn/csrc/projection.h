// W [H D, F] of features of edges, of which W_h [D, F] is head h's, where it meets what nodes have.
#pragma once

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

namespace dfgnn {

// Products with W of every node. On CUDA heads apart would take up to thirty times as long in W's gradient, a few large
// sums: there it is one product with a matrix that is 0 between heads, or, where that is much more to do, one of some
// nodes at a time.
class Projection {
 public:
  // x: [nodes, H, D], whose heads W has; made: the matrix that an earlier one of the same W has made, or undefined.
  Projection(const at::Tensor& w, const at::Tensor& x, const at::Tensor& made = {})
      : w_(w), made_(made), heads_(x.sym_size(1)), size_(x.sym_size(2)), width_(w.sym_size(1)) {
    constexpr int64_t kMatrix = 65536;
    by_matrix_ =
        x.is_cuda() && TORCH_GUARD_SIZE_OBLIVIOUS((heads_ * size_ * heads_ * width_).sym_le(c10::SymInt(kMatrix)));
    if (at::GradMode::is_enabled()) made_.reset();  // its derivatives are made of W
  }

  // Whether it is one product for all heads.
  bool by_matrix() const { return by_matrix_; }

  // What products with W have made, if any.
  const at::Tensor& made() const { return made_; }

  // W^T x, [nodes, H, F] of x [nodes, H, D].
  at::Tensor of(const at::Tensor& x) const {
    if (by_matrix_) return at::mm(in_rows(x), matrix()).view_symint({x.sym_size(0), heads_, width_});
    return to_nodes(at::matmul(to_parts(x), w_by_head()), x.sym_size(0));
  }

  // y + W z, [nodes, H, D] of z [nodes, H, F]; y is no one else's.
  at::Tensor add_to(const at::Tensor& y, const at::Tensor& z) const {
    if (!by_matrix_) return y + to_nodes(at::matmul(to_parts(z), w_by_head().mT()), z.sym_size(0));
    const auto flat = in_rows(y), features = in_rows(z), transposed = matrix().t();
    const auto sum =
        at::GradMode::is_enabled() ? at::addmm(flat, features, transposed) : flat.addmm_(features, transposed);
    return sum.view_symint(y.sym_sizes());
  }

  // The gradient of W, [H D, F]: the sum over nodes of x z^T for each head.
  at::Tensor gradient(const at::Tensor& x, const at::Tensor& z) const {
    if (!by_matrix_) return at::matmul(to_parts(x).mT(), to_parts(z)).sum(0).reshape_symint(w_.sym_sizes());
    const auto of_all = at::mm(in_rows(x).t(), in_rows(z)).view_symint({heads_, size_, heads_, width_});
    return of_all.diagonal(0, 0, 2).permute({2, 0, 1}).reshape_symint(w_.sym_sizes());
  }

 private:
  // [nodes, H, C] as [nodes, H C]; as flatten(1), which vmap does not know below autograd.
  static at::Tensor in_rows(const at::Tensor& x) {
    return x.reshape_symint({x.sym_size(0), x.sym_size(1) * x.sym_size(2)});
  }

  at::Tensor w_by_head() const { return w_.reshape_symint({heads_, size_, width_}); }

  const at::Tensor& matrix() const {
    if (!made_.defined()) made_ = make_matrix();
    return made_;
  }

  // [H D, H F], 0 between heads.
  at::Tensor make_matrix() const {
    if (TORCH_GUARD_SIZE_OBLIVIOUS(heads_.sym_eq(1))) return w_;
    auto blocks = at::zeros_symint({heads_, size_, heads_, width_}, w_.options());
    blocks.diagonal(0, 0, 2).copy_(w_by_head().permute({1, 2, 0}));
    return blocks.view_symint({heads_ * size_, heads_ * width_});
  }

  // [nodes, H, C] as [parts, H, nodes of a part, C], and back.
  static at::Tensor to_parts(const at::Tensor& x) {
    if (!x.is_cuda()) return x.transpose(0, 1).unsqueeze(0);
    constexpr int64_t kNodes = 2048;
    const auto parts = (x.sym_size(0) + (kNodes - 1)) / kNodes;
    const auto padded = at::constant_pad_nd_symint(x, {0, 0, 0, 0, 0, parts * kNodes - x.sym_size(0)});
    return padded.view_symint({parts, kNodes, x.sym_size(1), x.sym_size(2)}).transpose(1, 2);
  }

  static at::Tensor to_nodes(const at::Tensor& parts, const c10::SymInt& nodes) {
    const auto rows = parts.sym_size(0) * parts.sym_size(2);
    return parts.transpose(1, 2)
        .reshape_symint({rows, parts.sym_size(1), parts.sym_size(3)})
        .narrow_symint(0, 0, nodes);
  }

  at::Tensor w_;
  mutable at::Tensor made_;
  c10::SymInt heads_, size_, width_;
  bool by_matrix_;
};

}  // namespace dfgnn
