"""Operands of attention, and what a backend must make of them: a float64 reference."""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.utils import softmax

from .workload import Workload

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SCORES = ("dot", "cosine", "additive", "additive_v2")
MODELS = {"dot": "GT", "cosine": "AGNN", "additive": "GAT", "additive_v2": "GATv2"}
# Largest error of a result, relative to the largest element of the float64 reference; gradients,
# for which sums of products of such results are summed again, may have four times as much.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 2e-3}
GRADIENTS = 4
Operands = dict[str, Tensor]


def make_operands(
    score: str, n: int, heads: int, head_dim: int, dtype: torch.dtype, device: str
) -> Operands:
    """Normally distributed, as the operators name them; all of them require gradients."""

    def features() -> Tensor:
        return torch.randn(n, heads, head_dim, device=device, dtype=dtype).requires_grad_()

    def scalars() -> Tensor:
        return torch.randn(n, heads, device=device, dtype=dtype).requires_grad_()

    if score == "dot":
        return {"q": features(), "k": features(), "v": features()}
    if score == "cosine":
        x = features()
        beta = torch.ones(1, device=device, dtype=dtype).requires_grad_()
        return {"x_dst": x, "x_src": x, "beta": beta}
    if score == "additive_v2":
        att = torch.randn(heads, head_dim, device=device, dtype=dtype) * head_dim**-0.5
        return {"x_dst": features(), "x_src": features(), "att": att.requires_grad_()}
    return {"a_dst": scalars(), "a_src": scalars(), "v": features()}


def leaves(operands: Operands) -> Operands:
    """Each tensor once; AGNN's features are operands twice."""
    return {name: x for name, x in operands.items() if name != "x_dst" or "beta" not in operands}


def logits(score: str, x: Operands, i: Tensor, j: Tensor) -> Tensor:
    """Scores ``[E, heads]`` of edges from nodes ``j`` to nodes ``i``."""
    if score == "dot":
        return (x["q"][i] * x["k"][j]).sum(-1) * x["q"].size(-1) ** -0.5
    if score == "cosine":
        unit = F.normalize(x["x_src"], dim=-1)
        return x["beta"] * (unit[i] * unit[j]).sum(-1)
    if score == "additive_v2":
        return (x["att"] * F.leaky_relu(x["x_dst"][i] + x["x_src"][j], 0.2)).sum(-1)
    return F.leaky_relu(x["a_dst"][i] + x["a_src"][j], 0.2)


def value(score: str, x: Operands) -> Tensor:
    return x["v" if score in ("dot", "additive") else "x_src"]


class Reference:
    """Rows of the attention of a graph, and gradients through them, in float64.

    Attributes:
        rows: A sample of destinations, the one of most edges among them.
        grad_out: ``[N, heads, head_dim]`` of the operands' dtype, 0 but for these rows.
    """

    def __init__(self, score: str, workload: Workload, operands: Operands) -> None:
        degrees = workload.rowptr.diff().long()
        some = torch.randint(degrees.numel(), (63,), device=degrees.device)
        self.rows = torch.cat([degrees.argmax().view(1), some]).unique()
        degree = degrees[self.rows]
        place = torch.arange(self.rows.numel(), device=degrees.device).repeat_interleave(degree)
        begin = workload.rowptr[self.rows].long() - (degree.cumsum(0) - degree)
        edge = begin[place] + torch.arange(place.numel(), device=place.device)
        j = workload.col[edge].long()

        x = {name: t.detach().double().requires_grad_() for name, t in operands.items()}
        weight = softmax(logits(score, x, self.rows[place], j), place, num_nodes=self.rows.numel())
        v = value(score, x)
        out = v.new_zeros(self.rows.numel(), *v.shape[1:]).index_add(
            0, place, weight.unsqueeze(-1) * v[j]
        )
        self.out = out.detach()
        self.grad_out = torch.zeros_like(value(score, operands))
        self.grad_out[self.rows] = torch.randn_like(self.grad_out[self.rows])
        names = leaves(operands)
        grad_rows = self.grad_out[self.rows].double()
        found = torch.autograd.grad(out, [x[name] for name in names], grad_rows)
        self.grads = dict(zip(names, found, strict=True))

    def check_out(self, out: Tensor) -> str:
        """What is wrong with a result ``[N, heads, head_dim]``; empty for nothing."""
        error = _error(out.detach()[self.rows], self.out)
        return "" if error <= TOLERANCE[out.dtype] else f"[error {error:.0e}]"

    def check_grads(self, grads: tuple[Tensor, ...]) -> str:
        """What is wrong with gradients of ``grad_out`` for ``leaves``; empty for nothing.

        That of AGNN's one ``beta`` is a sum over all edges whose terms cancel, and is left out.
        Where a gradient is 0, as that of the scores of rows of one edge, its error is relative to
        the largest gradient there is.
        """
        largest = max(float(expected.abs().max()) for expected in self.grads.values()) or 1.0
        errors = [
            f"[error {error:.0e} in the gradient of {name}]"
            for grad, (name, expected) in zip(grads, self.grads.items(), strict=True)
            if name != "beta"
            and not (error := _error(grad, expected, largest)) <= GRADIENTS * TOLERANCE[grad.dtype]
        ]
        return " ".join(errors)


def _error(found: Tensor, expected: Tensor, scale: float = 1.0) -> float:
    """The largest, relative to the largest element, or to ``scale`` where all are 0."""
    error, element = (float(x.abs().max()) for x in (found.double() - expected, expected))
    return error / (element or scale)
