"""Operands whose numbers differ by many powers of two, infinities among them."""

import math

import graphs
import pytest
import reference
import torch
from calls import (
    BACKWARD_TOLERANCE,
    FORWARD_TOLERANCE,
    METHODS,
    assert_near,
    gradients,
    leaves_of,
    make_operands,
    run,
)
from torch import Tensor

DTYPE = torch.float32  # if nothing else is said
HALF_DTYPES = (torch.float16, torch.bfloat16)
SCORES = ("dot", "additive")


def powers_of_two(count: int, largest: int, device: str) -> Tensor:
    """From 2^-largest to 2^largest, in a random order."""
    generator = torch.Generator().manual_seed(count)
    exponents = torch.linspace(-largest, largest, count).round()
    return (2.0 ** exponents[torch.randperm(count, generator=generator)]).to(device)


def expected_gradients(
    score: str, graph: graphs.Csr, operands: dict[str, Tensor]
) -> dict[str, Tensor]:
    exact = {name: t.detach().double().requires_grad_() for name, t in operands.items()}
    return gradients(reference.attention(score, graph, exact), exact, with_lse=False)


def assert_rows_near(
    out: Tensor, score: str, graph: graphs.Csr, operands: dict[str, Tensor]
) -> None:
    """Each row within the tolerance of what its values would add up to without signs."""
    expected, _ = reference.attention(score, graph, operands)
    sizes, _ = reference.attention(score, graph, operands | {"v": operands["v"].abs()})
    size = sizes.amax(-1, keepdim=True).clamp(min=torch.finfo(DTYPE).tiny)
    assert_near(out.double() / size, expected / size, FORWARD_TOLERANCE[DTYPE], "out")


@pytest.mark.parametrize("head_dim", [20, 64, 128, 256])
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_features(score, path, head_dim, device):
    """Features in other units change outputs and gradients by these units, exactly."""
    graph = graphs.batch([10, 70, 33], 0.5).to(device)
    operands = make_operands(score, graph, 2, head_dim, DTYPE)
    units = powers_of_two(head_dim, 13, device)
    of_units = {"v": units, "q": units, "k": 1 / units}
    leaves = {
        name: (t * of_units[name] if name in of_units else t).requires_grad_()
        for name, t in operands.items()
    }
    out, lse = run(path, score, graph, leaves)
    expected_out, _ = reference.attention(score, graph, operands)
    assert_near(out / units, expected_out, FORWARD_TOLERANCE[DTYPE], "out")
    found = gradients((out / units, lse), leaves, with_lse=False)
    for name, gradient in expected_gradients(score, graph, operands).items():
        in_units = found[name] * of_units[name] if name in of_units else found[name]
        assert_near(in_units, gradient, BACKWARD_TOLERANCE[DTYPE], name)


@pytest.mark.parametrize("head_dim", [16, 32, 128, 256])
@pytest.mark.parametrize("largest", [12, 60])
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_nodes(score, path, largest, head_dim, device):
    """Nodes of any size: a row's output is as near as its largest neighbour lets it be."""
    graph = graphs.batch([10, 70, 33], 0.5).to(device)
    operands = make_operands(score, graph, 2, head_dim, DTYPE)
    operands["v"] *= powers_of_two(graph.num_src, largest, device)[:, None, None]
    out, _ = run(path, score, graph, operands)
    assert_rows_near(out, score, graph, operands)


@pytest.mark.parametrize("head_dim", [16, 32, 64])
@pytest.mark.parametrize("exponent", [-115, -40, 40, 115])
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_all(score, path, exponent, head_dim, device):
    """Values and gradients near the ends of float32's range."""
    graph = graphs.batch([10, 70, 33], 0.5).to(device)
    operands = make_operands(score, graph, 2, head_dim, DTYPE)
    factor = 2.0**exponent
    leaves = {name: t.clone().requires_grad_() for name, t in operands.items()}
    scaled = leaves | {"v": leaves["v"] * factor}
    if score == "dot":
        scaled |= {"q": leaves["q"] * factor, "k": leaves["k"] / factor}
    out, lse = run(path, score, graph, scaled)
    expected, _ = reference.attention(score, graph, operands)
    assert_near(out / factor, expected, FORWARD_TOLERANCE[DTYPE], "out")
    found = gradients((out / factor, lse), leaves, with_lse=False)
    for name, gradient in expected_gradients(score, graph, operands).items():
        assert_near(found[name], gradient, BACKWARD_TOLERANCE[DTYPE], name)


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("largest", [20, 40, 90])
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_large_before_likely(score, path, largest, head_dim, device):
    """Values that fall from node to node as much as their weights rise: all count alike."""
    graph = graphs.batch([130, 64, 17], 0.4, self_loops=True).to(device)
    operands = make_operands(score, graph, 1, head_dim, DTYPE)
    exponents = torch.linspace(largest, 0, graph.num_src, device=device).round()
    operands["v"] *= (2.0**exponents)[:, None, None]
    bias = torch.zeros(graph.capacity, 1, device=device)
    bias[: graph.num_edges, 0] = -math.log(2) * exponents[graph.sources()]
    operands["bias"] = bias
    out, lse = run(path, score, graph, operands)
    assert_rows_near(out, score, graph, operands)
    _, expected_lse = reference.attention(score, graph, operands)
    assert_near(lse, expected_lse, FORWARD_TOLERANCE[DTYPE], "lse")


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("name", ["q", "k", "v"])
@pytest.mark.parametrize(("head_dim", "feature"), [(16, 5), (64, 5), (256, 5), (256, 250)])
@pytest.mark.parametrize("path", METHODS)
def test_infinite_feature(path, head_dim, feature, name, value, device):
    """Rows that have nothing to do with the node are what they are without it."""
    graph = graphs.batch([10, 70, 33], 0.5).to(device)
    operands = make_operands("dot", graph, 2, head_dim, DTYPE)
    operands[name][12, 1, feature] = value
    expected, expected_lse = reference.attention("dot", graph, operands)
    out, lse = run(path, "dot", graph, operands)
    finite = expected.isfinite()
    torch.testing.assert_close(out.isfinite(), finite)
    assert finite.any()
    assert not finite.all()
    assert_near(out[finite], expected[finite], FORWARD_TOLERANCE[DTYPE], "out")
    others = expected_lse.isfinite()
    assert_near(lse[others], expected_lse[others], FORWARD_TOLERANCE[DTYPE], "lse")


