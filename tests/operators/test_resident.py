"""Attention within tiles of sparse graphs, whose K and V pass through shared memory."""

from itertools import pairwise

import graphs
import pytest
import torch
from calls import assert_same_bits, check_backward, check_forward, make_operands, results, run
from graphs import Csr

PATH = "attention_resident"
SCORES = ("dot", "cosine", "additive")
# Graphs of one node, of no edges, around the sizes of warps and blocks, and larger than most.
SIZES = [1, 5, 0, 64, 63, 1, 1, 150, 8, 300, 7, 477, 31, 2]
SHAPES = [(1, 32), (1, 128), (2, 64), (3, 96), (1, 256), (2, 62)]


def route(graph: Csr, tiles: list[int] | None = None, nodes: int = 0, batches: int = 0) -> dict:
    """What the method has to know: tiles as they are, or cut anywhere, and the most of one."""
    found, _ = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    listed = sorted(set(found.tolist())) if tiles is None else tiles
    listed += [graph.num_dst] * (found.numel() - len(listed))
    most = max(b - a for a, b in pairwise(listed))
    list_of_tiles = torch.tensor(listed[: found.numel()], dtype=torch.int32, device=found.device)
    return {
        "tiles": torch.cat([found, list_of_tiles]),
        "tile_nodes": nodes or most,
        "tile_batches": batches or 4 * most,
    }


def sparse(device: str, density: float = 0.03, index: torch.dtype = torch.int32) -> Csr:
    return graphs.batch(SIZES, density).to(device, index)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("score", SCORES)
def test_forward(score, heads, head_dim, dtype, device):
    graph = sparse(device)
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms=heads > 1)
    check_forward(PATH, score, graph, operands, hints=route(graph))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("score", SCORES)
def test_backward(score, heads, head_dim, dtype, device):
    graph = sparse(device)
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms=heads > 1)
    check_backward(PATH, score, graph, operands, csc=True, hints=route(graph))


@pytest.mark.parametrize("density", [0.0, 0.002, 0.3, 1.0])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_densities(score, density, index, device):
    graph = sparse(device, density, index)
    operands = make_operands(score, graph, 1, 64)
    check_forward(PATH, score, graph, operands, hints=route(graph))
    check_backward(PATH, score, graph, operands, csc=True, hints=route(graph))


@pytest.mark.parametrize(
    "hint",
    [
        {"nodes": 1, "batches": 1},  # nothing fits what is launched
        {"nodes": 100, "batches": 60},
        {"nodes": 800, "batches": 100},
        {"nodes": 1600, "batches": 1},
        {"nodes": 1 << 20, "batches": 1},  # nothing is launched
        {"nodes": 1, "batches": 1 << 40},
    ],
)
@pytest.mark.parametrize("score", SCORES)
def test_any_size(score, hint, device):
    """They say what is fast; wrong ones change no result."""
    graph = sparse(device, 0.1)
    operands = make_operands(score, graph, 1, 128, edge_terms=True)
    check_forward(PATH, score, graph, operands, hints=route(graph, **hint))
    check_backward(PATH, score, graph, operands, csc=True, hints=route(graph, **hint))


@pytest.mark.parametrize("apart", [70, 333, 5000])
@pytest.mark.parametrize("score", SCORES)
def test_tiles_anywhere(score, apart, device):
    """Edges may leave them."""
    graph = sparse(device, 0.1)
    operands = make_operands(score, graph, 2, 32)
    cut = route(graph, [0, 3, *range(70, graph.num_dst, apart)])
    check_forward(PATH, score, graph, operands, hints=cut)
    check_backward(PATH, score, graph, operands, csc=True, hints=cut)


@pytest.mark.parametrize("score", SCORES)
def test_long_rows(score, device):
    """Hubs, whose degrees differ by more than there are buckets to sort them."""
    rows = [list(range(400)) if i % 50 == 0 else [i // 2, i // 2, i] for i in range(400)]
    graph = graphs.from_rows(rows, 400).to(device)
    operands = make_operands(score, graph, 1, 64, edge_terms=True)
    given = route(graph, batches=200)
    check_forward(PATH, score, graph, operands, hints=given)
    check_backward(PATH, score, graph, operands, csc=True, hints=given)


@pytest.mark.parametrize("scale", [0.0, -1.5, 3.0])
def test_scale(scale, device):
    graph = sparse(device)
    operands = make_operands("dot", graph, 1, 32)
    check_forward(PATH, "dot", graph, operands, scale=scale, hints=route(graph))
    check_backward(PATH, "dot", graph, operands, csc=True, scale=scale, hints=route(graph))


@pytest.mark.parametrize("dropout_p", [0.3, 1.0])
@pytest.mark.parametrize("score", SCORES)
def test_dropout(score, dropout_p, device):
    graph = sparse(device)
    operands = make_operands(score, graph, 2, 32, edge_terms=True)
    given = {"dropout_p": dropout_p, "seed": torch.tensor([11], device=device)}
    check_forward(PATH, score, graph, operands, hints=route(graph), **given)
    check_backward(PATH, score, graph, operands, csc=True, hints=route(graph), **given)


def check_as_smmf(score: str, graph: Csr, operands: dict[str, torch.Tensor]) -> None:
    """NaNs and infinities included."""
    found = run(PATH, score, graph, operands, **route(graph))
    expected = run("attention_smmf", score, graph, operands)
    torch.testing.assert_close(found, expected, equal_nan=True)


@pytest.mark.parametrize("score", ["dot", "additive"])
def test_infinities_of_others(score, device):
    """A row that no edge of another row leads to does not reach it; a bias of -inf is no edge."""
    graph = graphs.from_rows([[1], [1, 2], [], [0, 1, 3], [4], [1]], 6).to(device)
    operands = make_operands(score, graph, 1, 32, edge_terms=True)
    operands["v"][[0, 4]] = torch.inf
    operands["k" if score == "dot" else "a_src"][4] = -torch.inf
    operands["bias"][2] = -torch.inf
    check_as_smmf(score, graph, operands)


@pytest.mark.parametrize("score", SCORES)
def test_nodes_out_of_range(score, device):
    """They make NaNs of their rows, and of nothing else."""
    graph = sparse(device)
    operands = make_operands(score, graph, 1, 32)
    col = graph.col.clone()
    col[[3, 100]] = torch.tensor([-1, graph.num_dst + 5], dtype=col.dtype, device=device)
    check_as_smmf(score, Csr(graph.rowptr, col, graph.num_src), operands)


@pytest.mark.parametrize("score", SCORES)
def test_same_bits(score, device):
    graph = sparse(device)
    operands = make_operands(score, graph, 1, 128, torch.bfloat16)
    given = {**graph.csc(), **route(graph)}
    assert_same_bits(*(results(PATH, score, graph, operands, **given) for _ in range(2)))


@pytest.mark.parametrize("bad", [1e4, torch.inf, torch.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_bits_beside_bad_numbers(score, dtype, bad, device):
    """Rows of a tile, and of a warp, keep their bits whatever others are made of."""
    kept = 90
    graph = graphs.batch([kept, 60], 0.05).to(device)
    operands = make_operands(score, graph, 1, 128, dtype)
    given = {**graph.csc(), **route(graph, [0, graph.num_dst])}
    expected = results(PATH, score, graph, operands, **given)
    for name, operand in operands.items():
        if name in ("q", "k", "v"):
            operand[kept:] = bad
    found = results(PATH, score, graph, operands, **given)
    assert_same_bits([x[:kept] for x in found], [x[:kept] for x in expected])
    assert not torch.equal(found[0][kept:], expected[0][kept:])
