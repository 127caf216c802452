"""What a training step of a layer allocates beyond its inputs, outputs and parameters.

Inputs are the features, ``edge_index`` and edge features; outputs are the layer's and the gradients
of parameters and edge features. The first step also converts ``edge_index``, and keeps that for
later ones.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from .case import Case, Row
from .lab import Lab
from .measure import gpu_allocations
from .models import LIBRARIES

REDDIT_NODES, REDDIT_EDGES, REDDIT_FEATURES = 232965, 114615892, 602
NAMES = ("GATConv", "TransformerConv", "GATv2Conv", "AGNNConv", "SuperGATConv")
GIB = 2**30


@dataclass(frozen=True)
class Layer(Case):
    """A layer of a library on a graph of random edges between nodes some of which have many."""

    kind: ClassVar[str] = "layer"
    layer: str
    library: str
    nodes: int = REDDIT_NODES
    edges: int = REDDIT_EDGES
    features: int = REDDIT_FEATURES
    edge_dim: int | None = None
    heads: int = 4
    channels: int = 32

    def measure(self, lab: Lab, row: Row) -> None:
        row["graph"] = "stand-in"
        first, later = steps(self, lab.device)
        row |= {"first_peak": first.peak, "later_peak": later.peak, "kept": later.kept}

    def make(self) -> torch.nn.Module:
        layer = getattr(LIBRARIES[self.library], self.layer)
        if self.layer == "AGNNConv":
            return layer()
        options = {} if self.edge_dim is None else {"edge_dim": self.edge_dim}
        return layer(self.features, self.channels, heads=self.heads, **options)


class Step(NamedTuple):
    """Bytes beyond inputs, outputs and parameters: the largest number, and what remains."""

    peak: int
    kept: int


def steps(case: Layer, device: str) -> tuple[Step, Step]:
    """The first training step and the second."""
    edge_index = random_edges(case.nodes, case.edges, device)
    edge_attr = None
    if case.edge_dim is not None:
        edge_attr = torch.randn(case.edges, case.edge_dim, device=device, requires_grad=True)
    conv = case.make().to(device)
    is_agnn = case.layer == "AGNNConv"
    width = case.heads * case.channels if is_agnn else case.features
    x = torch.randn(case.nodes, width, device=device, requires_grad=is_agnn)
    options = {} if edge_attr is None else {"edge_attr": edge_attr}
    leaves = [t for t in (x, edge_attr, *conv.parameters()) if t is not None and t.requires_grad]

    def train() -> list[Tensor]:
        out = conv(x, edge_index, **options)
        out.backward(out.detach())
        return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    few = edge_index[:, :1]  # so that the workspaces of torch's BLAS are there
    conv(x, few, **{name: value[:1] for name, value in options.items()}).sum().backward()
    kept, measured = 0, []
    for _ in range(2):
        for leaf in leaves:
            leaf.grad = None
        peak, remaining, outputs = allocations(train, device)
        size = sum(output.nbytes for output in outputs)
        peak, kept = kept + peak - size, kept + remaining - size
        measured.append(Step(peak, kept))
        del outputs
    return measured[0], measured[1]


def random_edges(nodes: int, edges: int, device: str) -> Tensor:
    """``[2, edges]``; the first of Reddit's nodes gets 30 thousand edges as either end."""

    def ends() -> Tensor:
        return (torch.rand(edges, device=device) ** 1.5 * nodes).long().clamp_(max=nodes - 1)

    return torch.stack([ends(), ends()])


def allocations(call: Callable[[], list[Tensor]], device: str) -> tuple[int, int, list[Tensor]]:
    """The most bytes that ``call`` has allocated at a time, what remains of them, its result."""
    if device == "cuda":
        return gpu_allocations(call)
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    totals = list(accumulate(size for _, size in changes))
    return max(totals, default=0), totals[-1] if totals else 0, result