def gradients_of(outputs: tuple[Tensor, Tensor], leaves: dict[str, Tensor], feature: float):
    """By operand, where `feature` is the gradient of each head's first feature of `out`."""
    out, _ = outputs
    grad_out = torch.zeros_like(out)
    grad_out[..., 0] = feature
    return dict(zip(leaves, torch.autograd.grad(out, list(leaves.values()), grad_out), strict=True))


@pytest.mark.parametrize("head_dim", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("path", METHODS)
def test_logits_of_small_gradients(path, dtype, head_dim, device):
    """Gradients of logits are below what float16 has; keys make them those of queries."""
    graph = graphs.batch([130, 70], 1.0, self_loops=True).to(device)
    operands = make_operands("dot", graph, 2, head_dim, dtype)
    sign = 1.0 - 2 * (torch.arange(graph.num_src, device=device) % 2).to(dtype)[:, None, None]
    operands["q"].zero_()
    operands["k"] = 1024 * sign.expand_as(operands["k"])
    operands["v"][..., :1] = sign
    leaves, exact = leaves_of(operands), leaves_of(operands, torch.float64)
    found = gradients_of(run(path, "dot", graph, leaves), leaves, 2.0**-20)
    expected = gradients_of(reference.attention("dot", graph, exact), exact, 2.0**-20)
    size = expected["q"].abs().max()
    assert size < 2.0**-11
    assert_near(found["q"] / size, expected["q"] / size, BACKWARD_TOLERANCE[dtype], "q")


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("head_dim", [8, 16, 32, 64, 128, 256])
@pytest.mark.parametrize("dtype", HALF_DTYPES, ids=str)
@pytest.mark.parametrize("path", METHODS)
def test_values_of_small_weights(path, dtype, head_dim, score, device):
    """Weights are below what float16 has; gradients of `out` make them those of values."""
    graph = graphs.batch([130, 70], 1.0, self_loops=True).to(device)
    operands = make_operands(score, graph, 2, head_dim, dtype)
    likely = [0, 130]  # in each graph one node, 2^29 times as likely as another
    if score == "dot":
        operands["q"].fill_(1.0)
        operands["k"] /= 16
        operands["k"][likely] = 20 / head_dim**0.5
    else:
        operands["a_src"][likely] = 25.0
        operands["a_dst"].abs_()
    leaves, exact = leaves_of(operands), leaves_of(operands, torch.float64)
    found = gradients_of(run(path, score, graph, leaves), leaves, 2.0**10)
    expected = gradients_of(reference.attention(score, graph, exact), exact, 2.0**10)
    others = torch.ones(graph.num_src, dtype=torch.bool)
    others[likely] = False
    size = expected["v"][others].abs().max()
    assert 0 < size < 2.0**-4
    assert_near(found["v"][others] / size, expected["v"][others] / size, 1e-2, "v")


@pytest.mark.parametrize("value", [math.inf, math.nan])
@pytest.mark.parametrize("head_dim", [16, 64, 128])
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", reference.VALUE)
def test_node_without_edges(score, path, head_dim, value, device):
    """It has no part in any gradient, even if it is no number."""
    graph = graphs.from_rows([[1, 2], [2, 0], [0, 1, 2], [], [2]], 5).to(device)
    operands = make_operands(score, graph, 2, head_dim, DTYPE)
    expected = expected_gradients(score, graph, operands)
    for operand in operands.values():
        if operand.size(0) == graph.num_src:
            operand[3] = value
    leaves = leaves_of(operands)
    found = gradients(run(path, score, graph, leaves), leaves, with_lse=False)
    for name, gradient in expected.items():
        assert_near(found[name], gradient, BACKWARD_TOLERANCE[DTYPE], name)
