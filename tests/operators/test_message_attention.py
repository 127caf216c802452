"""Attention over messages x_j + W f_e, against plain float64 torch."""

import graphs
import pytest
import torch
from calls import DTYPES, captured, check_function, graph_of
from graphs import Csr
from messages import NAMES, call, check, expected, operands_of
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from torch.utils._python_dispatch import TorchDispatchMode

from pyg_dfgnn import ops

# Heads, head size and features of an edge. On CUDA the first ones have no kernels, and the others
# heads of four lanes to a warp's, groups of 8 to 32 lanes, two vectors a lane, features of all of a
# head's lanes or of some of them, more than these take, in one to four pieces.
SHAPES = [
    (1, 1, 1), (3, 5, 2), (2, 16, 130), (8, 64, 8), (3, 24, 4), (2, 256, 4),
    (1, 16, 8), (2, 16, 3), (3, 16, 1), (4, 16, 8), (8, 16, 8), (5, 16, 5), (1, 32, 16), (2, 32, 8),
    (1, 64, 9), (4, 32, 8), (8, 32, 8), (3, 64, 17), (4, 64, 4), (1, 128, 64), (2, 128, 8),
    (8, 8, 3), (4, 8, 4), (16, 16, 8), (8, 8, 64), (1, 8, 5), (3, 8, 40),
    (2, 16, 12), (4, 16, 33), (8, 16, 64), (1, 32, 40), (5, 16, 24), (2, 32, 128), (1, 64, 100),
    (8, 64, 72), (70, 4, 3), (8, 32, 39), (4, 64, 36), (3, 64, 128), (1, 128, 90), (8, 16, 128),
    (3, 16, 97), (16, 16, 20),
]  # fmt: skip
MANY_EDGES = {"long_rows": graphs.long_rows, "rows_of_70": graphs.rows_of_70}


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_graphs(name, device):
    csr = graphs.make(name, device)
    for shape in ((3, 4, 5), (4, 16, 4), (8, 16, 8), (4, 16, 30)):
        check(csr, operands_of(csr, *shape))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(shape, dtype, device):
    csr = graphs.mixed(device)
    check(csr, operands_of(csr, *shape, dtype))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_many_nodes(index, device):
    """More than W meets at a time, and of a W that makes no matrix."""
    csr = graphs.random(5000, 8, device, index)
    for shape in ((8, 16, 8), (8, 16, 5), (8, 32, 16), (2, 128, 64)):
        check(csr, operands_of(csr, *shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", MANY_EDGES)
def test_rows_in_pieces_and_from_counters(name, dtype, cuda):
    csr = MANY_EDGES[name](cuda)
    for shape in ((1, 64, 8), (8, 16, 8), (2, 16, 3), (4, 64, 4), (8, 16, 64), (4, 32, 24)):
        check(csr, operands_of(csr, *shape, dtype))


@pytest.mark.parametrize("shape", [(2, 16, 3), (8, 8, 64)], ids=str)
def test_listed_rows(shape, cuda, alone):
    csr = graphs.very_long_rows(cuda)
    check(csr, operands_of(csr, *shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("dropout_p", [0.3, 1.0])
@pytest.mark.parametrize("shape", [(2, 5, 3), (3, 16, 4), (4, 64, 4), (2, 16, 20)], ids=str)
def test_dropout(shape, dropout_p, dtype, device):
    """As dropout_mask has it, in the backward pass too."""
    csr = graphs.mixed(device)
    seed = torch.tensor([1234567890123], device=device)
    mask = torch.ops.dfgnn.dropout_mask(seed, csr.capacity, shape[0], dropout_p)
    kept = mask[: csr.num_edges].double() * (1 / (1 - dropout_p) if dropout_p < 1 else 0)
    operands, graph = operands_of(csr, *shape, dtype), graph_of(csr)

    def found(*t):
        return torch.ops.dfgnn.message_attention(
            graph.rowptr, graph.col, eid=graph.eid, **dict(zip(NAMES, t, strict=True)),
            dropout_p=dropout_p, seed=seed, colptr=graph.colptr, row=graph.row, perm=graph.perm,
        )  # fmt: skip

    def wanted(*t):
        return expected(csr, dict(zip(NAMES, t, strict=True)), kept=kept.to(t[0].dtype))

    check_function(found, wanted, list(operands.values()), dtype)


def test_another_mask_each_time(device):
    csr = graphs.random(50, 8, device)
    operands = operands_of(csr, 2, 16, 4)
    first, second = (call(csr, operands, dropout_p=0.5) for _ in range(2))
    assert not torch.equal(first, second)


@pytest.mark.parametrize("scale", [0.0, 2.5, -1.0])
def test_scale(scale, device):
    csr = graphs.mixed(device)
    for shape in ((2, 5, 3), (4, 16, 4), (4, 16, 40)):
        check(csr, operands_of(csr, *shape), scale=scale)


@pytest.mark.parametrize("shape", [(1, 3, 2), (2, 8, 3), (1, 8, 7), (2, 8, 12)], ids=str)
@pytest.mark.parametrize("dropout_p", [0.0, 0.4])
def test_gradcheck(shape, dropout_p, device):
    csr = graphs.mixed(device)
    graph = graph_of(csr)
    leaves = [t.requires_grad_() for t in operands_of(csr, *shape, torch.float64).values()]
    seed = torch.tensor([7], device=device)

    def function(*t):
        return torch.ops.dfgnn.message_attention(
            graph.rowptr, graph.col, eid=graph.eid, **dict(zip(NAMES, t, strict=True)),
            dropout_p=dropout_p, seed=seed, colptr=graph.colptr, row=graph.row, perm=graph.perm,
        )  # fmt: skip

    assert torch.autograd.gradcheck(function, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 16, 3), (4, 16, 21)], ids=str)
def test_gradients_of_some(shape, device):
    """Whatever else needs them, and whether or not these are to have gradients of their own."""
    csr = graphs.mixed(device)
    operands = operands_of(csr, *shape)
    leaves = {k: t.clone().requires_grad_() for k, t in operands.items()}
    given = torch.randn_like(call(csr, operands))
    wanted = torch.autograd.grad(call(csr, leaves), list(leaves.values()), given)
    for (name, leaf), gradient in zip(leaves.items(), wanted, strict=True):
        y = call(csr, operands | {name: leaf})
        (found,) = torch.autograd.grad(y, leaf, given, retain_graph=True)
        torch.testing.assert_close(found, gradient, rtol=0, atol=0)
        (found,) = torch.autograd.grad(y, leaf, given, create_graph=True)
        torch.testing.assert_close(found, gradient, rtol=1e-4, atol=1e-4)
    assert not call(csr, operands).requires_grad


@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 16, 4), (4, 16, 20)], ids=str)
def test_strides_and_offsets(shape, device):
    csr = graphs.mixed(device)
    operands = operands_of(csr, *shape)
    strided = {k: torch.stack([t, t], -1)[..., 0] for k, t in operands.items()}
    shifted = {
        k: torch.cat([t.new_zeros(1), t.flatten()])[1:].view_as(t) for k, t in operands.items()
    }
    wanted = call(csr, operands)
    for others in (strided, shifted):
        torch.testing.assert_close(call(csr, others), wanted, rtol=0, atol=0)
        check(csr, others)


