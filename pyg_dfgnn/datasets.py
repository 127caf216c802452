"""Graphs to train on: stochastic block models made on the spot, and PyG's loaders by name.

PATTERN and CLUSTER follow the recipe of Dwivedi et al., "Benchmarking Graph Neural Networks" (JMLR
2023, https://arxiv.org/abs/2003.00982: the stochastic block model datasets, with the settings of
the notebooks published along with it). The same seed makes the same graphs.
"""

import contextlib
import os
import sys
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric import datasets as pyg
from torch_geometric.data import Data

PLANETOID = ("Cora", "CiteSeer", "PubMed")
HETEROPHILOUS = ("Tolokers", "Minesweeper", "Questions", "Roman-empire", "Amazon-ratings")
LARGE = ("Flickr", "Reddit")
SBM = ("pattern", "cluster")
NAMES = SBM + PLANETOID + HETEROPHILOUS + LARGE


class Splits(NamedTuple):
    """Lists of graphs, each a ``Data``.

    ``x`` [N, signals] holds each node's signal, one-hot; ``edge_index`` [2, E] each edge in both
    directions; ``y`` [N] the label of each node.
    """

    train: list[Data]
    val: list[Data]
    test: list[Data]


def pattern_graphs(
    num_patterns: int = 100, train: int = 100, val: int = 20, test: int = 20, seed: int = 0
) -> Splits:
    """PATTERN: tell the nodes of a planted pattern (label 1, one in six) from all others (0).

    A pattern is a random graph (edge probability 0.5) of 5 to 34 nodes with three-valued signals.
    Each of its ``train + val + test`` graphs plants it among five communities of 5 to 34 nodes
    (edge probability 0.5 inside, 0.35 across; random signals), by joining every pattern node to
    every other node with probability 0.5. The defaults make the size of the published dataset.
    """
    rng = torch.Generator().manual_seed(seed)
    splits = Splits([], [], [])
    for _ in range(num_patterns):
        size = _sizes(1, rng)
        planted = _sample_edges(torch.full((int(size), int(size)), 0.5), rng)
        signal = torch.randint(3, (int(size),), generator=rng)
        for graphs, count in zip(splits, (train, val, test), strict=True):
            graphs += [_pattern_graph(planted, signal, rng) for _ in range(count)]
    return splits


def cluster_graphs(train: int = 10000, val: int = 1000, test: int = 1000, seed: int = 0) -> Splits:
    """CLUSTER: name the community of every node, given one named node in each (label 0 to 5).

    Six communities of 5 to 34 nodes, edge probability 0.55 inside and 0.25 across. One random node
    of community r carries signal r + 1, all others 0. The defaults make the size of the published
    dataset.
    """
    rng = torch.Generator().manual_seed(seed)
    return Splits(*([_cluster_graph(rng) for _ in range(count)] for count in (train, val, test)))


def load(name: str, root: str) -> Data:
    """One whole graph from PyG's loader.

    Args:
        name: That of a whole graph in ``NAMES``.
        root: The folder of PyG's data sets. Files that are missing there are fetched.

    Returns:
        ``x`` ``[N, F]``, float32; ``edge_index`` ``[2, E]`` and the classes ``y`` ``[N]``, int64;
        ``train_mask``, ``val_mask`` and ``test_mask`` ``[N]``, bool: of citation graphs the public
        split, of heterophilous ones the first of their ten.

    Raises:
        ValueError: there is no such whole graph.
        FileNotFoundError: the files are neither under ``root`` nor to be fetched.
    """
    if name not in PLANETOID + HETEROPHILOUS + LARGE:
        known = ", ".join(PLANETOID + HETEROPHILOUS + LARGE)
        raise ValueError(f"name: expected one of {known}, got {name!r}")
    try:
        with contextlib.redirect_stderr(sys.stdout):  # PyG reports its downloads on stderr
            if name in PLANETOID:
                data = pyg.Planetoid(root, name)[0]
            elif name in HETEROPHILOUS:
                data = pyg.HeterophilousGraphDataset(root, name)[0]
            else:
                data = getattr(pyg, name)(os.path.join(root, name))[0]
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise FileNotFoundError(
            f"{name} is not under {root!r} and cannot be fetched: {reason}"
        ) from error
    for key in ("train_mask", "val_mask", "test_mask"):
        mask = data[key]
        data[key] = mask[:, 0] if mask.dim() == 2 else mask
    return data


def _sizes(count: int, rng: torch.Generator) -> Tensor:
    return torch.randint(5, 35, (count,), generator=rng)


def _blocks(
    count: int, inside: float, across: float, rng: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Community of each node [N], and the edge probability of each pair [N, N]."""
    block = torch.arange(count).repeat_interleave(_sizes(count, rng))
    return block, torch.where(block[:, None] == block, inside, across)


def _sample_edges(probability: Tensor, rng: torch.Generator) -> Tensor:
    """Symmetric adjacency [N, N] without loops, each pair an edge with its probability."""
    upper = (torch.rand(probability.shape, generator=rng) < probability).triu(1)
    return upper | upper.t()


def _pattern_graph(planted: Tensor, signal: Tensor, rng: torch.Generator) -> Data:
    block, among_blocks = _blocks(5, 0.5, 0.35, rng)
    n = block.numel()
    probability = torch.full((n + signal.numel(), n + signal.numel()), 0.5)
    probability[:n, :n] = among_blocks
    probability[n:, n:] = planted.float()  # 0 or 1: the pattern is the same in all of its graphs
    signal = torch.cat([torch.randint(3, (n,), generator=rng), signal])
    label = (torch.arange(signal.numel()) >= n).long()
    return _shuffled(_sample_edges(probability, rng), F.one_hot(signal, 3), label, rng)


def _cluster_graph(rng: torch.Generator) -> Data:
    block, probability = _blocks(6, 0.55, 0.25, rng)
    sizes = block.bincount()
    named = sizes.cumsum(0) - sizes + (torch.rand(6, generator=rng) * sizes).long()
    signal = torch.zeros_like(block)
    signal[named] = torch.arange(1, 7)
    return _shuffled(_sample_edges(probability, rng), F.one_hot(signal, 7), block, rng)


def _shuffled(adjacency: Tensor, x: Tensor, y: Tensor, rng: torch.Generator) -> Data:
    order = torch.randperm(y.numel(), generator=rng)
    edge_index = adjacency[order][:, order].nonzero().t().contiguous()
    return Data(x=x[order].float(), edge_index=edge_index, y=y[order])
