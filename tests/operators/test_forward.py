"""(out, lse) of every operator against the float64 reference."""

import graphs
import pytest
import torch
from calls import (
    DTYPES,
    HEAD_DIMS,
    METHODS,
    PATHS,
    SCORES,
    SHAPES,
    check_forward,
    make_operands,
    run,
)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("path", PATHS)
def test_paths(path, score, dtype, device):
    graph = graphs.make("degrees_around_tiles", device)
    operands = make_operands(score, graph, head_dim=16, dtype=dtype, edge_terms=True)
    check_forward(path, score, graph, operands)


@pytest.mark.parametrize("edge_terms", [False, True], ids=["plain", "edge_terms"])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_graphs(name, score, path, index, edge_terms, device):
    graph = graphs.make(name, device, index)
    check_forward(path, score, graph, make_operands(score, graph, 3, 8, edge_terms=edge_terms))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_shapes(score, path, heads, head_dim, dtype, device):
    graph = graphs.mixed(device)
    check_forward(path, score, graph, make_operands(score, graph, heads, head_dim, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_every_shape(score, path, dtype, cuda):
    graph = graphs.mixed(cuda)
    for heads in (1, 2, 3, 8):
        for head_dim in HEAD_DIMS:
            operands = make_operands(score, graph, heads, head_dim, dtype)
            check_forward(path, score, graph, operands)


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_many_rows(score, path, device):
    """More rows than a grid or a thread pool takes at once."""
    graph = graphs.random(20_000, 4, device)
    check_forward(path, score, graph, make_operands(score, graph, 2, 8))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    ("score", "options"),
    [
        ("dot", {"scale": 0.3}),
        ("additive", {"negative_slope": -0.5}),
        ("additive_v2", {"negative_slope": -0.5}),
    ],
)
def test_options(score, options, path, device):
    graph = graphs.mixed(device)
    check_forward(path, score, graph, make_operands(score, graph), **options)


@pytest.mark.parametrize("path", METHODS)
def test_beta_of_each_head(path, device):
    graph = graphs.mixed(device)
    operands = make_operands("cosine", graph, heads=4)
    operands["beta"] = torch.tensor([-3.0, 0.0, 1.0, 5.0], device=device)
    check_forward(path, "cosine", graph, operands)


@pytest.mark.parametrize("path", METHODS)
def test_one_tensor_for_both_ends(path, device):
    graph = graphs.make("self_loops", device)
    operands = make_operands("cosine", graph)
    check_forward(path, "cosine", graph, {**operands, "x_dst": operands["x_src"]})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize(
    ("score", "features"), [("additive", ["v"]), ("additive_v2", ["x_dst", "x_src"])]
)
def test_terms_of_half_precision_may_be_float32(score, features, path, dtype, device):
    graph = graphs.mixed(device)
    operands = make_operands(score, graph, edge_terms=True)
    operands |= {name: operands[name].to(dtype) for name in features}
    check_forward(path, score, graph, operands)


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_strides(score, path, device):
    """Views with any strides, offsets and repeated elements mean what they show."""
    graph = graphs.mixed(device)
    dense = make_operands(score, graph, edge_terms=True)

    def strided(t: torch.Tensor) -> torch.Tensor:
        return (
            torch.stack([torch.zeros_like(t), t], -1)
            .transpose(0, -2)
            .contiguous()[..., 1]
            .transpose(0, -1)
        )

    views = {name: strided(t) for name, t in dense.items()}
    assert not any(t.is_contiguous() for t in views.values() if t.numel() > 1)
    view = graphs.Csr(strided(graph.rowptr), strided(graph.col), graph.num_src)
    check_forward(path, score, view, views)
    expanded = {name: t[:1].expand_as(t) for name, t in dense.items()}
    check_forward(path, score, graph, expanded)


@pytest.mark.parametrize("path", METHODS)
def test_more_than_2_31_elements(path, device):
    """Offsets into the values do not fit 32 bits; on the CPU most of their pages never exist."""
    nodes, head_dim = (1 << 22) + 3, 512
    values = torch.empty(nodes, 1, head_dim, dtype=torch.float16, device=device)
    values[-1] = 1.0
    values[-2] = 3.0
    graph = graphs.from_rows([[nodes - 1, nodes - 2]], nodes).to(device)
    q = torch.zeros(1, 1, head_dim, dtype=torch.float16, device=device)
    out, lse = run(path, "dot", graph, {"q": q, "k": values, "v": values})
    assert (out == 2.0).all()
    assert lse.item() == pytest.approx(0.6931472)


def test_streams(cuda):
    """The work is queued on the current stream, behind what it depends on."""
    graph = graphs.random(20_000, 8, cuda)
    operands = make_operands("dot", graph, 2, 32)
    expected, _ = run("attention", "dot", graph, operands)
    late = {name: torch.zeros_like(t) for name, t in operands.items()}
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        for name, t in operands.items():
            late[name].copy_(t)
        out, _ = run("attention", "dot", graph, late)
    stream.synchronize()
    assert torch.equal(out, expected)