def test_without_csc(device):
    csr = graphs.mixed(device)
    graph = graph_of(csr)._replace(colptr=None, row=None, perm=None)
    leaves = {k: t.requires_grad_() for k, t in operands_of(csr, 4, 16, 4).items()}
    found = torch.autograd.grad(
        ops.message_attention(**leaves, graph=graph).sum(), list(leaves.values())
    )
    wanted = torch.autograd.grad(call(csr, leaves).sum(), list(leaves.values()))
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 16, 4), (4, 16, 20)], ids=str)
def test_where_nothing_is_recorded(shape, device):
    csr = graphs.mixed(device)
    operands = operands_of(csr, *shape)
    wanted = call(csr, operands)
    with torch.inference_mode():
        torch.testing.assert_close(call(csr, operands), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("shape", [(3, 8, 4), (8, 16, 8), (2, 16, 4), (8, 16, 64)], ids=str)
@pytest.mark.parametrize("name", ["hub", "degrees_around_tiles"])
def test_same_bits_in_every_run(name, shape, device):
    csr = graphs.make(name, device)
    operands = operands_of(csr, *shape)

    def run() -> list[Tensor]:
        leaves = {k: t.detach().requires_grad_() for k, t in operands.items()}
        y = call(csr, leaves)
        return [y.detach(), *torch.autograd.grad(y.sum(), list(leaves.values()))]

    first = run()
    for _ in range(3):
        torch.testing.assert_close(run(), first, rtol=0, atol=0, equal_nan=True)


def very_long_rows_to_few(device: str) -> Csr:
    """Rows that the CPU takes in pieces."""
    return graphs.from_degrees([5000, 3, 0, 2, 4100], 60).to(device)


@pytest.mark.parametrize("shape", [(2, 4, 3), (8, 16, 8), (2, 16, 4), (8, 16, 64)], ids=str)
@pytest.mark.parametrize("make", [graphs.mixed, graphs.rows_of_70, very_long_rows_to_few])
def test_edges_out_of_range(make, shape, device):
    """NaN for the destination of an edge whose node or features are not there."""
    csr = make(device)
    operands, edge = operands_of(csr, *shape), 20
    graph, wanted = graph_of(csr), call(csr, operands)
    wanted[csr.destinations()[edge]] = torch.nan
    for field in ("col", "eid"):
        for wrong in (-1, 1 << 30):
            index = getattr(graph, field).clone()
            index[edge] = wrong
            features = operands["features"].detach().requires_grad_()
            found = ops.message_attention(
                **operands | {"features": features}, graph=graph._replace(**{field: index})
            )
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
            (gradient,) = torch.autograd.grad(found.nan_to_num().sum(), features)
            if field == "eid":
                assert (gradient[graph.eid[edge]] == 0).all()


@pytest.mark.parametrize("shape", [(2, 5, 3), (4, 16, 4), (4, 16, 20), (8, 16, 64)], ids=str)
def test_infinite_values_stay_where_they_are(shape, device):
    """What a weight other than 0 is of: no NaN, and in no other feature or row."""
    csr = graphs.mixed(device)
    operands = operands_of(csr, *shape)
    wanted, into = call(csr, operands), csr.destinations()
    v = operands["v"].clone()
    v[csr.col[csr.num_edges - 1], 0, 0] = torch.inf
    wanted[into[csr.col[: csr.num_edges] == csr.col[csr.num_edges - 1]], 0, 0] = torch.inf
    found = call(csr, operands | {"v": v})
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("factor", [0.0, 1e4], ids=["equal", "large"])
def test_extreme_logits(factor, dtype, device):
    """All the same, and so far apart that one edge has all of the weight."""
    csr = graphs.mixed(device)
    for shape in ((2, 5, 3), (4, 32, 8), (4, 32, 40)):
        operands = operands_of(csr, *shape, dtype)
        found = call(csr, operands, scale=factor)
        exact = {k: t.double() for k, t in operands.items()}
        assert found.isfinite().all()
        if factor == 0:
            wanted = expected(csr, exact, 0.0)
            tolerance = 1e-5 if dtype == torch.float32 else 3e-2
            torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("width", [4, 24])
def test_a_rows_only_edge_has_no_gradient_of_its_logit(width, device):
    """Its weight is 1, whatever the logit: what roundings leave there, Adam makes steps of."""
    csr = graphs.make("star_of_sources", device)
    operands = {k: t.requires_grad_() for k, t in operands_of(csr, 4, 16, width).items()}
    y = call(csr, operands)
    of_logits = torch.autograd.grad(y, [operands["q"], operands["k"]], torch.randn_like(y))
    assert all((t == 0).all() for t in of_logits)


@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 16, 3), (4, 16, 21)], ids=str)
@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
def test_opcheck(shape, dropout_p, device):
    csr = graphs.mixed(device)
    given = {k: t.requires_grad_() for k, t in operands_of(csr, *shape).items()}
    given |= {"eid": graph_of(csr).eid, "dropout_p": dropout_p} | csr.csc()
    given |= {"seed": torch.tensor([3], device=device)}
    operator = torch.ops.dfgnn.message_attention.default
    torch.library.opcheck(operator, (csr.rowptr, csr.col), given)


