"""Calls of the operators with the derivative of out (csrc/derivative.h): when autograd makes them
on CUDA, and what torch asks of them."""

from typing import Any

import graphs
import pytest
import reference
import torch
import torch.utils.checkpoint
from calls import (
    BACKWARD_TOLERANCE,
    DTYPES,
    assert_near,
    assert_same_bits,
    captured,
    check_backward,
    make_operands,
    projection,
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
