"""The data sets of the DF-GNN paper, and Tolokers: the data where it is there, else stand-ins."""

import contextlib
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch_geometric import datasets as pyg
from torch_geometric.data import Data
from torch_geometric.data.data import DataEdgeAttr, DataTensorAttr
from torch_geometric.data.storage import GlobalStorage

from .. import datasets
from . import stand_ins
from .workload import Workload, join

GRAPH_CLASSES = (Data, DataEdgeAttr, DataTensorAttr, GlobalStorage)  # of what a file holds


class DataSet(NamedTuple):
    """A data set: what it is like, where its files are, and what stands in for it.

    Attributes:
        graphs: The number of graphs to train on; 1 for one whole graph.
        nodes, edges: Of the graph, or of each on average; edges count in both directions.
        max_degree: The largest, for a whole graph; 0 for small graphs.
        folder: Where PyG and OGB keep it under their root; None for graphs that are only made.
        load: Called with the root: the graph, or an indexable collection of graphs.
        make: Called with the name, the number of graphs, the device and a seed: a stand-in.
    """

    graphs: int
    nodes: float
    edges: float
    max_degree: int
    folder: str | None
    load: Callable[[str], Any]
    make: Callable[[str, int, str, int], Workload]

    @property
    def is_batch(self) -> bool:
        return self.graphs > 1


def _whole(
    nodes: int,
    edges: int,
    max_degree: int,
    folder: str | None,
    load: Callable[[str], Any],
    communities: int,
    sigma: float = 1.2,
) -> DataSet:
    def make(name: str, count: int, device: str, seed: int) -> Workload:
        return stand_ins.skewed_graph(
            name, nodes, edges, max_degree, device, seed, communities, sigma
        )

    return DataSet(1, nodes, edges, max_degree, folder, load, make)


def _tree(edges: int, children: int, is_outward: bool) -> DataSet:
    def make(name: str, count: int, device: str, seed: int) -> Workload:
        return stand_ins.tree(name, edges, children, is_outward, device, seed)

    highest = edges if children == edges else edges // max(children, 1)
    has_hubs = children > 0 and not is_outward
    return DataSet(1, edges + 1, edges, highest if has_hubs else 1, None, _nothing, make)


def _nothing(root: str) -> Data:
    raise FileNotFoundError("there is no such data")


def _random(nodes: int, share: float) -> DataSet:
    def make(name: str, count: int, device: str, seed: int) -> Workload:
        return stand_ins.random_graphs(name, count, nodes, share, device, seed)

    return DataSet(1024, nodes, share * nodes**2, 0, None, _nothing, make)


def _benchmark(name: str) -> Callable[[str], Any]:
    return lambda root: pyg.GNNBenchmarkDataset(root, name, split="train")


def _long_range(name: str) -> Callable[[str], Any]:
    return lambda root: pyg.LRGBDataset(root, name, split="train")


def _ogb(name: str, kind: str) -> Callable[[str], Any]:
    def load(root: str) -> Data:
        module = importlib.import_module(f"ogb.{kind}proppred")
        make = getattr(module, f"Pyg{kind.capitalize()}PropPredDataset")
        # It reads back a graph that it wrote, in a way that torch allows tensors alone.
        with torch.serialization.safe_globals(list(GRAPH_CLASSES)):
            return make(name, root)[0]

    return load


def _neighbours(nodes: float, k: int) -> Callable[[str, int, str, int], Workload]:
    return lambda name, count, device, seed: stand_ins.nearest_neighbours(
        name, count, nodes, k, device, seed
    )


def _regions(nodes: float) -> Callable[[str, int, str, int], Workload]:
    return lambda name, count, device, seed: stand_ins.region_boundaries(
        name, count, nodes, device, seed
    )


