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

Arguments of the functions ``*_attention``, but for :func:`message_attention`, which has its own:
    bias: ``[E, heads]``, added to the scores; of ``v``'s dtype or float32. (Not of
        :func:`logits_attention`, whose scores may hold it.)
    dropout_p: The probability that an edge's α is zeroed; the others are scaled by ``1 / (1 −
        dropout_p)``.
    method: ``"smmf"``, ``"pmf"``, ``"tile"``, ``"resident"``, or ``"auto"``, which looks for super
        nodes and for runs of nodes with edges among themselves, many or few, in the graph.

Features are float32, float16, bfloat16 or float64, and logits and sums are float32 (float64 for
float64).
"""

from .attention import (
    additive_attention,
    additive_v2_attention,
    cosine_attention,
    dot_attention,
    logits_attention,
    message_attention,
)
from .products import (
    edge_sddmm,
    edge_spmm,
    message_sddmm,
    message_spmm,
    sddmm,
    spmm,
)
from .scores import (
    additive_logits,
    additive_v2_logits,
    edge_softmax,
    gat_scores,
    node_scores,
)

__all__ = [
    "additive_attention",
    "additive_logits",
    "additive_v2_attention",
    "additive_v2_logits",
    "cosine_attention",
    "dot_attention",
    "edge_sddmm",
    "edge_softmax",
    "edge_spmm",
    "gat_scores",
    "logits_attention",
    "message_attention",
    "message_sddmm",
    "message_spmm",
    "node_scores",
    "sddmm",
    "spmm",
]
