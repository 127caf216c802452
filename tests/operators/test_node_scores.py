"""GAT's scores of nodes, against plain torch in float64."""

import pytest
import torch
from calls import BACKWARD_TOLERANCE, DTYPES, FORWARD_TOLERANCE, assert_near
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from pyg_dfgnn import ops
from pyg_dfgnn.nn import GATConv, SuperGATConv

# Heads and channels: of one vector and of many, that no vector divides, and more than a warp holds.
SHAPES = [(1, 1), (3, 2), (8, 16), (2, 12), (1, 128), (5, 33), (4, 64), (1, 600), (130, 8)]
NODES = [0, 1, 63, 64, 65, 700]


def operands(
    nodes: int, heads: int, channels: int, device: str, dtype: torch.dtype = torch.float32
) -> list[Tensor]:
    """x, and two vectors."""
    generator = torch.Generator().manual_seed(nodes)
    shapes = [(nodes, heads, channels), (heads, channels), (heads, channels)]
    return [torch.randn(shape, generator=generator).to(device, dtype) for shape in shapes]


def check(given: list[Tensor]) -> None:
    """Scores by one vector and by two, and all gradients."""
    dtype = given[0].dtype
    for count in (1, 2):
        leaves = [t.clone().requires_grad_() for t in given[: 1 + count]]
        exact = [t.double().requires_grad_() for t in given[: 1 + count]]
        found = torch.ops.dfgnn.node_scores(*leaves)[:count]
        wanted = [(exact[0] * att).sum(-1) for att in exact[1:]]
        projections = [torch.rand_like(w) for w in wanted]
        for a, b in zip(found, wanted, strict=True):
            assert a.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
            assert_near(a, b.detach(), FORWARD_TOLERANCE[torch.float32], "scores", terms=1)
        totals = [
            sum((y * p.to(y)).sum() for y, p in zip(ys, projections, strict=True))
            for ys in (found, wanted)
        ]
        gradients = torch.autograd.grad(totals[0], leaves)
        for a, b in zip(gradients, torch.autograd.grad(totals[1], exact), strict=True):
            assert a.dtype == dtype
            assert_near(a, b, BACKWARD_TOLERANCE[dtype], "gradient", terms=1)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("nodes", NODES)
def test_shapes(nodes, shape, device):
    check(operands(nodes, *shape, device))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(8, 16), (3, 7)], ids=str)
def test_dtypes(dtype, shape, device):
    check(operands(200, *shape, device, dtype))


def test_many_nodes(device):
    """More than blocks of sums over nodes."""
    check(operands(70_000, 2, 8, device))


