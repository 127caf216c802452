"""Tiles of which blocks meet some chunks and not others."""

import graphs
import pytest
import torch
from calls import check_backward, check_forward, make_operands
from graphs import Csr
from tilings import CHUNK

NODES = 5 * CHUNK - 10
SHAPES = [(3, 16), (2, 64), (1, 128), (1, 256)]


def between_chunks(chunks: set[int], device: str) -> Csr:
    """Some edges among the nodes of these chunks, of one tile, and no others."""
    nodes = [i for i in range(NODES) if i // CHUNK in chunks]
    rows = [
        [j for j in nodes if i in nodes and (i == j or (7 * i + 3 * j) % 5 < 2)]
        for i in range(NODES)
    ]
    return graphs.from_rows(rows, NODES).to(device)


@pytest.mark.parametrize("edge_terms", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("score", ["dot", "cosine", "additive"])
@pytest.mark.parametrize("chunks", [{1, 2, 4}, {0, 3}, {2}], ids=str)
def test_results(chunks, score, heads, head_dim, dtype, edge_terms, device):
    graph = between_chunks(chunks, device)
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms=edge_terms)
    check_forward("tile_fwd", score, graph, operands)
    check_backward("tile_fwd", score, graph, operands, csc=True)