DATASETS = {
    "PATTERN": DataSet(
        10000, 118.9, 6098.9, 0, "PATTERN", _benchmark("PATTERN"), stand_ins.pattern
    ),
    "CLUSTER": DataSet(
        10000, 117.2, 4303.9, 0, "CLUSTER", _benchmark("CLUSTER"), stand_ins.cluster
    ),
    "MNIST": DataSet(55000, 70.6, 564.5, 0, "MNIST", _benchmark("MNIST"), _neighbours(70.6, 8)),
    "CIFAR10": DataSet(
        45000, 117.6, 941.2, 0, "CIFAR10", _benchmark("CIFAR10"), _neighbours(117.6, 8)
    ),
    "PascalVOC-SP": DataSet(
        8498, 479.4, 2710.5, 0, "pascalvoc-sp", _long_range("PascalVOC-SP"), _regions(479.4)
    ),
    "COCO-SP": DataSet(
        113286, 476.9, 2693.7, 0, "coco-sp", _long_range("COCO-SP"), _regions(476.9)
    ),
    "Cora": _whole(2708, 10556, 168, "Cora", partial(datasets.load, "Cora"), 50, 0.9),
    "CiteSeer": _whole(3327, 9104, 99, "CiteSeer", partial(datasets.load, "CiteSeer"), 60, 0.9),
    "PubMed": _whole(19717, 88648, 171, "PubMed", partial(datasets.load, "PubMed"), 300, 1.0),
    "Tolokers": _whole(11758, 1038000, 2138, "tolokers", partial(datasets.load, "Tolokers"), 1),
    "ogbl-ppa": _whole(576289, 42463862, 3241, "ogbl_ppa", _ogb("ogbl-ppa", "link"), 2000),
    "ogbn-proteins": _whole(
        132534, 79122504, 7750, "ogbn_proteins", _ogb("ogbn-proteins", "node"), 8
    ),
    "Reddit": _whole(232965, 114615892, 21657, "Reddit", partial(datasets.load, "Reddit"), 50),
}
# The same number of nodes and edges, to see what the skew of degrees costs
DEGREES = {
    f"{kind} degrees, {size}": _whole(nodes, edges, highest, None, _nothing, 1, sigma)
    for size, nodes, edges in (("small", 4_000, 80_000), ("large", 200_000, 10_000_000))
    for kind, highest, sigma in (("equal", edges // nodes, 0.0), ("skewed", nodes // 20, 1.5))
}
# As many nodes and edges each: a path, whose nodes have one edge, and trees of super nodes
TREES = {
    f"{kind}, {size} edges": _tree(edges, children, is_outward)
    for size, edges, hubs in (("10K", 10_000, 100), ("1M", 1_000_000, 1000))
    for kind, children, is_outward in (
        ("path", 0, False),
        ("star in", edges, False),
        ("star out", edges, True),
        ("star of stars in", hubs, False),
        ("star of stars out", hubs, True),
    )
}
# Between the batches above: from few edges a node to most pairs of nodes
RANDOM = {
    f"random graphs of {nodes}, {share} %": _random(nodes, share / 100)
    for nodes, share in ((60, 10), (60, 40), (200, 2), (200, 8), (400, 1), (400, 8))
}
# Between the whole graphs above, with longest rows of forty to five hundred times the mean
SKEWED = {
    f"skewed graph of {nodes:,}, {edges:,} edges": _whole(
        nodes, edges, highest, None, _nothing, communities
    )
    for nodes, edges, highest, communities in (
        (3_000, 30_000, 400, 1),
        (5_000, 100_000, 1_000, 1),
        (20_000, 400_000, 2_000, 50),
        (90_000, 900_000, 5_400, 100),
    )
}
KNOWN = DATASETS | DEGREES | TREES | RANDOM | SKEWED
BATCHES = tuple(name for name, dataset in DATASETS.items() if dataset.is_batch)
LARGE = ("ogbl-ppa", "ogbn-proteins", "Reddit")
WHOLE = tuple(n for n, d in DATASETS.items() if not d.is_batch and n not in LARGE)


def find(name: str, roots: Sequence[str]) -> str | None:
    """The first root under which the files of a data set are; None, too, of what has none."""
    folder_name = KNOWN[name].folder
    if folder_name is None:
        return None
    for root in roots:
        for kind in ("raw", "processed"):
            folder = Path(root, folder_name, kind)
            if folder.is_dir() and any(folder.iterdir()):
                return root
    return None


def root_of(name: str, roots: Sequence[str], download: bool) -> str | None:
    """Where a data set is, or is fetched to; None where a stand-in takes its place."""
    may_fetch = download and roots and KNOWN[name].folder is not None
    return find(name, roots) or (roots[0] if may_fetch else None)


def load(
    name: str, count: int, device: str, seed: int, roots: list[str], download: bool
) -> Workload:
    """A data set's graph, or its first ``count`` graphs; a stand-in where no root has it.

    Raises:
        ValueError: there is no such data set.
    """
    if name not in KNOWN:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(KNOWN)}")
    dataset = KNOWN[name]
    root = root_of(name, roots, download)
    if root is None:
        return dataset.make(name, count, device, seed)
    with contextlib.redirect_stdout(sys.stderr), open(os.devnull) as nothing:
        stdin, sys.stdin = sys.stdin, nothing  # OGB asks before it downloads
        try:
            data = dataset.load(root)
        finally:
            sys.stdin = stdin
    if dataset.is_batch:
        made = join(name, [data[i] for i in range(min(count, len(data)))], device)
    else:
        made = Workload.of_edges(name, data.edge_index.to(device), data.num_nodes)
    made.is_real = True
    return made
