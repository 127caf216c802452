"""Scores as tensors, and the softmax over them, against plain torch in float64."""

from functools import partial

import graphs
import pytest
import torch
import torch.nn.functional as F
from calls import BACKWARD_TOLERANCE, DTYPES, FORWARD_TOLERANCE, assert_near, normal
from graphs import Csr
from torch import Tensor

import pyg_dfgnn
from pyg_dfgnn import ops

SLOPE = 0.3

# Rows of all kinds, and so many that a warp takes several.
ROWS = {
    "hub": partial(graphs.make, "hub"),
    "spare_capacity": partial(graphs.make, "spare_capacity"),
    "short_rows": partial(graphs.short_rows, 40_000),
    "in_pieces": lambda device: graphs.in_pieces(20_000).to(device),
}

OPERANDS = ("x_dst", "x_src", "att", "features", "weight")


def graph_of(csr: Csr) -> pyg_dfgnn.Graph:
    """The structure, whose edge features are in another order than its edges."""
    eid = torch.arange(csr.capacity - 1, -1, -1).to(csr.col)
    csc = csr.csc()
    return pyg_dfgnn.Graph(
        csr.rowptr, csr.col, eid, csc["colptr"], csc["row"], csc["perm"], csr.num_dst, csr.num_src
    )


def v2_operands(csr: Csr, heads=2, channels=5, width=3, dtype=torch.float32) -> list[Tensor]:
    """x_dst, x_src, att, and where there is a width features and their weight."""
    shapes = [(csr.num_dst, heads, channels), (csr.num_src, heads, channels), (heads, channels)]
    if width:
        shapes += [(csr.capacity, width), (heads * channels, width)]
    return [normal(csr, *shape, dtype=dtype) for shape in shapes]


def v2_logits(csr: Csr, x_dst, x_src, att, features=None, weight=None, slope=SLOPE) -> Tensor:
    return ops.additive_v2_logits(x_dst, x_src, att, graph_of(csr), slope, features, weight)


def expected_v2_logits(
    csr: Csr, x_dst, x_src, att, features=None, weight=None, slope=SLOPE
) -> Tensor:
    terms = x_dst[csr.destinations()] + x_src[csr.sources()]
    if features is not None:
        eid = graph_of(csr).eid[: csr.num_edges].long()
        terms = terms + (features[eid] @ weight.t()).view(terms.shape)
    logits = (F.leaky_relu(terms, slope) * att).sum(-1)
    return F.pad(logits, (0, 0, 0, csr.capacity - csr.num_edges))


def check_v2(csr: Csr, operands: list[Tensor], slope: float = SLOPE) -> None:
    """The logits, 0 where there is no edge, and the gradients of all operands."""
    dtype = operands[0].dtype
    leaves = [t.detach().requires_grad_() for t in operands]
    exact = [t.double().requires_grad_() for t in operands]
    found = v2_logits(csr, *leaves, slope=slope)
    wanted = expected_v2_logits(csr, *exact, slope=slope)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_near(found, wanted.detach(), FORWARD_TOLERANCE[dtype], "logits")
    projection = normal(csr, *found.shape)
    found, wanted = (
        torch.autograd.grad((y * projection).sum(), x, allow_unused=True)
        for y, x in ((found, leaves), (wanted, exact))
    )
    for operand, a, b in zip(operands, found, wanted, strict=True):
        assert a.dtype == operand.dtype
        b = torch.zeros_like(a) if b is None else b
        assert_near(a, b, BACKWARD_TOLERANCE[dtype], "gradient")


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("channels", [5, 16])
@pytest.mark.parametrize("width", [0, 3])
def test_additive_v2_logits(name, channels, width, device):
    csr = graphs.make(name, device)
    # Of so many numbers some may be so near to 0 that they round to the other side of it.
    slope = SLOPE if channels == 5 else 1.0
    check_v2(csr, v2_operands(csr, channels=channels, width=width), slope)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [5, 32])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_dtypes(dtype, channels, index, device):
    csr = graphs.mixed(device, index)
    check_v2(csr, v2_operands(csr, channels=channels, dtype=dtype))


