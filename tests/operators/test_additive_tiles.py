"""Additive scores in method tile, which makes weights of two factors of each node where it can."""

import graphs
import pytest
import reference
import torch
from calls import assert_near, check_backward, check_forward, make_operands, run

SHAPES = [(3, 8), (1, 32), (2, 64), (1, 128), (1, 256)]


EMPTY = 40


def two_graphs(device: str) -> graphs.Csr:
    """In one tile, with no edge between them, and between them and behind a node without edges."""
    first, second = graphs.batch([40], 0.3), graphs.batch([20], 0.3)
    ends = [first.rowptr, first.rowptr[-1:], first.rowptr[-1] + second.rowptr[1:]]
    rowptr = torch.cat([*ends, ends[-1][-1:]])
    return graphs.Csr(rowptr, torch.cat([first.col, second.col + EMPTY + 1]), 62).to(device)


@pytest.mark.parametrize("slope", [-0.5, 0.0, 1e-3, 0.2, 1.0, 1.5])
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
def test_slopes(heads, head_dim, slope, device):
    graph = graphs.batch([10, 70, 33, 150], 0.4).to(device)
    operands = make_operands("additive", graph, heads, head_dim)
    check_forward("tile_fwd", "additive", graph, operands, negative_slope=slope)
    check_backward("tile_fwd", "additive", graph, operands, negative_slope=slope)


@pytest.mark.parametrize("slope", [0.01, 0.2, 1.0])
@pytest.mark.parametrize("below", [5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 100.0, 1000.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
def test_sources_far_below_others(heads, head_dim, dtype, below, slope, device):
    """Some rows have none of the tile's largest sources, by which factors are scaled."""
    graph = two_graphs(device)
    operands = make_operands("additive", graph, heads, head_dim, dtype)
    operands["a_src"][EMPTY:] -= below
    operands["a_dst"] += 3  # above 0 with some sources, below with others
    check_forward("tile_fwd", "additive", graph, operands, negative_slope=slope)
    # In bfloat16 what cancels in it is the rounding of out, which grows with the features.
    but = ("a_dst",) if dtype == torch.bfloat16 and head_dim > 128 else ()
    check_backward("tile_fwd", "additive", graph, operands, negative_slope=slope, but=but)


@pytest.mark.parametrize("nodes", [255, 256, 257, 512, 513, 768])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
def test_wide_tiles(heads, head_dim, dtype, nodes, device):
    """As many nodes as their largest source is looked for at a time, a node more, and the most."""
    graph = graphs.batch([nodes], 0.5, band=5).to(device)
    operands = make_operands("additive", graph, heads, head_dim, dtype)
    operands["a_src"][-1] += 20
    check_forward("tile_fwd", "additive", graph, operands)


@pytest.mark.parametrize("a_dst", [-40.0, 0.0, 40.0])
@pytest.mark.parametrize("a_src", [-40.0, 0.0, 40.0])
def test_all_equal(a_dst, a_src, device):
    graph = two_graphs(device)
    operands = make_operands("additive", graph, 2, 16)
    operands["a_dst"].fill_(a_dst)
    operands["a_src"].fill_(a_src)
    check_forward("tile_fwd", "additive", graph, operands)
    check_backward("tile_fwd", "additive", graph, operands)


@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize("name", ["a_dst", "a_src", "v"])
@pytest.mark.parametrize(("heads", "head_dim"), [(2, 8), (1, 64)])
def test_not_finite(heads, head_dim, name, value, device):
    """What a node's infinity or NaN reaches is as it should be, and nothing else changes."""
    graph = two_graphs(device)
    operands = make_operands("additive", graph, heads, head_dim)
    operands[name][[12, EMPTY], 0] = value
    expected, expected_lse = reference.attention("additive", graph, operands)
    out, lse = run("tile_fwd", "additive", graph, operands)
    assert expected.isfinite().any()
    assert_near(out, expected, 1e-5, "out")
    assert_near(lse, expected_lse, 1e-5, "lse")
    assert torch.equal(out.isfinite(), expected.isfinite())
