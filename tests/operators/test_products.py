"""sddmm and spmm against plain float64 torch, and what they promise beside numbers."""

import io

import graphs
import pytest
import torch
from calls import (
    DTYPES,
    FORWARD_TOLERANCE,
    HEAD_DIMS,
    SHAPES,
    assert_near,
    check_function,
    cpu_threads,
    normal,
)
from graphs import Csr
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

INDEX = pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
# Heads of (a, b) or (weight, x), where one serves all.
SHARED = [(1, 1), (3, 3), (3, 1), (1, 3)]
# What an spmm may be asked for.
SUMS = [{"transpose": t, "sum_heads": s} for t in (False, True) for s in (False, True)]


def sddmm(graph: Csr, a: Tensor, b: Tensor, csc: bool = True) -> Tensor:
    given = graph.csc() if csc else {}
    return torch.ops.dfgnn.sddmm(graph.rowptr, graph.col, a=a, b=b, **given)


def spmm(graph: Csr, weight: Tensor, x: Tensor, **options) -> Tensor:
    return torch.ops.dfgnn.spmm(
        graph.rowptr, graph.col, weight=weight, x=x, **graph.csc(), **options
    )


def expected_sddmm(graph: Csr, a: Tensor, b: Tensor) -> Tensor:
    products = (a.double()[graph.destinations()] * b.double()[graph.sources()]).sum(-1)
    return torch.nn.functional.pad(products, (0, 0, 0, graph.capacity - graph.num_edges))


def expected_spmm(
    graph: Csr, weight: Tensor, x: Tensor, transpose: bool = False, sum_heads: bool = False
) -> Tensor:
    into, of = graph.destinations(), graph.sources()
    rows = graph.num_dst
    if transpose:
        into, of, rows = of, into, graph.num_src
    messages = weight.double()[: graph.num_edges].unsqueeze(-1) * x.double()[of]
    y = messages.new_zeros(rows, *messages.shape[1:]).index_add(0, into, messages)
    return y.sum(1, keepdim=True) if sum_heads else y


def ends(graph: Csr, heads: tuple[int, int], head_dim: int, dtype=torch.float32):
    """Operands of an sddmm."""
    return (
        normal(graph, graph.num_dst, heads[0], head_dim, dtype=dtype),
        normal(graph, graph.num_src, heads[1], head_dim, dtype=dtype) + 0.5,
    )


def weights(
    graph: Csr, heads: tuple[int, int], head_dim: int, transpose=False, dtype=torch.float32
):
    """Operands of an spmm."""
    nodes = graph.num_dst if transpose else graph.num_src
    weight = normal(graph, graph.capacity, heads[0], dtype=dtype)
    weight[graph.num_edges :] = torch.nan  # no edges: never read
    return weight, normal(graph, nodes, heads[1], head_dim, dtype=dtype)


def check_sddmm(graph: Csr, operands: tuple[Tensor, Tensor], csc: bool = True) -> None:
    accumulate = torch.float64 if operands[0].dtype == torch.float64 else torch.float32
    check_function(
        lambda a, b: sddmm(graph, a, b, csc),
        lambda a, b: expected_sddmm(graph, a, b),
        operands,
        accumulate,
    )


def check_spmm(graph: Csr, operands: tuple[Tensor, Tensor], **options) -> None:
    check_function(
        lambda w, x: spmm(graph, w, x, **options),
        lambda w, x: expected_spmm(graph, w, x, **options),
        operands,
        operands[1].dtype,
    )


@INDEX
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_sddmm_graphs(name, index, device):
    graph = graphs.make(name, device, index)
    for heads in SHARED:
        check_sddmm(graph, ends(graph, heads, 8), csc=index == torch.int32)


