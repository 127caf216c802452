"""Attention over the edges of a graph: scriptable wrappers of ``torch.ops.dfgnn``.

For every destination ``i`` and head ``h`` they compute

    out[i, h] = Σ_e α_e v[j(e), h],    α = softmax over the edges e of i of  s_e + bias_e

in one fused kernel that keeps nothing per edge and feature (DF-GNN: Dynamic Fusion Framework for
Attention Graph Neural Networks on GPUs, LoG 2024); they differ in the score ``s``. Destinations
without edges get 0, and duplicate edges are separate terms. ``E``-sized arguments are in the order
of ``graph.col``; bring ``t`` from that of ``edge_index`` with ``t[graph.eid]``. Wrong shapes,
dtypes and devices raise a RuntimeError that names the argument; edges from a node that is out of
range make their destination's row NaN. ``graph`` is the structure everywhere, see
:func:`pyg_dfgnn.build_graph`.

Arguments of the functions ``*_attention``:
    bias: ``[E, heads]``, added to the scores; of ``v``'s dtype or float32. (Not of
        :func:`logits_attention`, whose scores may hold it.)
    dropout_p: The probability that an edge's α is zeroed; the others are scaled by ``1 / (1 −
        dropout_p)``.
    method: ``"smmf"``, ``"pmf"``, ``"tile"``, ``"resident"``, or ``"auto"``, which looks for super
        nodes and for runs of nodes with edges among themselves, many or few, in the graph.

Features are float32, float16, bfloat16 or float64, and logits and sums are float32 (float64 for
float64).
"""

from typing import Optional

import torch
from torch import Tensor

from .graph import Graph


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
    _check_nodes("a_dst", a_dst, 2, graph.num_dst)
    _check_nodes("a_src", a_src, 2, graph.num_src)
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

    In memory proportional to the edges. On CUDA one kernel makes them where a head has up to 128
    channels (256 in half precision, 32 in float64), rounded up to a power of two, and all heads 512
    (128 in float64); else, and on the CPU, what has channels, too, is made for some edges at a
    time.

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
        raise RuntimeError("features, weight: expected both of them or none, got one")
    _check_nodes("x_dst", x_dst, 3, graph.num_dst)
    _check_nodes("x_src", x_src, 3, graph.num_src)
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


def _check_nodes(name: str, x: Tensor, dim: int, count: int) -> None:
    """What the operators say in words of their own, or, of additive_v2_logits, cannot know."""
    if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code knows no compiler)
        if torch.compiler.is_compiling():  # sizes may be unknown yet
            return
    if x.dim() == dim and x.size(0) != count:
        raise RuntimeError(f"{name}: expected {count} nodes, got shape {x.shape}")


def _check_logits(logits: Tensor, graph: Graph) -> None:
    is_right = logits.dim() == 2 and logits.is_floating_point()
    if not torch.jit.is_scripting():  # noqa: SIM102 (scripted code knows no compiler)
        if is_right and torch.compiler.is_compiling():  # sizes may be unknown yet
            return
    if not is_right or logits.size(0) != graph.col.size(0) or logits.size(1) < 1:
        raise RuntimeError(
            f"logits: expected floating point numbers of shape [E, heads], "
            f"E = {graph.col.size(0)}, got {logits.dtype} of shape {logits.shape}"
        )


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
    _check_logits(logits, graph)
    _check_nodes("v", v, 3, graph.num_src)
    heads = logits.size(1)
    if v.dim() != 3 or v.size(1) != heads:
        raise RuntimeError(f"v: expected shape [N_src, {heads}, head_dim], got {v.shape}")
    if logits.dtype != v.dtype and logits.dtype != torch.float32:
        raise RuntimeError(
            f"logits: expected the dtype of v ({v.dtype}) or float32, got {logits.dtype}"
        )
    a_dst, a_src = logits.new_zeros(graph.num_dst, heads), logits.new_zeros(graph.num_src, heads)
    return additive_attention(
        a_dst, a_src, v, graph, 1.0, a_edge=logits, dropout_p=dropout_p, method=method
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
    _check_logits(logits, graph)
    return torch.ops.dfgnn.edge_softmax(graph.rowptr, graph.col, logits=logits, scale=scale)


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