# Heads, channels, features: shapes of all lanes of a warp and of few, channels that get zeros
# behind them, features that blocks share, and what is made in chunks (33 channels of float64, 640
# of others). Rows of 32 (in float32), 64 and 128 numbers are for
# tensor cores, unless there are many features.
V2_SHAPES = [
    (1, 1, 1), (1, 4, 2), (3, 8, 8), (8, 16, 8), (2, 24, 17), (4, 64, 5), (16, 32, 3),
    (1, 128, 40), (7, 10, 4), (1, 33, 2), (5, 128, 2),
    (2, 16, 8), (8, 4, 3), (1, 64, 17), (8, 8, 0), (1, 128, 8), (2, 64, 32), (16, 8, 7),
    (4, 32, 16),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "channels", "width"), V2_SHAPES)
@pytest.mark.parametrize(
    "degrees", [[0, 1, 3, 9, 17, 40, 300], [0, 1, 2, 33, 0, 5, 8]], ids=["long", "short"]
)
def test_shapes(degrees, heads, channels, width, dtype, device):
    csr = graphs.from_degrees(degrees, 60).to(device)
    check_v2(csr, v2_operands(csr, heads, channels, width, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [graphs.long_rows, graphs.very_long_rows])
def test_rows_from_a_counter(rows, dtype, cuda):
    csr = rows(cuda)
    check_v2(csr, v2_operands(csr, 1, 16, 4, dtype))
    check_v2(csr, v2_operands(csr, 8, 16, 8, dtype), slope=1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "channels", "width"), [(4, 8, 0), (4, 8, 12), (8, 16, 8), (2, 64, 0), (4, 16, 20)]
)
@pytest.mark.parametrize("rows", [graphs.short_rows, graphs.in_pieces])
def test_rows_of_which_a_warp_takes_several(rows, heads, channels, width, dtype, cuda):
    csr = rows(40_000).to(cuda)
    check_v2(csr, v2_operands(csr, heads, channels, width, dtype), slope=1.0)


