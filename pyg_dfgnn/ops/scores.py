"""Scores of nodes and edges, and what comes of them, as tensors."""

from typing import Optional

import torch
from torch import Tensor

from ..graph import Graph
from ._checks import check_logits, check_nodes


def node_scores(x: Tensor, att: Tensor) -> Tensor:
    """GAT's scores of nodes: ``a[i, h] = att[h] · x[i, h]``.

    Differentiable any number of times; gradients have the same bits in every run.

    Args:
        x: ``[N, heads, head_dim]``.
        att: ``[heads, head_dim]``, of the dtype of ``x`` or float32.

    Returns:
        ``[N, heads]``, float32 (float64 for float64).
    """
    return torch.ops.dfgnn.node_scores(x, att)[0]


def gat_scores(
    x_src: Tensor, x_dst: Tensor, att_src: Tensor, att_dst: Tensor
) -> tuple[Tensor, Tensor]:
    """:func:`node_scores` of sources and of destinations: in one pass where these are one tensor.

    Args:
        x_src: ``[num_src, heads, head_dim]``.
        x_dst: ``[num_dst, heads, head_dim]``.
        att_src: ``[heads, head_dim]``.
        att_dst: The same.

    Returns:
        ``[num_src, heads]`` and ``[num_dst, heads]``, float32 (float64 for float64).
    """
    return torch.ops.dfgnn.gat_scores(x_src, x_dst, att_src, att_dst)


def additive_logits(a_dst: Tensor, a_src: Tensor, graph: Graph) -> Tensor:
    """Sums of the two ends of every edge: ``s[e, h] = a_dst[i, h] + a_src[j, h]``.

    Args:
        a_dst: ``[num_dst, heads]``, floating point.
        a_src: ``[num_src, heads]``, of the dtype of ``a_dst``.

    Returns:
        ``[E, heads]``, float32 (float64 for float64), also in autocast.
    """
    check_nodes("a_dst", a_dst, 2, graph.num_dst)
    check_nodes("a_src", a_src, 2, graph.num_src)
    return torch.ops.dfgnn.additive_logits(
        graph.rowptr,
        graph.col,
        a_dst=a_dst,
        a_src=a_src,
        colptr=graph.colptr,
        row=graph.row,
        perm=graph.perm,
    )


def additive_v2_logits(
    x_dst: Tensor,
    x_src: Tensor,
    att: Tensor,
    graph: Graph,
    negative_slope: float = 0.2,
    features: Optional[Tensor] = None,
    weight: Optional[Tensor] = None,
) -> Tensor:
    """Scores of GATv2: ``s[e, h] = att[h] · leaky_relu(x_dst[i, h] + x_src[j, h] + (W f_e)[h])``.

    (Brody et al., How Attentive are Graph Attention Networks?, 2022.)

    In memory proportional to the edges, with a bit for each channel where there is a backward pass
    on CUDA. Second derivatives are made for some edges at a time.

    Args:
        x_dst: ``[num_dst, heads, head_dim]``, of the dtype of ``x_src``.
        x_src: ``[num_src, heads, head_dim]``.
        att: ``[heads, head_dim]``, of the dtype of ``x_src`` or float32.
        negative_slope: That of ``leaky_relu``.
        features: ``[edges, F]``, those of ``e`` at ``graph.eid[e]``, each of one edge, of the dtype
            of ``x_src``.
        weight: W, ``[heads * head_dim, F]``, where there are ``features``, of their dtype.

    Returns:
        ``[E, heads]``, float32 (float64 for float64).

    Raises:
        RuntimeError: as all; or of ``features`` without ``weight``, and the other way round.
    """
    if (features is None) != (weight is None):
        got = "features" if weight is None else "weight"
        raise RuntimeError(f"features, weight: expected both of them or none, got {got} alone")
    check_nodes("x_dst", x_dst, 3, graph.num_dst)
    check_nodes("x_src", x_src, 3, graph.num_src)
    return torch.ops.dfgnn.additive_v2_logits(
        graph.rowptr,
        graph.col,
        x_dst=x_dst,
        x_src=x_src,
        att=att,
        features=features,
        weight=weight,
        eid=None if features is None else graph.eid,
        negative_slope=negative_slope,
        colptr=graph.colptr,
        row=graph.row,
        perm=graph.perm,
    )


def edge_softmax(logits: Tensor, graph: Graph, scale: float = 1.0) -> Tensor:
    """The softmax of ``scale · logits`` over the edges of each destination.

    Args:
        logits: ``[E, heads]``, floating point.
        scale: A factor of all of them; of large ones the difference to a product before it counts.

    Returns:
        ``[E, heads]``, float32 (float64 for float64); 0 for entries of ``graph.col`` that are no
        edges.
    """
    check_logits(logits, graph)
    return torch.ops.dfgnn.edge_softmax(graph.rowptr, graph.col, logits=logits, scale=scale)
