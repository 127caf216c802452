"""Times of whole layers on graphs whose edges have features, beside PyG's.

Before it is timed, a layer's result and gradients on the same graph, of a batch on the first of
its graphs, are compared with those of PyG's layer in float64.
"""

import copy
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .case import Case, Row
from .lab import Lab
from .measure import peak_mib, time_ms
from .models import LIBRARIES
from .operands import DTYPES
from .workload import Workload

LAYERS = ("TransformerConv", "GATConv", "GATv2Conv")
CHECKED_GRAPHS = 8
# Relative to the largest element; GATv2's gradients change with the side of 0 that a number is on.
TOLERANCE = {"fp32": 1e-2, "bf16": 5e-2, "fp16": 2e-2}


@dataclass(frozen=True)
class EdgeLayer(Case):
    """A layer of ``edge_dim`` features an edge, with gradients of nodes' and edges' features and
    of all parameters. ``self_loops``: those of the layer, whose features are means."""

    kind: ClassVar[str] = "edge_layer"
    workload: str
    batch: int
    layer: str
    dtype: str
    backend: str
    self_loops: bool = False
    edge_dim: int = 8
    heads: int = 8
    channels: int = 16

    def make(self, library: str) -> torch.nn.Module:
        torch.manual_seed(0)
        loops = {} if self.layer == "TransformerConv" else {"add_self_loops": self.self_loops}
        layer = getattr(LIBRARIES[library], self.layer)
        width = self.heads * self.channels
        return layer(width, self.channels, heads=self.heads, edge_dim=self.edge_dim, **loops)

    def measure(self, lab: Lab, row: Row) -> None:
        workload = lab.workload(self.workload, self.batch)
        row |= workload.statistics()
        conv = self.make("dfgnn" if self.backend == "auto" else "pyg").to(lab.device)
        few = lab.workload(self.workload, min(self.batch, CHECKED_GRAPHS))
        row["note"] = self.check(conv, Inputs.of(self, few))

        conv = conv.to(DTYPES[self.dtype])
        inputs = Inputs.of(self, workload).to(DTYPES[self.dtype])
        if self.backend == "compiled":
            torch._dynamo.reset()  # for code of this workload's sizes
            conv.compile()
        leaves = list(inputs.leaves(conv).values())
        grad_out = torch.randn_like(inputs.call(conv))

        def forward(_: int = 0) -> Tensor:
            with torch.no_grad():
                return inputs.call(conv)

        def forward_backward(_: int = 0) -> tuple[Tensor, ...]:
            return torch.autograd.grad(inputs.call(conv), leaves, grad_out)

        row["forward_ms"] = time_ms(forward, lab.device, lab.budget_ms).rounded()
        row["forward_backward_ms"] = time_ms(forward_backward, lab.device, lab.budget_ms).rounded()
        row["forward_backward_mib"] = peak_mib(forward_backward, lab.device)

    def check(self, conv: torch.nn.Module, inputs: "Inputs") -> str:
        """What is wrong with a result or gradients; empty for nothing."""
        dtype, exact = DTYPES[self.dtype], self.make("pyg").to(inputs.x.device).double()
        found = inputs.to(dtype).results(copy.deepcopy(conv).to(dtype))
        expected = inputs.to(torch.float64).results(exact)
        largest = {name: float(t.abs().max()) for name, t in expected.items()}
        # Gradients that cancel to nothing (of a bias of keys, for one) count by the others.
        floor = 0.1 * max(largest[name] for name in largest if name != "out")
        errors = []
        for name, t in expected.items():
            error = float((found[name] - t).abs().max()) / max(largest[name], floor)
            if not error <= TOLERANCE[self.dtype]:
                errors.append(f"[error {error:.0e} in {name}]")
        return " ".join(errors)


@dataclass(frozen=True)
class Inputs:
    """What a layer is called with."""

    x: Tensor
    edge_index: Tensor
    edge_attr: Tensor

    @classmethod
    def of(cls, case: EdgeLayer, workload: Workload) -> "Inputs":
        x = torch.randn(workload.num_nodes, case.heads * case.channels, device=workload.device)
        edge_attr = torch.randn(workload.num_edges, case.edge_dim, device=workload.device)
        return cls(x, workload.edge_index(), edge_attr)

    def to(self, dtype: torch.dtype) -> "Inputs":
        x, edge_attr = (t.detach().to(dtype).requires_grad_() for t in (self.x, self.edge_attr))
        return Inputs(x, self.edge_index, edge_attr)

    def leaves(self, conv: torch.nn.Module) -> dict[str, Tensor]:
        """All that have gradients, by name."""
        return {"x": self.x, "edge_attr": self.edge_attr, **dict(conv.named_parameters())}

    def call(self, conv: torch.nn.Module) -> Tensor:
        return conv(self.x, self.edge_index, self.edge_attr)

    def results(self, conv: torch.nn.Module) -> dict[str, Tensor]:
        """The output and its gradients in float64, by name."""
        out = self.call(conv)
        weights = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)
        named = self.leaves(conv)
        found = torch.autograd.grad(out, list(named.values()), weights.to(out.dtype))
        gradients = {f"the gradient of {name}": t for name, t in zip(named, found, strict=True)}
        return {name: t.double() for name, t in ({"out": out.detach()} | gradients).items()}
