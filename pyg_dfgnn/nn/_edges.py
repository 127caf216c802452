"""What layers compute per edge: features of ``[E, edge_dim]`` and logits of ``[E, heads]``."""

from typing import Optional, Union

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.typing import OptTensor, SparseTensor
from torch_geometric.utils import is_torch_sparse_tensor

from ..graph import Graph
from ..ops import edge_softmax
from ._dtypes import in_dtype, in_dtype_of


def edge_features(
    edge_index: Union[Tensor, SparseTensor, Graph], edge_attr: OptTensor
) -> OptTensor:
    """``edge_attr``, or else the values of an adjacency that PyG takes for it. Scriptable."""
    if edge_attr is not None:
        return edge_attr
    if isinstance(edge_index, SparseTensor):
        value = edge_index.storage.value()
        return value if value is not None and value.dim() > 1 else None
    if isinstance(edge_index, Tensor):  # noqa: SIM102 (saved TorchScript cannot read an `and`)
        if is_torch_sparse_tensor(edge_index):
            value = edge_index.values()
            return value if value.dim() > 1 else None
    return None


def num_edges(graph: Graph) -> int:
    """The number of edges of the ``edge_index`` that the graph was built from. Scriptable."""
    loops = min(graph.num_src, graph.num_dst) if graph.self_loops else 0
    return graph.eid.size(0) - loops


def has_rows(t: Tensor, count: int) -> bool:
    """Whether the first dimension is of that size. Scriptable."""
    return t.dim() > 0 and t.size(0) == count


def destinations(graph: Graph) -> Tensor:
    """The destination of each edge ``[C]``; ``num_dst`` behind the last one. Scriptable."""
    positions = torch.arange(
        graph.col.size(0), dtype=graph.rowptr.dtype, device=graph.rowptr.device
    )
    return torch.searchsorted(graph.rowptr, positions, right=True) - 1


def with_loops(
    edge_attr: Tensor, graph: Graph, fill_value: Union[float, Tensor, str], flow: str
) -> Tensor:
    """The features of all edges, among them those that PyG gives self-loops. Scriptable.

    Those of loops that the graph had, and that were dropped, are there, too: no ``eid`` tells of
    them.

    Args:
        edge_attr: ``[E]`` or ``[E, edge_dim]``, of the edges of ``edge_index``.
        graph: The structure.
        fill_value: The features of self-loops, or how to reduce those of the edges that point to
            the node: "sum", "add", "mean", "min", "max", "amin", "amax", "mul" or "any"; None is 1.
        flow: That of the layer. PyG reduces over the second row of ``edge_index`` in either.

    Returns:
        ``[E, edge_dim]``, with ``graph.self_loops`` ``[E + min(num_src, num_dst), edge_dim]``; to
        be taken in the order of ``graph.col`` by ``graph.eid``.
    """
    features = edge_attr.view(-1, 1) if edge_attr.dim() == 1 else edge_attr
    if not graph.self_loops:
        return features
    loops = min(graph.num_src, graph.num_dst)
    if isinstance(fill_value, str):
        by_rows = flow == "source_to_target"
        if by_rows and (fill_value == "sum" or fill_value == "add" or fill_value == "mean"):
            filled = _sums_of_rows(features, graph, loops, fill_value == "mean")
        else:
            filled = _reduce(features, graph, flow, fill_value)[:loops]
    elif isinstance(fill_value, Tensor):
        value = fill_value.to(features.device, features.dtype)
        if edge_attr.dim() == 1 and value.dim() == 1:
            value = value.view(-1, 1)
        filled = value.expand(loops, features.size(1))
    else:
        if not torch.jit.is_scripting():  # LoopedConv puts a number into scripts
            fill_value = 1.0 if fill_value is None else fill_value
        filled = features.new_full([loops, features.size(1)], fill_value)
    return torch.cat([features, filled])


def _sums_of_rows(features: Tensor, graph: Graph, loops: int, mean: bool) -> Tensor:
    """The sums, or means, of the features ``[E, D]`` of the edges to each of the first nodes, but
    for loops. Scriptable."""
    padded = F.pad(features, [0, 0, 0, loops])  # loops that were added count 0
    alike = features.new_zeros([graph.col.size(0), 1])
    # Means of all are in the range of the features, where their sums may not be.
    weight = edge_softmax(alike, graph) if mean else alike + 1
    sums = torch.ops.dfgnn.edge_sums(graph.rowptr, graph.eid, weight=weight, features=padded)
    sums = sums.squeeze(1)[:loops]
    if not mean:
        return sums
    degree = graph.rowptr.diff()[:loops].to(torch.float64)
    return in_dtype_of(sums * (degree / (degree - 1).clamp(min=1)).unsqueeze(1), features)


