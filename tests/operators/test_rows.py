"""Rows by a warp each on CUDA (cuda/row_units.cuh): long ones in pieces, units from a counter,
16-bit rows on tensor cores and what these cannot say. On the CPU the same by the CPU's kernel."""

from collections.abc import Callable

import graphs
import pytest
import reference
import torch
from calls import (
    BACKWARD_TOLERANCE,
    FORWARD_TOLERANCE,
    SCORES,
    assert_near,
    assert_same_bits,
    check_backward,
    check_forward,
    make_operands,
    results,
    run,
)
from graphs import Csr

HALVES = (torch.float16, torch.bfloat16)
# What goes through tensor cores, and forward all but dot scores, in one kernel.
METHODS_AND_SCORES = (
    *(("pmf_fwd", score) for score in SCORES),
    ("smmf_fwd", "additive"),
    ("smmf_fwd", "cosine"),
    ("smmf_fwd", "additive_v2"),
)


def many_heads(graph: Csr) -> int:
    """So many that tensor cores take sums of 16-bit rows (has_tensor_sums)."""
    return -(-(1 << 20) // graph.num_edges)


@pytest.fixture(params=["vectors", "tensor_cores"])
def heads_by(request, device) -> Callable[[Csr, torch.dtype], tuple[int, int]]:
    """How many heads of how many features there are, by what is to take sums of rows: heads of 64
    lie side by side in smmf."""
    if request.param == "vectors":
        return lambda graph, dtype: (2, 64)
    if device == "cpu":
        pytest.skip("no tensor cores")
    request.getfixturevalue("alone")  # the reference takes gigabytes

    def heads(graph: Csr, dtype: torch.dtype) -> tuple[int, int]:
        if dtype not in HALVES:
            pytest.skip("no tensor cores")
        return many_heads(graph), 128

    return heads


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (3, 64), (2, 96)])
@pytest.mark.parametrize("name", ["hub", "super_source", "degrees_around_tiles", "super_node"])
@pytest.mark.parametrize(("method", "score"), METHODS_AND_SCORES)
def test_half_precision(method, score, name, heads, head_dim, dtype, device):
    graph = graphs.make(name, device)
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms=True)
    check_forward(method, score, graph, operands)
    check_backward(method, score, graph, operands)


@pytest.mark.parametrize(
    ("head_dim", "dtype"),
    [(64, torch.float16), (128, torch.float16), (128, torch.bfloat16)],
)
@pytest.mark.parametrize(("method", "score"), METHODS_AND_SCORES[:-2])  # two sum up no weights
def test_many_sums(method, score, head_dim, dtype, cuda, alone):
    graph = graphs.make("degrees_around_tiles", cuda)
    operands = make_operands(score, graph, many_heads(graph), head_dim, dtype, edge_terms=True)
    check_forward(method, score, graph, operands)
    check_backward(method, score, graph, operands)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("method", "score"), METHODS_AND_SCORES)
def test_dropout_of_long_rows(method, score, dtype, heads_by, device):
    graph = graphs.make("degrees_around_tiles", device)
    operands = make_operands(score, graph, *heads_by(graph, dtype), dtype)
    seed = torch.tensor([5], device=device)
    check_forward(method, score, graph, operands, dropout_p=0.3, seed=seed)
    check_backward(method, score, graph, operands, dropout_p=0.3, seed=seed)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", ["smmf_fwd", "pmf_fwd"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("rows", [graphs.long_rows, graphs.very_long_rows])
def test_units_from_a_counter(rows, score, method, dtype, cuda, alone):
    graph = rows(cuda)
    operands = make_operands(score, graph, 1, 64, dtype)
    check_forward(method, score, graph, operands)
    check_backward(method, score, graph, operands)


def check_both(
    method: str,
    score: str,
    graph: Csr,
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    hints: dict[str, int] | None = None,
) -> None:
    """Both passes, with all that edges can have."""
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms=True)
    seed = torch.tensor([3], device=graph.col.device)
    check_forward(method, score, graph, operands, hints=hints, dropout_p=0.2, seed=seed)
    check_backward(method, score, graph, operands, hints=hints, dropout_p=0.2, seed=seed)


