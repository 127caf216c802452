"""New numbers for the nodes of a workload, and the time that it takes to find them."""

import time
from typing import NamedTuple

import torch
from torch import Tensor
from torch_geometric.data import Data

from ..reorder import ReorderNodes
from .workload import Workload


class Reordered(NamedTuple):
    """The new number of every node, int64 ``[N]``, and how long ``ReorderNodes`` took."""

    number: Tensor
    ms: float


def reorder(workload: Workload, method: str) -> Reordered:
    """By ``ReorderNodes`` on the CPU, of the edges alone."""
    transform = ReorderNodes(method)
    transform(Data(edge_index=torch.zeros(2, 1, dtype=torch.long), num_nodes=1))  # imports
    data = Data(edge_index=workload.edge_index().cpu(), num_nodes=workload.num_nodes)
    start = time.perf_counter()
    made = transform(data)
    took = 1000 * (time.perf_counter() - start)
    return Reordered(made.restore_index.to(workload.col.device), took)
