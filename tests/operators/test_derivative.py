"""Additive attention whose forward pass makes the derivative of out (csrc/derivative.h): kernels of
CUDA alone, which autograd takes where rows are long."""

from typing import Any

import graphs
import pytest
import reference
import torch
import torch.utils.checkpoint
from calls import (
    BACKWARD_TOLERANCE,
    DTYPES,
    FORWARD_TOLERANCE,
    assert_near,
    assert_same_bits,
    captured,
    check_backward,
    make_operands,
    run,
)
from fused_calls import FusedCalls
from graphs import Csr
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import (
    DimDynamic,
    ShapeEnv,
    StatelessSymbolicContext,
)

import pyg_dfgnn

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


def projection(out: Tensor) -> Tensor:
    generator = torch.Generator().manual_seed(out.numel())
    return (torch.randint(-8, 9, out.shape, generator=generator) / 4).to(out)


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


@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 64), (2, 128), (8, 16)])
@pytest.mark.parametrize("rows", [graphs.long_rows, graphs.very_long_rows])
def test_many_edges(rows, heads, head_dim, dtype, cuda, alone):
    """Units from counters and lists, and tensor cores."""
    graph = rows(cuda)
    check(graph, make_operands("additive", graph, heads, head_dim, dtype))


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


BY_DERIVATIVE = ["additive_derivative_fwd.default", "additive_derivative_bwd.default"]
AS_USUAL = ["attention.additive", "attention_bwd.additive"]


@pytest.fixture
def many_edges(cuda) -> Csr:
    """As many as autograd takes it for."""
    return graphs.random(4000, 80, cuda)


def gradients_of(
    graph: Csr, operands: dict[str, Tensor], but: tuple[str, ...] = (), **options: Any
) -> tuple[list[str], list[Tensor]]:
    """The names of what autograd calls, and the gradients of the operands that have some."""
    leaves = {k: t.detach().requires_grad_(k not in but) for k, t in operands.items()}
    with FusedCalls() as log:
        out, _ = torch.ops.dfgnn.attention.additive(graph.rowptr, graph.col, **leaves, **options)
        found = torch.autograd.grad(
            out, [t for t in leaves.values() if t.requires_grad], projection(out)
        )
    return log.names, list(found)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), [(1, 128), (8, 16), (3, 6)])
def test_autograd(heads, head_dim, dtype, many_edges, alone):
    graph, options = many_edges, {"hints": {"max_degree": 100}}
    operands = make_operands("additive", graph, heads, head_dim, dtype)
    with FusedCalls() as log:
        check_backward(
            "attention", "additive", graph, operands, csc=True, with_lse=False, **options
        )
    assert log.names == BY_DERIVATIVE
    with FusedCalls() as log:  # of lse, too
        check_backward("attention", "additive", graph, operands, csc=True, with_lse=True)
    assert log.names == [BY_DERIVATIVE[0], AS_USUAL[1]]


def test_when_autograd_takes_it(many_edges, alone):
    graph, csc = many_edges, many_edges.csc()
    operands = make_operands("additive", graph, 2, 64, edge_terms=True)
    few = {name: operands.pop(name) for name in ("a_edge", "bias")}
    for method, expected in {"auto": BY_DERIVATIVE, "pmf": AS_USUAL, "smmf": AS_USUAL}.items():
        assert gradients_of(graph, operands, **csc, method=method)[0] == expected
    for name, term in few.items():
        some = operands | {name: term}
        assert gradients_of(graph, some, **csc)[0] == AS_USUAL
        names, gradients = gradients_of(graph, some, but=(name,), **csc)
        assert names == BY_DERIVATIVE
        expected = gradients_of(graph, some, but=(name,), method="smmf")[1]
        for a, b in zip(gradients, expected, strict=True):
            assert_near(a, b, BACKWARD_TOLERANCE[torch.float32], name)
    assert gradients_of(graph, operands, but=("a_dst", "a_src"), **csc)[0] == BY_DERIVATIVE
    assert gradients_of(graph, operands)[0] == BY_DERIVATIVE  # by a CSC that it makes
    for shape, dtype in (
        ((2, 8), torch.float32),
        ((12, 16), torch.bfloat16),
        ((1, 600), torch.half),
    ):
        assert gradients_of(graph, make_operands("additive", graph, *shape, dtype))[0] == AS_USUAL
    for other in (graphs.random(20_000, 7, "cuda"), graphs.random(1000, 80, "cuda")):
        assert gradients_of(other, make_operands("additive", other, 2, 64))[0] == AS_USUAL
    with FusedCalls() as log, torch.no_grad():
        run("attention", "additive", graph, operands)
    assert log.names == AS_USUAL[:1]


