"""Logits at the edges of what a softmax can take."""

import math

import graphs
import pytest
import torch
from calls import (
    METHODS,
    SCORES,
    assert_same_bits,
    check_backward,
    check_forward,
    gradients,
    make_operands,
    run,
)

INF = math.inf
# Logits of one row. Each must give the softmax of exactly these numbers.
ROWS = {
    "zeros": [0.0] * 40,
    "equal": [7.25] * 40,
    "equal_and_huge": [3e38] * 40,
    "equal_and_very_negative": [-3e38] * 40,
    "very_negative": [-1e30 - 1e29 * i for i in range(40)],
    "rising": [100.0 * i for i in range(40)],
    "falling": [-100.0 * i for i in range(40)],
    "one_large": [0.0] * 20 + [1e4] + [0.0] * 19,
    "underflow": [0.0] + [-200.0] * 39,
    "some_minus_infinity": [-INF if i % 3 else 0.5 * i for i in range(40)],
    "minus_infinity_first": [-INF] * 35 + [1.0] * 5,
    "minus_infinity_but_one": [-INF] * 39 + [2.0],
    "all_minus_infinity": [-INF] * 40,
    "alone_and_very_negative": [-1e12],
    "alone_and_very_large": [1e12],
    "far_above": [0.0] * 20 + [3e5] + [-1e9] * 19,
    "very_negative_but_one": [-1e12] + [-2e12] * 39,
}


def with_logits(score: str, row: list[float], device: str, dtype: torch.dtype):
    """A row with these logits beside an ordinary one: operands that score 0, and a bias.

    The graph is one that the tile kernels take: as many sources as destinations, no edge twice.
    """
    empty: list[list[int]] = [[]] * 38
    graph = graphs.from_rows([[*range(len(row))], [4, 1, 3], *empty], 40).to(device)
    operands = make_operands(score, graph, 1, 16, dtype, edge_terms=True)
    zeroed = {
        "dot": ["q"],
        "cosine": ["beta"],
        "additive": ["a_dst", "a_src", "a_edge"],
        "additive_v2": ["att"],
    }[score]
    operands |= {name: torch.zeros_like(operands[name]) for name in zeroed}
    bias = torch.tensor([*row, 0.1, 0.2, 0.3], device=device)
    return graph, operands | {"bias": bias.unsqueeze(-1)}


# The backward pass has p = exp(logit - lse); in float32 3e38 + log 40 is 3e38, and p 1, not 1/40.
FORWARD_ONLY = {"equal_and_huge", "equal_and_very_negative"}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_forward(score, path, row, dtype, device):
    graph, operands = with_logits(score, ROWS[row], device, dtype)
    check_forward(path, score, graph, operands)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("row", sorted(ROWS.keys() - FORWARD_ONLY))
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_backward(score, path, row, dtype, device):
    graph, operands = with_logits(score, ROWS[row], device, dtype)
    check_backward(path, score, graph, operands)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("step", [0.1, 0.3, 1.0, -INF])
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (1, 128), (8, 16), (3, 20)])
@pytest.mark.parametrize("score", SCORES)
def test_rising_in_long_rows(score, heads, head_dim, step, dtype, device):
    """An online softmax may let logits be above its maximum, if not by much: of a head, whatever
    those of others do."""
    graph = graphs.rows_of_70(device)
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms=True)
    bias, rises = operands["bias"].float(), graphs.rises(graph, step)
    rising = operands | {"bias": bias + rises.unsqueeze(1)}
    check_forward("smmf_fwd", score, graph, rising)
    one_rising = operands | {
        "bias": bias.index_add(1, torch.tensor([0], device=device), rises.unsqueeze(1))
    }
    together, alone = (run("smmf_fwd", score, graph, some) for some in (rising, one_rising))
    assert_same_bits([t[:, 0] for t in together], [t[:, 0] for t in alone])


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_large_products(score, path, device):
    """Operands whose logits are large and exact in float32: only differences count."""
    graph = graphs.batch([10, 33], 0.7).to(device)
    operands = make_operands(score, graph, 2, 8)
    if score == "cosine":
        operands["beta"] = torch.tensor([512.0], device=device)
        exact = torch.eye(8, device=device)  # cosines of 0 and 1
        operands["x_dst"] = exact[torch.arange(graph.num_dst) % 3].unsqueeze(1).repeat(1, 2, 1)
        operands["x_src"] = exact[torch.arange(graph.num_src) % 3].unsqueeze(1).repeat(1, 2, 1)
        check_forward(path, score, graph, operands)
    else:
        names = {
            "dot": ["q", "k"],
            "additive": ["a_dst", "a_src"],
            "additive_v2": ["x_dst", "x_src", "att"],
        }[score]
        operands |= {name: (operands[name] * 8).round() * 16 for name in names}
        options = {"scale": 0.5} if score == "dot" else {"negative_slope": 0.25}
        check_forward(path, score, graph, operands, **options)


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_shifting_a_row_changes_lse_alone(score, path, device):
    graph = graphs.mixed(device)
    operands = make_operands(score, graph, edge_terms=True)
    shift = 64.0
    shifted = operands | {"bias": operands["bias"] + shift}
    out, lse = run(path, score, graph, operands)
    out_shifted, lse_shifted = run(path, score, graph, shifted)
    torch.testing.assert_close(out_shifted, out, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse_shifted, lse + shift)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("path", METHODS)
def test_cosine_of_zero_vectors(path, dtype, device):
    """Their cosines are 0, so that a row of a zero vector is the mean of its sources."""
    graph = graphs.from_rows([[0, 1, 2], [0, 1, 2], [0, 0]], 3).to(device)
    operands = make_operands("cosine", graph, 2, 8, dtype)
    operands["x_dst"][0] = 0.0
    operands["x_src"][0] = 0.0
    check_forward(path, "cosine", graph, operands)
    out, _ = run(path, "cosine", graph, operands)
    mean = operands["x_src"].double().mean(0)
    torch.testing.assert_close(out[0].double(), mean, rtol=0, atol=1e-2)
    leaves = {name: t.requires_grad_() for name, t in operands.items()}
    found = gradients(run(path, "cosine", graph, leaves), leaves, with_lse=True)
    assert all(t.isfinite().all() for t in found.values())


@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_nan_stays_in_its_row(score, path, device):
    graph, operands = with_logits(score, [1.0, math.nan, 2.0], device, torch.float32)
    out, lse = run(path, score, graph, operands)
    assert out[0].isnan().all()
    assert lse[0].isnan().all()
    assert out[1].isfinite().all()
    assert lse[1].isfinite().all()
