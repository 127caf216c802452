"""Batches of so many tiles that blocks of the tile kernels take several, one after another."""

import graphs
import pytest
import torch
from calls import assert_same_bits, make_operands, operator
from graphs import Csr
from tilings import STRIDE, rows_of
from torch import Tensor

SIZES = [128, 64, 192, 128, 0, 320, 64, 832, 576, 64]  # tiles of their own, one too wide for masks
AT_WORK = 5 * 160  # blocks, or fewer
DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def make_part() -> Csr:
    """Random graphs, some rows with edges twice; of the first 128 nodes the last alone has any."""
    rows = rows_of(graphs.duplicate_edges(graphs.batch(SIZES, 0.1)))
    return graphs.from_rows([[]] * 127 + rows[127:], len(rows))


def repeated(x: Tensor, times: int) -> Tensor:
    return x.repeat(times, *[1] * (x.dim() - 1))


def results(score: str, graph: Csr, operands: dict[str, Tensor], grad_out: Tensor) -> list[Tensor]:
    """All that is made for nodes."""
    forward, backward = (operator(name, score) for name in ("tile_fwd", "tile_bwd"))
    out, lse = forward(graph.rowptr, graph.col, **operands)
    gradients = backward(
        grad_out, None, out, lse, graph.rowptr, graph.col, **graph.csc(), **operands
    )
    return [out, lse, *(grad for grad in gradients if len(grad) == graph.num_dst)]


def check_parts(score: str, heads: int, head_dim: int, dtype: torch.dtype, device: str) -> None:
    part = make_part()
    strides = part.num_dst // STRIDE
    times = 2 if device == "cpu" else -(-2 * AT_WORK // strides)
    whole, part = graphs.repeat(part, times).to(device), part.to(device)
    operands = make_operands(score, part, heads, head_dim, dtype)
    grad_out = torch.randn(part.num_dst, heads, head_dim).to(device, dtype)
    of_whole = {name: x if name == "beta" else repeated(x, times) for name, x in operands.items()}
    found = results(score, whole, of_whole, repeated(grad_out, times))
    expected = results(score, part, operands, grad_out)
    assert len(expected) >= 4
    assert_same_bits(found, [repeated(x, times) for x in expected])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (2, 72), (2, 64), (5, 16)])
@pytest.mark.parametrize("score", ["dot", "cosine", "additive"])
def test_bits_are_those_of_each_part(score, heads, head_dim, dtype, device):
    check_parts(score, heads, head_dim, dtype, device)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_wide_heads(score, dtype, device):
    check_parts(score, 1, 200, dtype, device)
