"""Attention within tiles of sparse graphs, whose K and V pass through shared memory."""

import graphs
import pytest
import torch
from calls import assert_same_bits, check_backward, check_forward, leaves_of, of_one_x, results, run
from calls import make_operands as make_any_operands
from graphs import Csr
from tilings import resident_route as route
from torch.profiler import ProfilerActivity, profile

PATH = "attention_resident"
SCORES = ("dot", "cosine", "additive")
# Graphs of one node, of no edges, around the sizes of warps and blocks, and larger than most.
SIZES = [1, 5, 0, 64, 63, 1, 1, 150, 8, 300, 7, 477, 31, 2]
# Some are of whole chunks, whole sectors or whole vectors, in some types; the others are padded.
SHAPES = [
    (1, 32),
    (1, 128),
    (2, 64),
    (3, 96),
    (1, 256),
    (2, 62),
    (1, 20),
    (3, 28),
    (2, 40),
    (1, 100),
    (1, 148),
    (1, 300),
    (2, 512),
    (1, 768),
]


def make_operands(*arguments, **options) -> dict[str, torch.Tensor]:
    """Of one x with cosine scores, the only ones that it takes."""
    return of_one_x(make_any_operands(*arguments, **options))


def sparse(
    device: str, density: float = 0.03, index: torch.dtype = torch.int32, most_nodes: int = 477
) -> Csr:
    return graphs.batch([n for n in SIZES if n <= most_nodes], density).to(device, index)


def kernels(score: str, graph: Csr, operands: dict[str, torch.Tensor]) -> str:
    """The names of those that run in both passes."""
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        results(PATH, score, graph, operands, **graph.csc(), **route(graph))
    return " ".join(event.key for event in profiled.key_averages())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (3, 24), (1, 100)])
@pytest.mark.parametrize("score", SCORES)
def test_kernels(score, heads, head_dim, dtype, cuda):
    """Those that the other tests are of run."""
    graph = sparse(cuda)
    names = kernels(score, graph, make_operands(score, graph, heads, head_dim, dtype))
    assert "resident_fwd_kernel" in names
    assert "resident_bwd_kernel" in names


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


def test_two_features(cuda):
    """Cosine scores of two tensors are left to another method, and those of one need no norms."""
    graph = sparse(cuda)
    operands = make_any_operands("cosine", graph, 1, 128)
    check_backward(PATH, "cosine", graph, operands, csc=True, hints=route(graph))
    assert "resident" not in kernels("cosine", graph, operands)
    assert "norm" not in kernels("cosine", graph, of_one_x(operands))


@pytest.mark.parametrize("beta", [[0.0, 0.0], [-2.0, 30.0]])
def test_beta(beta, device):
    graph = sparse(device)
    operands = make_operands("cosine", graph, 2, 64, edge_terms=True)
    operands["beta"] = torch.tensor(beta, device=device)
    check_forward(PATH, "cosine", graph, operands, hints=route(graph))
    check_backward(PATH, "cosine", graph, operands, csc=True, hints=route(graph))


@pytest.mark.parametrize("apart", [0, 70])
def test_short_vectors(apart, device):
    """Norms count from eps on; what is below keeps its direction's part of the gradient."""
    graph = sparse(device)
    operands = make_operands("cosine", graph, 1, 64)
    x = operands["x_src"]
    x[::7] *= 1e-3
    x[3::7] = 0.0
    cut = route(graph, [0, 3, *range(70, graph.num_dst, apart)] if apart else None)
    eps = 0.1
    leaves = leaves_of(operands)
    out, _ = run(PATH, "cosine", graph, leaves, eps=eps, **graph.csc(), **cut)
    found = torch.autograd.grad(out.square().sum(), [leaves["x_src"], leaves["beta"]])
    other = leaves_of(operands)
    out, _ = run("attention_smmf", "cosine", graph, other, eps=eps, **graph.csc())
    expected = torch.autograd.grad(out.square().sum(), [other["x_src"], other["beta"]])
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("density", [0.0, 0.002, 0.1, 0.3, 1.0])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_densities(score, dtype, index, density, device):
    """Where nodes have many edges, these take more room than a chunk of the nodes' features."""
    graph = sparse(device, density, index, most_nodes=477 if density < 0.1 else 150)
    operands = make_operands(score, graph, 1, 64, dtype)
    check_forward(PATH, score, graph, operands, hints=route(graph))
    check_backward(PATH, score, graph, operands, csc=True, hints=route(graph))