@pytest.mark.parametrize("slope", [-0.5, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_slopes(slope, dtype, device):
    csr = graphs.mixed(device)
    for channels in (5, 32):
        check_v2(csr, v2_operands(csr, channels=channels, dtype=dtype), slope)


def test_sums_of_very_many_edges(cuda):
    """Of one sign, whose roundings would add up. With this slope W's gradient is a product."""
    rows, degree, heads, channels, width = 1 << 17, 64, 2, 16, 8
    edges = rows * degree
    rowptr = torch.arange(0, edges + 1, degree, dtype=torch.int32, device=cuda)
    col = torch.randint(rows, (edges,), dtype=torch.int32, device=cuda)
    shapes = (rows, heads, channels), (rows, heads, channels), (heads, channels), (edges, width)
    x_dst, x_src, att, features = (torch.rand(shape, device=cuda) for shape in shapes)
    weight = torch.rand(heads * channels, width, device=cuda)
    grad = torch.rand(edges, heads, device=cuda)
    *_, found = torch.ops.dfgnn.additive_v2_logits_bwd(
        grad, rowptr, col, x_dst=x_dst, x_src=x_src, att=att, features=features, weight=weight,
        eid=torch.arange(edges, dtype=torch.int32, device=cuda), negative_slope=1.0,
    )  # fmt: skip
    sums = grad.double().t() @ features.double()
    expected = (att.double().unsqueeze(-1) * sums.unsqueeze(1)).flatten(0, 1)
    assert_near(found, expected, 3e-6, "gradient of W")


@pytest.mark.parametrize("bad", [torch.inf, torch.nan])
@pytest.mark.parametrize("which", ["x_src", "features"])
@pytest.mark.parametrize("rows", [graphs.mixed, graphs.rows_of_70, ROWS["short_rows"]])
def test_what_is_not_finite_is_of_its_own_edges_alone(rows, which, bad, device):
    csr = rows(device)
    graph = graph_of(csr)
    operands = dict(zip(OPERANDS, v2_operands(csr, channels=16), strict=True))

    def run():
        leaves = [t.clone().requires_grad_() for t in operands.values()]
        logits = v2_logits(csr, *leaves)
        return logits.detach(), *torch.autograd.grad(logits.sum(), [leaves[0], leaves[3]])

    first = run()
    index = csr.sources() if which == "x_src" else graph.eid[: csr.num_edges].long()
    edges = (index == index[0]).nonzero().flatten()
    operands[which][index[0]] = bad
    found = run()
    assert 0 < edges.numel() < csr.num_edges
    assert not found[0][edges].isfinite().all()
    other_edges = torch.ones(csr.capacity, dtype=torch.bool, device=device)
    other_edges[edges] = False
    other_rows = torch.ones(csr.num_dst, dtype=torch.bool, device=device)
    other_rows[csr.destinations()[edges]] = False
    for a, b, kept in zip(
        found, first, (other_edges, other_rows, graph.eid.long()[other_edges]), strict=True
    ):
        torch.testing.assert_close(a[kept], b[kept])


@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_views_that_begin_anywhere(dtype, width, device):
    csr = graphs.mixed(device)

    def moved(t: Tensor) -> Tensor:
        return torch.cat([t.new_zeros(1), t.flatten()])[1:].view_as(t)

    operands = [moved(t) for t in v2_operands(csr, channels=32, width=width, dtype=dtype)]
    check_v2(csr, operands)


ROWPTRS = [[0, 5, 3, 8, 8], [0, 4, 9, 1000, 1 << 30], [-5, -1, 3, 6, 8], [8, 6, 4, 2, 0], [100] * 5]


@pytest.mark.parametrize("channels", [5, 16])
@pytest.mark.parametrize("pointers", ROWPTRS, ids=str)
def test_rowptr_that_is_none(pointers, channels, device):
    """Safe, whatever comes out."""
    rowptr = torch.tensor(pointers, device=device)
    col = torch.tensor([0, 4, 2, 3, 1, 1, 0, 4], device=device)
    csr = graphs.from_degrees([2, 2, 2, 2], 5).to(device, torch.int64)
    operands = v2_operands(csr, channels=channels)
    kwargs = dict(zip(OPERANDS, operands, strict=True), eid=torch.arange(8, device=device))
    found = torch.ops.dfgnn.additive_v2_logits(rowptr, col, **kwargs)
    assert found.shape == (8, 2)
    gradients = torch.ops.dfgnn.additive_v2_logits_bwd(
        torch.ones_like(found), rowptr, col, **kwargs
    )
    assert [g.shape for g in gradients] == [t.shape for t in operands]


def test_chunks(device):
    """More edges than are taken at a time."""
    csr = graphs.random(700, 20, device)
    operands = v2_operands(csr, heads=4, channels=16)
    assert csr.num_edges * 4 * 16 > 2 * 2**18
    check_v2(csr, operands)


@pytest.mark.parametrize(("channels", "width"), [(5, 3), (16, 3), (16, 12)])
@pytest.mark.parametrize("rows", [graphs.mixed, graphs.rows_of_70])
def test_features_without_a_gradient(rows, channels, width, device):
    """All others are the same."""
    csr = rows(device)
    leaves = [t.requires_grad_() for t in v2_operands(csr, channels=channels, width=width)]
    projection = normal(csr, csr.capacity, 2)

    def gradients():
        wanted = [t for t in leaves if t.requires_grad]
        return torch.autograd.grad((v2_logits(csr, *leaves) * projection).sum(), wanted)

    x_dst, x_src, att, _, weight = gradients()
    leaves[3].requires_grad_(False)
    torch.testing.assert_close(gradients(), (x_dst, x_src, att, weight))


def test_second_derivatives(device):
    csr = graphs.mixed(device)
    for width in (0, 3):
        operands = v2_operands(csr, heads=2, channels=3, width=width, dtype=torch.float64)
        leaves = [t.requires_grad_() for t in operands]
        assert torch.autograd.gradcheck(lambda *t: v2_logits(csr, *t), leaves, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda *t: v2_logits(csr, *t), leaves, fast_mode=True)


def test_second_derivatives_of_one_operand_passed_twice(device):
    csr = graphs.make("hub", device)
    x, _, att = v2_operands(csr, 1, 3, 0, torch.float64)
    x, att = x.requires_grad_(), att.requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda x, att: v2_logits(csr, x, x, att), (x, att), fast_mode=True
    )


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_same_bits_in_every_run(name, create_graph, device):
    csr = ROWS[name](device)
    leaves = [t.requires_grad_() for t in v2_operands(csr, channels=16)]
    projection = normal(csr, csr.capacity, 2)

    def run() -> tuple[list[Tensor], list[Tensor]]:
        loss = (v2_logits(csr, *leaves) * projection).sum()
        found = torch.autograd.grad(loss, leaves, create_graph=create_graph)
        if not create_graph:
            return list(found), []
        penalty = sum(g.square().sum() for g in found)
        return list(found), list(torch.autograd.grad(penalty, leaves))

    first, first_second = run()
    for _ in range(5):
        found, second = run()
        for a, b in zip(found, first, strict=True):
            assert torch.equal(a, b)
        # Autograd adds up what a leaf gets in the order that its threads come to it.
        torch.testing.assert_close(second, first_second)


def test_same_bits_with_any_number_of_threads():
    csr = graphs.random(700, 20)
    leaves = [t.requires_grad_() for t in v2_operands(csr, heads=4, channels=9, width=5)]
    projection = normal(csr, csr.capacity, 4)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        logits = v2_logits(csr, *leaves)
        results.append([logits, *torch.autograd.grad((logits * projection).sum(), leaves)])
    torch.set_num_threads(before)
    for found in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found, results[0], strict=True))


