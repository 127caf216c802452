"""Heads whose rows are no whole vectors of 16 bytes, in calls that are worth zeros behind them."""

import graphs
import pytest
import torch
from calls import (
    PATHS,
    SCORES,
    assert_same_bits,
    check_backward,
    check_forward,
    gradients,
    leaves_of,
    make_operands,
    results,
    run,
)

EDGES_TIMES_HEADS = 1 << 17  # with_whole_vectors of pyg_dfgnn/csrc/cuda/padding.cpp
SIZES = [(torch.float32, 13), (torch.bfloat16, 12)]


def batch(device: str) -> graphs.Csr:
    return graphs.batch([40, 33, 57] * 20, 0.5).to(device)


@pytest.mark.parametrize(("dtype", "head_dim"), SIZES, ids=str)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("score", SCORES)
def test_results(score, path, dtype, head_dim, device):
    """Graphs of a batch, so that tile runs, too."""
    graph = batch(device)
    assert graph.num_edges * 3 > EDGES_TIMES_HEADS
    operands = make_operands(score, graph, 3, head_dim, dtype, edge_terms=score == "additive")
    check_forward(path, score, graph, operands)
    if score != "cosine" or dtype == torch.float32:  # beta's gradient, a sum over all edges
        check_backward(path, score, graph, operands)


@pytest.mark.parametrize(("dtype", "head_dim"), SIZES, ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_layout(score, dtype, head_dim, device):
    """Outputs and gradients are contiguous, and the same bits from one call to the next."""
    graph = batch(device)
    operands = make_operands(score, graph, 3, head_dim, dtype)

    first, second = (results("attention", score, graph, operands) for _ in range(2))
    for t in first:
        assert t.is_contiguous()
    assert_same_bits(first, second)


@pytest.mark.parametrize("score", SCORES)
def test_views(score, device):
    """Operands that begin at two bytes, where those of four could be copied at a time."""
    graph = batch(device)
    operands = make_operands(score, graph, 3, 12, torch.bfloat16)
    shifted = {}
    for name, x in operands.items():
        shifted[name] = torch.cat([x.new_zeros(1), x.flatten()])[1:].view_as(x)
    found, expected = (results("attention", score, graph, given) for given in (shifted, operands))
    assert_same_bits(found, expected)


@pytest.mark.parametrize("shape", [(3,), (1, 3), (1, 3, 1)])
def test_shape_of_beta(shape, device):
    """Its gradient has it, with as many dimensions as features, too."""
    graph = batch(device)
    operands = make_operands("cosine", graph, 3, 13)
    operands["beta"] = torch.ones(shape, device=device)
    leaves = leaves_of(operands)
    found = gradients(run("attention", "cosine", graph, leaves), leaves, with_lse=False)
    assert {name: t.shape for name, t in found.items()} == {n: t.shape for n, t in leaves.items()}


def test_one_tensor_as_both(device):
    """x_dst being x_src, of which one padded copy serves."""
    graph = batch(device)
    operands = make_operands("cosine", graph, 3, 13)
    x = operands["x_src"]
    assert x.shape == operands["x_dst"].shape
    one, both = ({"x_dst": x, "x_src": x, "beta": operands["beta"]} for _ in range(2))
    both["x_dst"] = x.clone()
    found, expected = (run("attention", "cosine", graph, operands) for operands in (one, both))
    assert_same_bits(found, expected)
