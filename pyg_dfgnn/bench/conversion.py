"""Times of what comes before attention: from the edges of a graph to both compressed forms."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch_geometric.data import Batch

from ..graph import Graph
from ..transforms import PrecomputeGraph
from .case import Case, Row
from .lab import Lab
from .measure import time_ms

ORDERS = ("by destination", "by source", "random")
IN_GRAPHS = "random in graphs"  # of a batch: one graph after the other
PRECOMPUTED = "PrecomputeGraph"  # in the place of an order: what it stored of the batch's graphs


@dataclass(frozen=True)
class Conversion(Case):
    """The operators one by one, and all but ``with_masks`` in one (``dfgnn::compress``), which is
    what ``build_graph`` calls; for what PrecomputeGraph stored, the structure of the collated
    batch."""

    kind: ClassVar[str] = "conversion"
    workload: str
    batch: int
    order: str
    self_loops: bool = False

    def measure(self, lab: Lab, row: Row) -> None:
        workload = lab.workload(self.workload, self.batch)
        row |= workload.statistics()
        if self.order == PRECOMPUTED:
            transform = PrecomputeGraph(torch.int32)
            graphs = [transform(graph.clone()) for graph in lab.graphs(self.workload, self.batch)]
            batch = Batch.from_data_list(graphs).to(lab.device)
            whole = partial(structure, batch, self.self_loops)
            row["all_ms"] = time_ms(lambda _: whole(), lab.device, lab.budget_ms).rounded()
            return
        edge_index = ordered(workload.edge_index(), self.order, lab.seed, workload.ptr)
        calls = operators(edge_index, workload.num_nodes, self.self_loops)
        for name, call in calls.items():
            row[f"{name}_ms"] = time_ms(call, lab.device, lab.budget_ms).rounded()


def ordered(edge_index: Tensor, order: str, seed: int, ptr: Tensor | None = None) -> Tensor:
    """The edges, which are sorted by destination, in the order. ``ptr``: where the graphs of a
    batch begin."""
    if order == "by destination":
        return edge_index
    if order == "by source":
        return edge_index[:, edge_index[0].argsort(stable=True)]
    rng = torch.Generator(edge_index.device).manual_seed(seed)
    count = edge_index.size(1)
    mixed = edge_index[:, torch.randperm(count, generator=rng, device=edge_index.device)]
    if order != IN_GRAPHS:
        return mixed
    if ptr is None:
        raise ValueError(f"order: expected one of {ORDERS} of a single graph, got {order!r}")
    graph = torch.bucketize(mixed[1], ptr[1:].to(mixed.device), right=True)
    return mixed[:, graph.argsort(stable=True)]


def operators(
    edge_index: Tensor, nodes: int, self_loops: bool
) -> dict[str, Callable[[int], object]]:
    """What to time, by name."""
    src, dst = edge_index
    ops = torch.ops.dfgnn
    rowptr, col, _, _ = ops.coo_to_csr(src, dst, nodes, nodes, self_loops=self_loops)
    colptr, row, _ = ops.csr_to_csc(rowptr, col, nodes)
    tiles, _ = ops.find_tiles(rowptr, col)

    return {
        "coo_to_csr": lambda _: ops.coo_to_csr(src, dst, nodes, nodes, self_loops=self_loops),
        "csr_to_csc": lambda _: ops.csr_to_csc(rowptr, col, nodes),
        "find_tiles": lambda _: ops.find_tiles(rowptr, col),
        "with_masks": lambda _: ops.with_masks(tiles, rowptr, col, colptr, row),
        "all": lambda _: ops.compress(
            src, dst, nodes, nodes, self_loops=self_loops, with_tiles=True
        ),
    }


def structure(batch: Batch, self_loops: bool) -> Graph:
    """That of a collated batch, made anew: for tensors that nobody has seen yet."""
    unseen = copy.copy(batch).apply(lambda tensor: tensor.detach())
    return unseen.graph(self_loops)
