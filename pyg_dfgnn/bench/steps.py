"""Times of whole training steps on batches of small graphs, beside PyG, and of their parts.

A step collates the graphs, copies the batch to the device, makes its structure, computes the loss,
its gradients and new parameters. The time of a step is that of all this without waiting in between;
for its parts the device is waited for after each. Backends:

    dfgnn           our layers; graphs went through PrecomputeGraph, the model gets the edge_index
    dfgnn-convert   our layers; the edge_index of each batch is converted on the device
    dfgnn-device    the first, its batches collated by DeviceDataset, on the device
    dfgnn-compiled  that, its blocks in torch.compile; the model gets the Graph
    pyg             PyG's layers
    pyg-compiled    PyG's layers, blocks in torch.compile

All start from the same weights. Before it is timed, the loss of a backend's first step and the
gradients of its first weights are compared with those of PyG's layers in float64.
"""

import dataclasses
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch_geometric.data import Batch, Data

from ..graph import Graph, build_graph
from ..loader import DeviceDataset
from ..transforms import PrecomputeGraph
from .case import Case, Row
from .lab import Lab
from .measure import Timing, wait
from .models import Net
from .operands import DTYPES

PHASES = ("collate", "copy", "structure", "forward", "backward", "optimizer")
BACKENDS = ("dfgnn", "dfgnn-convert", "dfgnn-device", "dfgnn-compiled", "pyg", "pyg-compiled")
LABELS = {
    "dfgnn": "pyg_dfgnn",
    "dfgnn-convert": "pyg_dfgnn, converting",
    "dfgnn-device": "pyg_dfgnn, DeviceLoader",
    "dfgnn-compiled": "pyg_dfgnn, DeviceLoader, compiled",
    "pyg": "PyG eager",
    "pyg-compiled": "PyG compiled",
}
MODELS = ("gt", "gat", "agnn")
# Largest relative difference of losses, and of the gradients of the first weights (norms).
LOSS_TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}
GRADIENT_TOLERANCE = {"fp32": 1e-3, "bf16": 0.2}
FEATURES, CLASSES = 16, 6
CHUNK = 64  # graphs that the reference takes at a time


@dataclass(frozen=True)
class TrainingStep(Case):
    """A step of a model of ``layers`` layers of ``hidden`` features, ``dtype`` that of autocast."""

    kind: ClassVar[str] = "step"
    workload: str
    batch: int
    model: str
    dtype: str
    backend: str
    layers: int = 10
    hidden: int = 128
    heads: int = 1

    def net(self, library: str) -> Net:
        torch.manual_seed(0)
        return Net(
            self.model, FEATURES, CLASSES, self.hidden, self.heads, self.layers, backend=library
        )

    def measure(self, lab: Lab, row: Row) -> None:
        row |= lab.workload(self.workload, self.batch).statistics()
        graphs = labelled(lab.graphs(self.workload, self.batch), lab.seed)
        reference = self.reference(lab, graphs)
        if self.backend.endswith("-compiled"):
            self.forget_other_code(lab)
        training = Training(self, graphs, lab.device)
        row["note"] = training.check(*reference)
        took = timed(lambda: training.step(lambda _: None), lab.device)
        warm_up = training.repeats(lab.budget_ms, took)
        for _ in range(warm_up):
            training.step(lambda _: None)
        whole, parts = [], []
        for _ in range(training.repeats(10 * lab.budget_ms, took)):
            whole.append(timed(lambda: training.step(lambda _: None), lab.device))
            parts.append(training.phases())
        row["step_ms"] = Timing.of(whole).rounded()
        for phase in PHASES:
            row[f"{phase}_ms"] = Timing.of([part[phase] for part in parts]).rounded()

    def forget_other_code(self, lab: Lab) -> None:
        """Keeps what was compiled for the same model, of either library: it fits the batches of all
        data sets. Of other models torch would keep so many, and then compile no more."""
        model = dataclasses.replace(self, workload="", batch=0, backend="")
        if lab.made.get("compiled") != model:
            torch._dynamo.reset()
            lab.made["compiled"] = model

    def reference(self, lab: Lab, graphs: list[Data]) -> tuple[float, Tensor]:
        """The loss and the gradient of the first weights, made once for all backends."""
        key = ("reference", self.workload, self.batch, self.model, self.layers, self.hidden)
        if key not in lab.made:
            lab.made[key] = reference(self.net("pyg").to(lab.device).double(), graphs, lab.device)
        return lab.made[key]