def test_float32_vectors_of_half_precision(device):
    x, att, other = operands(50, 2, 8, device)
    leaves = [x.bfloat16().requires_grad_(), att.requires_grad_(), other.requires_grad_()]
    scores = torch.ops.dfgnn.node_scores(*leaves)
    expected = (leaves[0].float() * att).sum(-1)
    torch.testing.assert_close(scores[0], expected, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(scores[0].sum() + scores[1].sum(), leaves)
    assert [g.dtype for g in gradients] == [torch.bfloat16, torch.float32, torch.float32]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("layer", [GATConv, SuperGATConv])
def test_vectors_of_another_half_precision(layer, dtype, device):
    """As models of one have in autocast to the other: the features alone are cast."""
    other = {torch.bfloat16: torch.float16, torch.float16: torch.bfloat16}[dtype]
    torch.manual_seed(0)
    conv, x = layer(8, 4, heads=2).to(device), torch.randn(9, 8, device=device)
    edge_index = torch.randint(9, (2, 30), device=device)
    expected = conv.eval()(x, edge_index)
    with torch.autocast(device, dtype):
        found = conv.to(other)(x.to(other), edge_index)
    torch.testing.assert_close(found.float(), expected, rtol=5e-2, atol=5e-2)
    found.float().sum().backward()
    assert all(p.grad.dtype == other for p in conv.parameters())


def test_views(device):
    """That are not contiguous, or begin anywhere."""
    x, att, _ = operands(20, 3, 8, device)
    expected = ops.node_scores(x, att)
    torch.testing.assert_close(
        ops.node_scores(x.mT.contiguous().mT, att.t().contiguous().t()), expected
    )
    shifted = torch.zeros(x.numel() + 1, device=device)[1:].view_as(x).copy_(x).requires_grad_()
    found = ops.node_scores(shifted, att)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    torch.testing.assert_close(
        *torch.broadcast_tensors(*torch.autograd.grad(found.sum(), shifted), att)
    )


def test_both_ends(device):
    """Of one tensor in one call, of two in two, with the same numbers."""
    x, att_src, att_dst = operands(90, 4, 16, device)
    other = x.clone()
    same, apart = (ops.gat_scores(x, x_dst, att_src, att_dst) for x_dst in (x, other))
    for a, b in zip(same, apart, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    x.requires_grad_()
    a_src, a_dst = ops.gat_scores(x, x, att_src, att_dst)
    (gradient,) = torch.autograd.grad(a_src.sum() + 2 * a_dst.sum(), x)
    torch.testing.assert_close(gradient, (att_src + 2 * att_dst).expand_as(x))


@pytest.mark.parametrize("name", ["x_src", "x_dst", "att_src", "att_dst"])
def test_errors_of_both_ends(name, device):
    x, att_src, att_dst = operands(9, 2, 4, device)
    given = {"x_src": x, "x_dst": x, "att_src": att_src, "att_dst": att_dst}
    given[name] = given[name][0]
    with pytest.raises(RuntimeError, match=f"^{name}: expected"):
        ops.gat_scores(**given)


def test_one_of_both_gradients(device):
    x, att_src, att_dst = (t.requires_grad_() for t in operands(30, 2, 4, device))
    a_src, _ = ops.gat_scores(x, x, att_src, att_dst)
    of_x, of_src, of_dst = torch.autograd.grad(a_src.sum(), [x, att_src, att_dst])
    torch.testing.assert_close(of_x, att_src.expand_as(x))
    torch.testing.assert_close(of_src, x.sum(0))
    assert not of_dst.any()


def test_gradcheck(device):
    leaves = [t.requires_grad_() for t in operands(5, 2, 3, device, torch.float64)]
    for given in (leaves, leaves[:2]):
        count = len(given) - 1
        assert gradcheck(lambda *t, n=count: torch.ops.dfgnn.node_scores(*t)[:n], given)
        assert gradgradcheck(lambda *t, n=count: torch.ops.dfgnn.node_scores(*t)[:n], given)


def test_same_bits(device):
    leaves = [t.requires_grad_() for t in operands(5000, 8, 16, device)]

    def run() -> tuple[Tensor, ...]:
        scores = torch.ops.dfgnn.node_scores(*leaves)
        return torch.autograd.grad(scores[0].square().sum() + scores[1].sum(), leaves)

    first = run()
    for _ in range(3):
        torch.testing.assert_close(run(), first, rtol=0, atol=0)


def test_opcheck(device):
    x, att, other = (t.requires_grad_() for t in operands(6, 2, 4, device))
    for vectors in ((att, other), (att,)):
        torch.library.opcheck(torch.ops.dfgnn.node_scores.default, (x, *vectors))
    grad = torch.rand(6, 2, device=device)
    given = tuple(t.detach() for t in (x, att, other))
    torch.library.opcheck(torch.ops.dfgnn.node_scores_bwd.default, (grad, grad, *given))
    torch.library.opcheck(torch.ops.dfgnn.node_scores_bwd.default, (grad, None, *given[:2]))


def test_compiled(device):
    x, att_src, att_dst = (t.requires_grad_() for t in operands(40, 2, 8, device))

    def total(*leaves: Tensor) -> Tensor:
        a_src, a_dst = torch.ops.dfgnn.gat_scores(leaves[0], *leaves)
        return (a_src * a_dst).sum()

    leaves = [x, att_src, att_dst]
    compiled = torch.compile(total, fullgraph=True)
    found = torch.autograd.grad(compiled(*leaves), leaves)
    torch.testing.assert_close(found, torch.autograd.grad(total(*leaves), leaves))


MISTAKES = [
    ("x", lambda x, att, other: (x[0], att)),
    ("x", lambda x, att, other: (x.long(), att)),
    ("att", lambda x, att, other: (x, att[:1])),
    ("att", lambda x, att, other: (x, att.long())),
    ("other", lambda x, att, other: (x, att, other.unsqueeze(0))),
    ("other", lambda x, att, other: (x, att, other.double())),
]


@pytest.mark.parametrize(("name", "mistake"), MISTAKES)
def test_refused(name, mistake, device):
    with pytest.raises(RuntimeError, match=rf"\b{name}: expected .*got "):
        torch.ops.dfgnn.node_scores(*mistake(*operands(5, 2, 4, device)))


ENDS_MISTAKES = [
    ("x_src", lambda x, y, a, b: (x.long(), y, a, b)),
    ("x_dst", lambda x, y, a, b: (x, y[:, :0], a, b[:0])),
    ("x_dst", lambda x, y, a, b: (x, y[0], a, b)),
    ("att_src", lambda x, y, a, b: (x, y, a.double(), b)),
    ("att_dst", lambda x, y, a, b: (x, x, a, b.long())),
    ("att_dst", lambda x, y, a, b: (x, y, a, b[:1])),
]


@pytest.mark.parametrize(("name", "mistake"), ENDS_MISTAKES)
def test_refused_ends(name, mistake, device):
    x, att_src, att_dst = operands(5, 2, 4, device)
    with pytest.raises(RuntimeError, match=rf"^{name}: expected .*got "):
        torch.ops.dfgnn.gat_scores(*mistake(x, x[1:], att_src, att_dst))


def test_refused_gradients(device):
    x, att, other = operands(5, 2, 4, device)
    grad = torch.ones(5, 2, device=device)
    backward = torch.ops.dfgnn.node_scores_bwd
    with pytest.raises(RuntimeError, match="grad: expected shape"):
        backward(grad[1:], None, x, att)
    with pytest.raises(RuntimeError, match="grad_other: expected"):
        backward(grad, None, x, att, other)
    with pytest.raises(RuntimeError, match="grad_other: expected floating point"):
        backward(grad, grad.long(), x, att, other)


def test_other_devices(cuda):
    x, att, _ = operands(5, 2, 4, cuda)
    with pytest.raises(RuntimeError, match="att: expected a tensor on"):
        torch.ops.dfgnn.node_scores(x, att.cpu())