@pytest.mark.parametrize(
    ("what", "number"), [("col", 1 << 30), ("col", -1), ("eid", 1 << 30), ("eid", -7)]
)
@pytest.mark.parametrize(
    ("make", "order"),
    [(graphs.mixed, 1), (graphs.mixed, 2), (graphs.rows_of_70, 1), (ROWS["short_rows"], 1)],
)
@pytest.mark.parametrize("channels", [5, 16])
def test_edges_that_are_out_of_range(channels, what, number, make, order, device):
    """NaN, and no gradient goes through them; that of all others is as without them."""
    csr = make(device)
    graph, at = graph_of(csr), torch.arange(0, csr.num_edges, 5, device=device)
    bad = graph._replace(**{what: getattr(graph, what).index_fill(0, at, number)})
    operands = v2_operands(csr, channels=channels)
    projection = normal(csr, csr.capacity, 2).index_fill(0, at, 0)

    def results(graph):
        leaves = [t.clone().requires_grad_() for t in operands]
        x_dst, x_src, att, features, weight = leaves
        logits = ops.additive_v2_logits(x_dst, x_src, att, graph, SLOPE, features, weight)
        kept = logits.nan_to_num() * projection
        gradients = torch.autograd.grad(kept.sum(), leaves, create_graph=order == 2)
        if order == 2:
            total = sum(g.square().sum() for g in gradients)
            gradients = torch.autograd.grad(total, leaves)
        return logits.detach(), gradients

    found, gradients = results(bad)
    expected, expected_gradients = results(graph)
    assert found[at].isnan().all()
    torch.testing.assert_close(found.index_fill(0, at, 0), expected.index_fill(0, at, 0))
    torch.testing.assert_close(gradients, expected_gradients, rtol=1e-4, atol=1e-4)


def test_features_without_numbers(device):
    csr = graphs.mixed(device)
    x_dst, x_src, att = (t.requires_grad_() for t in v2_operands(csr, width=0))
    features = torch.ones(csr.capacity, 0, device=device, requires_grad=True)
    weight = torch.ones(att.numel(), 0, device=device, requires_grad=True)
    found = v2_logits(csr, x_dst, x_src, att, features, weight)
    torch.testing.assert_close(found, v2_logits(csr, x_dst, x_src, att), rtol=0, atol=0)
    gradients = torch.autograd.grad(found.sum(), [x_dst, features, weight])
    assert [g.shape for g in gradients] == [x_dst.shape, features.shape, weight.shape]