@INDEX
@pytest.mark.parametrize("options", SUMS, ids=str)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_spmm_graphs(name, options, index, device):
    graph = graphs.make(name, device, index)
    for heads in SHARED[:3]:  # weight has as many heads as there are
        check_spmm(graph, weights(graph, heads, 8, options["transpose"]), **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
def test_shapes(heads, head_dim, dtype, device):
    graph = graphs.mixed(device)
    check_sddmm(graph, ends(graph, (heads, heads), head_dim, dtype))
    for options in SUMS:
        operands = weights(graph, (heads, heads), head_dim, options["transpose"], dtype)
        check_spmm(graph, operands, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(4, 16), (8, 16), (8, 32), (5, 64), (8, 128)], ids=str)
@pytest.mark.parametrize(
    "name", ["hub", "degrees_around_tiles", "empty_rows", "chain", "multigraph", "spare_capacity"]
)
def test_heads_side_by_side(name, shape, dtype, device):
    """Rows of one edge and of many, of heads that are whole vectors."""
    (heads, head_dim), graph = shape, graphs.make(name, device)
    check_sddmm(graph, ends(graph, (heads, heads), head_dim, dtype))
    for transpose in (False, True):
        operands = weights(graph, (heads, heads), head_dim, transpose, dtype)
        check_spmm(graph, operands, transpose=transpose)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "shape", [(1, 32), (1, 64), (1, 128), (1, 520), (3, 5), (4, 16), (8, 16), (8, 128)], ids=str
)
def test_long_rows(shape, dtype, device):
    """A warp takes a row, one head as well as several."""
    (heads, head_dim), graph = shape, graphs.rows_of_70(device)
    check_sddmm(graph, ends(graph, (heads, heads), head_dim, dtype))
    for transpose in (False, True):
        operands = weights(graph, (heads, heads), head_dim, transpose, dtype)
        check_spmm(graph, operands, transpose=transpose)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(1, 64), (2, 64), (4, 16)], ids=str)
@pytest.mark.parametrize("rows", [graphs.long_rows, graphs.very_long_rows])
def test_rows_from_a_counter(rows, shape, dtype, cuda):
    (heads, head_dim), graph = shape, rows(cuda)
    check_sddmm(graph, ends(graph, (heads, heads), head_dim, dtype))
    for transpose in (False, True):
        operands = weights(graph, (heads, heads), head_dim, transpose, dtype)
        check_spmm(graph, operands, transpose=transpose)
        first, second = (spmm(graph, *operands, transpose=transpose) for _ in range(2))
        assert torch.equal(first, second)


