"""Lists of small graphs to measure on, split off a workload file's batches or made in place."""

import runpy
from pathlib import Path
from typing import Optional

import torch
from torch import Tensor
from torch_geometric.data import Data

from ..datasets import pattern_graphs


def load(
    name: str,
    workloads: Optional[Path],
    count: int,
    features: int,
    classes: int,
    device: str,
) -> list[Data]:
    """``count`` graphs on the CPU, with random ``x [N, features]`` and ``y [N]``.

    Their edges are sorted by source, as those of most datasets are.

    Args:
        name: That of a batch in ``workloads``; without a file, they are PATTERN's.
        workloads: A Python file with ``make(name, device)``, which returns a batch of graphs as
            ``(rowptr, col, ptr)``: a CSR by destination, and the first node of each graph.
        device: Where the file makes them.

    Raises:
        ValueError: the workload is no batch, or of fewer graphs.
    """
    if workloads is None:
        graphs = pattern_graphs(-(-count // 100), train=min(count, 100), val=0, test=0).train
    else:
        rowptr, col, ptr = runpy.run_path(str(workloads))["make"](name, device)[:3]
        if ptr is None:
            raise ValueError(f"{name}: expected a batch of graphs, got a single one")
        graphs = split(rowptr.cpu().long(), col.cpu().long(), ptr.cpu())
    if len(graphs) < count:
        raise ValueError(f"{name}: expected {count} graphs, got {len(graphs)}")
    rng = torch.Generator().manual_seed(0)
    for graph in graphs[:count]:
        nodes = graph.num_nodes
        graph.x = torch.randn(nodes, features, generator=rng)
        graph.y = torch.randint(classes, (nodes,), generator=rng)
    return graphs[:count]


def split(rowptr: Tensor, col: Tensor, ptr: Tensor) -> list[Data]:
    """The graphs of a batch, without attributes."""
    graphs = []
    for begin, end in zip(ptr[:-1].tolist(), ptr[1:].tolist(), strict=True):
        nodes = end - begin
        degree = rowptr[begin : end + 1].diff()
        dst = torch.arange(nodes).repeat_interleave(degree)
        src = col[rowptr[begin] : rowptr[end]] - begin
        order = (src * nodes + dst).argsort()
        graphs.append(Data(edge_index=torch.stack([src[order], dst[order]]), num_nodes=nodes))
    return graphs
