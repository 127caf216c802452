"""Scores of GATv2 as tensors: operands that are unusual, wrong or not there."""

import graphs
import pytest
import torch
from calls import normal
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.symbolic_shapes import DimDynamic, ShapeEnv, StatelessSymbolicContext
from v2_logits import OPERANDS, ROWS, SLOPE, check_v2, graph_of, v2_logits, v2_operands

from pyg_dfgnn import ops


@pytest.mark.parametrize("width", [3, 8])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_views_that_begin_anywhere(dtype, width, device):
    csr = graphs.mixed(device)

    def moved(t: Tensor) -> Tensor:
        return torch.cat([t.new_zeros(1), t.flatten()])[1:].view_as(t)

    operands = [moved(t) for t in v2_operands(csr, channels=32, width=width, dtype=dtype)]
    check_v2(csr, operands)


@pytest.mark.parametrize("channels", [5, 16])
@pytest.mark.parametrize("name", graphs.BROKEN_ROWPTRS)
def test_rowptr_that_is_none(name, channels, device):
    """Safe, whatever comes out."""
    rowptr = torch.tensor(graphs.BROKEN_ROWPTRS[name], device=device)
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("heads", "channels", "width"), [(1, 4, 3), (3, 16, 0), (8, 16, 8), (2, 200, 40)]
)
def test_signs_of_the_forward_pass(heads, channels, width, dtype, cuda):
    """They are what the backward pass makes of the operands without them."""
    csr = graphs.mixed(cuda)
    g = graph_of(csr)
    operands = v2_operands(csr, heads, channels, width, dtype)
    kwargs = dict(zip(OPERANDS, operands, strict=False), negative_slope=SLOPE)
    kwargs |= {"eid": g.eid} if width else {}
    logits, signs = torch.ops.dfgnn.additive_v2_logits_fwd(g.rowptr, g.col, **kwargs)
    expected = torch.ops.dfgnn.additive_v2_logits(g.rowptr, g.col, **kwargs)
    torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-4)
    assert signs.dtype == torch.uint8
    assert (signs.numel() == 0) == (dtype == torch.float64)
    torch.library.opcheck(torch.ops.dfgnn.additive_v2_logits_fwd, (g.rowptr, g.col), kwargs)

    backward = torch.ops.dfgnn.additive_v2_logits_bwd
    grad = normal(csr, csr.capacity, heads)
    for a, b in zip(
        backward(grad, g.rowptr, g.col, **kwargs, signs=signs),
        backward(grad, g.rowptr, g.col, **kwargs),
        strict=True,
    ):
        assert torch.equal(a, b)
    grads = grad.new_empty(grad.numel() + 1)[1:].view_as(grad).copy_(grad)  # not aligned
    for a, b in zip(
        backward(grads, g.rowptr, g.col, **kwargs, signs=signs),
        backward(grad, g.rowptr, g.col, **kwargs),
        strict=True,
    ):
        assert torch.equal(a, b)
    for wrong in (signs[1:], signs.float(), signs.cpu()):
        with pytest.raises(RuntimeError, match="signs: expected"):
            backward(grad, g.rowptr, g.col, **kwargs, signs=wrong)


def test_sizes_of_graphs_stay_symbols():
    """What compiled code sees of the operators that autograd calls on CUDA."""
    csr = graphs.mixed()
    g, operands = graph_of(csr), v2_operands(csr)
    mode = FakeTensorMode(shape_env=ShapeEnv())

    def fake(t: Tensor, first: DimDynamic = DimDynamic.DYNAMIC) -> Tensor:
        sizes = [first, *[DimDynamic.STATIC] * (t.dim() - 1)]
        return mode.from_tensor(t, symbolic_context=StatelessSymbolicContext(sizes))

    x_dst, x_src, features = (fake(operands[i]) for i in (0, 1, 3))
    att, weight = (fake(operands[i], DimDynamic.STATIC) for i in (2, 4))
    rowptr, col, eid = (fake(t) for t in (g.rowptr, g.col, g.eid))
    kwargs = dict(zip(OPERANDS, (x_dst, x_src, att, features, weight), strict=True), eid=eid)
    with mode:
        logits, signs = torch.ops.dfgnn.additive_v2_logits_fwd(rowptr, col, **kwargs)
        gradients = torch.ops.dfgnn.additive_v2_logits_bwd(
            logits, rowptr, col, **kwargs, signs=signs
        )
    for found in (logits, signs, gradients[0], gradients[3], x_dst):
        assert isinstance(found.shape[0], torch.SymInt)
    assert signs.shape[1] == 8


def test_calls_without_signs(cuda):
    csr = graphs.mixed(cuda)
    g = graph_of(csr)
    for width, slope in ((0, 2.0), (257, SLOPE)):
        operands = dict(zip(OPERANDS, v2_operands(csr, 2, 16, width), strict=False))
        eid = {"eid": g.eid} if width else {}
        logits, signs = torch.ops.dfgnn.additive_v2_logits_fwd(
            g.rowptr, g.col, **operands, **eid, negative_slope=slope
        )
        assert signs.shape == (csr.capacity, 0)
        assert logits.isfinite().all()


def test_features_whose_gradients_are_sums_over_groups_of_heads(device):
    """That cancel, and are rounded once."""
    csr = graphs.from_rows([[0, 1], [1]], 2).to(device)
    heads, channels = 2, 128
    x = torch.ones(2, heads, channels, device=device, dtype=torch.float16)
    att = torch.ones(heads, channels, device=device, dtype=torch.float16)
    features = torch.ones(csr.capacity, 2, device=device, dtype=torch.float16).requires_grad_()
    weight = torch.full((heads, channels, 2), 600.0, device=device, dtype=torch.float16)
    weight[1] = -599.5  # either sum is out of range of 16 bits
    logits = v2_logits(csr, x, x, att, features, weight.flatten(0, 1), slope=1.0)
    logits.sum().backward()
    assert (features.grad == channels / 2).all()


def test_infinite_nodes_without_edges(device):
    """Have no part in the gradients, although att's is made of sums over nodes."""
    csr = graphs.from_rows([[0, 1], [], [2, 0, 1]], 4).to(device)
    x_dst, x_src, att, features, weight = v2_operands(csr, 2, 16, 8)
    x_dst[1], x_src[3] = float("inf"), float("nan")
    leaves = [t.requires_grad_() for t in (x_dst, x_src, att, features, weight)]
    v2_logits(csr, *leaves).sum().backward()
    assert all(t.grad.isfinite().all() for t in leaves)
