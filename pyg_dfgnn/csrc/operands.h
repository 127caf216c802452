#pragma once

#include "call.h"
#include "normalize.h"

namespace dfgnn {

// What the operators call these arguments.
struct Names {
  const char *a, *b, *c;
};
Names names_of(Score score);

// Checks the call's arguments (a TORCH_CHECK names the argument, what it was and what it should be) and lays them out
// for the kernels: contiguous, scalars of the logits in the accumulation type.
Attention make_attention(const Call& call, By by = By::kernels);

// Makes cosine's scales, which all kernels read but those of resident.
void set_scales(Attention& attention, By by = By::kernels);

// The same for the arguments of a backward call.
Saved make_saved(const Call& call, const BackwardInputs& inputs, const Attention& attention);

// The call's gradients from those that the kernels make.
// Cosine: from the gradients of the scaled dot product to those of x_dst, x_src and beta.
// With r = 1 / max(|x|, eps) and g = d/d(r x):  dx = r (g - r^2 <x, g> x), the second term only where |x| > eps.
// Additive_v2: the gradients g_i, g_j of the sums x_i + x_j lack their factor att; since leaky_relu(z) = leaky_relu'(z)
// z, that of att is sum_e g_e (x_i + x_j) = sum_i g_i x_i + sum_j g_j x_j.
CallGradients finish_gradients(const Call& call, const Attention& attention, const Gradients& gradients,
                               By by = By::kernels);

}  // namespace dfgnn
