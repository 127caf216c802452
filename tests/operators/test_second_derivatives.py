"""Derivatives of derivatives: with create_graph=True a backward pass is differentiable itself."""

import graphs
import pytest
import reference
import torch
from calls import (
    BACKWARD_TOLERANCE,
    DTYPES,
    METHODS,
    PATHS,
    SCORES,
    assert_near,
    backward_arguments,
    gradient_terms,
    gradients,
    leaves_of,
    make_operands,
    operator,
    run,
)
from torch import Tensor
from torch.fx.experimental.proxy_tensor import make_fx

DROPOUT = {"dropout_p": 0.4}


def options_of(options: dict, device: str) -> dict:
    return {**options, "seed": torch.tensor([5], device=device)} if options else {}


@pytest.mark.parametrize("options", [{}, DROPOUT], ids=["plain", "dropout"])
@pytest.mark.parametrize("name", ["isolated", "multigraph", "spare_capacity"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("path", PATHS)
def test_gradgradcheck(path, score, name, options, device):
    """In all operands, through out and lse."""
    graph = graphs.make(name, device)
    leaves = leaves_of(make_operands(score, graph, 2, 3, torch.float64, edge_terms=True))
    options = options_of(options, device)

    def function(*values: Tensor) -> tuple[Tensor, Tensor]:
        operands = dict(zip(leaves, values, strict=True))
        out, lse = run(path, score, graph, operands, **options)
        return out, lse.masked_fill(lse == -torch.inf, 0.0)

    assert torch.autograd.gradcheck(function, tuple(leaves.values()))
    assert torch.autograd.gradgradcheck(function, tuple(leaves.values()))


@pytest.mark.parametrize("score", SCORES)
def test_third_derivatives(score, device):
    graph = graphs.from_rows([[0, 1], [], [1, 1]], 2).to(device)
    leaves = leaves_of(make_operands(score, graph, 1, 2, torch.float64))

    def gradient(*values: Tensor) -> tuple[Tensor, ...]:
        operands = dict(zip(leaves, values, strict=True))
        out, _ = run("attention", score, graph, operands)
        return torch.autograd.grad(out.sin().sum(), values, create_graph=True)

    assert torch.autograd.gradgradcheck(gradient, tuple(leaves.values()))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("path", METHODS)
def test_first_derivatives_are_those_of_the_kernels(path, score, dtype, device):
    graph = graphs.make("degrees_around_tiles", device)
    options = options_of(DROPOUT, device)
    leaves = leaves_of(make_operands(score, graph, 3, 16, dtype, edge_terms=True))
    outputs = run(path, score, graph, leaves, **options)
    found = gradients(outputs, leaves, with_lse=True, create_graph=True)
    expected = gradients(outputs, leaves, with_lse=True)
    for name, gradient in found.items():
        assert gradient.requires_grad
        assert gradient.dtype == leaves[name].dtype
        tolerance, terms = BACKWARD_TOLERANCE[dtype], gradient_terms(name, 16)
        assert_near(gradient.detach(), expected[name], tolerance, name, terms)


def gradients_of_gradients(outputs, leaves: dict[str, Tensor]) -> dict[str, Tensor]:
    first = gradients(outputs, leaves, with_lse=True, create_graph=True)
    total = sum(t.double().square().sum() for t in first.values())
    found = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
    return dict(zip(leaves, found, strict=True))


@pytest.mark.parametrize("name", sorted(graphs.GRAPHS.keys() - {"super_node"}))
@pytest.mark.parametrize("score", SCORES)
def test_graphs(score, name, device):
    graph = graphs.make(name, device)
    options = options_of(DROPOUT, device)
    leaves = leaves_of(make_operands(score, graph, 3, 8, torch.float64, edge_terms=True))
    found = gradients_of_gradients(run("attention", score, graph, leaves, **options), leaves)
    outputs = reference.attention(score, graph, leaves, **options)
    for operand, t in gradients_of_gradients(outputs, leaves).items():
        assert_near(found[operand], t, 1e-9, operand, terms=1.0)


@pytest.mark.parametrize("score", SCORES)
def test_entries_that_are_no_edges(score, device):
    """Whatever bias and a_edge hold there, it reaches nothing, and its derivatives are 0."""
    graph = graphs.make("spare_capacity", device)
    operands = make_operands(score, graph, edge_terms=True)
    for name in operands.keys() & {"bias", "a_edge"}:
        operands[name][graph.num_edges :] = torch.nan
    leaves = leaves_of(operands)
    found = gradients_of_gradients(run("attention", score, graph, leaves), leaves)
    for name, t in found.items():
        assert t.isfinite().all(), name
    assert not found["bias"][graph.num_edges :].any()


@pytest.mark.parametrize("score", SCORES)
def test_backward_operators(score, device):
    """Called directly they are differentiable too, in all that they are given."""
    graph = graphs.make("isolated", device)
    operands = make_operands(score, graph, 2, 3, torch.float64, edge_terms=True)
    given = backward_arguments(score, graph, operands)
    given["lse"] = given["lse"].masked_fill(given["lse"] == -torch.inf, 0.0)
    given["grad_lse"] = torch.randn_like(given["lse"])
    leaves = leaves_of({k: t for k, t in given.items() if t is not None and t.is_floating_point()})

    def function(*values: Tensor) -> tuple[Tensor, ...]:
        named = {**given, **dict(zip(leaves, values, strict=True))}
        return operator("attention_bwd", score)(**named)

    assert torch.autograd.gradcheck(function, tuple(leaves.values()))


@pytest.mark.parametrize("score", SCORES)
def test_under_autocast(score, device):
    """The composite computes in full precision also where the backward pass runs under autocast."""
    graph = graphs.mixed(device)
    leaves = leaves_of(make_operands(score, graph, edge_terms=True))
    outputs = run("attention", score, graph, leaves)
    expected = gradients(outputs, leaves, with_lse=True, create_graph=True)
    with torch.autocast(device, torch.bfloat16):
        found = gradients(outputs, leaves, with_lse=True, create_graph=True)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("mode", ["real", "fake"])
@pytest.mark.parametrize("score", SCORES)
def test_traced(score, mode, device):
    """By one operand, where the others need none; what was traced serves other operands."""
    graph = graphs.mixed(device)
    csc = graph.csc()
    operands = make_operands(score, graph)

    def gradient(rowptr: Tensor, col: Tensor, *values: Tensor) -> Tensor:
        x, *others = values[len(csc) :]
        x = x.detach().requires_grad_()
        given = dict(zip(operands, [x, *others], strict=True)) | dict(
            zip(csc, values, strict=False)
        )
        out, _ = operator("attention", score)(rowptr, col, **given)
        return torch.autograd.grad(out.sin().sum(), x, create_graph=True)[0].detach()

    index = (graph.rowptr, graph.col, *csc.values())
    traced = make_fx(gradient, tracing_mode=mode)(*index, *operands.values())
    for scale in (1.0, 0.5):
        values = [t.cos() * scale for t in operands.values()]
        torch.testing.assert_close(traced(*index, *values), gradient(*index, *values))
