"""Scores of GATv2 as tensors: operands, calls, and plain torch in float64 beside them."""

from functools import partial

import graphs
import torch
import torch.nn.functional as F
from calls import BACKWARD_TOLERANCE, FORWARD_TOLERANCE, assert_near, normal
from graphs import Csr
from torch import Tensor

import pyg_dfgnn
from pyg_dfgnn import ops

SLOPE = 0.3


# Rows of all kinds, and so many that a warp takes several.
ROWS = {
    "hub": partial(graphs.make, "hub"),
    "spare_capacity": partial(graphs.make, "spare_capacity"),
    "short_rows": partial(graphs.short_rows, 40_000),
    "in_pieces": lambda device: graphs.in_pieces(20_000).to(device),
}


OPERANDS = ("x_dst", "x_src", "att", "features", "weight")


def graph_of(csr: Csr) -> pyg_dfgnn.Graph:
    """The structure, whose edge features are in another order than its edges."""
    eid = torch.arange(csr.capacity - 1, -1, -1).to(csr.col)
    csc = csr.csc()
    return pyg_dfgnn.Graph(
        csr.rowptr, csr.col, eid, csc["colptr"], csc["row"], csc["perm"], csr.num_dst, csr.num_src
    )


def v2_operands(csr: Csr, heads=2, channels=5, width=3, dtype=torch.float32) -> list[Tensor]:
    """x_dst, x_src, att, and where there is a width features and their weight."""
    shapes = [(csr.num_dst, heads, channels), (csr.num_src, heads, channels), (heads, channels)]
    if width:
        shapes += [(csr.capacity, width), (heads * channels, width)]
    return [normal(csr, *shape, dtype=dtype) for shape in shapes]


def v2_integers(csr: Csr, heads, channels, width, dtype) -> list[Tensor]:
    """Operands of which no number before the leaky_relu is rounded, nor nearer to 0 than a half."""
    operands = v2_operands(csr, heads, channels, width, dtype)
    x_dst, x_src, att, *edges = operands
    whole = [(4 * x).clamp(-8, 8).round() for x in (x_dst, x_src)]
    return [whole[0] + 0.5, whole[1], att, *((2 * x).clamp(-3, 3).round() for x in edges)]


def v2_logits(csr: Csr, x_dst, x_src, att, features=None, weight=None, slope=SLOPE) -> Tensor:
    return ops.additive_v2_logits(x_dst, x_src, att, graph_of(csr), slope, features, weight)


def expected_v2_logits(
    csr: Csr, x_dst, x_src, att, features=None, weight=None, slope=SLOPE
) -> Tensor:
    terms = x_dst[csr.destinations()] + x_src[csr.sources()]
    if features is not None:
        eid = graph_of(csr).eid[: csr.num_edges].long()
        terms = terms + (features[eid] @ weight.t()).view(terms.shape)
    logits = (F.leaky_relu(terms, slope) * att).sum(-1)
    return F.pad(logits, (0, 0, 0, csr.capacity - csr.num_edges))


def check_v2(csr: Csr, operands: list[Tensor], slope: float = SLOPE) -> None:
    """The logits, 0 where there is no edge, and the gradients of all operands."""
    dtype = operands[0].dtype
    leaves = [t.detach().requires_grad_() for t in operands]
    exact = [t.double().requires_grad_() for t in operands]
    found = v2_logits(csr, *leaves, slope=slope)
    wanted = expected_v2_logits(csr, *exact, slope=slope)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_near(found, wanted.detach(), FORWARD_TOLERANCE[dtype], "logits")
    projection = normal(csr, *found.shape)
    found, wanted = (
        torch.autograd.grad((y * projection).sum(), x, allow_unused=True)
        for y, x in ((found, leaves), (wanted, exact))
    )
    for operand, a, b in zip(operands, found, wanted, strict=True):
        assert a.dtype == operand.dtype
        b = torch.zeros_like(a) if b is None else b
        assert_near(a, b, BACKWARD_TOLERANCE[dtype], "gradient")