def test_entries_before_the_first_row(device):
    """Are no edges, as those behind the last."""
    x, att = torch.ones(1, 2, 4, device=device), torch.ones(2, 4, device=device)
    rowptr, col = torch.tensor([1, 2], device=device), torch.zeros(3, device=device).long()
    found = torch.ops.dfgnn.additive_v2_logits(rowptr, col, x_dst=x, x_src=x, att=att)
    assert found.tolist() == [[0, 0], [8, 8], [0, 0]]


def test_entries_before_long_rows(device):
    csr, before = graphs.rows_of_70(device), 3000
    x_dst, x_src, att = v2_operands(csr, 8, 16, width=0)
    found = torch.ops.dfgnn.additive_v2_logits(
        csr.rowptr + before,
        torch.nn.functional.pad(csr.col, (before, 0), value=1 << 30),
        x_dst=x_dst,
        x_src=x_src,
        att=att,
        negative_slope=SLOPE,
    )
    assert not found[:before].any()
    torch.testing.assert_close(found[before:], v2_logits(csr, x_dst, x_src, att), rtol=0, atol=0)


def test_no_destinations_but_entries(device):
    """That are no edges then."""
    x = torch.ones(3, 2, 4, device=device, requires_grad=True)
    none, zero = torch.zeros(0, 2, 4, device=device), torch.zeros(1, device=device).int()
    att = torch.ones(2, 4, device=device, requires_grad=True)
    csc = {"colptr": torch.tensor([0, 1, 1, 1], device=device).int(), "row": zero, "perm": zero}
    found = torch.ops.dfgnn.additive_v2_logits(zero, zero, x_dst=none, x_src=x, att=att, **csc)
    assert found.tolist() == [[0, 0]]
    for gradient in torch.autograd.grad(found.sum(), [x, att]):
        assert not gradient.any()


@pytest.mark.parametrize("dtype", [torch.int64, torch.bool], ids=str)
def test_wrong_dtypes(dtype, device):
    csr = graphs.mixed(device)
    x_dst, x_src, att = v2_operands(csr, width=0)
    graph = graph_of(csr)
    with pytest.raises(RuntimeError, match="x_src: expected float32, float16, bfloat16 or float64"):
        ops.additive_v2_logits(x_dst.to(dtype), x_src.to(dtype), att, graph, SLOPE)


def test_wrong_shapes(device):
    csr = graphs.mixed(device)
    x_dst, x_src, att, features, weight = v2_operands(csr)
    graph = graph_of(csr)
    operator = torch.ops.dfgnn.additive_v2_logits
    with pytest.raises(RuntimeError, match="x_src: expected the nodes that edges come from"):
        operator(graph.rowptr, graph.col, x_dst=x_dst, x_src=x_src[:0], att=att)
    with pytest.raises(RuntimeError, match="features: expected those of edges, got none"):
        ops.additive_v2_logits(x_dst, x_src, att, graph, SLOPE, features[:0], weight)
    backward = torch.ops.dfgnn.additive_v2_logits_bwd
    for grad in (torch.ones(3, 2), torch.ones(csr.capacity, 2, dtype=torch.bool)):
        with pytest.raises(RuntimeError, match="grad: expected"):
            backward(grad.to(device), graph.rowptr, graph.col, x_dst=x_dst, x_src=x_src, att=att)