@pytest.mark.parametrize("width", [4, 24])
def test_opcheck_of_kernels(width, device):
    csr = graphs.mixed(device)
    given = operands_of(csr, 4, 16, width) | {"eid": graph_of(csr).eid, "scale": 0.5}
    forward = torch.ops.dfgnn.message_attention_fwd
    torch.library.opcheck(forward.default, (csr.rowptr, csr.col), given)
    out, lse = forward(csr.rowptr, csr.col, **given)
    backward = torch.ops.dfgnn.message_attention_bwd
    first = (out, out, lse, csr.rowptr, csr.col)
    for wanted in (True, False):
        wants = {"of_projection": wanted, "of_features": not wanted}
        torch.library.opcheck(backward.default, first, given | wants)
    for name, wrong in {
        "projection": given["projection"][:, :1],
        "eid": given["eid"][1:],
        "k": given["k"][:, :1],
        "v": given["v"][1:],
        "features": given["features"][0],
        "dropout_p": 2.0,
    }.items():
        with pytest.raises(RuntimeError, match=rf"\b{name}: expected .*got "):
            forward(csr.rowptr, csr.col, **given | {name: wrong})
    for at, name in enumerate(("grad_out", "out", "lse")):
        wrong = [t[1:] if i == at else t for i, t in enumerate(first)]
        with pytest.raises(RuntimeError, match=rf"\b{name}: expected .*got "):
            backward(*wrong, **given)
    with pytest.raises(RuntimeError, match=r"seed: expected .*got "):
        forward(csr.rowptr, csr.col, **given, dropout_p=0.5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype, device):
    csr = graphs.mixed(device)
    for shape in ((2, 4, 3), (4, 16, 4), (4, 16, 20)):
        operands = operands_of(csr, *shape)
        with torch.autocast(device, dtype):
            found = call(csr, operands)
        cast = {k: t.to(dtype) for k, t in operands.items()}
        torch.testing.assert_close(found, call(csr, cast), rtol=0, atol=0)


