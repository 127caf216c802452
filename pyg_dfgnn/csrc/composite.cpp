#include "composite.h"

#include "autocast.h"
#include "dropout.h"
#include "operands.h"
#include "products.h"

namespace dfgnn {
namespace {

// Everything is of the accumulation type A here.
class Composite {
 public:
  Composite(const Attention& attention, const Saved& saved)
      : a_(attention),
        saved_(saved),
        graph_{a_.rowptr, a_.col, a_.colptr, a_.row, a_.perm},
        type_(accumulate_type(a_.value.scalar_type())),
        one_dst_(ones(a_.num_dst())),
        one_src_(ones(a_.num_src())),
        is_edge_(dispatch_sddmm(graph_, one_dst_, one_src_)),
        dst_(a_.dst.to(type_)),
        src_(a_.src.to(type_)) {}

  // As in the kernels (cpu/backward.h): ds = p (dropout(dp) - delta), weight = dropout(p).
  Gradients gradients() {
    const auto s = logits();
    const auto lse = at::where(at::isneginf(saved_.lse), at::zeros_like(saved_.lse), saved_.lse);
    const auto p = (s - of_dst(lse)).exp() * is_edge_;
    const auto grad_out = saved_.grad_out.to(type_);
    auto weight = p, dp = dispatch_sddmm(graph_, grad_out, a_.value.to(type_));
    if (a_.dropout_p > 0) {
      const auto factor = dropout_factor(a_.seed, a_.num_edges(), a_.heads(), a_.dropout_p, type_);
      weight = weight * factor;
      dp = dp * factor;
    }
    auto delta = (grad_out * saved_.out.to(type_)).sum(-1);
    if (saved_.grad_lse.defined()) delta = delta - saved_.grad_lse;
    const auto ds = p * (dp - of_dst(delta));

    Gradients result = of_operands(ds);
    result.value = sum_by_src(weight, grad_out).to(a_.value.scalar_type());
    result.bias = ds;
    return result;
  }

 private:
  at::Tensor ones(int64_t nodes) const { return at::ones({nodes, 1, 1}, a_.value.options().dtype(type_)); }

  // From [nodes, H] to [E, H]: what an edge's destination or source has.
  at::Tensor of_dst(const at::Tensor& x) const { return dispatch_sddmm(graph_, x.unsqueeze(-1), one_src_); }
  at::Tensor of_src(const at::Tensor& x) const { return dispatch_sddmm(graph_, one_dst_, x.unsqueeze(-1)); }

  // Sums of weight [E, H] times x [nodes, H or 1, D] over the edges of each destination or source.
  at::Tensor sum_by_dst(const at::Tensor& weight, const at::Tensor& x) const {
    return dispatch_spmm(graph_, weight, x, false, false);
  }
  at::Tensor sum_by_src(const at::Tensor& weight, const at::Tensor& x) const {
    return dispatch_spmm(graph_, weight, x, true, false);
  }

  // A term of the logits without what its entries hold that are no edges.
  at::Tensor of_edges(const at::Tensor& term) const { return at::where(is_edge_ > 0, term, at::zeros_like(term)); }

  at::Tensor slope(const at::Tensor& z) const {
    return at::where(z > 0, at::ones({}, z.options()), at::full({}, a_.negative_slope, z.options()));
  }

  at::Tensor logits() {
    at::Tensor s;
    switch (a_.score) {
      case Score::dot:
        s = a_.scale * dispatch_sddmm(graph_, dst_, src_);
        break;
      case Score::cosine:
        s = of_dst(a_.dst_scale) * of_src(a_.src_scale) * dispatch_sddmm(graph_, dst_, src_);
        break;
      case Score::additive:
        z_ = of_dst(dst_) + of_src(src_);
        if (a_.a_edge.defined()) z_ = z_ + of_edges(a_.a_edge);
        s = z_ * slope(z_);
        break;
      case Score::additive_v2:  // every feature is a head of its own
        z_ = (of_dst(dst_.flatten(1)) + of_src(src_.flatten(1))).view({a_.num_edges(), a_.heads(), a_.head_dim()});
        s = (a_.att * z_ * slope(z_)).sum(-1);
    }
    return a_.bias.defined() ? s + of_edges(a_.bias) : s;
  }

  // dst, src and a_edge from the gradient of the logits; see Gradients.
  Gradients of_operands(const at::Tensor& ds) const {
    Gradients result;
    switch (a_.score) {
      case Score::dot:
        result.dst = sum_by_dst(a_.scale * ds, src_);
        result.src = sum_by_src(a_.scale * ds, dst_);
        break;
      case Score::cosine:
        result.dst = sum_by_dst(ds * of_src(a_.src_scale), src_);
        result.src = sum_by_src(ds * of_dst(a_.dst_scale), dst_);
        break;
      case Score::additive:
        result.a_edge = ds * slope(z_);
        result.dst = sum_by_dst(result.a_edge, one_src_).squeeze(-1);
        result.src = sum_by_src(result.a_edge, one_dst_).squeeze(-1);
        break;
      case Score::additive_v2: {
        const auto g = (ds.unsqueeze(-1) * slope(z_)).flatten(1);
        result.dst = sum_by_dst(g, one_src_).view_as(dst_);
        result.src = sum_by_src(g, one_dst_).view_as(src_);
      }
    }
    return result;
  }

  const Attention& a_;
  const Saved& saved_;
  const Structure graph_;
  const at::ScalarType type_;
  const at::Tensor one_dst_, one_src_;  // [nodes, 1, 1]
  const at::Tensor is_edge_;            // [E, 1]: 1, or 0 for entries of col that are no edges
  const at::Tensor dst_, src_;
  at::Tensor z_;  // additive, additive_v2: what leaky_relu is applied to
};

}  // namespace

CallGradients backward_composite(const Call& call, const BackwardInputs& inputs) {
  const NoAutocast guard;
  auto attention = make_attention(call, By::operators);
  set_scales(attention, By::operators);
  const auto saved = make_saved(call, inputs, attention);
  return finish_gradients(call, attention, Composite(attention, saved).gradients(), By::operators);
}

}  // namespace dfgnn