def check_not_finite(graph: Csr, weight: Tensor, x: Tensor) -> int:
    """Of sums as well where an edge, which is returned, then leads to no node."""
    wanted = expected_spmm(graph, weight, x)
    edge = graph.num_edges // 2
    wanted[graph.destinations()[edge]] = torch.nan
    graph.col[edge] = 1 << 30
    found = torch.ops.dfgnn.spmm(graph.rowptr, graph.col, weight=weight, x=x).double()
    assert 0 < wanted.isnan().sum() < wanted.numel()
    torch.testing.assert_close(found.isnan(), wanted.isnan())
    torch.testing.assert_close(found.isinf(), wanted.isinf())
    finite = wanted.isfinite()
    assert_near(found[finite], wanted[finite], FORWARD_TOLERANCE[x.dtype], "finite sums")
    return edge


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_not_finite(dtype, cuda):
    """What a feature that is not finite, or a node that is not there, does to its rows, and to no
    other number."""
    graph = graphs.very_long_rows(cuda)
    weight, x = weights(graph, (1, 1), 64, dtype=dtype)
    x[7, 0, 3], x[11, 0, 63] = torch.inf, torch.nan
    check_not_finite(graph, weight, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rows", "heads"), [(graphs.long_rows, 3), (graphs.rows_of_70, 65)])
def test_wide_heads_of_long_rows(rows, heads, dtype, cuda):
    """Which go one by one: what is no number, or no node, is so in its head's row, or its row's."""
    graph = rows(cuda)
    a, b = ends(graph, (heads, heads), 128, dtype)
    check_sddmm(graph, (a, b))
    weight, x = weights(graph, (heads, heads), 128, dtype=dtype)
    x[7, 1, 3], x[11, 2, 63] = torch.inf, torch.nan
    edge = check_not_finite(graph, weight, x)
    dots = torch.ops.dfgnn.sddmm(graph.rowptr, graph.col, a=a, b=b)
    assert dots.isnan().nonzero()[:, 0].unique().tolist() == [edge]
    assert dots[edge].isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("heads", SHARED[:3], ids=str)
def test_many_edges(heads, dtype, device):
    """Of which features that are no whole vectors are worth a copy."""
    graph = graphs.random(6000, 25, device)
    for options in SUMS:
        check_spmm(graph, weights(graph, heads, 5, options["transpose"], dtype), **options)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_shape(dtype, cuda):
    graph = graphs.mixed(cuda)
    for head_dim in HEAD_DIMS:
        for heads in SHARED[:3]:
            check_sddmm(graph, ends(graph, heads, head_dim, dtype))
            check_spmm(graph, weights(graph, heads, head_dim, False, dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_of_half_precision_may_be_float32(dtype, device):
    graph = graphs.mixed(device)
    weight, x = weights(graph, (2, 2), 8)
    check_spmm(graph, (weight, x.to(dtype)))


@pytest.mark.parametrize("name", ["mixed", "spare_capacity", "no_edges"])
def test_gradcheck(name, device):
    """First and second derivatives, which are made of the operators themselves."""
    graph = graphs.mixed(device) if name == "mixed" else graphs.make(name, device)

    def check_both(function, operands: tuple[Tensor, Tensor]) -> None:
        leaves = tuple(t.nan_to_num().requires_grad_() for t in operands)
        assert torch.autograd.gradcheck(function, leaves)
        assert torch.autograd.gradgradcheck(function, leaves)

    for heads in SHARED:
        operands = ends(graph, heads, 3, torch.float64)
        check_both(lambda a, b: sddmm(graph, a, b, csc=False), operands)
    for options in SUMS:
        for heads in SHARED[:3]:
            operands = weights(graph, heads, 3, options["transpose"], torch.float64)
            check_both(lambda w, x, options=options: spmm(graph, w, x, **options), operands)


def results(graph: Csr, dtype: torch.dtype) -> list[Tensor]:
    a, b = (t.requires_grad_() for t in ends(graph, (2, 2), 24, dtype))
    s = sddmm(graph, a, b)
    y = spmm(graph, s.tanh(), b)
    return [s, y, *torch.autograd.grad(y.float().sum(), (a, b))]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["hub", "star_of_sources", "degrees_around_tiles"])
def test_two_runs(name, dtype, device):
    graph = graphs.make(name, device)
    torch.testing.assert_close(results(graph, dtype), results(graph, dtype), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["super_node", "random"])
def test_any_number_of_threads(name):
    graph = graphs.random(2000, 12) if name == "random" else graphs.make(name)
    found = []
    for threads in (1, 2, 3, 7):
        with cpu_threads(threads):
            found.append(results(graph, torch.float32))
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=0, atol=0)


def test_strides(device):
    """Views mean what they show."""
    graph = graphs.mixed(device)
    a, b = ends(graph, (2, 2), 8)
    weight, x = weights(graph, (2, 2), 8)
    check_sddmm(graph, (a.transpose(0, 2).contiguous().transpose(0, 2), b[:1].expand_as(b)))
    check_spmm(graph, (weight.t().contiguous().t(), x[..., :1].expand_as(x)))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype, device):
    """Features are cast, weights are not."""
    graph = graphs.mixed(device)
    a, b = ends(graph, (2, 2), 8)
    with torch.autocast(device, dtype):
        s = sddmm(graph, a, b)
        y = spmm(graph, s, b)
    expected = sddmm(graph, a.to(dtype), b.to(dtype))
    torch.testing.assert_close(s, expected, rtol=0, atol=0)
    torch.testing.assert_close(y, spmm(graph, expected, b.to(dtype)), rtol=0, atol=0)
    assert (s.dtype, y.dtype) == (torch.float32, dtype)


