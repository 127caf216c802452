"""Heads that blocks of the tile kernels take side by side and by turns, and large ones."""

import graphs
import pytest
import torch
from calls import assert_same_bits, check_backward, check_forward, make_operands, results

CASES = [
    ("dot", torch.float32),
    ("dot", torch.float16),
    ("cosine", torch.float32),  # in half precision beta's gradient, a sum over all edges, is noise
    ("additive", torch.float32),
    ("additive", torch.float16),
]
# Two heads of up to 16 features lie side by side. In 16 bits a block takes two such pairs by turns,
# and two heads of up to 32.
SHAPES = [(1, 6), (4, 8), (3, 12), (5, 16), (2, 24), (3, 32), (5, 40), (9, 7), (6, 20), (5, 50)]


@pytest.mark.parametrize("edge_terms", [False, True])
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
@pytest.mark.parametrize(("score", "dtype"), CASES, ids=str)
def test_tile(score, dtype, heads, head_dim, edge_terms, device):
    """Graphs of all sizes, some of their rows with an edge twice."""
    graph = graphs.duplicate_edges(graphs.batch(graphs.BATCH_SIZES, 0.05))
    graph = graphs.repeat(graph, 2).to(device)
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms)
    check_forward("tile_fwd", score, graph, operands)
    check_backward("tile_fwd", score, graph, operands)


@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
@pytest.mark.parametrize("edge_terms", [False, True])
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 256), (1, 132), (2, 136), (3, 200)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_wide_heads(score, dtype, heads, head_dim, edge_terms, dropout_p, device):
    """Of more features than there are registers for the gradients of both keys and values, or, in
    float32, than a warpgroup takes."""
    graph = graphs.duplicate_edges(graphs.batch([150, 40, 1, 97, 300], 0.1)).to(device)
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms)
    options = {"dropout_p": dropout_p, "seed": torch.tensor([7], device=device)}
    check_forward("tile_fwd", score, graph, operands, **options)
    check_backward("tile_fwd", score, graph, operands, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_bits_of_wide_heads(score, dtype, device):
    """Are the same in every run."""
    graph = graphs.batch([150, 40, 97], 0.3).to(device)
    operands = make_operands(score, graph, 2, 256, dtype, edge_terms=True)
    first = results("tile_fwd", score, graph, operands)
    for _ in range(3):
        assert_same_bits(results("tile_fwd", score, graph, operands), first)