@pytest.mark.parametrize(
    ("method", "score", "heads", "index"),
    [
        ("pmf_fwd", "dot", 1, torch.int32),
        ("pmf_fwd", "dot", 1, torch.int64),
        ("pmf_fwd", "dot", 2, torch.int32),
        ("smmf_fwd", "additive", 1, torch.int32),
        ("smmf_fwd", "additive", 2, torch.int64),
        ("smmf_fwd", "dot", 8, torch.int32),
        ("smmf_fwd", "cosine", 8, torch.int64),
        ("smmf_fwd", "additive", 8, torch.int32),
    ],
    ids=str,
)
def test_listed_units(method, score, heads, index, cuda, alone):
    """With all that edges can have; of numbers of 16 bits above."""
    graph = graphs.very_long_rows(cuda, index)
    check_both(method, score, graph, heads, 64 // heads, torch.float32)


@pytest.mark.parametrize(
    ("heads", "head_dim"), [(8, 16), (5, 6), (40, 2), (3, 50), (9, 36), (2, 70)]
)
@pytest.mark.parametrize("name", ["hub", "super_source", "degrees_around_tiles"])
@pytest.mark.parametrize(
    ("method", "score"), [("smmf_fwd", "dot"), ("smmf_fwd", "additive"), ("pmf_fwd", "cosine")]
)
def test_pieces_of_many_heads(method, score, name, heads, head_dim, device):
    """Of which several are added up side by side."""
    check_both(method, score, graphs.make(name, device), heads, head_dim, torch.float32)


@pytest.mark.parametrize(
    ("dtype", "index"),
    [
        (torch.float32, torch.int32),
        (torch.float32, torch.int64),
        (torch.float16, torch.int32),
        (torch.bfloat16, torch.int64),
    ],
    ids=str,
)
@pytest.mark.parametrize(
    ("heads", "head_dim"),
    [(8, 16), (5, 16), (12, 16), (8, 8), (4, 8), (4, 16), (4, 32), (2, 16), (2, 32), (2, 64)],
)
def test_long_rows_of_narrow_heads(heads, head_dim, dtype, index, device):
    graph = graphs.rows_of_70(device, index)
    check_both("smmf_fwd", "additive", graph, heads, head_dim, dtype)


@pytest.mark.parametrize("wrong", [-1, 1 << 30], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("score", SCORES)
def test_a_node_that_is_none_in_narrow_heads(score, dtype, wrong, device):
    """Makes NaNs of its row and of no other."""
    graph = graphs.rows_of_70(device)
    operands = make_operands(score, graph, 8, 16, dtype)
    wanted, _ = run("smmf_fwd", score, graph, operands)
    graph.col[75] = wrong
    out, lse = run("smmf_fwd", score, graph, operands)
    assert out[1].isnan().all()
    assert lse[1].isnan().all()
    wanted[1] = torch.nan
    torch.testing.assert_close(out, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 30), (2, 32), (1, 100), (3, 128), (1, 256)])
