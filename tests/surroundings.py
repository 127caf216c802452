"""Models on our layers beside the same models on PyG's."""

from collections.abc import Callable
from typing import Any

import torch
import torch_geometric.nn
from fused_calls import FusedCalls
from layers import FEATURES, assert_same
from torch import Tensor
from torch.utils import _pytree

import pyg_dfgnn.nn

# Constructors of layers from FEATURES channels to as many.
LAYERS: dict[str, Callable[[Any], torch.nn.Module]] = {
    name: build
    for name, build in {
        "TransformerConv": lambda nn: nn.TransformerConv(FEATURES, 4, heads=2),
        "GATConv": lambda nn: nn.GATConv(FEATURES, 4, heads=2, add_self_loops=False),
        "GATConv_loops": lambda nn: nn.GATConv(FEATURES, 4, heads=2),
        "GATv2Conv": lambda nn: nn.GATv2Conv(FEATURES, 4, heads=2, add_self_loops=False),
        "AGNNConv": lambda nn: nn.AGNNConv(),
        "SuperGATConv": lambda nn: nn.SuperGATConv(FEATURES, 4, heads=2),
    }.items()
    if hasattr(pyg_dfgnn.nn, name.split("_")[0])
}
# Those that take a pair of node sets.
BIPARTITE = [name for name in LAYERS if name in ("TransformerConv", "GATConv", "GATv2Conv")]


def twins(build: Callable[[Any], torch.nn.Module], device: str = "cpu") -> list[torch.nn.Module]:
    """What ``build`` makes of our ``nn`` and of PyG's, from the same seed."""
    models = []
    for nn in (pyg_dfgnn.nn, torch_geometric.nn):
        torch.manual_seed(0)
        models.append(build(nn).to(device))
    return models


def results(model: torch.nn.Module, call: Callable[[torch.nn.Module], Any]) -> dict[str, Tensor]:
    """All tensors that a call gives, and the gradients of their sum with weights."""
    model.zero_grad()
    torch.manual_seed(1)
    outputs = [t for t in _pytree.tree_leaves(call(model)) if isinstance(t, Tensor)]
    sum(
        (t * torch.linspace(-1, 2, t.numel(), device=t.device).view_as(t)).sum() for t in outputs
    ).backward()
    gradients = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
    return {f"out[{i}]": t.detach() for i, t in enumerate(outputs)} | gradients


def assert_alike(
    models: list[torch.nn.Module],
    call: Callable[[torch.nn.Module], Any],
    operators: int | None = None,
) -> None:
    """Ours gives the same results and gradients as PyG's, through fused operators.

    Args:
        models: Ours and PyG's.
        call: The call of a model.
        operators: How many forward passes are fused; at least one where it is None.
    """
    ours, theirs = models
    with FusedCalls() as calls:
        actual = results(ours, call)
    assert calls.names
    if operators is not None:
        assert sum(name.startswith("attention.") for name in calls.names) == operators
    assert_same(actual, results(theirs, call), scale=3)
