"""Graphs of many short rows, which some kernels give to groups of lanes instead of warps."""

import graphs
import pytest
import torch
from calls import (
    SCORES,
    assert_near,
    assert_same_bits,
    check_backward,
    check_forward,
    check_not_finite,
    gradients,
    make_operands,
    results,
    run,
)

SHAPES = [(1, 4), (1, 128), (3, 8), (5, 16), (8, 16), (2, 32), (1, 24), (2, 7)]
# Columns are short rows of the backward pass, or, of few sources, long ones.
SOURCES = [1 << 15, 40]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("score", SCORES)
def test_forward(score, heads, head_dim, dtype, device):
    graph = graphs.short_rows(SOURCES[0], device)
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms=heads == 3)
    check_forward("smmf_fwd", score, graph, operands)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (3, 16), (1, 128), (2, 200)])
@pytest.mark.parametrize("score", SCORES)
def test_half_precision(score, heads, head_dim, device):
    graph = graphs.short_rows(SOURCES[0], device)
    operands = make_operands(score, graph, heads, head_dim, torch.float16)
    check_forward("smmf_fwd", score, graph, operands)
    check_backward("smmf_fwd", score, graph, operands)


@pytest.mark.parametrize("sources", SOURCES)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("score", SCORES)
def test_backward(score, heads, head_dim, sources, device):
    graph = graphs.short_rows(sources, device)
    operands = make_operands(score, graph, heads, head_dim, edge_terms=heads == 3)
    check_backward("smmf_fwd", score, graph, operands)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_wide_indices(score, dtype, device):
    graph = graphs.short_rows(SOURCES[0], device, torch.int64)
    operands = make_operands(score, graph, 4, 16, dtype, edge_terms=True)
    seed = torch.tensor([3], device=device)
    check_forward("smmf_fwd", score, graph, operands, dropout_p=0.3, seed=seed)
    check_backward("smmf_fwd", score, graph, operands, dropout_p=0.3, seed=seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(4, 16), (2, 32), (1, 128)])
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_values_that_are_not_finite(score, heads, head_dim, value, dtype, device):
    """They stay where they are: in the rows that have such a source, and there in its feature."""
    graph = graphs.short_rows(40, device)
    operands = make_operands(score, graph, heads, head_dim, dtype)
    operands["v"][3, 0, 5] = operands["v"][7, heads - 1, 6] = value
    check_not_finite("smmf_fwd", score, graph, operands)


@pytest.mark.parametrize("max_degree", [0, 1, 16, 40, 1 << 20])
@pytest.mark.parametrize("score", SCORES)
def test_any_max_degree(score, max_degree, device):
    """It says what is fast; a wrong one changes no result."""
    graph = graphs.short_rows(SOURCES[0], device)
    operands = make_operands(score, graph, 2, 8)
    leaves = {name: t.requires_grad_() for name, t in operands.items()}
    found, expected = (
        run("attention_smmf", score, graph, leaves, max_degree=hint) for hint in (max_degree, 40)
    )
    assert_near(found[0], expected[0].double(), 1e-5, "out")
    assert_near(found[1], expected[1].double(), 1e-5, "lse")
    grads, expected_grads = (
        gradients(outputs, leaves, with_lse=True) for outputs in (found, expected)
    )
    for name, gradient in grads.items():
        assert_near(gradient, expected_grads[name].double(), 1e-4, f"gradient of {name}", 1.0)


@pytest.mark.parametrize("score", SCORES)
def test_dropout_is_that_of_other_methods(score, device):
    graph = graphs.short_rows(SOURCES[0], device)
    operands = make_operands(score, graph, 3, 8)
    options = {"dropout_p": 0.5, "seed": torch.tensor([7], device=device)}
    found, expected = (
        run(path, score, graph, operands, **options) for path in ("smmf_fwd", "pmf_fwd")
    )
    assert_near(found[0], expected[0].double(), 1e-5, "out")


@pytest.mark.parametrize("score", SCORES)
def test_same_bits_twice(score, device):
    graph = graphs.short_rows(SOURCES[0], device)
    operands = make_operands(score, graph, 3, 8)
    assert_same_bits(*(results("smmf_fwd", score, graph, operands) for _ in range(2)))