def _reduce(features: Tensor, graph: Graph, flow: str, reduction: str) -> Tensor:
    """The features ``[E, D]`` reduced over the edges of each node, but for loops that were dropped;
    of no edges 0, with "mul" 1. Scriptable."""
    # The node of each edge; of loops that were dropped it is `bound`.
    num_edges, bound = features.size(0), max(graph.num_dst, graph.num_src)
    rows = destinations(graph)
    nodes = rows if flow == "source_to_target" else graph.col.long()
    is_kept = (rows < graph.num_dst) & (graph.eid < num_edges)
    eid = graph.eid.masked_fill(~is_kept, num_edges).long()
    index = nodes.new_full([num_edges + 1], bound).scatter(0, eid, nodes)[:num_edges]
    neutral = 1.0 if reduction == "mul" else 0.0  # several zeros would have no second derivative
    src = features.masked_fill((index == bound).unsqueeze(1), neutral)

    zeros = src.new_zeros([bound + 1, src.size(1)])
    if reduction == "sum" or reduction == "add" or reduction == "mean":
        out = _sum(src, index, bound + 1)
        if reduction == "mean":
            ones = src.new_ones([num_edges, 1])
            out = out / _sum(ones, index, bound + 1).clamp(min=1)
        return out
    index = index.unsqueeze(1).expand_as(src)
    if reduction == "mul":
        return (zeros + 1).scatter_reduce(0, index, src, "prod")
    if reduction == "any":
        return zeros.scatter(0, index, src)
    if reduction == "min" or reduction == "max" or reduction == "amin" or reduction == "amax":
        return zeros.scatter_reduce(0, index, src, "a" + reduction[-3:], include_self=False)
    raise ValueError(
        "fill_value: expected a number, a tensor, 'sum', 'add', 'mean', 'min', 'max', 'amin', "
        f"'amax', 'mul' or 'any', got '{reduction}'"
    )


def _sum(src: Tensor, index: Tensor, size: int) -> Tensor:
    """``src [E, D]`` summed by group, in the same order in every run. Scriptable."""
    zeros = src.new_zeros([size, src.size(1)])
    if src.is_cuda:  # index_add would sum in any order there, and index_put wait for the device
        groups: list[Optional[Tensor]] = [index]
        return torch._index_put_impl_(zeros, groups, src, accumulate=True, unsafe=True)
    return zeros.index_add(0, index, src)


def order_of_edges(graph: Graph) -> Tensor:
    """The positions in ``graph.col`` of all edges, self-loops that were added behind. Scriptable.

    Where the loops of the graph were dropped, it waits for the device to know how many are left.
    """
    eid, capacity = graph.eid.long(), graph.eid.size(0)
    positions = torch.arange(capacity, device=eid.device)
    if not graph.self_loops:
        return torch.zeros_like(eid).scatter(0, eid, positions)
    eid = eid.masked_fill(positions >= graph.rowptr[-1], capacity)
    order = eid.new_full([capacity + 1], -1).scatter(0, eid, positions)[:capacity]
    return order[order >= 0]


def attention_weights(
    logits: Tensor, graph: Graph, dropout_p: float, dtype: torch.dtype, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax of logits, where the weights themselves are wanted. Scriptable.

    Args:
        logits: ``[C, heads]``, in the order of ``graph.col``.
        graph: The structure.
        dropout_p: As drawn by PyG: the same generator drops the same edges.
        dtype: That of the weights.
        scale: What logits are multiplied by.

    Returns:
        The weights after dropout in the order of ``graph.col`` ``[C, heads]``; and in PyG's order
        (that of ``edge_index``, self-loops that were added behind) ``[E', heads]``, before and
        after dropout. The first are made of these, so that derivatives are theirs, too.
    """
    alpha = in_dtype(edge_softmax(logits, graph, scale), dtype)
    order = order_of_edges(graph)
    weights = alpha.index_select(0, order)
    dropped = F.dropout(weights, dropout_p) if dropout_p > 0.0 else weights
    return torch.zeros_like(alpha).index_copy(0, order, dropped), weights, dropped


def append_self_loops(edge_index: Tensor, num_loops: int) -> Tensor:
    """``edge_index`` without its self-loops, then those of the first nodes. Scriptable."""
    loops = torch.arange(num_loops, device=edge_index.device)  # PyG's are int64, too
    kept = edge_index[:, edge_index[0] != edge_index[1]]
    return torch.cat([kept, loops.unsqueeze(0).expand(2, -1)], dim=1)
