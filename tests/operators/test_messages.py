"""Products with messages of edges, x_j + W f_e, against plain float64 torch."""

import graphs
import pytest
import torch
from calls import DTYPES, SPARE, check_function, graph_of, normal
from graphs import Csr
from torch import Tensor

from pyg_dfgnn import ops

OPERATORS = ["message_sddmm", "message_spmm"]
# Heads, head size and features of an edge: heads and features for a lane, for several, for a warp's
# and more, alike or not; W by one matrix and, of the last two, by some nodes.
SHAPES = [
    (1, 1, 1), (1, 16, 8), (3, 5, 2), (8, 16, 8), (2, 7, 33), (4, 64, 3), (2, 16, 8), (3, 16, 4),
    (4, 32, 8), (3, 32, 16), (4, 16, 64), (8, 16, 32), (4, 64, 16), (5, 64, 32), (2, 256, 40),
    (32, 16, 8), (16, 32, 24),
]  # fmt: skip


def operands_of(op: str, csr: Csr, heads: int, size: int, width: int, dtype=torch.float32):
    x = normal(csr, csr.num_src, heads, size, dtype=dtype)
    features = normal(csr, csr.capacity + SPARE, width, dtype=dtype)
    projection = normal(csr, heads * size, width, dtype=dtype)
    if op == "message_sddmm":
        first = {"a": normal(csr, csr.num_dst, heads, size, dtype=dtype), "b": x}
    else:
        weight = normal(csr, csr.capacity, heads, dtype=dtype)
        weight[csr.num_edges :] = torch.nan  # no edges: never read
        first = {"weight": weight, "x": x}
    return first | {"features": features, "projection": projection}


def call(op: str, csr: Csr, operands: dict[str, Tensor]) -> Tensor:
    return getattr(ops, op)(**operands, graph=graph_of(csr))


def expected(op: str, csr: Csr, operands: dict[str, Tensor]) -> Tensor:
    into, eid = csr.destinations(), graph_of(csr).eid[: csr.num_edges].long()
    x = operands["b" if op == "message_sddmm" else "x"]
    edges = operands["features"][eid] @ operands["projection"].t()
    messages = x[csr.col[: csr.num_edges].long()] + edges.unflatten(1, x.shape[1:])
    if op == "message_sddmm":
        s = (operands["a"][into] * messages).sum(-1)
        return torch.nn.functional.pad(s, (0, 0, 0, csr.capacity - csr.num_edges))
    terms = operands["weight"][: csr.num_edges].unsqueeze(-1) * messages
    return terms.new_zeros(csr.num_dst, *x.shape[1:]).index_add(0, into, terms)


