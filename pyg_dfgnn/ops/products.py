"""Products along the edges of a graph, with features of nodes and of edges."""

import torch
from torch import Tensor

from ..graph import Graph


def sddmm(a: Tensor, b: Tensor, graph: Graph) -> Tensor:
    """Inner products of the two ends of every edge: ``s[e, h] = a[i, h] · b[j, h]``.

    Differentiable any number of times, in memory proportional to the edges.

    Args:
        a: ``[num_dst, heads, head_dim]``, or with one head, which then serves all of ``b``'s.
        b: ``[num_src, heads, head_dim]``, or with one head.

    Returns:
        ``[E, heads]``, float32 (float64 for float64); 0 for entries of ``graph.col`` that are no
        edges.
    """
    return torch.ops.dfgnn.sddmm(
        graph.rowptr,
        graph.col,
        a=a,
        b=b,
        colptr=graph.colptr,
        row=graph.row,
        perm=graph.perm,
    )


def spmm(
    weight: Tensor,
    x: Tensor,
    graph: Graph,
    transpose: bool = False,
    sum_heads: bool = False,
) -> Tensor:
    """Weighted sums over the edges of every destination: ``y[i, h] = Σ_e weight[e, h] x[j(e), h]``.

    Differentiable any number of times, in memory proportional to the edges.

    Args:
        weight: ``[E, heads]``, of ``x``'s dtype or float32.
        x: ``[num_src, heads, head_dim]``, or with one head, which then serves all.
        transpose: Sum over the edges of every source instead: ``x`` is of the destinations, the
            result of the sources.
        sum_heads: Sum over the heads, too: the result has one head.

    Returns:
        ``[num_dst, heads, head_dim]``, of ``x``'s dtype; ``[num_src, heads, head_dim]`` with
        ``transpose``, of one head with ``sum_heads``.
    """
    return torch.ops.dfgnn.spmm(
        graph.rowptr,
        graph.col,
        weight=weight,
        x=x,
        colptr=graph.colptr,
        row=graph.row,
        perm=graph.perm,
        transpose=transpose,
        sum_heads=sum_heads,
    )


def edge_sddmm(a: Tensor, features: Tensor, graph: Graph) -> Tensor:
    """Inner products of every edge's features and its destination: ``s[e, h] = a[i, h] · f_e``.

    Differentiable any number of times, in memory proportional to the edges.

    Args:
        a: ``[num_dst, heads, F]``, or of one node, which then serves all.
        features: ``[edges, F]``, those of ``e`` at ``graph.eid[e]``, each of one edge.

    Returns:
        ``[E, heads]``, float32 (float64 for float64); 0 for entries of ``graph.col`` that are no
        edges.
    """
    return torch.ops.dfgnn.edge_sddmm(graph.rowptr, graph.eid, a=a, features=features)


def edge_spmm(weight: Tensor, features: Tensor, graph: Graph) -> Tensor:
    """Weighted sums of edges' features: ``y[i, h] = Σ_e weight[e, h] f_e`` over those of ``i``.

    Differentiable any number of times, in memory proportional to the edges.

    Args:
        weight: ``[E, heads]``, of the dtype of ``features`` or float32.
        features: ``[edges, F]``, those of ``e`` at ``graph.eid[e]``, each of one edge.

    Returns:
        ``[num_dst, heads, F]``, of the dtype of ``features``.
    """
    return torch.ops.dfgnn.edge_spmm(graph.rowptr, graph.eid, weight=weight, features=features)


def message_sddmm(
    a: Tensor, b: Tensor, features: Tensor, projection: Tensor, graph: Graph
) -> Tensor:
    """Inner products of every edge's message and its destination:
    ``s[e, h] = a[i, h] · (b[j, h] + (W f_e)[h])``.

    Those of the graph transformer with features of edges (Shi et al., 2021). Differentiable any
    number of times, in memory proportional to the nodes and the edges: messages are never made.

    Args:
        a: ``[num_dst, heads, head_dim]``.
        b: ``[num_src, heads, head_dim]``, of the dtype of ``a``.
        features: ``[edges, F]``, those of ``e`` at ``graph.eid[e]``, each of one edge, of the dtype
            of ``a``.
        projection: W, ``[heads * head_dim, F]``, of the dtype of ``a``.

    Returns:
        ``[E, heads]``, float32 (float64 for float64); 0 for entries of ``graph.col`` that are no
        edges.
    """
    return torch.ops.dfgnn.message_sddmm(
        graph.rowptr,
        graph.col,
        eid=graph.eid,
        a=a,
        b=b,
        features=features,
        projection=projection,
        colptr=graph.colptr,
        row=graph.row,
        perm=graph.perm,
    )


def message_spmm(
    weight: Tensor, x: Tensor, features: Tensor, projection: Tensor, graph: Graph
) -> Tensor:
    """Weighted sums of messages: ``y[i, h] = Σ_e weight[e, h] (x[j(e), h] + (W f_e)[h])`` over the
    edges of every destination.

    Differentiable any number of times, in memory proportional to the nodes and the edges.

    Args:
        weight: ``[E, heads]``, of the dtype of ``x`` or float32.
        x: ``[num_src, heads, head_dim]``.
        features: ``[edges, F]``, those of ``e`` at ``graph.eid[e]``, each of one edge, of the dtype
            of ``x``.
        projection: W, ``[heads * head_dim, F]``, of the dtype of ``x``.

    Returns:
        ``[num_dst, heads, head_dim]``, of the dtype of ``x``.
    """
    return torch.ops.dfgnn.message_spmm(
        graph.rowptr,
        graph.col,
        eid=graph.eid,
        weight=weight,
        x=x,
        features=features,
        projection=projection,
        colptr=graph.colptr,
        row=graph.row,
        perm=graph.perm,
    )
