"""Graphs for PrecomputeGraph, whose edges have an attribute that tells their ends."""

import torch
from torch_geometric.data import Data

from pyg_dfgnn.transforms import PrecomputedData, PrecomputeGraph

SIZES = [5, 1, 0, 40, 2, 64, 65, 130, 1, 1, 200, 3]
KINDS = ["plain", "loops", "twice", "shuffled"]


def graph_of(nodes: int, density: float, kind: str, seed: int) -> Data:
    """A graph whose edges have an attribute that tells their ends."""
    generator = torch.Generator().manual_seed(seed)
    adjacent = torch.rand(nodes, nodes, generator=generator) < density
    if kind != "loops":
        adjacent.fill_diagonal_(False)
    edge_index = adjacent.nonzero().t()
    if kind == "twice":
        edge_index = torch.cat([edge_index, edge_index[:, ::3]], 1)
    if kind == "shuffled":
        edge_index = edge_index[:, torch.randperm(edge_index.size(1), generator=generator)]
    return Data(
        x=torch.randn(nodes, 8, generator=generator),
        edge_index=edge_index.contiguous(),
        edge_attr=(edge_index[0] * 1000 + edge_index[1]).float().unsqueeze(1),
    )


def graphs_of(kind: str) -> list[Data]:
    return [graph_of(nodes, 0.4, kind, seed) for seed, nodes in enumerate(SIZES)]


def edges_of(data: Data) -> list[tuple[int, int, float]]:
    return sorted(zip(*data.edge_index.tolist(), data.edge_attr[:, 0].tolist(), strict=True))


def prepare(kind: str = "plain", **options) -> list[PrecomputedData]:
    return [PrecomputeGraph(**options)(data) for data in graphs_of(kind)]
