"""Operands whose numbers differ by many powers of two, infinities among them, in float32."""

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
    make_operands,
    run,
)
from torch import Tensor

DTYPE = torch.float32
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
