"""Time and memory of a call, on the device that it runs on."""

import statistics
from collections.abc import Callable

import torch
from torch.utils.benchmark import Timer


def time_ms(call: Callable[[int], object], device: str, budget_ms: float) -> float:
    """Median time of ``call(i)`` in milliseconds, within about ``budget_ms`` after warming up.

    CUDA events on a GPU, ``torch.utils.benchmark`` with all of torch's threads on the CPU. ``call``
    gets the number of the repetition, to rotate its inputs.
    """
    if device == "cuda":
        return _cuda_time_ms(call, budget_ms)
    call(0)
    timer = Timer("call(0)", globals={"call": call}, num_threads=torch.get_num_threads())
    return timer.blocked_autorange(min_run_time=budget_ms / 1000).median * 1000


def _cuda_time_ms(call: Callable[[int], object], budget_ms: float) -> float:
    def once(i: int) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        call(i)
        end.record()
        end.synchronize()
        return start.elapsed_time(end)

    once(0)
    estimate = max(min(once(1), once(2)), 1e-3)
    repeats = int(min(100, max(5, budget_ms / estimate)))
    for i in range(min(repeats, 20)):
        once(i)
    return statistics.median(once(i) for i in range(repeats))


def peak_mib(call: Callable[[], object], device: str) -> float | None:
    """Peak of what ``call`` allocates on a GPU beyond what it returns, in MiB; None on the CPU."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    result = call()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - before
    del result
    return (torch.cuda.max_memory_allocated() - before - kept) / 2**20