@pytest.mark.parametrize(("method", "score"), METHODS_AND_SCORES)
def test_long_rows_of_any_shape(method, score, heads, head_dim, dtype, device):
    graph = graphs.rows_of_70(device)
    check_both(method, score, graph, heads, head_dim, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("negative_slope", [0.0, 0.2, 1.0, 1.5])
@pytest.mark.parametrize(("heads", "head_dim"), [(8, 16), (2, 64), (1, 128)])
@pytest.mark.parametrize("method", ["smmf_fwd", "pmf_fwd"])
def test_sums_that_are_zero(method, heads, head_dim, negative_slope, dtype, device):
    """GATv2's slope there is that below zero."""
    graph = graphs.rows_of_70(device)
    operands = make_operands("additive_v2", graph, heads, head_dim, dtype)
    for name in ("x_dst", "x_src"):
        operands[name].round_().clamp_(-2, 2)
    options = {"negative_slope": negative_slope}
    check_forward(method, "additive_v2", graph, operands, **options)
    check_backward(method, "additive_v2", graph, operands, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("negative_slope", [0.0, 0.2])
@pytest.mark.parametrize(("heads", "head_dim"), [(8, 16), (2, 64), (1, 128)])
@pytest.mark.parametrize("method", ["smmf_fwd", "pmf_fwd"])
def test_an_infinite_feature_that_counts_against_its_edges(
    method, heads, head_dim, negative_slope, dtype, device
):
    """GATv2's logits are -inf there: a weight of 0, and NaN in that feature alone."""
    graph = graphs.rows_of_70(device)
    operands = make_operands("additive_v2", graph, heads, head_dim, dtype)
    operands["att"][0, 5] = -1
    operands["x_src"][3, 0, 5] = torch.inf
    options = {"negative_slope": negative_slope}
    out, lse = run(method, "additive_v2", graph, operands, **options)
    expected, expected_lse = reference.attention("additive_v2", graph, operands, **options)
    assert 0 < int(expected.isnan().sum()) <= expected.size(0)
    assert_near(out, expected, FORWARD_TOLERANCE[dtype], "out")
    torch.testing.assert_close(lse.double(), expected_lse.double(), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("method", "score"), METHODS_AND_SCORES)
def test_long_rows_with_wide_indices(method, score, dtype, device):
    graph = graphs.rows_of_70(device, torch.int64)
    check_both(method, score, graph, 2, 64, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("method", "score"), METHODS_AND_SCORES)
def test_a_bias_of_minus_infinity_is_no_edge(method, score, dtype, heads_by, device):
    """Neither one alone, nor a row's first batch, nor all that a row has."""
    graph = graphs.rows_of_70(device)
    operands = make_operands(score, graph, *heads_by(graph, dtype), dtype, edge_terms=True)
    is_edge = torch.ones(graph.num_edges, dtype=torch.bool, device=device)
    is_edge[0] = is_edge[70:110] = is_edge[140:210] = False
    rest = {k: t[is_edge] if len(t) == len(is_edge) else t for k, t in operands.items()}
    operands["bias"][~is_edge] = -torch.inf
    out, lse = run(method, score, graph, operands)
    expected = run(method, score, graph.only(is_edge), rest)
    assert_near(out, expected[0], FORWARD_TOLERANCE[dtype], "out")
    torch.testing.assert_close(lse, expected[1], rtol=1e-4, atol=1e-4)
    assert (lse[2] == -torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 8), (2, 100), (2, 128), (1, 512)])
@pytest.mark.parametrize(("method", "score"), METHODS_AND_SCORES)
def test_long_rows_that_are_whole(method, score, heads, head_dim, dtype, cuda):
    """Pieces have four times the mean: rows of 100 are several batches of a warp."""
    graph = graphs.from_degrees([100] * 2700 + [0, 1, 33, 2100], 2000).to(cuda)
    check_both(method, score, graph, heads, head_dim, dtype)


# Rows that begin and end where pieces of 128 and of 512 edges do, or next to that; and one of 600,
# or 150, pieces.
PIECES = [512, 1024, 511, 1, 513, 511, 1025, 0, 1023, 1, 512, 513, 2, 76_800, 0, 1024]


@pytest.mark.parametrize("is_known", [True, False])
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 40), (3, 40), (8, 16), (1, 96), (2, 200)])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("method", ["attention_smmf", "attention_pmf"])
def test_pieces(method, score, heads, head_dim, is_known, cuda):
    """The longest row says how many edges pieces have: 128 here, or 512 if it is not known."""
    graph = graphs.from_degrees([*PIECES, *[100] * 2000, *PIECES, 0], 3000)
    graph = Csr(graph.rowptr, torch.cat([graph.col, torch.full((700,), -7)]), graph.num_src)
    hints = {"max_degree": max(PIECES) if is_known else -1}
    check_both(method, score, graph.to(cuda), heads, head_dim, torch.float32, hints)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (1, 30), (2, 100), (8, 16)])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("method", ["attention_smmf", "attention_pmf"])
def test_small_pieces(method, score, heads, head_dim, dtype, device):
    """Of 32 edges, of runs 64, in rows and columns: two to eight are added up by a warp, more by
    a block."""
    degrees = [1, 33, 31, 64, 2, 65, 32, 100, 0, 255, 256, 257, 5, 300, 3, 1500, 7, 96] * 4
    graph = graphs.from_degrees([*degrees, *[4] * 3000], 150).to(device)
    check_both(method, score, graph, heads, head_dim, dtype, {"max_degree": 1500})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("method", ["smmf_fwd", "pmf_fwd"])