@pytest.mark.parametrize("width", [4, 24])
def test_compiles(width, device):
    csr = graphs.mixed(device)
    graph = graph_of(csr)
    leaves = [t.requires_grad_() for t in operands_of(csr, 4, 16, width).values()]

    def run(function) -> list[Tensor]:
        y = function(*leaves, graph)
        return [y, *torch.autograd.grad(y.square().sum(), leaves)]

    compiled = torch.compile(ops.message_attention, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(run(compiled), run(ops.message_attention))


@pytest.mark.parametrize("width", [3, 24])
def test_kernels_in_compiled_code_of_any_graph(width, cuda):
    """What is compiled on CUDA: kernels, though the features' number was another before, for
    graphs of any size."""
    csr = graphs.mixed()
    graph, operands = graph_of(csr), operands_of(csr, 4, 16, width)
    mode, called = FakeTensorMode(shape_env=ShapeEnv()), []

    class Log(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            called.append(str(function))
            return function(*args, **(kwargs or {}))

    def fake(t: Tensor, *dynamic: int) -> Tensor:
        sizes = [DimDynamic.DYNAMIC if d in dynamic else DimDynamic.STATIC for d in range(t.dim())]
        return mode.from_tensor(t, symbolic_context=StatelessSymbolicContext(sizes))

    dynamic = {"features": (0, 1), "projection": (1,)}
    operands = {k: fake(t, *dynamic.get(k, (0,))) for k, t in operands.items()}
    indices = {k: fake(t, 0) for k, t in graph._asdict().items() if isinstance(t, Tensor)}
    with mode, enable_python_dispatcher():
        operands = {k: t.to(cuda) for k, t in operands.items()}
        indices = {
            k: indices[k].to(cuda) for k in ("rowptr", "col", "eid", "colptr", "row", "perm")
        }
        with Log():
            y = torch.ops.dfgnn.message_attention(**indices, **operands)
    assert "dfgnn.message_attention_fwd.default" in called
    for t in (y, operands["features"]):
        assert isinstance(t.shape[0], torch.SymInt)
    assert int(operands["features"].shape[1]) == width


@pytest.mark.parametrize("shape", [(8, 16, 8), (8, 16, 64)], ids=str)
def test_in_a_cuda_graph(shape, cuda):
    csr = graphs.mixed(cuda)
    graph = graph_of(csr)
    leaves = {k: t.requires_grad_() for k, t in operands_of(csr, *shape).items()}

    def run() -> list[Tensor]:
        y = ops.message_attention(**leaves, graph=graph)
        return [y, *torch.autograd.grad(y.square().sum(), list(leaves.values()))]

    wanted = [t.detach().clone() for t in run()]
    replayed, found = captured(run)
    for t in found:
        t.detach().zero_()
    replayed.replay()
    torch.testing.assert_close([t.detach() for t in found], wanted, rtol=0, atol=0)


MISTAKES = {
    "q": [lambda t: t[:-1], lambda t: t.long(), lambda t: t[:, 0]],
    "k": [lambda t: t[:, :1], lambda t: t[..., :1], lambda t: t.double(), lambda t: t[:, 0]],
    "v": [lambda t: t[1:], lambda t: t[:, :1], lambda t: t.double(), lambda t: t[:, 0]],
    "features": [lambda t: t.double(), lambda t: t[0], lambda t: t.to("meta")],
    "projection": [
        lambda t: t[1:],
        lambda t: t[:, 1:],
        lambda t: t.double(),
        lambda t: t[0],
        lambda t: t.to("meta"),
    ],
}


@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 16, 3), (4, 16, 20)], ids=str)
@pytest.mark.parametrize("name", MISTAKES)
def test_refused(name, shape, device):
    csr = graphs.mixed(device)
    operands = operands_of(csr, *shape)
    for mistake in MISTAKES[name]:
        with pytest.raises(RuntimeError, match=rf"\b{name}: expected .*got "):
            call(csr, operands | {name: mistake(operands[name])})


@pytest.mark.parametrize("shape", [(2, 4, 3), (4, 16, 4)], ids=str)
@pytest.mark.parametrize("grad", [True, False])
def test_rest_refused(grad, shape, device):
    csr = graphs.mixed(device)
    operands = operands_of(csr, *shape)
    operands["v"].requires_grad_(grad)
    wrong = {"eid": graph_of(csr).eid[:1], "colptr": csr.csc()["colptr"][1:], "perm": None}
    told = {"perm": "colptr, row, perm"}
    for name, value in wrong.items():
        with pytest.raises(RuntimeError, match=rf"^{told.get(name, name)}: expected .*got "):
            ops.message_attention(**operands, graph=graph_of(csr)._replace(**{name: value}))
    with pytest.raises(RuntimeError, match=r"dropout_p: expected .*got 1\.5"):
        call(csr, operands, dropout_p=1.5)
