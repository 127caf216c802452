"""Graphs of few edges with wide heads, whose rows go to CUDA's warps by runs (cuda/row_runs.cuh),
and of more in rows of unequal lengths: rows and columns of every length around a batch, a shared
row and a piece, empty ones between."""

import graphs
import pytest
import reference
import torch
from calls import (
    FORWARD_TOLERANCE,
    SCORES,
    assert_near,
    assert_same_bits,
    check_backward,
    check_forward,
    check_not_finite,
    make_operands,
    results,
    run,
)
from tilings import forms

# A warp has one, two or four rows, a block eight warps or four.
NUM_ROWS = [400, 5000, 8300]
LENGTHS = [30, 31, 32, 33, 34, 1, 64, 65, 0, 127, 128, 129, 255, 256, 257, 513, 1000]
SHAPES = [
    (torch.float32, 2, 36),
    (torch.float32, 1, 64),
    (torch.float32, 1, 128),
    (torch.float32, 2, 132),
    (torch.float32, 1, 256),
    (torch.bfloat16, 2, 72),
    (torch.float16, 1, 128),
    (torch.bfloat16, 1, 200),
    (torch.float16, 2, 256),
]


def mixed_rows(num_rows: int, device: str, index: torch.dtype = torch.int32) -> graphs.Csr:
    """Mostly short rows and columns, among them some of each of LENGTHS, in rows and in columns."""
    degrees = [(3, 0, 5, 1, 9, 2, 7)[i % 7] for i in range(num_rows)]
    for k, length in enumerate(LENGTHS):
        degrees[5 + 17 * k] = length
    graph = graphs.from_degrees(degrees, num_rows)
    col = graph.col.clone()
    places = torch.randperm(col.numel(), generator=torch.Generator().manual_seed(num_rows))
    share = min(1.0, 0.5 * col.numel() / sum(LENGTHS))
    begin = 0
    for k, length in enumerate(LENGTHS):
        end = begin + int(length * share)
        col[places[begin:end]] = 11 * k + 2
        begin = end
    return graphs.Csr(graph.rowptr, col, num_rows).to(device, index)


def orders_of(graph: graphs.Csr) -> torch.Tensor:
    """Tiles with orders behind them."""
    tiles, rowptr, col, colptr, _ = forms(graph).values()
    return torch.ops.dfgnn.with_orders(tiles, rowptr, col, colptr)


@pytest.mark.parametrize(("dtype", "heads", "head_dim"), SHAPES, ids=str)
@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("score", SCORES)
def test_every_length(score, num_rows, dtype, heads, head_dim, cuda):
    graph = mixed_rows(num_rows, cuda)
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms=heads == 2)
    check_forward("smmf_fwd", score, graph, operands)
    check_backward("smmf_fwd", score, graph, operands)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_graphs_that_hurt(name, score, device):
    graph = graphs.make(name, device)
    operands = make_operands(score, graph, 2, 64, edge_terms=True)
    check_forward("smmf_fwd", score, graph, operands)
    check_backward("smmf_fwd", score, graph, operands)


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("score", SCORES)
def test_a_bias_of_minus_infinity_is_no_edge(score, num_rows, cuda):
    """Of every third edge, and of whole rows, short ones, shared ones and those in pieces."""
    graph = mixed_rows(num_rows, cuda)
    operands = make_operands(score, graph, 1, 128, edge_terms=True)
    rows = graph.destinations()
    is_edge = (torch.arange(graph.num_edges, device=cuda) % 3 > 0) & (rows % 5 > 0)
    operands["bias"][~is_edge] = -torch.inf
    out, lse = run("smmf_fwd", score, graph, operands)
    terms = {name: operands[name][is_edge] for name in {"bias", "a_edge"} & operands.keys()}
    expected_out, expected_lse = reference.attention(score, graph.only(is_edge), operands | terms)
    assert_near(out, expected_out, FORWARD_TOLERANCE[torch.float32], "out")
    assert_near(lse, expected_lse, FORWARD_TOLERANCE[torch.float32], "lse")


@pytest.mark.parametrize("max_degree", [-1, 0, 33, 256, 257, 1000])
@pytest.mark.parametrize("score", SCORES)
def test_any_max_degree(score, max_degree, cuda):
    """Whether there can be pieces, and of how many edges; a wrong one changes no result."""
    graph = mixed_rows(NUM_ROWS[2], cuda)
    operands = make_operands(score, graph, 1, 64)
    hints = {"max_degree": max_degree}
    check_forward("attention_smmf", score, graph, operands, hints=hints)
    check_backward("attention_smmf", score, graph, operands, hints=hints)


