"""Dot scores in method tile, whose products begin with masks where the scale allows it."""

import graphs
import pytest
import torch
from calls import check_backward, check_forward, make_operands

SHAPES = [(3, 8), (2, 32), (2, 64), (1, 128), (1, 256)]
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)


@DTYPES
@pytest.mark.parametrize("scale", [-1.5, -1e-30, 0.0, 1e-45, 1e-30, 0.3, 3.0])
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
def test_scales(heads, head_dim, scale, dtype, device):
    graph = graphs.batch([10, 70, 33, 150], 0.4).to(device)
    operands = make_operands("dot", graph, heads, head_dim, dtype=dtype)
    check_forward("tile_fwd", "dot", graph, operands, scale=scale)
    check_backward("tile_fwd", "dot", graph, operands, scale=scale)


@DTYPES
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
def test_infinite_product_without_edge(heads, head_dim, sign, dtype, device):
    """Of a node that nothing reaches, and one that reaches nothing."""
    reached, reaches = 3, 14
    rows = [[j for j in range(60) if (i + j) % 3 and j != reaches] for i in range(60)]
    rows[reached] = []
    graph = graphs.from_rows(rows, 60).to(device)
    operands = make_operands("dot", graph, heads, head_dim, dtype=dtype)
    largest = torch.finfo(dtype).max
    operands["q"][reached] = largest
    operands["k"][reaches] = sign * largest
    check_forward("tile_fwd", "dot", graph, operands)
    check_backward("tile_fwd", "dot", graph, operands)


@DTYPES
@pytest.mark.parametrize("step", [-60, 8, 44, 68, 72, 88, 120])
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
def test_steps_between_chunks(heads, head_dim, step, dtype, device):
    """Logits of a tile's later sources are so far above, or below, those of earlier ones."""
    sizes = [10, 70, 150]
    graph = graphs.batch(sizes, 0.1).to(device)
    operands = make_operands("dot", graph, heads, head_dim, dtype=dtype)
    operands["q"][..., 0] = 1
    is_later = torch.cat([torch.arange(size, device=device) >= 40 for size in sizes])
    operands["k"][..., 0] = torch.where(is_later, step / 2, -step / 2)[:, None].to(dtype)
    check_forward("tile_fwd", "dot", graph, operands, scale=1.0)
    check_backward("tile_fwd", "dot", graph, operands, scale=1.0, slack=3.0)