def test_tiles(many_edges, alone):
    """It is taken where tiles are of no use."""
    dense = graphs.batch([100] * 60, 0.5).to("cuda")
    for csr, expected in ((many_edges, BY_DERIVATIVE), (dense, AS_USUAL)):
        edges = torch.stack([csr.sources(), csr.destinations()])
        graph = pyg_dfgnn.build_graph(edges, csr.num_src, csr.num_dst)
        assert graph.tiles is not None
        leaves = [t.requires_grad_() for t in make_operands("additive", csr, 1, 64).values()]
        with FusedCalls() as log:
            out = pyg_dfgnn.ops.additive_attention(*leaves, graph)
            torch.autograd.grad(out.sum(), leaves)
        assert log.names[-1] == expected[1]


def test_bad_calls(many_edges, alone):
    """What is wrong is said by what autograd calls, too."""
    graph, csc = many_edges, many_edges.csc()
    operands = make_operands("additive", graph, 2, 64)
    tiles, _ = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    for change, message in (
        ({"colptr": csc["colptr"]}, "colptr, row, perm: expected all three"),
        ({"perm": csc["perm"]}, "colptr, row, perm: expected all three"),
        (csc | {"row": csc["row"][1:]}, r"row: expected \[E\]"),
        ({"tiles": tiles.float()}, "tiles: expected"),
        ({"tiles": tiles[1:]}, "tiles: expected"),
    ):
        with pytest.raises(RuntimeError, match=message):
            gradients_of(graph, operands, **change)
    for name in ("a_dst", "a_src"):
        for wrong in (operands[name][0, 0], operands[name][1:]):
            with pytest.raises(RuntimeError, match=f"{name}: expected shape"):
                gradients_of(graph, operands | {name: wrong})


def test_autocast(many_edges, alone):
    operands = make_operands("additive", many_edges, 1, 64)
    leaves = [t.requires_grad_() for t in operands.values()]
    a_dst, a_src, v = leaves
    with FusedCalls() as log, torch.autocast("cuda", torch.bfloat16):
        out, _ = torch.ops.dfgnn.additive_attention(
            many_edges.rowptr, many_edges.col, a_dst, a_src, v
        )
        found = torch.autograd.grad(out, leaves, projection(out))
    assert log.names == BY_DERIVATIVE
    assert out.dtype == torch.bfloat16
    half = [a_dst, a_src, v.detach().bfloat16().requires_grad_()]
    out, _ = torch.ops.dfgnn.additive_attention(many_edges.rowptr, many_edges.col, *half)
    for a, b in zip(found, torch.autograd.grad(out, half, projection(out)), strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b.float())


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoint(use_reentrant, many_edges, alone):
    operands = make_operands("additive", many_edges, 1, 64)

    def call(*leaves: Tensor) -> Tensor:
        return torch.ops.dfgnn.additive_attention(
            many_edges.rowptr, many_edges.col, *leaves, dropout_p=0.3
        )[0]

    def gradients(function) -> list[Tensor]:
        torch.manual_seed(0)
        leaves = [t.detach().requires_grad_() for t in operands.values()]
        out = function(*leaves)
        (out * projection(out)).sum().backward()
        return [t.grad for t in leaves]

    def checkpointed(*leaves: Tensor) -> Tensor:
        return torch.utils.checkpoint.checkpoint(call, *leaves, use_reentrant=use_reentrant)

    assert_same_bits(gradients(checkpointed), gradients(call))


