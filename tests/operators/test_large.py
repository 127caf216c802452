"""Sizes whose products pass 2^31, on a GPU with the memory: sampled nodes against float64."""

from dataclasses import dataclass

import pytest
import torch
from calls import BACKWARD_TOLERANCE, FAMILIES, FORWARD_TOLERANCE, METHODS, operator
from torch import Tensor

NEEDED_GIB = 60


@dataclass
class Large:
    """Random edges, as many for every destination; dot scores."""

    nodes: int
    degree: int
    heads: int
    head_dim: int
    dtype: torch.dtype = torch.float32
    index: torch.dtype = torch.int32
    bias: bool = False

    def make(self, device: str) -> None:
        edges = self.nodes * self.degree
        self.rowptr = torch.arange(0, edges + 1, self.degree, dtype=self.index, device=device)
        self.col = torch.randint(self.nodes, (edges,), dtype=self.index, device=device)
        self.col[-1] = self.nodes - 1
        shape = self.nodes, self.heads, self.head_dim
        self.operands = {
            name: torch.randn(shape, dtype=self.dtype, device=device) for name in ("q", "k", "v")
        }
        if self.bias:
            self.operands["bias"] = torch.randn(edges, self.heads, device=device)
        self.grad_out = torch.randn(shape, dtype=self.dtype, device=device)

    def some_nodes(self) -> Tensor:
        """The first, the last, and some between."""
        ends = torch.tensor([0, 1, self.nodes - 2, self.nodes - 1])
        return torch.cat([ends, torch.randint(self.nodes, (12,))]).to(self.col.device)

    def by_rows(self, rows: Tensor) -> dict[str, Tensor]:
        """Of those destinations, and [rows, degree, heads] of their edges, in float64."""
        q, k, v, grad = (t.double() for t in self._rows_and_sources(rows))
        scale = self.head_dim**-0.5
        s = scale * torch.einsum("rhd,rchd->rch", q, k)
        if self.bias:
            s = s + self._of_edges(self.operands["bias"], rows)
        p = s.softmax(1)
        dp = torch.einsum("rhd,rchd->rch", grad, v)
        ds = p * (dp - (p * dp).sum(1, keepdim=True))
        return {
            "out": torch.einsum("rch,rchd->rhd", p, v),
            "lse": s.logsumexp(1),
            "grad_q": scale * torch.einsum("rch,rchd->rhd", ds, k),
            "p": p,
            "ds": ds,
        }

    def by_column(self, node: int) -> tuple[Tensor, Tensor]:
        """The gradients of k and v of a source, [heads, head_dim]."""
        edges = (self.col == node).nonzero().flatten()
        rows, places = edges // self.degree, edges % self.degree
        of_rows = self.by_rows(rows)
        at = torch.arange(rows.numel(), device=rows.device), places
        q, grad = self.operands["q"][rows].double(), self.grad_out[rows].double()
        grad_k = self.head_dim**-0.5 * torch.einsum("eh,ehd->hd", of_rows["ds"][at], q)
        return grad_k, torch.einsum("eh,ehd->hd", of_rows["p"][at], grad)

    def check_forward(self, op: str) -> tuple[Tensor, Tensor]:
        out, lse = operator(op, "dot")(self.rowptr, self.col, **self.operands)
        rows = self.some_nodes()
        expected = self.by_rows(rows)
        close(out[rows], expected["out"], FORWARD_TOLERANCE[self.dtype])
        close(lse[rows], expected["lse"], FORWARD_TOLERANCE[torch.float32])
        return out, lse

    def check_backward(self, op: str, out: Tensor, lse: Tensor) -> None:
        csc = torch.ops.dfgnn.csr_to_csc(self.rowptr, self.col, self.nodes)
        arguments = (self.grad_out, None, out, lse, self.rowptr, self.col, *csc)
        q, k, v = (self.operands[name] for name in ("q", "k", "v"))
        bias = self.operands.get("bias")
        found = operator(FAMILIES[op], "dot")(*arguments, q=q, k=k, v=v, bias=bias)
        tolerance = BACKWARD_TOLERANCE[self.dtype]
        rows = self.some_nodes()
        expected = self.by_rows(rows)
        close(found[0][rows], expected["grad_q"], tolerance)
        if self.bias:
            close(self._of_edges(found[3], rows), expected["ds"], tolerance)
        columns = [0, self.nodes - 1, int(rows[-1])]
        grad_k, grad_v = zip(*(self.by_column(node) for node in columns), strict=True)
        close(found[1][columns], torch.stack(grad_k), tolerance)
        close(found[2][columns], torch.stack(grad_v), tolerance)

    def _rows_and_sources(self, rows: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        sources = self.col.view(self.nodes, self.degree)[rows].long()
        x = self.operands
        return x["q"][rows], x["k"][sources], x["v"][sources], self.grad_out[rows]

    def _of_edges(self, t: Tensor, rows: Tensor) -> Tensor:
        return t.view(self.nodes, self.degree, self.heads)[rows]


def close(found: Tensor, expected: Tensor, tolerance: float) -> None:
    assert (found.double() - expected).abs().max() <= tolerance * expected.abs().max()


@pytest.fixture
def large_cuda(cuda, alone):
    gib = torch.cuda.get_device_properties(0).total_memory / 2**30
    if gib < NEEDED_GIB:
        pytest.skip(f"needs a GPU with {NEEDED_GIB} GiB; this has {gib:.0f}")
    return cuda


def check(case: Large, op: str, device: str) -> None:
    torch.manual_seed(0)
    case.make(device)
    case.check_backward(op, *case.check_forward(op))


@pytest.mark.parametrize("op", METHODS)
def test_that_the_checks_hold(op, device):
    check(Large(nodes=70, degree=5, heads=3, head_dim=8, bias=True), op, device)


@pytest.mark.parametrize("op", METHODS)
def test_edges_times_heads(op, large_cuda):
    check(Large(nodes=1 << 20, degree=256, heads=9, head_dim=8, bias=True), op, large_cuda)


@pytest.mark.parametrize("op", METHODS)
def test_nodes_times_features(op, large_cuda):
    case = Large(nodes=(1 << 24) + 64, degree=2, heads=1, head_dim=128, dtype=torch.float16)
    check(case, op, large_cuda)


@pytest.mark.parametrize("op", ["smmf_fwd", "pmf_fwd"])
def test_edges(op, large_cuda):
    """The forward pass alone: the CSC of so many edges takes more memory than there is."""
    case = Large(nodes=1 << 16, degree=(1 << 15) + 1, heads=1, head_dim=4, index=torch.int64)
    torch.manual_seed(0)
    case.make(large_cuda)
    case.check_forward(op)


def test_logits_of_edges_times_heads(large_cuda):
    """Of GATv2, and their gradients."""
    torch.manual_seed(0)
    nodes, degree, heads, channels, width = 1 << 20, 65, 32, 4, 2
    edges, index = nodes * degree, {"dtype": torch.int32, "device": large_cuda}
    rowptr, eid = torch.arange(0, edges + 1, degree, **index), torch.arange(edges, **index)
    col = torch.randint(nodes, (edges,), **index)
    colptr, row, perm = torch.ops.dfgnn.csr_to_csc(rowptr, col, nodes)
    x_dst, x_src, att, features, weight = (
        torch.randn(shape, device=large_cuda)
        for shape in (
            *[(nodes, heads, channels)] * 2,
            (heads, channels),
            (edges, width),
            (heads * channels, width),
        )
    )
    kwargs = {"x_dst": x_dst, "x_src": x_src, "att": att, "features": features}
    kwargs |= {"weight": weight, "eid": eid, "negative_slope": 1.0}
    found = torch.ops.dfgnn.additive_v2_logits(rowptr, col, **kwargs)
    grad = torch.rand_like(found)
    d_dst, _, _, d_features, _ = torch.ops.dfgnn.additive_v2_logits_bwd(
        grad, rowptr, col, **kwargs, colptr=colptr, row=row, perm=perm
    )

    rows = torch.tensor([0, 1, nodes - 2, nodes - 1], device=large_cuda)

    def of_rows(t: Tensor) -> Tensor:
        return t.view(nodes, degree, -1)[rows]

    own, some = (t.double().requires_grad_() for t in (x_dst[rows], of_rows(features)))
    sources = x_src[of_rows(col).squeeze(-1).long()].double()
    products = (some @ weight.double().t()).view(sources.shape)
    expected = ((own[:, None] + sources + products) * att.double()).sum(-1)
    wanted = torch.autograd.grad((expected * of_rows(grad)).sum(), (own, some))
    close(of_rows(found), expected.detach(), FORWARD_TOLERANCE[torch.float32])
    close(d_dst[rows], wanted[0], BACKWARD_TOLERANCE[torch.float32])
    close(of_rows(d_features), wanted[1], BACKWARD_TOLERANCE[torch.float32])


@pytest.mark.parametrize("self_loops", [False, True])
def test_compress_wide_results(self_loops, large_cuda):
    """Numbers of nodes past 2^31, of edges in no order."""
    last = (1 << 31) + 5
    src, dst = torch.tensor([[last, 2, 7, 0, 1, last], [1, 1, 1, 1, 1, 0]], device=large_cuda)
    forms = torch.ops.dfgnn.compress(src, dst, last + 1, 2, self_loops=self_loops)
    rowptr, col, eid, colptr, row, perm, *_ = forms
    if self_loops:  # in the place of the fifth
        assert rowptr.tolist() == [0, 2, 7]
        assert col.tolist() == [last, 0, 0, 2, 7, last, 1, 0]
        assert eid.tolist() == [5, 6, 3, 1, 2, 0, 7, 0]
        assert colptr[[0, 1, 2, 3, 7, 8, last, last + 1]].tolist() == [0, 2, 3, 4, 4, 5, 5, 7]
        assert row.tolist() == [0, 1, 1, 1, 1, 0, 1, 0]
        assert perm.tolist() == [1, 2, 6, 3, 4, 0, 5, 0]
        return
    assert rowptr.tolist() == [0, 1, 6]
    assert col.tolist() == [last, 0, 1, 2, 7, last]
    assert eid.tolist() == [5, 3, 4, 1, 2, 0]
    assert colptr[[0, 1, 2, 3, 7, 8, last, last + 1]].tolist() == [0, 1, 2, 3, 3, 4, 4, 6]
    assert row.tolist() == [1, 1, 1, 1, 0, 1]
    assert perm.tolist() == [1, 2, 3, 4, 0, 5]
