"""The end of a training run: the fused layers' speed beside PyG's own, and a plot."""

import resource
import time
from functools import partial
from statistics import median

import torch
from torch import nn


def step_times(nets: dict[str, nn.Module], batch, loss_of, seconds: float) -> dict[str, dict]:
    """Median milliseconds of each net's inference and training step, taken in turns for a while.

    On a GPU also the training step's peak memory in MiB, beyond what was held before it.
    """
    steps = {}
    for name, net in nets.items():
        steps[name, "inference"] = partial(_infer, net, batch)
        steps[name, "training step"] = partial(_train, net, batch, loss_of)
    taken: dict = {key: [] for key in steps}
    end = time.perf_counter() + seconds
    while len(next(iter(taken.values()))) < 3 or time.perf_counter() < end:
        for key, step in steps.items():
            taken[key].append(_milliseconds(step, batch.x.device))
    times: dict = {name: {} for name in nets}
    for (name, what), samples in taken.items():
        times[name][f"{what} (ms)"] = median(samples[1:])  # the first warms up
    if batch.x.is_cuda:
        for name in nets:
            before = torch.cuda.memory_allocated()
            torch.cuda.reset_peak_memory_stats()
            steps[name, "training step"]()
            peak = torch.cuda.max_memory_allocated() - before
            times[name]["training memory (MiB)"] = peak / 2**20
    return times


def _infer(net, batch):
    net.eval()
    with torch.no_grad():
        net(batch.x, batch.edge_index)


def _train(net, batch, loss_of):
    net.train()
    net.zero_grad()
    loss_of(net(batch.x, batch.edge_index)).backward()


def _milliseconds(step, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize()
    start = time.perf_counter()
    step()
    if device.type == "cuda":
        torch.cuda.synchronize()
    return (time.perf_counter() - start) * 1e3


def format_table(metric: str, scores: dict[str, dict], times: dict[str, dict]) -> str:
    rows = [f"{'':24}{'pyg_dfgnn':>12}{'PyG':>12}{'PyG / ours':>12}"]
    rows.append(f"{'test ' + metric:24}" + "".join(f"{s[metric]:12.4f}" for s in scores.values()))
    for what, ours in times["dfgnn"].items():
        theirs = times["pyg"][what]
        rows.append(f"{what:24}{ours:12.2f}{theirs:12.2f}{theirs / ours:12.2f}")
    return "\n".join(rows)


def peak_memory(device: torch.device) -> float:
    """MiB: the tensors' peak on a GPU, the process's peak on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def plot(path, title: str, metric: str, history: list[dict], table: dict | None) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(1, 3 if table else 2, figsize=(12 if table else 8, 3.5))
    trained = history[1:]
    losses = [loss for epoch in trained for loss in epoch["losses"]]
    steps = len(losses) // len(trained)
    axes[0].plot([(step + 1) / steps for step in range(len(losses))], losses)
    axes[0].set(xlabel="epoch", ylabel="training loss")
    axes[1].plot([epoch["epoch"] for epoch in trained], [epoch["train"] for epoch in trained])
    axes[1].plot([epoch["epoch"] for epoch in history], [epoch["val"] for epoch in history])
    axes[1].set(xlabel="epoch", ylabel=metric)
    axes[1].legend(["training", "validation"])
    if table:
        names = list(table)
        for offset, what in ((-0.2, "inference (ms)"), (0.2, "training step (ms)")):
            places = [i + offset for i in range(len(names))]
            axes[2].bar(
                places,
                [table[name][what] for name in names],
                width=0.4,
                label=what.removesuffix(" (ms)"),
            )
        axes[2].set_xticks(range(len(names)), ["pyg_dfgnn", "PyG"])
        axes[2].set(ylabel="milliseconds")
        axes[2].legend()
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