def test_opcheck(device):
    graph = graphs.mixed(device)
    structure = {"rowptr": graph.rowptr, "col": graph.col}
    a, b = (t.requires_grad_() for t in ends(graph, (2, 2), 8))
    operator = torch.ops.dfgnn.sddmm.default
    torch.library.opcheck(operator, (), {**structure, "a": a, "b": b})
    torch.library.opcheck(operator, (), {**structure, "a": a, "b": b, **graph.csc()})
    for options in SUMS:
        operands = weights(graph, (2, 2), 8, options["transpose"])
        weight, x = (t.requires_grad_() for t in operands)
        arguments = {**structure, "weight": weight, "x": x, **graph.csc(), **options}
        torch.library.opcheck(torch.ops.dfgnn.spmm.default, (), arguments)


def propagate(rowptr: Tensor, col: Tensor, a: Tensor, b: Tensor):
    s = torch.ops.dfgnn.sddmm(rowptr, col, a=a, b=b)
    return torch.ops.dfgnn.spmm(rowptr, col, weight=s.tanh(), x=b)


def test_compile(device):
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(propagate, fullgraph=True, backend=counter)
    for nodes in (40, 50, 77):
        graph = graphs.random(nodes, 3, device)
        leaves = [t.requires_grad_() for t in ends(graph, (3, 3), 8)]
        for t in (graph.rowptr, graph.col, *leaves):
            torch._dynamo.mark_dynamic(t, 0)
        found, wanted = (f(graph.rowptr, graph.col, *leaves) for f in (compiled, propagate))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
        found, wanted = (torch.autograd.grad(y.sum(), leaves) for y in (found, wanted))
        torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert counter.frame_count == 1


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_torchscript(device):
    graph = graphs.mixed(device)
    leaves = [t.requires_grad_() for t in ends(graph, (2, 2), 8)]
    wanted = propagate(graph.rowptr, graph.col, *leaves)
    scripted = torch.jit.script(propagate)
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    for module in (scripted, torch.jit.load(buffer)):
        for _ in range(3):
            found = module(graph.rowptr, graph.col, *leaves)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)
            torch.autograd.grad(found.sum(), leaves)


@INDEX
@pytest.mark.parametrize("shape", [(2, 8), (1, 64), (4, 16), (5, 64)], ids=str)
@pytest.mark.parametrize("wrong", [-1, 150, 1 << 30])
@pytest.mark.parametrize(
    ("make", "edge", "row"), [(graphs.mixed, 20, 3), (graphs.rows_of_70, 75, 1)]
)
def test_col_out_of_range(make, edge, row, wrong, shape, index, device):
    """Its edge and its row are NaN, the others are what they were."""
    (heads, head_dim), graph = shape, make(device, index)
    a, b = ends(graph, (heads, heads), head_dim)
    weight, x = weights(graph, (heads, heads), head_dim)
    col = graph.col.clone()
    assert graph.rowptr[row] <= edge < graph.rowptr[row + 1]
    col[edge] = wrong
    pairs = []
    for c in (graph.col, col):
        structure = (graph.rowptr, c)
        pairs.append(torch.ops.dfgnn.sddmm(*structure, a=a, b=b))
        pairs.append(torch.ops.dfgnn.spmm(*structure, weight=weight, x=x))
    s, y, broken_s, broken_y = pairs
    s[edge] = torch.nan
    y[row] = torch.nan
    torch.testing.assert_close(broken_s, s, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(broken_y, y, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(1, 64), (8, 16), (3, 5)], ids=str)