@pytest.mark.parametrize("width", [0, 1, 3])
@pytest.mark.parametrize("channels", [5, 8])
def test_opcheck(width, channels, device):
    """Of operands that are not contiguous, too."""
    csr = graphs.mixed(device)
    g = graph_of(csr)
    operands = v2_operands(csr, channels=channels, width=width)
    leaves = [t.mT.contiguous().mT.requires_grad_() for t in operands]
    kwargs = dict(zip(OPERANDS, leaves, strict=False), negative_slope=SLOPE)
    kwargs |= {"eid": g.eid} if width else {}
    torch.library.opcheck(torch.ops.dfgnn.additive_v2_logits, (g.rowptr, g.col), kwargs)
    grad = normal(csr, csr.capacity, 2)
    kwargs = {k: t.detach() if isinstance(t, Tensor) else t for k, t in kwargs.items()}
    for of_features in (True, False):
        kwargs["of_features"] = of_features
        arguments = (grad, g.rowptr, g.col)
        torch.library.opcheck(torch.ops.dfgnn.additive_v2_logits_bwd, arguments, kwargs)


def test_opcheck_of_additive_logits(device):
    csr = graphs.mixed(device)
    g = graph_of(csr)
    a = [normal(csr, n, 2).requires_grad_() for n in (csr.num_dst, csr.num_src)]
    kwargs = {"a_dst": a[0], "a_src": a[1], "colptr": g.colptr, "row": g.row, "perm": g.perm}
    torch.library.opcheck(torch.ops.dfgnn.additive_logits, (g.rowptr, g.col), kwargs)


@pytest.mark.parametrize("name", ["hub", "spare_capacity", "no_edges", "bipartite"])
def test_additive_logits(name, device):
    csr = graphs.make(name, device)
    a_dst, a_src = normal(csr, csr.num_dst, 2), normal(csr, csr.num_src, 2)
    expected = a_dst[csr.destinations()] + a_src[csr.sources()]
    with torch.autocast(device, dtype=torch.bfloat16):  # which leaves it alone
        found = ops.additive_logits(a_dst, a_src, graph_of(csr))
    assert found.dtype == torch.float32
    torch.testing.assert_close(found[: csr.num_edges], expected)
    assert not found[csr.num_edges :].any()


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_edge_softmax(name, device):
    csr = graphs.make(name, device)
    logits = normal(csr, csr.capacity, 3)
    logits[csr.num_edges :] = 1e30  # no edges: of no consequence
    leaf = logits.requires_grad_()
    found = ops.edge_softmax(leaf, graph_of(csr))
    (gradient,) = torch.autograd.grad(found.square().sum(), leaf)

    exact = logits.detach().double().requires_grad_()
    rows = [part.softmax(0) for part in exact[: csr.num_edges].split(csr.rowptr.diff().tolist())]
    wanted = torch.cat([*rows, exact.new_zeros(csr.capacity - csr.num_edges, 3)])
    (wanted.square().sum() + 0 * exact.sum()).backward()
    assert_near(found, wanted.detach(), 1e-5, "softmax")
    assert_near(gradient, exact.grad, 1e-5, "gradient")


@pytest.mark.parametrize("offset", [-1e5, 1e3, 1e6])
def test_edge_softmax_of_large_logits(offset, device):
    """As exact as of small ones."""
    csr = graphs.make("hub", device)
    leaf = (normal(csr, csr.capacity, 3) + offset).requires_grad_()
    found = ops.edge_softmax(leaf, graph_of(csr))
    (gradient,) = torch.autograd.grad(found.square().sum(), leaf)
    exact = leaf.detach().double().requires_grad_()
    wanted = torch.cat([part.softmax(0) for part in exact.split(csr.rowptr.diff().tolist())])
    wanted.square().sum().backward()
    assert_near(found, wanted.detach(), 1e-6, "softmax")
    assert_near(gradient, exact.grad, 1e-6, "gradient")


def test_edge_softmax_of_rows_without_weight(device):
    """All of whose logits are -inf: as if there were no edges."""
    csr = graphs.make("hub", device)
    leaf = torch.full((csr.capacity, 2), -torch.inf, device=device, requires_grad=True)
    found = ops.edge_softmax(leaf, graph_of(csr))
    assert not found.any()
    (gradient,) = torch.autograd.grad(found.sum(), leaf)
    assert not gradient.any()


