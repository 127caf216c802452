"""Attention over messages x_j + W f_e, and the same in plain float64 torch."""

import torch
from calls import SPARE, check_function, graph_of, normal
from graphs import Csr
from torch import Tensor

from pyg_dfgnn import ops

NAMES = ("q", "k", "v", "features", "projection")


def operands_of(csr: Csr, heads: int, size: int, width: int, dtype=torch.float32):
    return {
        "q": normal(csr, csr.num_dst, heads, size, dtype=dtype),
        "k": normal(csr, csr.num_src, heads, size, dtype=dtype).flip(0),
        "v": normal(csr, csr.num_src, heads, size, dtype=dtype),
        "features": normal(csr, csr.capacity + SPARE, width, dtype=dtype),
        "projection": normal(csr, heads * size, width, dtype=dtype) / width**0.5,
    }


def call(csr: Csr, operands: dict[str, Tensor], **kwargs) -> Tensor:
    return ops.message_attention(**operands, graph=graph_of(csr), **kwargs)


def expected(csr: Csr, operands: dict[str, Tensor], scale=None, kept=None) -> Tensor:
    into, col = csr.destinations(), csr.col[: csr.num_edges].long()
    q, k, v, features, projection = operands.values()
    eid = graph_of(csr).eid[: csr.num_edges].long()
    edges = (features[eid] @ projection.t()).unflatten(1, q.shape[1:])
    s = (q[into] * (k[col] + edges)).sum(-1) * (q.size(2) ** -0.5 if scale is None else scale)
    index = into.unsqueeze(1).expand_as(s)
    largest = s.new_zeros(csr.num_dst, s.size(1)).scatter_reduce(
        0, index, s.detach(), "amax", include_self=False
    )
    p = (s - largest[into]).exp()
    alpha = p / p.new_zeros(largest.shape).index_add(0, into, p)[into]
    if kept is not None:
        alpha = alpha * kept
    terms = alpha.unsqueeze(-1) * (v[col] + edges)
    return terms.new_zeros(csr.num_dst, *v.shape[1:]).index_add(0, into, terms)


def check(csr: Csr, operands: dict[str, Tensor], kept=None, **kwargs) -> None:
    """The result and the gradients of all operands."""
    dtype = operands["q"].dtype
    # What W makes of nodes, and sums of features, are of the dtype, too.
    is_half = dtype in (torch.float16, torch.bfloat16)
    check_function(
        lambda *t: call(csr, dict(zip(NAMES, t, strict=True)), **kwargs),
        lambda *t: expected(csr, dict(zip(NAMES, t, strict=True)), kwargs.get("scale"), kept),
        list(operands.values()),
        dtype,
        slack=2.0 if is_half else 1.0,
    )
