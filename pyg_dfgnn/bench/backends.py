"""What computes attention: the operators, what they are made of, and what there is beside them.

A backend is a function of a score and a workload that returns a call from operands to the result
``[N, heads, head_dim]``. It, or the call, raises ``Unsupported`` where it has no such attention.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Optional

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax

from . import dense, packages, pipeline, techniques
from .operands import Operands
from .unsupported import Unsupported
from .workload import Workload

Call = Callable[[Operands], Tensor]
OURS = ("smmf", "pmf", "tile", "resident", "auto")
# What it is called in tables and figures
LABELS = {
    "auto": "pyg_dfgnn",
    "smmf": "smmf",
    "pmf": "pmf",
    "tile": "tile",
    "resident": "resident",
    "unfused": "unfused",
    "pyg": "PyG eager",
    "compiled": "PyG compiled",
    "cusparse": "three ops (cuSPARSE)",
    "sdpa": "dense SDPA",
    "flex": "FlexAttention",
    "dgl": "DGL",
    **techniques.LABELS,
}
FORWARD_ONLY = tuple(techniques.VARIANTS)


class EagerAttention(MessagePassing):
    """What the layers of torch_geometric.nn do between their linear layers."""

    def __init__(self, score: str) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.score = score

    def forward(self, edge_index: Tensor, operands: Operands, num_nodes: int) -> Tensor:
        x = operands
        factor = None
        if self.score == "dot":
            dst, src, value = x["q"], x["k"], x["v"]
        elif self.score == "cosine":
            dst = src = torch.nn.functional.normalize(x["x_src"], dim=-1)
            value, factor = x["x_src"], x["beta"]
        elif self.score == "additive_v2":
            dst, src, value, factor = x["x_dst"], x["x_src"], x["x_src"], x["att"]
        else:
            dst, src, value = x["a_dst"], x["a_src"], x["v"]
        return self.propagate(
            edge_index,
            size=(num_nodes, num_nodes),
            dst=(dst, dst),
            src=(src, src),
            value=(value, value),
            factor=factor,
        )

    def message(
        self,
        dst_i: Tensor,
        src_j: Tensor,
        value_j: Tensor,
        factor: Optional[Tensor],  # PyG reads the annotation, and does not know |
        index: Tensor,
        size_i: Optional[int],
    ) -> Tensor:
        if self.score == "additive":
            s = torch.nn.functional.leaky_relu(dst_i + src_j, 0.2)
        elif self.score == "additive_v2" and factor is not None:
            s = (torch.nn.functional.leaky_relu(dst_i + src_j, 0.2) * factor).sum(-1)
        else:
            s = (dst_i * src_j).sum(-1) * (dst_i.size(-1) ** -0.5 if factor is None else factor)
        return value_j * softmax(s, index, num_nodes=size_i).unsqueeze(-1)


def eager(score: str, workload: Workload) -> Call:
    layer, edge_index = EagerAttention(score), workload.edge_index()
    return lambda operands: layer(edge_index, operands, workload.num_nodes)


def compiled(score: str, workload: Workload) -> Call:
    torch._dynamo.reset()  # for code of this workload's sizes
    layer, edge_index = torch.compile(EagerAttention(score)), workload.edge_index()
    return lambda operands: layer(edge_index, operands, workload.num_nodes)


def fused(method: str, score: str, workload: Workload) -> Call:
    """One operator, by what a layer knows of the graph; "tile" by its own, which raises an error
    where it can't run."""
    graph, rowptr, col, csc = workload.graph, workload.rowptr, workload.col, workload.csc
    if method == "resident" and (score == "additive_v2" or graph.tile_nodes < 0):
        raise Unsupported("resident: expected a batch of sparse graphs on a GPU, no additive_v2")
    names = ("max_degree", "tiles", "tile_blocks", "tile_nodes", "tile_batches")
    route: dict[str, Any] = {"method": method, **{name: getattr(graph, name) for name in names}}
    name = "attention"
    if method == "tile":
        name, route = "tile_fwd", {"tiles": workload.masks}
    op = getattr(getattr(torch.ops.dfgnn, name), score)
    return lambda operands: op(rowptr, col, **operands, **csc, **route)[0]


BACKENDS: dict[str, Callable[[str, Workload], Call]] = {
    **{method: partial(fused, method) for method in OURS},
    "unfused": pipeline.unfused,
    "pyg": eager,
    "compiled": compiled,
    "cusparse": pipeline.cusparse,
    "sdpa": dense.scaled_dot_product,
    "flex": dense.flex,
    "dgl": packages.dgl,
    **{variant: partial(techniques.attention, variant) for variant in techniques.VARIANTS},
}
