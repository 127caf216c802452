"""Kernels of CUDA for additive attention whose forward pass makes the derivative of out
(csrc/derivative.h); test_derivative_calls.py has who calls them."""

import math
from typing import Any

import graphs
import pytest
import reference
import torch
from calls import (
    BACKWARD_TOLERANCE,
    DTYPES,
    FORWARD_TOLERANCE,
    assert_near,
    assert_same_bits,
    make_operands,
    projection,
    run,
)
from graphs import Csr
from torch import Tensor

forward = torch.ops.dfgnn.additive_derivative_fwd
backward = torch.ops.dfgnn.additive_derivative_bwd

# One head at a time, as vectors, on tensor cores and number by number, and several side by side.
SHAPES = (
    *((1, 8), (1, 64), (3, 128), (1, 256), (2, 100), (1, 17)),
    *((8, 16), (5, 16), (12, 16), (8, 8), (4, 8), (4, 16), (2, 32), (4, 32), (2, 64)),
)


def takes(heads: int, head_dim: int, dtype: torch.dtype) -> bool:
    """Whether there are kernels: of float64 for heads up to 128; for up to 8 heads side by side."""
    if dtype == torch.float64:
        return head_dim <= 128
    return not (heads == 12 and dtype.itemsize == 2)


def both_passes(
    graph: Csr, operands: dict[str, Tensor], grad_out: Tensor | None = None, **options: Any
) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """(out, lse, derivative) and the gradients of a_dst, a_src and v."""
    results = forward(graph.rowptr, graph.col, **operands, **options)
    options.pop("max_degree", None)
    grad_out = projection(results[0]) if grad_out is None else grad_out
    given = {"rowptr": graph.rowptr, "col": graph.col} | graph.csc()
    return results, backward(grad_out, *results, **given, **operands, **options)


def check(graph: Csr, operands: dict[str, Tensor], **options: Any) -> None:
    """All results beside the reference's."""
    dtype = operands["v"].dtype
    (out, lse, derivative), found = both_passes(graph, operands, **options)
    options.pop("max_degree", None)
    exact = {name: t.double() for name, t in operands.items()}

    def of_a_dst(a_dst: Tensor) -> Tensor:
        return reference.attention("additive", graph, exact | {"a_dst": a_dst}, **options)[0]

    a_dst = exact["a_dst"]
    _, expected = torch.func.jvp(of_a_dst, (a_dst,), (torch.ones_like(a_dst),))
    assert derivative.dtype == dtype
    assert_near(derivative, expected, BACKWARD_TOLERANCE[dtype], "derivative")
    leaves = {name: t.requires_grad_() for name, t in exact.items()}
    wanted, wanted_lse = reference.attention("additive", graph, leaves, **options)
    assert_near(out, wanted, FORWARD_TOLERANCE[dtype], "out")
    number = torch.float64 if dtype == torch.float64 else torch.float32
    assert_near(lse, wanted_lse, FORWARD_TOLERANCE[number], "lse")
    names = ("a_dst", "a_src", "v")
    # What is added up: of logits, products of as many numbers as a head has.
    of_logits = 0.1 * operands["v"].size(-1) ** 0.5
    expected = torch.autograd.grad(
        (wanted * projection(out)).sum(), [leaves[name] for name in names], materialize_grads=True
    )
    for name, gradient, of_reference in zip(names, found, expected, strict=True):
        assert gradient.dtype == operands[name].dtype
        terms = 0.1 if name == "v" else of_logits
        what = f"gradient of {name}"
        assert_near(gradient, of_reference, BACKWARD_TOLERANCE[dtype], what, terms)


def with_all(graph: Csr, heads: int, head_dim: int, dtype: torch.dtype, **options: Any) -> None:
    """With all that edges can have, and without."""
    check(graph, make_operands("additive", graph, heads, head_dim, dtype), **options)
    seed = torch.tensor([3], device=graph.col.device)
    operands = make_operands("additive", graph, heads, head_dim, dtype, edge_terms=True)
    check(graph, operands, dropout_p=0.2, seed=seed, **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_any_graph(name, heads, head_dim, dtype, cuda):
    if not takes(heads, head_dim, dtype):
        pytest.skip("no such kernel")
    with_all(graphs.make(name, cuda), heads, head_dim, dtype)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
def test_long_rows(heads, head_dim, dtype, index, cuda):
    if not takes(heads, head_dim, dtype):
        pytest.skip("no such kernel")
    with_all(graphs.rows_of_70(cuda, index), heads, head_dim, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("step", [0.1, 0.3, 1.0, -math.inf])
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (8, 16), (3, 20)])
def test_rising_logits(heads, head_dim, step, dtype, cuda):
    """From batch to batch by less than the largest may rise before it is replaced, and by more."""
    if not takes(heads, head_dim, dtype):
        pytest.skip("no such kernel")
    graph = graphs.rows_of_70(cuda)
    operands = make_operands("additive", graph, heads, head_dim, dtype, edge_terms=True)
    operands["bias"] += graphs.rises(graph, step).unsqueeze(1)
    check(graph, operands)


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (2, 128), (8, 16)])
@pytest.mark.parametrize("rows", [graphs.long_rows, graphs.very_long_rows])
def test_many_edges(rows, heads, head_dim, dtype, cuda, alone):
    """Units from counters and lists, and tensor cores."""
    with_all(rows(cuda), heads, head_dim, dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (1, 30), (2, 100), (8, 16)])
