"""What the operators say in words of their own, or cannot know."""

import torch
from torch import Tensor

from .._dtype_names import dtype_name
from ..graph import Graph


def check_nodes(name: str, x: Tensor, dim: int, count: int) -> None:
    """Of features, ``dim``-dimensional, of so many nodes."""
    if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code knows no compiler)
        if torch.compiler.is_compiling():  # sizes may be unknown yet
            return
    if x.dim() == dim and x.size(0) != count:
        raise RuntimeError(f"{name}: expected {count} nodes, got shape {x.shape}")


def check_logits(logits: Tensor, graph: Graph) -> None:
    is_right = logits.dim() == 2 and logits.is_floating_point()
    if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code knows no compiler)
        if is_right and torch.compiler.is_compiling():  # sizes may be unknown yet
            return
    if not is_right or logits.size(0) != graph.col.size(0) or logits.size(1) < 1:
        raise RuntimeError(
            f"logits: expected floating point numbers of shape [E, heads], "
            f"E = {graph.col.size(0)}, got {dtype_name(logits)} of shape {logits.shape}"
        )
