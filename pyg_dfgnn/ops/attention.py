"""Attention with scores that the operators make, or with any."""

from typing import Optional

import torch
from torch import Tensor

from .._dtype_names import dtype_name
from ..graph import Graph
from ._checks import check_logits, check_nodes


def _seed(dropout_p: float, like: Tensor) -> Optional[Tensor]:
    """As with_seed of csrc/redispatch.cpp draws it, but where TorchScript sees that two calls are
    not the same."""
    if dropout_p > 0.0:
        return torch.randint(0x7FFFFFFFFFFFFFFF, [1], device=like.device)
    return None


def dot_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    graph: Graph,
    scale: Optional[float] = None,
    bias: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    method: str = "auto",
) -> Tensor:
    """Attention with ``s = scale · q_i·k_j``.

    That of the graph transformer (Shi et al., Masked Label Prediction, 2021).

    Args:
        q: ``[num_dst, heads, head_dim]``.
        k: ``[num_src, heads, head_dim]``.
        v: ``[num_src, heads, head_dim]``.
        scale: ``1 / sqrt(head_dim)`` where it is None.

    Returns:
        ``[num_dst, heads, head_dim]``, of ``v``'s dtype.
    """
    out, _ = torch.ops.dfgnn.dot_attention(
        graph.rowptr,
        graph.col,
        q,
        k,
        v,
        scale,
        bias,
        dropout_p,
        _seed(dropout_p, graph.col),
        graph.colptr,
        graph.row,
        graph.perm,
        method,
        graph.max_degree,
        graph.tiles,
        graph.tile_blocks,
        graph.tile_nodes,
        graph.tile_batches,
    )
    return out


def message_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    features: Tensor,
    projection: Tensor,
    graph: Graph,
    scale: Optional[float] = None,
    dropout_p: float = 0.0,
) -> Tensor:
    """Attention over messages of edges with features ``f_e``: with
    ``s = scale · q_i·(k_j + W f_e)`` and, in the place of ``v_j``, ``v_j + W f_e``.

    That of the graph transformer (Shi et al., Masked Label Prediction, 2021). It is fused for the
    sizes that docs/operators.md lists (on CUDA a head of 8 to 128 features, a power of two, and
    some features an edge; on the CPU up to 64 heads with a W of up to 32,768 numbers, 8192 a
    head); else it is :func:`message_sddmm`, :func:`edge_softmax` and :func:`message_spmm`.

    Args:
        q: ``[num_dst, heads, head_dim]``.
        k: ``[num_src, heads, head_dim]``.
        v: ``[num_src, heads, head_dim]``.
        features: ``[edges, F]``, those of ``e`` at ``graph.eid[e]``, each of one edge, of ``v``'s
            dtype.
        projection: W, ``[heads * head_dim, F]``, of ``v``'s dtype.
        scale: ``1 / sqrt(head_dim)`` where it is None.

    Returns:
        ``[num_dst, heads, head_dim]``, of ``v``'s dtype.
    """
    return torch.ops.dfgnn.message_attention(
        graph.rowptr,
        graph.col,
        eid=graph.eid,
        q=q,
        k=k,
        v=v,
        features=features,
        projection=projection,
        scale=scale,
        dropout_p=dropout_p,
        seed=_seed(dropout_p, graph.col),
        colptr=graph.colptr,
        row=graph.row,
        perm=graph.perm,
    )


def cosine_attention(
    x_dst: Tensor,
    x_src: Tensor,
    beta: Tensor,
    graph: Graph,
    bias: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    method: str = "auto",
) -> Tensor:
    """Attention with ``s = beta · cos(x_i, x_j)`` and values ``x_j``.

    That of AGNN (Thekumparampil et al., 2018).

    Args:
        x_dst: ``[num_dst, heads, head_dim]``.
        x_src: ``[num_src, heads, head_dim]``; not normalised. Norms below 1e-12 count as 1e-12.
        beta: One element, or ``[heads]``.

    Returns:
        ``[num_dst, heads, head_dim]``, of ``x_src``'s dtype.
    """
    out, _ = torch.ops.dfgnn.cosine_attention(
        graph.rowptr,
        graph.col,
        x_dst,
        x_src,
        beta,
        bias,
        dropout_p,
        _seed(dropout_p, graph.col),
        graph.colptr,
        graph.row,
        graph.perm,
        1e-12,
        method,
        graph.max_degree,
        graph.tiles,
        graph.tile_blocks,
        graph.tile_nodes,
        graph.tile_batches,
    )
    return out