def test_pieces(heads, head_dim, dtype, cuda):
    """Two to eight are added up by a warp, more by a block."""
    degrees = [1, 33, 31, 64, 2, 65, 32, 100, 0, 255, 256, 257, 5, 300, 3, 1500, 7, 96] * 4
    graph = graphs.from_degrees([*degrees, *[4] * 3000], 150).to(cuda)
    with_all(graph, heads, head_dim, dtype, max_degree=1500)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("slope", [0.0, 1.0, -0.5, 40.0])
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (8, 16)])
def test_any_slope(heads, head_dim, slope, dtype, cuda):
    graph = graphs.rows_of_70(cuda)
    operands = make_operands("additive", graph, heads, head_dim, dtype)
    operands["a_dst"] *= 0.1
    operands["a_src"] *= 0.1
    check(graph, operands, negative_slope=slope)


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (8, 16)])
def test_scores_of_one_sign_have_no_derivative(heads, head_dim, dtype, sign, cuda):
    """A softmax does not see what all of its logits have in common, whatever roundings say."""
    graph = graphs.long_rows(cuda)
    operands = make_operands("additive", graph, heads, head_dim, dtype)
    operands["a_src"] = sign * operands["a_src"].abs()
    operands["a_dst"] = sign * operands["a_dst"].abs()
    (_, _, derivative), (grad_a_dst, _, _) = both_passes(graph, operands)
    assert not derivative.any()
    assert not grad_a_dst.any()


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (8, 16)])
def test_rows_of_one_edge(heads, head_dim, dtype, cuda):
    """Their weights are constants: no gradient of a logit, whatever roundings say."""
    graph = graphs.from_degrees([1] * 5000, 40).to(cuda)
    operands = make_operands("additive", graph, heads, head_dim, dtype)
    _, (grad_a_dst, grad_a_src, grad_v) = both_passes(graph, operands)
    assert not grad_a_dst.any()
    assert not grad_a_src.any()
    assert grad_v.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (8, 16)])
def test_what_is_not_finite(heads, head_dim, dtype, cuda, alone):
    """It makes no NaN of rows and columns that have no part in it."""
    graph = graphs.very_long_rows(cuda)
    operands = make_operands("additive", graph, heads, head_dim, dtype)
    before, of_before = both_passes(graph, operands)
    grad_out = projection(before[0])
    row = 11
    grad_out[row, 0, 3] = torch.nan
    found, of_found = both_passes(graph, operands, grad_out)
    assert_same_bits(found, before)
    sources = graph.sources()[graph.destinations() == row].unique()
    assert of_found[0][row, 0].isnan()
    assert of_found[2][sources, 0, 3].isnan().all()
    for a, b, touched in zip(of_found, of_before, ([row], sources, sources), strict=True):
        rest = torch.ones(len(a), dtype=torch.bool, device=cuda)
        rest[touched] = False
        assert_near(a[rest], b[rest], BACKWARD_TOLERANCE[dtype], "gradient")

    operands["v"][7, 0, 5] = torch.inf
    found, _ = both_passes(graph, operands)
    rows = graph.destinations()[graph.sources() == 7].unique()
    assert found[0][rows, 0, 5].isinf().all()
    finite = found[0].isfinite()
    assert int((~finite).sum()) == len(rows)
    assert_near(found[0][finite], before[0][finite], FORWARD_TOLERANCE[dtype], "out")
    finite = found[2].isfinite()
    assert int((~finite).sum()) == len(rows)
    assert_near(found[2][finite], before[2][finite], BACKWARD_TOLERANCE[dtype], "derivative")


@pytest.mark.parametrize("wrong", [-1, 1 << 30], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (8, 16)])
def test_nodes_out_of_range(heads, head_dim, dtype, wrong, cuda):
    """They make NaNs of their rows and columns, and of no other."""
    graph = graphs.rows_of_70(cuda)
    operands = make_operands("additive", graph, heads, head_dim, dtype)
    before, _ = both_passes(graph, operands)
    csc = graph.csc()
    graph.col[75] = wrong
    found = forward(graph.rowptr, graph.col, **operands)
    for a, b in zip(found, before, strict=True):
        assert a[1].isnan().all()
        rest = torch.arange(len(a), device=cuda) != 1
        assert torch.equal(a[rest], b[rest])
    csc["row"][5] = wrong
    grad_out = projection(before[0])
    given = {"rowptr": graph.rowptr, "col": graph.col} | csc
    for gradient in backward(grad_out, *before, **given, **operands):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (8, 16)])
