"""One measurement of attention: the time and the memory of a backend's call on a graph.

The call is checked against float64 on a sample of rows, forward and backward, before it is timed.
Inputs are rotated where they would fit the L2 cache.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from .backends import BACKENDS, FORWARD_ONLY
from .case import Case, Row
from .lab import Lab
from .measure import peak_mib, replay_ms, time_ms
from .operands import DTYPES, Operands, Reference, leaves, make_operands
from .workload import Workload

L2_BYTES = 128 * 2**20


@dataclass(frozen=True)
class Attention(Case):
    """Attention of a backend on a data set's graph, or on the first ``batch`` of its graphs."""

    kind: ClassVar[str] = "attention"
    workload: str
    batch: int
    score: str
    dtype: str
    backend: str
    heads: int = 1
    head_dim: int = 128
    order: str = "sorted"

    def measure(self, lab: Lab, row: Row) -> None:
        workload = lab.workload(self.workload, self.batch, self.order)
        row |= workload.statistics()
        measure(
            row, workload, self.score, self.dtype, self.heads, self.head_dim, self.backend,
            lab.budget_ms,
        )  # fmt: skip


def measure(
    row: Row,
    workload: Workload,
    score: str,
    dtype: str,
    heads: int,
    head_dim: int,
    backend: str,
    budget_ms: float,
    cuda_graphs: bool = False,
) -> None:
    """Fills ``row`` in as it goes, so that it keeps what was measured before a failure.

    Times are ``forward_ms`` and ``forward_backward_ms``, peaks beyond inputs and outputs
    ``forward_mib`` and ``forward_backward_mib``, of backends without a backward pass the former
    alone; a ``note`` says what is wrong with the results. ``cuda_graphs``: times are those of
    replays, without the host.
    """
    device = workload.device
    shape = (workload.num_nodes, heads, head_dim)
    one_set = shape[0] * shape[1] * shape[2] * DTYPES[dtype].itemsize * 4
    count = max(1, min(8, -(-L2_BYTES // one_set))) if device == "cuda" else 1
    call = BACKENDS[backend](score, workload)
    sets = [make_operands(score, *shape, DTYPES[dtype], device) for _ in range(count)]
    grad_out = torch.randn(shape, device=device).to(DTYPES[dtype])

    def forward(i: int) -> Tensor:
        with torch.no_grad():
            return call(sets[i % count])

    def gradients(operands: Operands, grad: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(call(operands), tuple(leaves(operands).values()), grad)

    def forward_backward(i: int) -> tuple[Tensor, ...]:
        return gradients(sets[i % count], grad_out)

    def timing(passes: Callable[[int], object]) -> list[float]:
        if cuda_graphs:
            return replay_ms(passes, budget_ms, calls=2 * count).rounded()
        return time_ms(passes, device, budget_ms).rounded()

    reference = Reference(score, workload, sets[0])
    row["note"] = reference.check_out(forward(0))
    row["forward_ms"] = timing(forward)
    row["forward_mib"] = peak_mib(lambda: forward(0), device)
    if backend in FORWARD_ONLY:
        return
    wrong = reference.check_grads(gradients(sets[0], reference.grad_out))
    row["note"] = " ".join(filter(None, [row["note"], wrong]))
    del reference
    row["forward_backward_ms"] = timing(forward_backward)
    row["forward_backward_mib"] = peak_mib(lambda: forward_backward(0), device)
