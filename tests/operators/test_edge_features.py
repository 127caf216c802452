"""Products with features of edges, and sums over edges, against plain float64 torch."""

import graphs
import pytest
import torch
from calls import DTYPES, FORWARD_TOLERANCE, SPARE, assert_near, check_function, eid_of, normal
from graphs import Csr
from torch import Tensor

import pyg_dfgnn
from pyg_dfgnn import ops

OPERATORS = ["edge_sddmm", "edge_spmm", "edge_spmm_t"]
# Heads and features: around vectors, warps and what one lane takes of a head.
SHAPES = [(1, 1), (3, 2), (8, 8), (2, 12), (5, 33), (1, 64), (2, 160), (40, 3), (8, 32), (9, 64)]


def operands_of(op: str, csr: Csr, heads: int, width: int, dtype: torch.dtype, one: bool = False):
    weight = normal(csr, csr.capacity, heads, dtype=dtype)
    weight[csr.num_edges :] = torch.nan  # no edges: never read
    features = normal(csr, csr.capacity + SPARE, width, dtype=dtype)
    a = normal(csr, 1 if one else csr.num_dst, heads, width, dtype=dtype)
    return {
        "edge_sddmm": {"a": a, "features": features},
        "edge_spmm": {"weight": weight, "features": features},
        "edge_spmm_t": {"weight": weight, "a": a},
    }[op]


def call(op: str, csr: Csr, operands: dict[str, Tensor], eid: Tensor | None = None) -> Tensor:
    rows = {"rows": csr.capacity + SPARE} if op == "edge_spmm_t" else {}
    eid = eid_of(csr) if eid is None else eid
    return getattr(torch.ops.dfgnn, op)(csr.rowptr, eid, **operands, **rows)


def expected(op: str, csr: Csr, operands: dict[str, Tensor]) -> Tensor:
    into, eid = csr.destinations(), eid_of(csr)[: csr.num_edges].long()
    if "a" in operands:
        a = operands["a"].expand(csr.num_dst, -1, -1)[into]
    if op == "edge_sddmm":
        s = (a * operands["features"][eid].unsqueeze(1)).sum(-1)
        return torch.nn.functional.pad(s, (0, 0, 0, csr.capacity - csr.num_edges))
    weight = operands["weight"][: csr.num_edges].unsqueeze(-1)
    if op == "edge_spmm":
        terms = weight * operands["features"][eid].unsqueeze(1)
        return terms.new_zeros(csr.num_dst, *terms.shape[1:]).index_add(0, into, terms)
    terms = (weight * a).sum(1)
    return terms.new_zeros(csr.capacity + SPARE, terms.size(1)).index_copy(0, eid, terms)


def check(op: str, csr: Csr, operands: dict[str, Tensor]) -> None:
    """The result and the gradients of both operands."""
    dtype = next(iter(operands.values())).dtype
    is_logit = op == "edge_sddmm" and dtype != torch.float64
    check_function(
        lambda *t: call(op, csr, dict(zip(operands, t, strict=True))),
        lambda *t: expected(op, csr, dict(zip(operands, t, strict=True))),
        list(operands.values()),
        torch.float32 if is_logit else dtype,
    )


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("op", OPERATORS)
def test_graphs(op, name, device):
    csr = graphs.make(name, device)
    check(op, csr, operands_of(op, csr, 3, 4, torch.float32))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("heads", "width"), SHAPES)