@pytest.mark.parametrize(
    "hint",
    [
        {"tile_nodes": 1, "tile_batches": 1},  # nothing fits what is launched
        {"tile_nodes": 100, "tile_batches": 120},
        {"tile_nodes": 800, "tile_batches": 200},
        {"tile_nodes": 1600, "tile_batches": 1},
        {"tile_nodes": 1 << 20, "tile_batches": 1},  # nothing is launched
        {"tile_nodes": 1, "tile_batches": 1 << 40},
    ],
)
@pytest.mark.parametrize("head_dim", [128, 760])
@pytest.mark.parametrize("score", SCORES)
def test_any_size(score, head_dim, hint, device):
    """They say what is fast; wrong ones change no result."""
    graph = sparse(device, 0.1)
    operands = make_operands(score, graph, 1, head_dim, edge_terms=True)
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
    given = route(graph)
    check_forward(PATH, score, graph, operands, hints=given)
    check_backward(PATH, score, graph, operands, csc=True, hints=given)


@pytest.mark.parametrize("path", [PATH, "attention_tile"])
@pytest.mark.parametrize("score", SCORES)
def test_thousands_of_edges(score, path, device):
    """A row that goes edge by edge, as it has edges twice, is as exact as others."""
    graph = graphs.from_rows([[0, 1] * 5000, [0]], 2).to(device)
    operands = make_operands(score, graph, 1, 64)
    check_forward(path, score, graph, operands, hints=route(graph))
    check_backward(path, score, graph, operands, csc=True, hints=route(graph))


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
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_same_bits(score, dtype, device):
    """Also of rows whose numbers of edges are beyond those that have a bucket each."""
    rng = torch.Generator().manual_seed(0)
    degrees = torch.randint(1, 140, [150], generator=rng).tolist()
    long_rows = graphs.from_rows([list(range(n)) for n in degrees], 150).to(device)
    for graph in (sparse(device), long_rows):
        operands = make_operands(score, graph, 1, 128, dtype)
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


@pytest.mark.parametrize("bad", [1e4, torch.inf, torch.nan])
@pytest.mark.parametrize(
    ("dtype", "head_dim"), [(torch.float32, 36), (torch.bfloat16, 40)], ids=str
)
@pytest.mark.parametrize("score", SCORES)
def test_bits_beside_bad_heads(score, dtype, head_dim, bad, device):
    """Heads that share their last chunk's bytes with the next one have nothing of it."""
    graph = sparse(device)
    operands = make_operands(score, graph, 3, head_dim, dtype)
    given = {**graph.csc(), **route(graph)}
    expected = results(PATH, score, graph, operands, **given)
    for operand in operands.values():
        if operand.dim() == 3:
            operand[:, 1] = bad
    found = results(PATH, score, graph, operands, **given)
    assert_same_bits(*([x[:, ::2] for x in all_ if x.dim() > 1] for all_ in (found, expected)))
    assert not torch.equal(found[0][:, 1], expected[0][:, 1])


@pytest.mark.parametrize("heads", [1, 4])
@pytest.mark.parametrize("score", SCORES)
def test_rows_of_one_edge(score, heads, device):
    """Their logits have no gradient."""
    graph = graphs.tree(300).to(device)
    operands = make_operands(score, graph, heads, 128 // heads)
    leaves = leaves_of(operands)
    out, _ = run(PATH, score, graph, leaves, **graph.csc(), **route(graph))
    (out * torch.randn_like(out)).sum().backward()
    constant = {"dot": ("q", "k"), "cosine": ("beta",), "additive": ("a_dst", "a_src")}
    for name in constant[score]:
        assert not leaves[name].grad.any(), name
    if device == "cuda":
        assert "resident_bwd_kernel" in kernels(score, graph, operands)