class Training:
    """A model, its optimizer and the graphs of its batch."""

    def __init__(self, case: TrainingStep, graphs: list[Data], device: str) -> None:
        self.case, self.device = case, device
        self.is_ours = case.backend.startswith("dfgnn")
        self.is_compiled = case.backend.endswith("-compiled")
        self.is_precomputed = self.is_ours and case.backend != "dfgnn-convert"
        self.self_loops = case.model != "gt"
        self.graphs = graphs
        if self.is_precomputed:
            transform = PrecomputeGraph()
            self.graphs = [transform(graph) for graph in graphs]
        self.dataset: DeviceDataset | None = None
        if case.backend in ("dfgnn-device", "dfgnn-compiled"):
            self.dataset = DeviceDataset(self.graphs, device)
        self.net = case.net("dfgnn" if self.is_ours else "pyg").to(device)
        self.optimizer = torch.optim.Adam(self.net.parameters(), fused=True)
        if self.is_compiled:
            for block in self.net.blocks:  # all share their code, for batches of any size
                block.compile(dynamic=True)

    def structure_of(self, batch: Batch) -> Tensor | Graph:
        if self.is_precomputed and self.is_compiled:
            return batch.graph(self.self_loops)
        if self.is_ours:  # what the first layer would do; it then finds it
            build_graph(batch.edge_index, batch.num_nodes, batch.num_nodes, self.self_loops)
        return batch.edge_index

    def step(self, finished: Callable[[str], None]) -> Tensor:
        """The loss; ``finished`` is called with the name of each phase at its end."""
        loss = self.gradients(finished)
        self.optimizer.step()
        self.optimizer.zero_grad()
        finished("optimizer")
        return loss

    def gradients(self, finished: Callable[[str], None]) -> Tensor:
        batch = self.batch(finished)
        structure = self.structure_of(batch)
        finished("structure")
        with torch.autocast(self.device, DTYPES[self.case.dtype], self.case.dtype != "fp32"):
            loss = F.cross_entropy(self.net(batch.x, structure), batch.y)
        finished("forward")
        loss.backward()
        finished("backward")
        return loss.detach()

    def batch(self, finished: Callable[[str], None]) -> Batch:
        if self.dataset is not None:
            batch = self.dataset.batch(range(len(self.graphs)))
            finished("collate")
            finished("copy")
            return batch
        batch = Batch.from_data_list(self.graphs)
        if self.device == "cuda":
            batch = batch.pin_memory()
        finished("collate")
        batch = batch.to(self.device, non_blocking=True)
        finished("copy")
        return batch

    def check(self, loss: float, gradient: Tensor) -> str:
        """What is wrong with the first step; empty for nothing."""
        found, dtype = float(self.gradients(lambda _: None)), self.case.dtype
        weights = self.net.encoder.weight.grad
        assert weights is not None
        errors = []
        if not abs(found - loss) <= LOSS_TOLERANCE[dtype] * abs(loss):
            errors.append(f"[error {abs(found - loss) / abs(loss):.0e} in the loss]")
        error = float((weights.double() - gradient).norm() / gradient.norm())
        if not error <= GRADIENT_TOLERANCE[dtype]:
            errors.append(f"[error {error:.0e} in the gradient]")
        self.optimizer.zero_grad()
        return " ".join(errors)

    def repeats(self, budget_ms: float, took_ms: float) -> int:
        return int(min(10, max(3, budget_ms / took_ms)))

    def phases(self) -> dict[str, float]:
        """Milliseconds of each part of a step."""
        times = {}
        wait(self.device)
        last = time.perf_counter()

        def finished(phase: str) -> None:
            nonlocal last
            wait(self.device)
            now = time.perf_counter()
            times[phase] = 1000 * (now - last)
            last = now

        self.step(finished)
        return times


def labelled(graphs: list[Data], seed: int) -> list[Data]:
    """Copies with random ``x [N, FEATURES]`` and ``y [N]``."""
    rng = torch.Generator().manual_seed(seed)
    copies = []
    for graph in graphs:
        nodes = graph.num_nodes
        x = torch.randn(nodes, FEATURES, generator=rng)
        y = torch.randint(CLASSES, (nodes,), generator=rng)
        copies.append(Data(x=x, y=y, edge_index=graph.edge_index))
    return copies


def reference(net: Net, graphs: list[Data], device: str) -> tuple[float, Tensor]:
    """The loss of a batch and the gradient of the encoder's weights, some graphs at a time."""
    total, nodes = 0.0, sum(graph.num_nodes or 0 for graph in graphs)
    for begin in range(0, len(graphs), CHUNK):
        batch = Batch.from_data_list(graphs[begin : begin + CHUNK]).to(device)
        out = net(batch.x.double(), batch.edge_index)
        loss = F.cross_entropy(out, batch.y, reduction="sum") / nodes
        loss.backward()
        total += float(loss.detach())
    gradient = net.encoder.weight.grad
    assert gradient is not None
    return total, gradient


def timed(call: Callable[[], object], device: str) -> float:
    """Milliseconds until the device has done it."""
    wait(device)
    start = time.perf_counter()
    call()
    wait(device)
    return 1000 * (time.perf_counter() - start)