@pytest.mark.parametrize("op", OPERATORS)
def test_shapes(op, heads, width, dtype, device):
    csr = graphs.mixed(device)
    check(op, csr, operands_of(op, csr, heads, width, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("width", [1, 5, 20, 24])
@pytest.mark.parametrize("op", OPERATORS)
def test_many_edges(op, width, dtype, device):
    """Of which sums of features that are no whole vectors are worth a copy."""
    csr = graphs.random(2500, 8, device)
    check(op, csr, operands_of(op, csr, 8, width, dtype))


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("op", ["edge_sddmm", "edge_spmm_t"])
def test_one_node_for_all(op, index, device):
    csr = graphs.mixed(device, index)
    check(op, csr, operands_of(op, csr, 8, 8, torch.float32, one=True))


@pytest.mark.parametrize("op", OPERATORS)
def test_gradcheck(op, device):
    """First and second derivatives, which are made of the operators themselves."""
    csr = graphs.mixed(device)
    for one in (False, True):
        operands = operands_of(op, csr, 2, 3, torch.float64, one)
        names = list(operands)
        leaves = [t.nan_to_num().requires_grad_() for t in operands.values()]

        def function(*t, names=names):
            return call(op, csr, dict(zip(names, t, strict=True)))

        assert torch.autograd.gradcheck(function, leaves)
        assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize("op", OPERATORS)
def test_features_out_of_range(op, device):
    """NaN for what they are part of, and nothing of them goes anywhere else."""
    csr = graphs.mixed(device)
    operands = operands_of(op, csr, 2, 4, torch.float32)
    right, edge = call(op, csr, operands), 20
    for wrong in (-1, csr.capacity + SPARE, 1 << 30):
        eid = eid_of(csr)
        expected_here = right.clone()
        if op == "edge_sddmm":
            expected_here[edge] = torch.nan
        elif op == "edge_spmm":
            expected_here[csr.destinations()[edge]] = torch.nan
        else:
            expected_here[eid[edge]] = 0
        eid[edge] = wrong
        found = call(op, csr, operands, eid)
        torch.testing.assert_close(found, expected_here, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("name", ["hub", "degrees_around_tiles"])
def test_same_bits_in_every_run(op, name, device):
    csr = graphs.make(name, device)
    operands = operands_of(op, csr, 3, 8, torch.float32)

    def run() -> list[Tensor]:
        leaves = {k: t.detach().requires_grad_() for k, t in operands.items()}
        y = call(op, csr, leaves)
        return [y.detach(), *torch.autograd.grad(y.sum(), list(leaves.values()))]

    first = run()
    for _ in range(3):
        torch.testing.assert_close(run(), first, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("op", OPERATORS)
def test_opcheck(op, device):
    csr = graphs.mixed(device)
    operands = operands_of(op, csr, 2, 4, torch.float32)
    leaves = {k: t.nan_to_num().requires_grad_() for k, t in operands.items()}
    rows = {"rows": csr.capacity + SPARE} if op == "edge_spmm_t" else {}
    operator = getattr(torch.ops.dfgnn, op).default
    torch.library.opcheck(operator, (csr.rowptr, eid_of(csr)), {**leaves, **rows})


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype, device):
    """Features are cast, weights are not."""
    csr = graphs.mixed(device)
    for op in OPERATORS:
        operands = {k: t.nan_to_num() for k, t in operands_of(op, csr, 2, 4, torch.float32).items()}
        with torch.autocast(device, dtype):
            found = call(op, csr, operands)
        cast = {k: t if k == "weight" else t.to(dtype) for k, t in operands.items()}
        torch.testing.assert_close(found, call(op, csr, cast), rtol=0, atol=0)


MISTAKES = {
    "a": [lambda t: t[:-1], lambda t: t[..., :1], lambda t: t.long(), lambda t: t[:, 0]],
    "weight": [lambda t: t[1:], lambda t: t[:, 0], lambda t: t.long(), lambda t: t[:, :0]],
    "features": [lambda t: t[:, :0], lambda t: t.long(), lambda t: t[0], lambda t: t[:0]],
}


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("name", MISTAKES)
def test_refused(op, name, device):
    csr = graphs.mixed(device)
    operands = operands_of(op, csr, 2, 4, torch.float32)
    for mistake in MISTAKES[name] if name in operands else []:
        given = operands | {name: mistake(operands[name])}
        if (
            op == "edge_spmm_t"
            and name == "a"
            and given["a"].size(-1) == 1
            and given["a"].dim() > 2
        ):
            continue  # another number of features
        with pytest.raises(RuntimeError, match=rf"\b{name}: expected .*got "):
            call(op, csr, given)
    for structure in ((csr.rowptr[:0], eid_of(csr)), (csr.rowptr, eid_of(csr).float())):
        rows = {"rows": 1} if op == "edge_spmm_t" else {}
        with pytest.raises(RuntimeError, match=r"\b(rowptr|eid): expected"):
            getattr(torch.ops.dfgnn, op)(*structure, **operands, **rows)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_sum_edges(name, transpose, device):
    csr = graphs.make(name, device)
    for heads in (1, 3, 8, 40):
        values = normal(csr, csr.capacity, heads, dtype=torch.float64)
        values[csr.num_edges :] = torch.nan
        into = csr.sources() if transpose else csr.destinations()
        rows = csr.num_src if transpose else csr.num_dst
        wanted = values.new_zeros(rows, heads).index_add(0, into, values[: csr.num_edges])
        for dtype in (torch.float32, torch.float64):
            leaf = values.to(dtype).requires_grad_()
            found = torch.ops.dfgnn.sum_edges(
                csr.rowptr, csr.col, values=leaf, **csr.csc(), transpose=transpose
            )
            assert_near(found, wanted, FORWARD_TOLERANCE[dtype], "sums")
            projection = normal(csr, rows, heads, dtype=dtype)
            (gradient,) = torch.autograd.grad((found * projection).sum(), leaf)
            assert_near(gradient[: csr.num_edges], projection[into], 1e-6, "gradient")
            assert not gradient[csr.num_edges :].any()


def test_long_rows(device):
    """Sums of many terms are as exact as of few."""
    csr = graphs.from_degrees([200_000], 7).to(device)
    tenths = torch.full((csr.capacity, 1), 0.1, device=device)
    total = torch.ops.dfgnn.sum_edges(csr.rowptr, csr.col, values=tenths)
    assert abs(float(total) / (csr.capacity * float(tenths[0].double())) - 1) < 1e-6
    logits = tenths.log().index_fill(0, torch.tensor([0], device=device), 0.0).requires_grad_()
    exact = logits.detach().double().requires_grad_()
    found = torch.ops.dfgnn.edge_softmax(csr.rowptr, csr.col, logits=logits)
    wanted = exact.softmax(0)
    torch.testing.assert_close(found.double(), wanted, rtol=2e-6, atol=0)
    projection = torch.rand_like(wanted)
    (gradient,) = torch.autograd.grad((found * projection.float()).sum(), logits)
    (wanted,) = torch.autograd.grad((wanted * projection).sum(), exact)
    assert_near(gradient, wanted, 1e-5, "gradient", terms=0)


def test_no_rows_for_entries(device):
    """Entries that are no edges, of no features and of no sources."""
    rowptr, zero = torch.zeros(2, device=device).int(), torch.zeros(1, device=device).int()
    weight = torch.ones(1, 2, device=device, requires_grad=True)
    a = torch.ones(1, 2, 3, device=device, requires_grad=True)
    z = torch.ops.dfgnn.edge_spmm_t(rowptr, zero, weight=weight, a=a, rows=0)
    assert z.shape == (0, 3)
    for gradient in torch.autograd.grad(z.sum(), [weight, a]):
        assert not gradient.any()
    csc = {"colptr": zero, "row": zero, "perm": zero}
    y = torch.ops.dfgnn.sum_edges(rowptr, zero, values=weight, **csc, transpose=True)
    assert y.shape == (0, 2)
    assert not torch.autograd.grad(y.sum(), weight)[0].any()


@pytest.mark.parametrize("transpose", [False, True])
def test_opcheck_of_sums_and_softmax(transpose, device):
    csr = graphs.mixed(device)
    values = normal(csr, csr.capacity, 2).requires_grad_()
    given = {"values": values, **csr.csc(), "transpose": transpose}
    torch.library.opcheck(torch.ops.dfgnn.sum_edges.default, (csr.rowptr, csr.col), given)
    given = {"logits": values, "scale": 0.5}
    torch.library.opcheck(torch.ops.dfgnn.edge_softmax.default, (csr.rowptr, csr.col), given)
    alpha = values.detach().softmax(0)
    arguments = (values.detach(), alpha, csr.rowptr, csr.col)
    torch.library.opcheck(torch.ops.dfgnn.edge_softmax_bwd.default, arguments, {"scale": 0.5})


@pytest.mark.parametrize("heads", [1, 3, 8, 33, 70])
@pytest.mark.parametrize("scale", [1.0, -0.25])
def test_edge_softmax_by_heads_and_lengths(heads, scale, device):
    """Rows that a warp keeps, that it reads again, and that a block shares."""
    csr = graphs.from_degrees([0, 1, 3, 16, 17, 63, 64, 65, 128, 256, 257, 600, 5], 700).to(device)
    leaf = (4 * normal(csr, csr.capacity, heads)).requires_grad_()
    found = torch.ops.dfgnn.edge_softmax(csr.rowptr, csr.col, logits=leaf, scale=scale)
    exact = leaf.detach().double().requires_grad_()
    rows = (scale * exact).split(csr.rowptr.diff().tolist())
    wanted = torch.cat([part.softmax(0) for part in rows])
    assert_near(found, wanted.detach(), 1e-6, "softmax")
    projection = normal(csr, *found.shape)
    (gradient,) = torch.autograd.grad((found * projection).sum(), leaf)
    (wanted,) = torch.autograd.grad((wanted * projection).sum(), exact)
    assert_near(gradient, wanted, 5e-5, "gradient")


@pytest.mark.parametrize("name", ["hub", "spare_capacity"])
def test_second_derivatives_of_softmax_and_sums(name, device):
    csr = graphs.make(name, device)
    small = csr if csr.capacity < 200 else graphs.mixed(device)
    logits = normal(small, small.capacity, 2, dtype=torch.float64).requires_grad_()
    ends = [
        normal(small, n, 2, dtype=torch.float64).requires_grad_()
        for n in (small.num_dst, small.num_src)
    ]

    def softmax(s: Tensor) -> Tensor:
        return torch.ops.dfgnn.edge_softmax(small.rowptr, small.col, logits=s, scale=0.7)

    def additive(a_dst: Tensor, a_src: Tensor) -> Tensor:
        return torch.ops.dfgnn.additive_logits(
            small.rowptr, small.col, a_dst=a_dst, a_src=a_src
        ).tanh()

    assert torch.autograd.gradcheck(softmax, logits)
    assert torch.autograd.gradgradcheck(softmax, logits)
    assert torch.autograd.gradcheck(additive, ends)
    assert torch.autograd.gradgradcheck(additive, ends)


@pytest.mark.parametrize("grad", [torch.nan, torch.inf])
def test_no_gradient_of_what_is_no_edge(grad, device):
    """Whatever comes for the entries behind the last edge."""
    csr = graphs.make("spare_capacity", device)
    assert csr.capacity > csr.num_edges
    leaf = normal(csr, csr.capacity, 2).requires_grad_()
    alpha = torch.ops.dfgnn.edge_softmax(csr.rowptr, csr.col, logits=leaf)
    given = torch.full_like(alpha, grad).index_fill(0, torch.arange(csr.num_edges).to(device), 1.0)
    for create_graph in (False, True):
        (found,) = torch.autograd.grad(
            alpha, leaf, given, retain_graph=True, create_graph=create_graph
        )
        assert found.isfinite().all()
        assert not found[csr.num_edges :].any()


def test_wrappers(device):
    """By a Graph, whose eid says where features are."""
    csr = graphs.mixed(device)
    features, a = normal(csr, csr.capacity + SPARE, 4), normal(csr, csr.num_dst, 2, 4)
    graph = pyg_dfgnn.Graph(
        csr.rowptr, csr.col, eid_of(csr), **csr.csc(), num_dst=csr.num_dst, num_src=csr.num_src
    )
    weight = normal(csr, csr.capacity, 2)
    into, eid = csr.destinations(), graph.eid[: csr.num_edges].long()
    found = ops.edge_sddmm(a, features, graph)[: csr.num_edges]
    torch.testing.assert_close(found, (a[into] * features[eid].unsqueeze(1)).sum(-1))
    terms = weight[: csr.num_edges].unsqueeze(-1) * features[eid].unsqueeze(1)
    expected = terms.new_zeros(csr.num_dst, 2, 4).index_add(0, into, terms)
    torch.testing.assert_close(ops.edge_spmm(weight, features, graph), expected)


@pytest.mark.parametrize("heads", [1, 8, 33])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_rows_in_pieces(dtype, heads, device):
    """Sums and softmax, and what spare entries get: nothing."""
    csr = graphs.in_pieces().to(device)
    logits = torch.randn(
        csr.capacity, heads, generator=torch.Generator().manual_seed(0), dtype=dtype
    ).to(device)
    rows = csr.destinations()
    exact = logits[: csr.num_edges].double().requires_grad_()
    parts = exact.detach().split(csr.rowptr.diff().tolist())
    top = torch.stack([part.amax(0) if part.numel() else part.sum(0) for part in parts])
    powers = (exact - top[rows]).exp()
    total = powers.new_zeros(csr.num_dst, heads).index_add(0, rows, powers)
    wanted = powers / total[rows]
    leaf = logits.clone().requires_grad_()
    found = torch.ops.dfgnn.edge_softmax(csr.rowptr, csr.col, logits=leaf)
    tolerance = {"rtol": 1e-5 if dtype == torch.float32 else 1e-12, "atol": 1e-12}
    torch.testing.assert_close(found[: csr.num_edges].double(), wanted, **tolerance)
    assert not found[csr.num_edges :].any()
    projection = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1)).to(device)
    (gradient,) = torch.autograd.grad((found[: csr.num_edges] * projection).sum(), leaf)
    (exact_gradient,) = torch.autograd.grad((wanted * projection).sum(), exact)
    terms = float(exact_gradient.abs().max())
    assert_near(gradient[: csr.num_edges] / terms, exact_gradient / terms, 1e-5, "gradient")
    assert not gradient[csr.num_edges :].any()
    sums = torch.ops.dfgnn.sum_edges(csr.rowptr, csr.col, values=logits)
    expected = exact.detach().new_zeros(csr.num_dst, heads).index_add(0, rows, exact.detach())
    assert_near(sums, expected, 1e-6, "sums")
