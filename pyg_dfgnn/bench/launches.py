"""What a call takes on graphs so small that launching its kernels takes longer than they run."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch

from .backends import BACKENDS
from .case import Case, Row
from .lab import Lab
from .measure import Timing, replay_ms, wait
from .operands import DTYPES, Reference, leaves, make_operands

CALLS, LOOPS = 1000, 5
TIMES_FEWER = 10  # of calls that take as many times as long, or more


@dataclass(frozen=True)
class Launches(Case):
    """Wall time a call of loops of eager calls, with a backward pass also by autograd without its
    threads, and on a GPU the time of replays of a CUDA graph that such a call was captured in.
    Inputs are the same each time, and in the L2 cache."""

    kind: ClassVar[str] = "launches"
    workload: str
    score: str
    dtype: str
    backend: str
    heads: int = 1
    head_dim: int = 128

    def measure(self, lab: Lab, row: Row) -> None:
        workload = lab.workload(self.workload, 1)
        row |= workload.statistics()
        shape = (workload.num_nodes, self.heads, self.head_dim)
        operands = make_operands(self.score, *shape, DTYPES[self.dtype], lab.device)
        call = BACKENDS[self.backend](self.score, workload)
        reference = Reference(self.score, workload, operands)

        def forward(_: int = 0) -> torch.Tensor:
            with torch.no_grad():
                return call(operands)

        def forward_backward(_: int = 0) -> tuple[torch.Tensor, ...]:
            parameters = tuple(leaves(operands).values())
            return torch.autograd.grad(call(operands), parameters, reference.grad_out)

        wrong = [reference.check_out(forward()), reference.check_grads(forward_backward())]
        row["note"] = " ".join(filter(None, wrong))
        calls = CALLS if self.backend == "auto" else CALLS // TIMES_FEWER
        passes: dict[str, Callable[..., object]] = {
            "forward": forward,
            "forward_backward": forward_backward,
        }
        for name, of_pass in passes.items():
            row[f"eager_{name}_ms"] = wall_ms(of_pass, lab.device, calls).rounded()
            if lab.device == "cuda" and self.backend == "auto":
                row[f"graph_{name}_ms"] = replay_ms(of_pass, lab.budget_ms).rounded()
        if lab.device == "cuda":  # a CPU's backward passes are in the calling thread anyway
            with torch.autograd.set_multithreading_enabled(False):
                one_thread = wall_ms(forward_backward, lab.device, calls)
            row["one_thread_forward_backward_ms"] = one_thread.rounded()


def wall_ms(call: Callable[[], object], device: str, calls: int) -> Timing:
    """Of a call, in loops of so many, on the CPU of fewer."""
    calls = calls if device == "cuda" else calls // 20
    times = []
    for loop in range(LOOPS + 1):
        wait(device)
        start = time.perf_counter()
        for _ in range(calls):
            call()
        wait(device)
        if loop > 0:  # the first one warms up
            times.append(1000 * (time.perf_counter() - start) / calls)
    return Timing.of(times)