@pytest.mark.parametrize("call", ["a_dst", "a_src", "x_dst", "x_src", "v"])
def test_refused_nodes(call):
    """By the name of the argument."""
    csr = graphs.mixed()
    graph, heads, size = graph_of(csr), 2, 4
    arguments = {
        "a_dst": normal(csr, csr.num_dst, heads),
        "a_src": normal(csr, csr.num_src, heads),
        "x_dst": normal(csr, csr.num_dst, heads, size),
        "x_src": normal(csr, csr.num_src, heads, size),
        "v": normal(csr, csr.num_src, heads, size),
    }
    arguments[call] = arguments[call][1:]
    a_dst, a_src, x_dst, x_src, v = arguments.values()
    att, logits = normal(csr, heads, size), normal(csr, csr.capacity, heads)
    calls = {
        "a": lambda: ops.additive_logits(a_dst, a_src, graph),
        "x": lambda: ops.additive_v2_logits(x_dst, x_src, att, graph),
        "v": lambda: ops.logits_attention(logits, v, graph),
    }
    with pytest.raises(RuntimeError, match=rf"^{call}: expected \d+ nodes, got"):
        calls[call[0]]()


def test_refused_values_of_logits_attention():
    csr = graphs.mixed()
    logits, v, graph = normal(csr, csr.capacity, 2), normal(csr, csr.num_src, 2, 8), graph_of(csr)
    with pytest.raises(RuntimeError, match=r"^v: expected shape \[N_src, 1, head_dim\], got"):
        ops.logits_attention(logits[:, :1], v, graph)
    with pytest.raises(RuntimeError, match=r"^logits: expected the dtype of v .* or float32, got"):
        ops.logits_attention(logits.double(), v, graph)


def test_logits_attention(device):
    csr = graphs.mixed(device)
    graph = graph_of(csr)
    logits, v = normal(csr, csr.capacity, 2), normal(csr, csr.num_src, 2, 8)
    expected = ops.spmm(ops.edge_softmax(logits, graph), v, graph)
    torch.testing.assert_close(ops.logits_attention(logits, v, graph), expected)


@pytest.mark.parametrize(
    "wrong", [lambda t: t[:, 0], lambda t: t[1:], lambda t: t[:, :0], lambda t: t.long()]
)
def test_refused_logits(wrong):
    csr = graphs.mixed()
    logits, v = wrong(normal(csr, csr.capacity, 2)), normal(csr, csr.num_src, 2, 8)
    with pytest.raises(
        RuntimeError, match=r"logits: expected floating point numbers of shape .*, got"
    ):
        ops.edge_softmax(logits, graph_of(csr))
    with pytest.raises(
        RuntimeError, match=r"logits: expected floating point numbers of shape .*, got"
    ):
        ops.logits_attention(logits, v, graph_of(csr))


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (0, lambda t: t[:, :1], "x_dst: expected the heads and head size of x_src"),
        (0, lambda t: t[1:], r"x_dst: expected \d+ nodes"),
        (1, lambda t: t[0], "x_src: expected a 3-dimensional tensor"),
        (2, lambda t: t[:1], "att: expected shape"),
        (3, lambda t: t.double(), "features: expected the dtype of x_src"),
        (4, lambda t: t[:-1], "weight: expected shape"),
        (4, lambda t: None, "features, weight: expected both"),
    ],
)
def test_refused(place, change, message):
    csr = graphs.mixed()
    operands = v2_operands(csr)
    operands[place] = change(operands[place])
    with pytest.raises(RuntimeError, match=message):
        v2_logits(csr, *operands)


@pytest.mark.parametrize(
    ("heads", "channels", "width", "dtype"),
    [
        *((8, 16, width, dtype) for width in (0, 8) for dtype in DTYPES),
        # of half precision some z are on the other side of 0
        *((1, 128, 40, dtype) for dtype in (torch.float32, torch.float64)),
    ],
)
def test_rows_in_pieces(heads, channels, width, dtype, device):
    csr = graphs.in_pieces().to(device)
    operands = v2_operands(csr, heads, channels, width, dtype)
    check_v2(csr, operands)