def test_export(cuda):
    """Sizes of an exported program are free, in training too."""
    graph = graphs.random(4000, 80, cuda)
    operands = make_operands("additive", graph, 2, 64)

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.ones(64, device=cuda))

        def forward(self, rowptr, col, a_dst, a_src, v):
            return torch.ops.dfgnn.additive_attention(
                rowptr, col, a_dst, a_src, v * self.scale, 0.2
            )[0]

    nodes, edges = torch.export.Dim("nodes", min=2), torch.export.Dim("edges", min=2)
    arguments = (graph.rowptr, graph.col, *operands.values())
    shapes = ({0: nodes + 1}, {0: edges}, {0: nodes}, {0: nodes}, {0: nodes})
    program = torch.export.export(Layer(), arguments, dynamic_shapes=shapes)
    few = graphs.random(30, 5, cuda)
    for some in (graph, few):
        given = (some.rowptr, some.col, *make_operands("additive", some, 2, 64).values())
        torch.testing.assert_close(program.module()(*given), Layer()(*given))


def test_second_derivatives(many_edges, alone):
    operands = make_operands("additive", many_edges, 1, 8, torch.float64)
    leaves = {name: t.requires_grad_() for name, t in operands.items()}

    def second(out: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(out.square().sum(), leaves["a_dst"], create_graph=True)
        return torch.autograd.grad(first[0].square().sum(), list(leaves.values()))

    out, _ = run("attention", "additive", many_edges, leaves)
    wanted, _ = reference.attention("additive", many_edges, leaves)
    for name, a, b in zip(leaves, second(out), second(wanted), strict=True):
        assert_near(a, b, 1e-9, name)


@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.5}], ids=["plain", "dropout"])
def test_opcheck(options, cuda):
    graph = graphs.mixed(cuda)
    operands = make_operands("additive", graph, 2, 16, edge_terms=True)
    if options:
        options = options | {"seed": torch.tensor([3], device=cuda)}
    given = {"rowptr": graph.rowptr, "col": graph.col}
    results = forward(**given, **operands, **options)
    torch.library.opcheck(forward, (), given | operands | options)
    names = ("grad_out", "out", "lse", "derivative")
    saved = dict(zip(names, (torch.ones_like(results[0]), *results), strict=True))
    torch.library.opcheck(backward, (), saved | given | graph.csc() | operands | options)


@pytest.mark.parametrize("dynamic", [False, True])
def test_compile(dynamic, many_edges, alone):
    torch._dynamo.reset()
    graph = many_edges
    csc = graph.csc()

    def gradients(rowptr, col, csc, a_dst, a_src, v):
        out, _ = torch.ops.dfgnn.attention.additive(
            rowptr, col, a_dst=a_dst, a_src=a_src, v=v, **csc
        )
        return (out * out.detach().sin()).sum()

    compiled = torch.compile(gradients, fullgraph=True, dynamic=dynamic)
    operands = make_operands("additive", graph, 2, 64)
    found, expected = ([t.requires_grad_() for t in operands.values()] for _ in range(2))
    a = torch.autograd.grad(compiled(graph.rowptr, graph.col, csc, *found), found)
    b = torch.autograd.grad(gradients(graph.rowptr, graph.col, csc, *expected), expected)
    if not dynamic:  # else as usual
        assert_same_bits(a, b)
    for x, y in zip(a, b, strict=True):
        assert_near(x, y, BACKWARD_TOLERANCE[torch.float32], "gradient")
    few = graphs.random(4000, 8, "cuda")
    leaves = [t.requires_grad_() for t in make_operands("additive", few, 2, 64).values()]
    a = torch.autograd.grad(compiled(few.rowptr, few.col, few.csc(), *leaves), leaves)
    b = torch.autograd.grad(gradients(few.rowptr, few.col, few.csc(), *leaves), leaves)
    assert_same_bits(a, b)
    torch._dynamo.reset()


