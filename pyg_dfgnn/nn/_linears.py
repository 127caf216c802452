"""Linear layers and sums around attention.

Those of one x are one operator: torch's gradients of x, one of each layer, which it adds up, and of
biases are up to half of the time of a layer on a GPU.
"""

from collections.abc import Sequence
from typing import Any, Optional, TypeGuard

import torch
import torch_geometric.nn
from torch import Tensor

from ._dtypes import in_dtype, is_autocast
from ._fused import has_kernels, is_linear, is_transformed, of_its_own

_TENSORS = (Tensor, torch.nn.Parameter)


def linears(layers: Sequence[Optional[torch.nn.Module]], x: Tensor) -> list[Any]:
    """What each layer makes of ``x``; None for None."""
    made = by_operator([layer for layer in layers if layer is not None], x)
    if made is None:
        return [None if layer is None else layer(x) for layer in layers]
    results = iter(made)
    return [None if layer is None else next(results) for layer in layers]


def by_operator(layers: list[torch.nn.Module], x: Tensor) -> Optional[list[Tensor]]:
    """What each layer makes of ``x``, by one operator; None where somebody might see the
    difference, or there is none."""
    if not has_operators(x):
        return None
    weights, biases, are_trained = [], [], set()
    for layer in layers:
        _initialize(layer, x)
        if not is_linear(layer):
            return None
        parameters = layer._parameters
        if "bias" not in parameters:
            return None
        weight, bias = parameters.get("weight"), parameters["bias"]
        if weight is None or type(weight) not in _TENSORS or weight.dim() != 2:
            return None
        if bias is not None and not (
            type(bias) in _TENSORS
            and bias.shape == weight.shape[:1]
            and (bias.dtype == weight.dtype or is_autocast(x))
        ):
            return None
        weights.append(weight)
        biases.append(bias)
        are_trained.add(weight.requires_grad or (bias is not None and bias.requires_grad))
    if len(weights) < 2 and all(bias is None for bias in biases):
        return None  # torch's gradients are as fast
    if len(are_trained) > 1 and torch.is_grad_enabled() and not x.requires_grad:
        return None  # all results of one operator require gradients, or none
    return torch.ops.dfgnn.linears(x, weights, biases)


def _initialize(layer: torch.nn.Module, x: Tensor) -> None:
    """Sizes a lazy layer, as its hook does where it is called: its first call goes the way of all
    others then, which checkpoints compare with it. Other hooks may make another x of it."""
    if (
        is_lazy(layer)
        and len(layer._forward_pre_hooks) == 1
        and not torch.nn.modules.module._has_any_global_hook()
    ):
        layer.initialize_parameters(layer, (x,))


def is_lazy(layer: Optional[torch.nn.Module]) -> TypeGuard[torch_geometric.nn.Linear]:
    return type(layer) is torch_geometric.nn.Linear and hasattr(layer, "_hook")


def concat_or_mean(out: Tensor, width: Optional[int], dtype: torch.dtype) -> Tensor:
    """Of messages ``[N, heads, C]`` the heads side by side in rows of that width, in whatever dtype
    they are, or where it is None, their mean, in that one. Scriptable."""
    # Several aggregations make C larger: PyG cuts rows to the layer's width, too.
    return in_dtype(out, dtype).mean(dim=1) if width is None else out.view(-1, width)


def combine_heads(
    out: Tensor,
    width: Optional[int],
    residual: Optional[Tensor],
    bias: Optional[Tensor],
    dtype: torch.dtype,
) -> Tensor:
    """From messages ``[N, heads, C]`` to a layer's output, in that dtype. Scriptable.

    Args:
        width: ``heads * C`` for heads side by side, None for their mean.
    """
    out = concat_or_mean(out, width, dtype)
    if residual is not None:
        out = plus(out, residual, dtype)
        dtype = out.dtype
    if bias is not None:
        return plus(out, bias, dtype)
    out = in_dtype(out, dtype)
    return of_its_own(out) if width is not None and residual is None else out


def plus(x: Tensor, y: Tensor, dtype: torch.dtype) -> Tensor:
    """``x [N, F]`` in that dtype, and ``y``, a bias ``[F]`` or as ``x`` is. Scriptable."""
    if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code knows no types of tensors)
        if _may_add(x, y, dtype):
            return torch.ops.dfgnn.add_features(x, y, dtype)
    return in_dtype(x, dtype) + y


def _may_add(x: Tensor, y: Tensor, dtype: torch.dtype) -> bool:
    """Whether an operator takes both, and is of use: torch adds what needs no cast and no sum."""
    return (
        type(y) in _TENSORS
        and (y.shape == x.shape or y.shape == x.shape[1:])
        and (y.dim() == 1 or y.dtype != dtype or x.dtype != dtype)
        and torch.promote_types(y.dtype, dtype) == dtype
        and has_operators(x)
    )


def has_operators(x: Tensor) -> bool:
    """Whether they take ``x``, eagerly: compilers fuse what they know."""
    return (
        type(x) in _TENSORS
        and x.layout == torch.strided
        and x.dim() == 2
        and has_kernels(x)
        and not torch.compiler.is_compiling()
        and not torch.jit.is_tracing()
        and not is_transformed()
    )