def check(op: str, csr: Csr, operands: dict[str, Tensor]) -> None:
    """The result and the gradients of all operands."""
    dtype = operands["features"].dtype
    is_logit = op == "message_sddmm" and dtype != torch.float64
    # What is between the two products is of the dtype, too.
    is_half = dtype in (torch.float16, torch.bfloat16)
    check_function(
        lambda *t: call(op, csr, dict(zip(operands, t, strict=True))),
        lambda *t: expected(op, csr, dict(zip(operands, t, strict=True))),
        list(operands.values()),
        torch.float32 if is_logit else dtype,
        slack=2.0 if is_half else 1.0,
    )


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("op", OPERATORS)
def test_graphs(op, name, device):
    csr = graphs.make(name, device)
    for shape in ((3, 4, 5), (8, 16, 8), (8, 16, 40)):
        check(op, csr, operands_of(op, csr, *shape))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_shapes(op, shape, dtype, device):
    csr = graphs.mixed(device)
    check(op, csr, operands_of(op, csr, *shape, dtype))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_many_nodes(op, index, device):
    """More than W meets at a time."""
    csr = graphs.random(2500, 8, device, index)
    for shape in ((8, 16, 8), (8, 16, 5), (16, 32, 24)):
        check(op, csr, operands_of(op, csr, *shape))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_long_rows(op, dtype, device):
    csr = graphs.rows_of_70(device)
    for shape in ((1, 64, 8), (8, 16, 8), (8, 16, 5), (16, 32, 24), (8, 16, 40)):
        check(op, csr, operands_of(op, csr, *shape, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_rows_from_a_counter(op, dtype, cuda):
    csr = graphs.long_rows(cuda)
    for shape in ((1, 64, 8), (4, 16, 4)):
        check(op, csr, operands_of(op, csr, *shape, dtype))


@pytest.mark.parametrize("shape", [(1, 3, 2), (3, 2, 4)], ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_gradcheck(op, shape, device):
    csr = graphs.mixed(device)
    operands = operands_of(op, csr, *shape, torch.float64)
    leaves = [t.nan_to_num().requires_grad_() for t in operands.values()]

    def function(*t):
        return call(op, csr, dict(zip(operands, t, strict=True)))

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize("op", OPERATORS)
def test_gradients_of_some(op, device):
    """Whatever else needs them, and whether or not these are to have gradients of their own."""
    csr = graphs.mixed(device)
    operands = operands_of(op, csr, 2, 4, 3)
    leaves = {k: t.clone().requires_grad_() for k, t in operands.items()}
    given = torch.randn_like(call(op, csr, operands))
    wanted = torch.autograd.grad(call(op, csr, leaves), list(leaves.values()), given)
    for (name, leaf), gradient in zip(leaves.items(), wanted, strict=True):
        y = call(op, csr, operands | {name: leaf})
        (found,) = torch.autograd.grad(y, leaf, given, retain_graph=True)
        torch.testing.assert_close(found, gradient, rtol=0, atol=0)
        (found,) = torch.autograd.grad(y, leaf, given, create_graph=True)
        torch.testing.assert_close(found, gradient)
    assert not call(op, csr, operands).requires_grad


@pytest.mark.parametrize("op", OPERATORS)
def test_strides(op, device):
    csr = graphs.mixed(device)
    operands = operands_of(op, csr, 2, 4, 3)
    strided = {k: torch.stack([t, t], -1)[..., 0] for k, t in operands.items()}
    torch.testing.assert_close(call(op, csr, strided), call(op, csr, operands), rtol=0, atol=0)
    check(op, csr, strided)


@pytest.mark.parametrize("op", OPERATORS)
def test_where_nothing_is_recorded(op, device):
    csr = graphs.mixed(device)
    operands = operands_of(op, csr, 2, 4, 3)
    wanted = call(op, csr, operands)
    with torch.inference_mode():
        torch.testing.assert_close(call(op, csr, operands), wanted, rtol=0, atol=0)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("shape", [(3, 8, 4), (8, 16, 8)], ids=str)
@pytest.mark.parametrize("name", ["hub", "degrees_around_tiles"])
def test_same_bits_in_every_run(op, name, shape, device):
    csr = graphs.make(name, device)
    operands = operands_of(op, csr, *shape)

    def run() -> list[Tensor]:
        leaves = {k: t.detach().requires_grad_() for k, t in operands.items()}
        y = call(op, csr, leaves)
        return [y.detach(), *torch.autograd.grad(y.sum(), list(leaves.values()))]

    first = run()
    for _ in range(3):
        torch.testing.assert_close(run(), first, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("shape", [(2, 4, 3), (8, 16, 8), (16, 32, 24), (8, 16, 32)], ids=str)
@pytest.mark.parametrize("make", [graphs.mixed, graphs.rows_of_70])
@pytest.mark.parametrize("op", OPERATORS)
def test_edges_out_of_range(op, make, shape, device):
    """NaN for what nodes or features that are not there are part of."""
    csr = make(device)
    operands, edge = operands_of(op, csr, *shape), 20
    graph, wanted = graph_of(csr), call(op, csr, operands)
    wanted[edge if op == "message_sddmm" else csr.destinations()[edge]] = torch.nan
    for field in ("col", "eid"):
        for wrong in (-1, 1 << 30):
            index = getattr(graph, field).clone()
            index[edge] = wrong
            found = getattr(ops, op)(**operands, graph=graph._replace(**{field: index}))
            torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", OPERATORS)
def test_opcheck(op, device):
    csr = graphs.mixed(device)
    leaves = {k: t.nan_to_num().requires_grad_() for k, t in operands_of(op, csr, 2, 4, 3).items()}
    given = leaves | {"eid": graph_of(csr).eid} | csr.csc()
    torch.library.opcheck(getattr(torch.ops.dfgnn, op).default, (csr.rowptr, csr.col), given)


def test_opcheck_of_both(device):
    csr = graphs.mixed(device)
    given = operands_of("message_sddmm", csr, 2, 4, 3)
    del given["projection"]
    given |= {"eid": graph_of(csr).eid, "projected": normal(csr, csr.num_dst, 2, 3)}
    operator = torch.ops.dfgnn.sddmm_of_both
    torch.library.opcheck(operator.default, (csr.rowptr, csr.col), given)
    for name, wrong in (("projected", given["projected"][:, :1]), ("eid", given["eid"][1:])):
        with pytest.raises(RuntimeError, match=rf"\b{name}: expected .*got "):
            operator(csr.rowptr, csr.col, **given | {name: wrong})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("op", OPERATORS)
def test_autocast(op, dtype, device):
    """Features are cast, weights are not."""
    csr = graphs.mixed(device)
    operands = {k: t.nan_to_num() for k, t in operands_of(op, csr, 2, 4, 3).items()}
    with torch.autocast(device, dtype):
        found = call(op, csr, operands)
    cast = {k: t if k == "weight" else t.to(dtype) for k, t in operands.items()}
    torch.testing.assert_close(found, call(op, csr, cast), rtol=0, atol=0)


MISTAKES = {
    "a": [lambda t: t[:-1], lambda t: t[..., :1], lambda t: t.long(), lambda t: t[:, 0]],
    "b": [lambda t: t[:, :1], lambda t: t[..., :1], lambda t: t.double(), lambda t: t[:, 0]],
    "weight": [lambda t: t[1:], lambda t: t[:, 0], lambda t: t.long()],
    "x": [lambda t: t[:, :1], lambda t: t.long(), lambda t: t[:, 0]],
    "features": [lambda t: t.long(), lambda t: t[0], lambda t: t[:0], lambda t: t.double()],
    "projection": [
        lambda t: t[1:],
        lambda t: t[:, 1:],
        lambda t: t.double(),
        lambda t: t[0],
        lambda t: t.to("meta"),
    ],
}


@pytest.mark.parametrize(
    ("op", "name"),
    [(op, name) for op in OPERATORS for name in operands_of(op, graphs.mixed(), 1, 1, 1)],
)
def test_refused(op, name, device):
    csr = graphs.mixed(device)
    operands = operands_of(op, csr, 2, 4, 3)
    for mistake in MISTAKES[name]:
        told = rf"\b({name}|projection): expected .*got "  # W has the heads of what it meets
        with pytest.raises(RuntimeError, match=told):
            call(op, csr, operands | {name: mistake(operands[name])})


@pytest.mark.parametrize("grad", [True, False])
@pytest.mark.parametrize("op", OPERATORS)
def test_structure_refused(op, grad, device):
    csr = graphs.mixed(device)
    operands = operands_of(op, csr, 2, 4, 3)
    operands["features"].requires_grad_(grad)
    wrong = {"eid": graph_of(csr).eid[:1], "colptr": csr.csc()["colptr"][1:], "perm": None}
    told = {"perm": "colptr, row, perm"}
    for name, value in wrong.items():
        with pytest.raises(RuntimeError, match=rf"^{told.get(name, name)}: expected .*got "):
            getattr(ops, op)(**operands, graph=graph_of(csr)._replace(**{name: value}))