def test_same_bits(heads, head_dim, dtype, cuda, alone):
    """Every time, and those of the forward pass without the derivative."""
    graph = graphs.very_long_rows(cuda)
    operands = make_operands("additive", graph, heads, head_dim, dtype)
    results, expected = both_passes(graph, operands)
    assert_same_bits(results[:2], run("smmf_fwd", "additive", graph, operands))
    for _ in range(3):
        assert_same_bits(both_passes(graph, operands)[1], expected)


@pytest.mark.parametrize("heads", [1, 4])
def test_gradcheck(heads, cuda):
    """In float64, of the kernels as autograd calls them."""
    graph = graphs.rows_of_70(cuda)
    operands = make_operands("additive", graph, heads, 3, torch.float64)
    leaves = [t.requires_grad_() for t in operands.values()]

    class Both(torch.autograd.Function):
        @staticmethod
        def forward(ctx, *leaves):
            results = forward(graph.rowptr, graph.col, **dict(zip(operands, leaves, strict=True)))
            ctx.save_for_backward(*results, *leaves)
            return results[0]

        @staticmethod
        def backward(ctx, grad_out):
            *results, a_dst, a_src, v = ctx.saved_tensors
            given = {"rowptr": graph.rowptr, "col": graph.col} | graph.csc()
            return backward(grad_out, *results, **given, a_dst=a_dst, a_src=a_src, v=v)

    assert torch.autograd.gradcheck(Both.apply, leaves, fast_mode=True, nondet_tol=0.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (8, 16)])
def test_a_bias_of_minus_infinity_is_no_edge(heads, head_dim, dtype, cuda):
    """Neither one alone, nor a row's first batch, nor all that a row has."""
    graph = graphs.rows_of_70(cuda)
    operands = make_operands("additive", graph, heads, head_dim, dtype, edge_terms=True)
    is_edge = torch.ones(graph.num_edges, dtype=torch.bool, device=cuda)
    is_edge[0] = is_edge[70:110] = is_edge[140:210] = False
    rest = {k: t[is_edge] if len(t) == len(is_edge) else t for k, t in operands.items()}
    operands["bias"][~is_edge] = -torch.inf
    found, expected = both_passes(graph, operands), both_passes(graph.only(is_edge), rest)
    for a, b in zip((*found[0], *found[1]), (*expected[0], *expected[1]), strict=True):
        assert_near(a, b, BACKWARD_TOLERANCE[dtype], "result")


@pytest.mark.parametrize("name", graphs.BROKEN_ROWPTRS)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (8, 16)])
def test_pointers_to_no_entries(heads, head_dim, name, cuda):
    """They read nothing that is not theirs."""
    broken = torch.tensor(graphs.BROKEN_ROWPTRS[name], dtype=torch.int32, device=cuda)
    graph = graphs.from_degrees([2, 2, 2, 2], 4).to(cuda)
    operands = make_operands("additive", graph, heads, head_dim)
    csc = graph.csc()
    results = forward(graph.rowptr, graph.col, **operands)
    forward(broken, graph.col, **operands)
    given = {"col": graph.col} | csc
    for pointers in (
        {"rowptr": broken},
        {"rowptr": graph.rowptr, "colptr": broken},
        {"rowptr": graph.rowptr, "perm": csc["perm"] + (1 << 29)},
    ):
        some = operands | {"a_edge": torch.zeros(8, heads, device=cuda)}
        backward(projection(results[0]), *results, **given | pointers, **some)
    torch.cuda.synchronize()


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (8, 16)])
def test_views(heads, head_dim, cuda):
    """Of any strides, that begin anywhere."""
    graph = graphs.rows_of_70(cuda)
    operands = make_operands("additive", graph, heads, head_dim)
    results, expected = both_passes(graph, operands)

    def view(t: Tensor) -> Tensor:
        wide = t.new_empty(t.size(0), t[0].numel() + 1)[:, 1:].view_as(t)
        return wide.copy_(t)

    def shifted(t: Tensor) -> Tensor:
        return t.new_empty(t.numel() + 1)[1:].view_as(t).copy_(t)

    given = {"rowptr": graph.rowptr, "col": graph.col} | graph.csc()
    for change in (view, shifted):
        some = {k: change(t) for k, t in operands.items()}
        assert_same_bits(forward(graph.rowptr, graph.col, **some), results)
        saved = [change(t) for t in (projection(results[0]), *results)]
        assert_same_bits(backward(*saved, **given, **some), expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_rows_of_one_edge_on_tensor_cores(dtype, cuda, alone):
    graph = graphs.from_degrees([1] * 5000, 40).to(cuda)
    operands = make_operands("additive", graph, 210, 128, dtype)
    _, (grad_a_dst, grad_a_src, grad_v) = both_passes(graph, operands)
    assert not grad_a_dst.any()
    assert not grad_a_src.any()
    assert grad_v.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("slope", [-0.5, 40.0])
def test_any_slope_on_tensor_cores(slope, dtype, cuda, alone):
    graph = graphs.long_rows(cuda)
    operands = make_operands("additive", graph, 3, 128, dtype)
    operands["a_dst"] *= 0.1
    operands["a_src"] *= 0.1
    seed = torch.tensor([3], device=cuda)
    check(graph, operands, negative_slope=slope, dropout_p=0.2, seed=seed)