@pytest.mark.parametrize("max_degree", [-1, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_many_edges(score, dtype, max_degree, cuda):
    """More than 2^18, which go by runs where the longest row is known to be longer than most."""
    graph = mixed_rows(70000, cuda)
    assert graph.num_edges > 1 << 18
    operands = make_operands(score, graph, 1, 128, dtype, edge_terms=True)
    hints = {"max_degree": max_degree}
    check_forward("attention_smmf", score, graph, operands, hints=hints)
    check_backward("attention_smmf", score, graph, operands, hints=hints)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_dropout_and_wide_indices(score, dtype, cuda):
    graph = mixed_rows(NUM_ROWS[1], cuda, torch.int64)
    operands = make_operands(score, graph, 2, 128, dtype, edge_terms=True)
    seed = torch.tensor([3], device=cuda)
    check_forward("smmf_fwd", score, graph, operands, dropout_p=0.3, seed=seed)
    check_backward("smmf_fwd", score, graph, operands, dropout_p=0.3, seed=seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_values_that_are_not_finite(score, value, dtype, cuda):
    """They stay in the rows that have such a source, whatever is behind these in a batch."""
    graph = mixed_rows(NUM_ROWS[2], cuda)
    operands = make_operands(score, graph, 1, 128, dtype)
    operands["v"][graph.col[::900].long(), 0, 5] = value
    check_not_finite("smmf_fwd", score, graph, operands)


@pytest.mark.parametrize("few", ["destinations", "sources"])
@pytest.mark.parametrize("score", SCORES)
def test_one_side_by_runs(score, few, cuda):
    """Of a bipartite graph, the other side having so few nodes that their lists are long."""
    degrees = [2, 0, 3] * 3000 if few == "sources" else [250] * 60
    graph = graphs.from_degrees(degrees, 40 if few == "sources" else 9000).to(cuda)
    operands = make_operands(score, graph, 1, 64, edge_terms=True)
    check_forward("smmf_fwd", score, graph, operands)
    check_backward("smmf_fwd", score, graph, operands)


@pytest.mark.parametrize("num_rows", NUM_ROWS)
@pytest.mark.parametrize("score", SCORES)
def test_same_bits_twice(score, num_rows, cuda):
    graph = mixed_rows(num_rows, cuda)
    operands = make_operands(score, graph, 1, 128)
    assert_same_bits(*(results("smmf_fwd", score, graph, operands) for _ in range(2)))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("num_rows", [1, 17, *NUM_ROWS])
@pytest.mark.parametrize("score", SCORES)
def test_orders(score, num_rows, dtype, index, cuda):
    """Which rows a warp has changes no bit."""
    if num_rows < NUM_ROWS[0]:
        graph = graphs.from_degrees([40, *[3] * (num_rows - 1)], num_rows).to(cuda, index)
    else:
        graph = mixed_rows(num_rows, cuda, index)
    operands = make_operands(score, graph, 1, 128, dtype, edge_terms=True)
    tiles = orders_of(graph)
    ordered, as_they_lie = (
        results("attention_smmf", score, graph, operands, tiles=given) for given in (tiles, None)
    )
    assert_same_bits(ordered, as_they_lie)


@pytest.mark.parametrize("score", SCORES)
def test_orders_of_many_edges(score, cuda):
    """Those of a graph that gets none by itself."""
    graph = mixed_rows(70000, cuda)
    operands = make_operands(score, graph, 1, 64)
    hints = {"max_degree": 1000, "tiles": orders_of(graph)}
    check_forward("attention_smmf", score, graph, operands, hints=hints)
    check_backward("attention_smmf", score, graph, operands, hints=hints)


@pytest.mark.parametrize("score", SCORES)
def test_orders_that_are_none(score, cuda):
    """Whatever they say, nothing outside of operands and results is read or written."""
    graph = mixed_rows(NUM_ROWS[0], cuda)
    operands = make_operands(score, graph, 1, 64, edge_terms=True)
    tiles = orders_of(graph)
    negative = tiles.clone()
    negative[-graph.num_dst :] -= 1000  # numbers of edges of columns, and those before them of rows
    negative[-2 * graph.num_dst : -graph.num_dst] -= 5
    for numbers in (
        tiles.flip(0),
        torch.full_like(tiles, 1 << 30),
        torch.full_like(tiles, -7),
        negative,
    ):
        results("attention_smmf", score, graph, operands, tiles=numbers)
    torch.cuda.synchronize()


def test_orders_are_of_the_nodes(cuda):
    """Of a graph with other sources, they are not looked at."""
    graph = graphs.from_degrees([40, *[3] * 399], 3).to(cuda)
    operands = make_operands("dot", graph, 1, 64)
    tiles = torch.full([8 + 6 * 400], 1 << 20, dtype=torch.int32, device=cuda)
    check_backward("attention_smmf", "dot", graph, operands, hints={"tiles": tiles})