def additive_attention(
    a_dst: Tensor,
    a_src: Tensor,
    v: Tensor,
    graph: Graph,
    negative_slope: float = 0.2,
    a_edge: Optional[Tensor] = None,
    bias: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    method: str = "auto",
) -> Tensor:
    """Attention with ``s = leaky_relu(a_dst_i + a_src_j + a_edge_e)``.

    That of GAT (Veličković et al., 2018).

    Args:
        a_dst: ``[num_dst, heads]``, of ``v``'s dtype or float32, like ``a_src`` and ``a_edge``.
        a_src: ``[num_src, heads]``.
        v: ``[num_src, heads, head_dim]``.
        negative_slope: The slope of leaky_relu below 0.
        a_edge: ``[E, heads]``.

    Returns:
        ``[num_dst, heads, head_dim]``, of ``v``'s dtype.
    """
    out, _ = torch.ops.dfgnn.additive_attention(
        graph.rowptr,
        graph.col,
        a_dst,
        a_src,
        v,
        negative_slope,
        a_edge,
        bias,
        dropout_p,
        _seed(dropout_p, graph.col),
        graph.colptr,
        graph.row,
        graph.perm,
        method,
        graph.max_degree,
        graph.tiles,
        graph.tile_blocks,
        graph.tile_nodes,
        graph.tile_batches,
    )
    return out


def additive_v2_attention(
    x_dst: Tensor,
    x_src: Tensor,
    att: Tensor,
    graph: Graph,
    negative_slope: float = 0.2,
    bias: Optional[Tensor] = None,
    dropout_p: float = 0.0,
    method: str = "auto",
) -> Tensor:
    """Attention with ``s = att · leaky_relu(x_dst_i + x_src_j)`` and values ``x_src_j``.

    That of GATv2 (Brody et al., How Attentive are Graph Attention Networks?, 2022).

    Args:
        x_dst: ``[num_dst, heads, head_dim]``.
        x_src: ``[num_src, heads, head_dim]``.
        att: ``[heads, head_dim]``, of ``x_src``'s dtype or float32.
        negative_slope: The slope of leaky_relu below 0.

    Returns:
        ``[num_dst, heads, head_dim]``, of ``x_src``'s dtype.
    """
    out, _ = torch.ops.dfgnn.additive_v2_attention(
        graph.rowptr,
        graph.col,
        x_dst,
        x_src,
        att,
        bias,
        dropout_p,
        negative_slope,
        _seed(dropout_p, graph.col),
        graph.colptr,
        graph.row,
        graph.perm,
        method,
        graph.max_degree,
        graph.tiles,
        graph.tile_blocks,
        graph.tile_nodes,
        graph.tile_batches,
    )
    return out


def logits_attention(
    logits: Tensor,
    v: Tensor,
    graph: Graph,
    dropout_p: float = 0.0,
    method: str = "auto",
) -> Tensor:
    """Attention with any scores.

    Args:
        logits: ``[E, heads]``, of ``v``'s dtype or float32.
        v: ``[num_src, heads, head_dim]``.

    Returns:
        ``[num_dst, heads, head_dim]``, of ``v``'s dtype.
    """
    check_logits(logits, graph)
    check_nodes("v", v, 3, graph.num_src)
    heads = logits.size(1)
    if v.dim() != 3 or v.size(1) != heads:
        raise RuntimeError(f"v: expected shape [N_src, {heads}, head_dim], got {v.shape}")
    if logits.dtype != v.dtype and logits.dtype != torch.float32:
        raise RuntimeError(
            f"logits: expected the dtype of v ({dtype_name(v)}) or float32, "
            f"got {dtype_name(logits)}"
        )
    a_dst, a_src = logits.new_zeros(graph.num_dst, heads), logits.new_zeros(graph.num_src, heads)
    return additive_attention(
        a_dst, a_src, v, graph, 1.0, a_edge=logits, dropout_p=dropout_p, method=method
    )
