"""Time and memory of a call, on the device that it runs on."""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import torch

R = TypeVar("R")


class Timing(NamedTuple):
    """Milliseconds: the median and the quartiles of repetitions."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, milliseconds: list[float]) -> "Timing":
        median = statistics.median(milliseconds)
        if len(milliseconds) == 1:
            return cls(median, median, median)
        low, _, high = statistics.quantiles(milliseconds, n=4, method="inclusive")
        return cls(median, low, high)

    def rounded(self) -> list[float]:
        """Four digits of each, as results keep them."""
        return [float(f"{value:.4g}") for value in self]


def time_ms(call: Callable[[int], object], device: str, budget_ms: float) -> Timing:
    """Times of ``call(i)``, within about ``budget_ms`` after warming up, at least three.

    CUDA events around each call on a GPU, the clock on the CPU. Nothing waits between calls, as in
    a training loop: what is timed is the GPU's work or, where that takes longer, the host's.
    ``call`` gets the number of the repetition, to rotate its inputs.
    """
    if device == "cuda":
        return _cuda_time_ms(call, budget_ms)
    call(0)
    times: list[float] = []
    while len(times) < 3 or (sum(times) < budget_ms and len(times) < 1000):
        start = time.perf_counter()
        call(len(times))
        times.append(1000 * (time.perf_counter() - start))
    return Timing.of(times)


def _cuda_time_ms(call: Callable[[int], object], budget_ms: float) -> Timing:
    def run(count: int) -> list[float]:
        pairs = []
        for i in range(count):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            call(i)
            end.record()
            pairs.append((start, end))
        torch.cuda.synchronize()
        return [start.elapsed_time(end) for start, end in pairs]

    run(1)
    estimate = max(min(run(2)), 1e-3)
    repeats = int(min(100, max(3, budget_ms / estimate)))
    if repeats > 3:  # three long calls have warmed up what there is to warm
        run(min(repeats, 20))
    return Timing.of(run(repeats))


def replay_ms(call: Callable[[int], object], budget_ms: float, calls: int = 1) -> Timing:
    """Times of ``call``, which has been called before, in replays of a CUDA graph of ``call(0)``
    up to ``call(calls - 1)``: of the GPU's work alone."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call(0)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(calls):
            call(i)
    return Timing(*(time / calls for time in _cuda_time_ms(lambda _: graph.replay(), budget_ms)))


def gpu_allocations(call: Callable[[], R]) -> tuple[int, int, R]:
    """The most bytes that ``call`` has allocated at a time, what remains of them, its result."""
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    peak = torch.cuda.max_memory_allocated() - before
    return peak, torch.cuda.memory_allocated() - before, result


def peak_mib(call: Callable[[], object], device: str) -> float | None:
    """Peak of what ``call`` allocates on a GPU beyond what it returns, in MiB; None on the CPU."""
    if device != "cuda":
        return None
    peak, kept, _ = gpu_allocations(call)
    return round((peak - kept) / 2**20, 2)


def wait(device: str) -> None:
    """Until the device has done all that it was given."""
    if device == "cuda":
        torch.cuda.synchronize()