@pytest.mark.parametrize("rows", [graphs.long_rows, graphs.very_long_rows])
def test_same_bits_whoever_takes_a_unit(rows, method, dtype, cuda):
    graph = rows(cuda)
    operands = make_operands("dot", graph, 3, 64, dtype)
    expected = results(method, "dot", graph, operands)
    for _ in range(5):
        assert_same_bits(results(method, "dot", graph, operands), expected)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("value", [float("inf"), float("nan")], ids=str)
@pytest.mark.parametrize(("method", "score"), [("pmf_fwd", "dot"), ("smmf_fwd", "additive")])
def test_values_that_are_not_finite(method, score, value, dtype, heads_by, device):
    """They stay where they are: in the rows that have such a source, and there in its feature."""
    graph = graphs.make("degrees_around_tiles", device)
    check_not_finite(method, score, graph, *heads_by(graph, dtype), value, dtype)


@pytest.mark.parametrize(("method", "score"), [("pmf_fwd", "dot"), ("smmf_fwd", "additive")])
def test_values_that_are_not_finite_in_listed_rows(method, score, cuda, alone):
    graph = graphs.very_long_rows(cuda)
    check_not_finite(method, score, graph, 2, 64, torch.inf, torch.bfloat16)


def check_not_finite(
    method: str,
    score: str,
    graph: Csr,
    heads: int,
    head_dim: int,
    value: float,
    dtype: torch.dtype,
) -> None:
    operands = make_operands(score, graph, heads, head_dim, dtype)
    operands["v"][3, 0, 5] = operands["v"][7, 1, 63] = value
    out, _ = run(method, score, graph, operands)
    expected, _ = reference.attention(score, graph, operands)
    assert 0 < int((~expected.isfinite()).sum()) < expected.numel() / 8
    assert_near(out, expected, FORWARD_TOLERANCE[dtype], "out")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("method", "score"), METHODS_AND_SCORES)
def test_nodes_out_of_range(method, score, dtype, heads_by, device):
    """They make NaNs of their rows, and of nothing else."""
    graph = graphs.make("degrees_around_tiles", device)
    operands = make_operands(score, graph, *heads_by(graph, dtype), dtype)
    expected, _ = run(method, score, graph, operands)
    col = graph.col.clone()
    bad = torch.tensor([5, graph.num_edges - 1], device=device)
    col[bad] = torch.tensor([-1, graph.num_src], dtype=col.dtype, device=device)
    out, lse = run(method, score, Csr(graph.rowptr, col, graph.num_src), operands)
    is_bad = torch.zeros(graph.num_dst, dtype=torch.bool, device=device)
    is_bad[torch.searchsorted(graph.rowptr.long(), bad, right=True) - 1] = True
    assert out[is_bad].isnan().all()
    assert lse[is_bad].isnan().all()
    tolerance = 2 * FORWARD_TOLERANCE[dtype]
    assert_near(out[~is_bad], expected[~is_bad], tolerance, "out")


@pytest.mark.parametrize("name", ["hub", "super_node"])
@pytest.mark.parametrize("size", [1e-3, 1, 3e3])
def test_gradients_of_any_size_in_float16(size, name, heads_by, device):
    """Gradients of logits over 255 pass the range that weights have on tensor cores."""
    graph = graphs.make(name, device)
    operands = make_operands("dot", graph, *heads_by(graph, torch.float16), torch.float16)
    operands["k"] /= 64  # small gradients of q beside large ones of logits
    leaves = {k: t.requires_grad_() for k, t in operands.items()}
    out, _ = run("pmf_fwd", "dot", graph, leaves)
    grad_out = torch.sin(torch.arange(out.numel(), device=device)).view_as(out).half() * size
    exact = {k: t.detach().double().requires_grad_() for k, t in operands.items()}
    expected_out, _ = reference.attention("dot", graph, exact)
    found = torch.autograd.grad(out, tuple(leaves.values()), grad_out)
    expected = torch.autograd.grad(expected_out, tuple(exact.values()), grad_out.double())
    for operand, a, b in zip(operands, found, expected, strict=True):
        inside = b.abs() < 6e4
        tolerance = 4 * BACKWARD_TOLERANCE[torch.float16]
        assert_near(a[inside], b[inside], tolerance, f"gradient of {operand}", size / 10)
