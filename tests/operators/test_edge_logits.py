"""Scores as tensors, and the softmax over them, against plain torch in float64."""

import graphs
import pytest
import torch
from calls import assert_near, graph_of, normal

from pyg_dfgnn import ops


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


def test_refused_terms(device):
    csr = graphs.make("hub", device)
    a_dst, a_src = normal(csr, csr.num_dst, 2), normal(csr, csr.num_src, 2)
    for name, message, given in (
        ("a_dst", r".* at least one head, got Float of shape \[\d+, 0\]", (a_dst[:, :0], a_src)),
        ("a_src", ".* at least one head, got Long", (a_dst, a_src.long())),
        ("a_src", r"the dtype of a_dst \(Float\), got Double", (a_dst, a_src.double())),
    ):
        with pytest.raises(RuntimeError, match=f"^{name}: expected {message}"):
            ops.additive_logits(*given, graph_of(csr))


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