def test_cuda_graph(many_edges, alone):
    graph, csc = many_edges, many_edges.csc()
    operands = make_operands("additive", graph, 8, 16)
    grad_out = projection(operands["v"])

    def step() -> tuple[Tensor, ...]:
        leaves = {k: t.detach().requires_grad_() for k, t in operands.items()}
        out, _ = torch.ops.dfgnn.attention.additive(graph.rowptr, graph.col, **leaves, **csc)
        return torch.autograd.grad(out, list(leaves.values()), grad_out)

    with FusedCalls() as log:
        expected = step()
    assert log.names == BY_DERIVATIVE
    cuda_graph, found = captured(step)
    for t in found:
        t.zero_()
    cuda_graph.replay()
    assert_same_bits(found, expected)


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
    operands = make_operands("additive", graph, 210, 64, dtype)
    _, (grad_a_dst, grad_a_src, grad_v) = both_passes(graph, operands)
    assert not grad_a_dst.any()
    assert not grad_a_src.any()
    assert grad_v.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("slope", [-0.5, 40.0])
def test_any_slope_on_tensor_cores(slope, dtype, cuda, alone):
    graph = graphs.long_rows(cuda)
    operands = make_operands("additive", graph, 3, 64, dtype)
    operands["a_dst"] *= 0.1
    operands["a_src"] *= 0.1
    seed = torch.tensor([3], device=cuda)
    check(graph, operands, negative_slope=slope, dropout_p=0.2, seed=seed)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("derivative", lambda t: t[1:]), "derivative: expected shape"),
        (("derivative", lambda t: t.double()), "derivative: expected"),
        (("derivative", lambda t: t.cpu()), "derivative: expected"),
        (("grad_out", lambda t: t[:, :1]), "grad_out: expected shape"),
        (("lse", lambda t: t[1:]), "lse: expected shape"),
    ],
)
def test_refused(change, message, cuda):
    graph = graphs.mixed(cuda)
    operands = make_operands("additive", graph, 2, 16)
    results = forward(graph.rowptr, graph.col, **operands)
    names = ("grad_out", "out", "lse", "derivative")
    saved = dict(zip(names, (torch.ones_like(results[0]), *results), strict=True))
    name, made = change
    saved[name] = made(saved[name])
    with pytest.raises(RuntimeError, match=message):
        backward(**saved, rowptr=graph.rowptr, col=graph.col, **graph.csc(), **operands)


def test_heads_that_have_no_kernels(cuda):
    graph = graphs.mixed(cuda)
    for heads, head_dim in ((40, 4), (1, 600)):
        with pytest.raises(RuntimeError, match="v: expected heads whose rows fit"):
            forward(graph.rowptr, graph.col, **make_operands("additive", graph, heads, head_dim))


def test_sizes_of_graphs_stay_symbols():
    """What compiled code sees of them."""
    csr = graphs.mixed()
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def fake(t: Tensor) -> Tensor:
        sizes = [DimDynamic.DYNAMIC, *[DimDynamic.STATIC] * (t.dim() - 1)]
        return mode.from_tensor(t, symbolic_context=StatelessSymbolicContext(sizes))

    operands = {k: fake(t) for k, t in make_operands("additive", csr, 8, 16).items()}
    given = {k: fake(t) for k, t in (csr.csc() | {"rowptr": csr.rowptr, "col": csr.col}).items()}
    with mode:
        results = forward(given["rowptr"], given["col"], **operands)
        gradients = backward(results[0], *results, **given, **operands)
    for found in (*results, *gradients):
        assert isinstance(found.shape[0], torch.SymInt)
    for a, b in zip(gradients, operands.values(), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
