"""So many nodes and small heads that blocks of the tile kernels take several heads, by turns."""

import graphs
import pytest
import torch
from calls import check_backward, check_forward, make_operands

BLOCKS = 1024  # cuda/tile_shapes.cuh: from half of it on, a block takes half of the heads
STRIDE = 64


CASES = [
    ("dot", torch.float32),
    ("dot", torch.float16),
    ("cosine", torch.float32),  # in half precision beta's gradient, a sum over all edges, is noise
    ("additive", torch.float32),
    ("additive", torch.float16),
]


@pytest.mark.parametrize("edge_terms", [False, True])
@pytest.mark.parametrize("head_dim", [16, 40])
@pytest.mark.parametrize(("score", "dtype"), CASES, ids=str)
def test_tile(score, dtype, head_dim, edge_terms, device):
    """Five heads in two blocks: graphs of all sizes, some of their rows with an edge twice."""
    few = graphs.duplicate_edges(graphs.batch(graphs.BATCH_SIZES, 0.05))
    times = BLOCKS // 2 * STRIDE // few.num_dst + 1 if device == "cuda" else 2
    graph = graphs.repeat(few, times).to(device)
    operands = make_operands(score, graph, 5, head_dim, dtype, edge_terms)
    check_forward("tile_fwd", score, graph, operands)
    check_backward("tile_fwd", score, graph, operands)