def test_entries_before_the_first_row(shape, device):
    """Are no edges, as those behind the last."""
    (heads, head_dim), graph, before = shape, graphs.rows_of_70(device), 3000
    a, b = ends(graph, (heads, heads), head_dim)
    weight, x = weights(graph, (heads, heads), head_dim)
    rowptr = graph.rowptr + before
    col = torch.nn.functional.pad(graph.col, (before, 0), value=1 << 30)
    found = torch.ops.dfgnn.sddmm(rowptr, col, a=a, b=b)
    assert not found[:before].any()
    torch.testing.assert_close(found[before:], sddmm(graph, a, b), rtol=0, atol=0)
    after = torch.nn.functional.pad(weight, (0, 0, before, 0), value=torch.nan)
    found = torch.ops.dfgnn.spmm(rowptr, col, weight=after, x=x)
    torch.testing.assert_close(found, spmm(graph, weight, x), rtol=1e-4, atol=1e-4)


SDDMM_MISTAKES = {
    "a": [
        lambda t: torch.cat([t, t[:1]]),
        lambda t: t.flatten(1),
        lambda t: t.long(),
        lambda t: t[:, :0],
    ],
    "b": [
        lambda t: t.double(),
        lambda t: t[..., :3],
        lambda t: t.flatten(1),
        lambda t: t.repeat(1, 2, 1),
    ],
    "col": [lambda t: t.long(), lambda t: t.float(), lambda t: t.unsqueeze(0)],
    "rowptr": [lambda t: t[:0], lambda t: t.float()],
}
SPMM_MISTAKES = {
    "weight": [
        lambda t: t[1:],
        lambda t: t.flatten(),
        lambda t: t.double(),
        lambda t: t.half(),
        lambda t: t[:, :0],
    ],
    "x": [lambda t: t.flatten(1), lambda t: t.long(), lambda t: t.repeat(1, 2, 1)],
    "col": SDDMM_MISTAKES["col"],
    "rowptr": SDDMM_MISTAKES["rowptr"],
}
MISTAKES = [
    (op, name, mistake)
    for op, mistakes in (("sddmm", SDDMM_MISTAKES), ("spmm", SPMM_MISTAKES))
    for name, several in mistakes.items()
    for mistake in several
]


@pytest.mark.parametrize(("op", "name", "mistake"), MISTAKES)
def test_bad_input(op, name, mistake, device):
    graph = graphs.mixed(device)
    operands = (
        dict(zip("ab", ends(graph, (2, 2), 8), strict=True))
        if op == "sddmm"
        else dict(zip(("weight", "x"), weights(graph, (2, 2), 8), strict=True))
    )
    given = {"rowptr": graph.rowptr, "col": graph.col, **operands}
    given[name] = mistake(given[name])
    with pytest.raises(RuntimeError, match=rf"(?s)\b{name}: expected .*got "):
        getattr(torch.ops.dfgnn, op)(**given)


def test_no_heads_beside_one(device):
    graph = graphs.mixed(device)
    a, b = ends(graph, (1, 1), 8)
    with pytest.raises(RuntimeError, match=r"\bb: expected one head or as many as a \(1\), got "):
        torch.ops.dfgnn.sddmm(graph.rowptr, graph.col, a=a, b=b[:, :0])


def test_transpose_needs_the_csc(device):
    graph = graphs.mixed(device)
    weight, x = weights(graph, (2, 2), 8, transpose=True)
    with pytest.raises(RuntimeError, match=r"colptr, row, perm: expected all three .* got 0"):
        torch.ops.dfgnn.spmm(graph.rowptr, graph.col, weight=weight, x=x, transpose=True)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (8, 16), (1, 520), (3, 5)])
@pytest.mark.parametrize("sum_heads", [False, True])
@pytest.mark.parametrize("short_rows", [0, 400])  # long in the mean, or not
def test_rows_in_pieces(short_rows, sum_heads, heads, head_dim, dtype, device):
    graph = graphs.in_pieces(short_rows).to(device)
    check_sddmm(graph, ends(graph, (heads, heads), head_dim, dtype))
    operands = weights(graph, (heads, heads), head_dim, dtype=dtype)
    check_spmm(graph, operands, sum_heads=sum_heads)
    first, second = (spmm(graph, *operands, sum_heads=sum_heads) for _ in range(2))
    assert torch.equal(first, second)
