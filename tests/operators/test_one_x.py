"""Cosine scores of one x at both ends, as AGNN has them, whose gradient is made as one."""

import graphs
import pytest
import torch
from calls import (
    DTYPES,
    METHODS,
    PATHS,
    assert_near,
    backward_arguments,
    check_backward,
    leaves_of,
    make_operands,
    of_one_x,
    operator,
    run,
)
from tilings import SQUARE
from torch import Tensor

BACKWARD = ("smmf_bwd", "pmf_bwd", "tile_bwd", "attention_bwd")


@pytest.mark.parametrize("name", SQUARE)
@pytest.mark.parametrize("path", METHODS)
def test_graphs(path, name, device):
    graph = graphs.make(name, device)
    check_backward(path, "cosine", graph, of_one_x(make_operands("cosine", graph)))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (4, 16), (3, 5), (1, 513)])
@pytest.mark.parametrize("path", METHODS)
def test_sizes(path, heads, head_dim, dtype, device):
    graph = graphs.batch([20, 0, 7, 70], 0.1).to(device)
    operands = of_one_x(make_operands("cosine", graph, heads, head_dim, dtype, edge_terms=True))
    noise = ("beta",) if dtype in (torch.float16, torch.bfloat16) else ()  # a sum over all edges
    check_backward(path, "cosine", graph, operands, but=noise)


@pytest.mark.parametrize("path", METHODS)
def test_dropout_and_beta(path, device):
    graph = graphs.batch([40, 7], 0.2).to(device)
    operands = of_one_x(make_operands("cosine", graph, 2, 16))
    operands["beta"] = torch.tensor([0.0, -3.0], device=device)
    seed = torch.tensor([4], device=device)
    check_backward(path, "cosine", graph, operands, dropout_p=0.4, seed=seed)


def arguments(graph: graphs.Csr) -> dict[str, Tensor]:
    return backward_arguments("cosine", graph, of_one_x(make_operands("cosine", graph)))


@pytest.mark.parametrize("are_one", [True, False])
@pytest.mark.parametrize("name", BACKWARD)
def test_operator(name, are_one, device):
    """``sum_x`` asks for the sum, of whatever tensors; without it there are two gradients."""
    given = arguments(graphs.batch([9, 4], 0.4).to(device))
    if not are_one:
        given["x_dst"] = given["x_dst"] * 1.5
    grad_x_dst, grad_x_src, *rest = operator(name, "cosine")(**given)
    none, total, *others = operator(name, "cosine")(**given, sum_x=True)
    assert none.numel() == 0
    assert_near(total, grad_x_dst.double() + grad_x_src.double(), 1e-5, "gradient of x")
    torch.testing.assert_close(others, rest)


@pytest.mark.parametrize("name", BACKWARD)
def test_opcheck(name, device):
    given = arguments(graphs.batch([9, 4], 0.4).to(device))
    torch.library.opcheck(operator(name, "cosine"), (), given | {"sum_x": True})


def test_other_sizes(device):
    graph = graphs.make("bipartite", device)
    given = backward_arguments("cosine", graph, make_operands("cosine", graph))
    assert given["x_dst"].shape != given["x_src"].shape
    with pytest.raises(RuntimeError, match="sum_x: expected x_dst and x_src of one shape"):
        operator("attention_bwd", "cosine")(**given, sum_x=True)


@pytest.mark.parametrize("path", PATHS)
def test_gradgradcheck(path, device):
    graph = graphs.make("isolated", device)
    operands = make_operands("cosine", graph, 2, 3, torch.float64)

    def function(x: Tensor, beta: Tensor) -> Tensor:
        return run(path, "cosine", graph, {"x_dst": x, "x_src": x, "beta": beta})[0]

    given = (operands["x_src"].requires_grad_(), operands["beta"].requires_grad_())
    assert torch.autograd.gradcheck(function, given)
    assert torch.autograd.gradgradcheck(function, given)


@pytest.mark.parametrize("path", METHODS)
def test_not_a_number(path, device):
    """A node that is none, and that no edge has, gets a gradient of 0."""
    graph = graphs.from_rows([[0, 2], [], [2, 0]], 3).to(device)
    operands = of_one_x(make_operands("cosine", graph))
    operands["x_src"][1] = torch.nan
    leaves = leaves_of(operands)
    out, _ = run(path, "cosine", graph, leaves)
    grad_x, grad_beta = torch.autograd.grad(out.sum(), [leaves["x_src"], leaves["beta"]])
    assert not grad_x[1].any()
    assert grad_x.isfinite().all()
    assert grad_beta.isfinite().all()
