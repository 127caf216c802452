"""Graphs with the statistics of data sets, made in place where the data is not there.

All are vectorised, run on any device, and the same seed makes the same graphs there. Those of
PATTERN and CLUSTER follow the published recipe, see :mod:`pyg_dfgnn.datasets`.
"""

import torch
from torch import Tensor

from ..datasets import cluster_graphs, pattern_graphs
from .workload import Workload, join


def skewed_graph(
    name: str,
    nodes: int,
    edges: int,
    max_degree: int,
    device: str,
    seed: int = 0,
    communities: int = 1,
    sigma: float = 1.2,
    inside: float = 0.7,
) -> Workload:
    """A graph of lognormal degrees (the same for in and out) and communities of adjacent nodes.

    A configuration model: each end of an edge is a stub of its node, and sources are a permutation
    of destinations, a share ``inside`` of them within communities. Edges and the largest degree
    are as many as asked; loops and edges that repeat are rare, where hubs leave no choice.
    """
    rng = torch.Generator(device).manual_seed(seed)
    degree = _lognormal_degrees(nodes, edges, max_degree, sigma, rng)
    node = torch.arange(nodes, device=device)
    dst = node.repeat_interleave(degree)
    is_inside = torch.rand(edges, generator=rng, device=device) < inside
    src = torch.empty_like(dst)
    near, far = dst[is_inside], dst[~is_inside]
    # Stubs ascend by node, and so by community: sorting them by community and chance permutes each
    # community's among themselves.
    chance = torch.rand(near.numel(), generator=rng, device=device, dtype=torch.float64)
    src[is_inside] = near[(near * communities // nodes + chance).argsort()]
    src[~is_inside] = far[torch.randperm(far.numel(), generator=rng, device=device)]
    _exchange_repeats(dst, src, nodes, rng)
    return Workload.of_edges(name, torch.stack([src, dst]), nodes)


def _exchange_repeats(
    dst: Tensor, src: Tensor, nodes: int, rng: torch.Generator, rounds: int = 10
) -> None:
    """Permutes the sources of loops and repeated edges, and of as many others, in place."""
    for _ in range(rounds):
        key, order = (dst * nodes + src).sort()
        is_bad = dst == src
        is_bad[order[1:][key[1:] == key[:-1]]] = True
        share = float(is_bad.sum()) / dst.numel()
        if share == 0:
            return
        chance = torch.rand(dst.numel(), generator=rng, device=dst.device)
        edge = (is_bad | (chance < share)).nonzero().flatten()
        src[edge] = src[edge[torch.randperm(edge.numel(), generator=rng, device=dst.device)]]


def _lognormal_degrees(
    nodes: int, edges: int, max_degree: int, sigma: float, rng: torch.Generator
) -> Tensor:
    """Degrees ``[nodes]`` from 1 to ``max_degree``, which one has, with the sum ``edges``."""
    normal = torch.randn(nodes, generator=rng, device=rng.device, dtype=torch.float64)
    weight = (sigma * normal).exp()
    if sigma > 0:
        weight[weight.argmax()] = float("inf")
    low, high = 0.0, float(edges)
    for _ in range(100):  # the scale at which clamped degrees have the sum
        scale = (low + high) / 2
        if float((weight * scale).clamp(1, max_degree).sum()) < edges:
            low = scale
        else:
            high = scale
    degree = (weight * high).clamp(1, max_degree)
    ends = (degree.cumsum(0) * (edges / degree.sum())).round().long()
    ends[-1] = edges
    return ends.diff(prepend=ends.new_zeros(1))


def tree(
    name: str, edges: int, children: int, is_outward: bool, device: str, seed: int = 0
) -> Workload:
    """A tree of ``edges + 1`` nodes that are numbered at random: a path for no ``children``, else a
    root of so many, among which all other nodes are divided evenly. Edges lead to the root, or
    outward from it."""
    rng = torch.Generator(device).manual_seed(seed)
    child = torch.arange(1, edges + 1, device=device)
    parent = child - 1
    if children > 0:
        parent = torch.where(child <= children, 0, 1 + parent % children)
    number = torch.randperm(edges + 1, generator=rng, device=device)
    ends = [parent, child] if is_outward else [child, parent]
    return Workload.of_edges(name, number[torch.stack(ends)], edges + 1)


def nearest_neighbours(
    name: str, count: int, nodes: float, k: int, device: str, seed: int = 0
) -> Workload:
    """Superpixels of images: each node has edges from its ``k`` nearest, in graphs of about
    ``nodes`` nodes that are numbered row by row."""
    rng = torch.Generator(device).manual_seed(seed)
    sizes = _sizes(count, nodes, 0.1, rng)
    width = int(sizes.max())
    is_node = torch.arange(width, device=device) < sizes.unsqueeze(1)
    place = torch.rand(count, width, 2, generator=rng, device=device)
    rows = (place[..., 1] * nodes**0.5).floor() + place[..., 0]
    rows[~is_node] = float("inf")
    place = place.gather(1, rows.argsort(dim=1).unsqueeze(-1).expand(-1, -1, 2))
    distance = torch.cdist(place, place)
    distance.diagonal(dim1=1, dim2=2).fill_(float("inf"))
    distance.masked_fill_(~is_node.unsqueeze(1), float("inf"))
    nearest = distance.topk(k, largest=False).indices  # [count, width, k]
    first = sizes.cumsum(0) - sizes
    src = (nearest + first[:, None, None])[is_node].flatten()
    dst = torch.arange(int(sizes.sum()), device=device).repeat_interleave(k)
    return Workload.of_edges(name, torch.stack([src, dst]), int(sizes.sum()), sizes)


def random_graphs(
    name: str, count: int, nodes: int, share: float, device: str, seed: int = 0
) -> Workload:
    """Graphs of two to four thirds of ``nodes`` nodes, all pairs of which are as likely to be
    edges: a ``share`` of them is drawn, of which those drawn again are one edge."""
    rng = torch.Generator(device).manual_seed(seed)
    sizes = _sizes(count, nodes, 0.33, rng)
    drawn = (share * sizes**2).round().long()
    graph = torch.arange(count, device=device).repeat_interleave(drawn)
    size, first = sizes[graph], (sizes.cumsum(0) - sizes)[graph]
    chance = torch.rand(graph.numel(), generator=rng, device=device, dtype=torch.float64)
    pair = (chance * size**2).long()
    total = int(sizes.sum())
    edge = ((first + pair // size) * total + first + pair % size).unique()
    return Workload.of_edges(name, torch.stack([edge % total, edge // total]), total, sizes)


def region_boundaries(name: str, count: int, nodes: float, device: str, seed: int = 0) -> Workload:
    """Superpixels that touch: a grid of about ``nodes`` regions whose sides and one of the two
    diagonals of each crossing are edges, in both directions."""
    rng = torch.Generator(device).manual_seed(seed)
    columns = _sizes(count, nodes**0.5, 0.15, rng)
    sizes = columns * (nodes / columns).round().long()
    graph = torch.arange(count, device=device).repeat_interleave(sizes)
    first = sizes.cumsum(0) - sizes
    node = torch.arange(graph.numel(), device=device)
    width = columns[graph]
    column = (node - first[graph]) % width
    has_right = column + 1 < width
    has_below = node + width < (first + sizes)[graph]
    falls = torch.rand(node.numel(), generator=rng, device=device) < 0.5
    has_both = has_right & has_below
    edges = [
        torch.stack([node, node + 1])[:, has_right],
        torch.stack([node, node + width])[:, has_below],
        torch.stack([node, node + width + 1])[:, has_both & falls],
        torch.stack([node + 1, node + width])[:, has_both & ~falls],
    ]
    half = torch.cat(edges, dim=1)
    edge_index = torch.cat([half, half.flip(0)], dim=1)
    return Workload.of_edges(name, edge_index, int(sizes.sum()), sizes)


def _sizes(count: int, mean: float, spread: float, rng: torch.Generator) -> Tensor:
    """Whole numbers ``[count]`` around ``mean``, at most the share ``spread`` away."""
    share = 2 * torch.rand(count, generator=rng, device=rng.device) - 1
    return (mean * (1 + spread * share)).round().long()


def pattern(name: str, count: int, device: str, seed: int = 0) -> Workload:
    graphs = pattern_graphs(-(-count // 8), train=8, val=0, test=0, seed=seed).train
    return join(name, graphs[:count], device)


def cluster(name: str, count: int, device: str, seed: int = 0) -> Workload:
    return join(name, cluster_graphs(count, val=0, test=0, seed=seed).train, device)
