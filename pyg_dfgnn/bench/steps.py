"""Times of whole training steps on batches of small graphs, beside PyG, and of their parts.

    python -m pyg_dfgnn.bench.steps --workloads graphs.py --names PATTERN CLUSTER --out results/
    python -m pyg_dfgnn.bench.steps --device cpu --batch-size 8 --layers 2       # PATTERN, in place

A step collates the graphs, copies the batch to the device, makes its structure, computes the loss,
its gradients and new parameters. The time of a step is that of all this without waiting in between;
for its parts the device is waited for after each. Backends:

    dfgnn           our layers; graphs went through PrecomputeGraph, the model gets the edge_index
    dfgnn-convert   our layers; the edge_index of each batch is converted on the device
    dfgnn-compiled  the first, in torch.compile; the model gets the Graph
    pyg             PyG's layers
    pyg-compiled    PyG's layers in torch.compile

All start from the same weights, and the loss of the first step must be that of the first backend.
"""

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import torch_geometric.nn
from torch import Tensor
from torch_geometric.data import Batch, Data
from tqdm import tqdm

import pyg_dfgnn.nn

from ..graph import Graph, build_graph
from ..transforms import PrecomputeGraph
from . import batches

PHASES = ("collate", "copy", "structure", "forward", "backward", "optimizer")
BACKENDS = ("dfgnn", "dfgnn-convert", "dfgnn-compiled", "pyg", "pyg-compiled")
MODELS = ("gt", "gat", "agnn")
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
# Largest difference of the first losses, relative.
TOLERANCE = {"fp32": 1e-4, "bf16": 3e-2}


class Block(torch.nn.Module):
    """x + attention(norm(x)), in the Graph Transformer followed by x + feed_forward(norm(x))."""

    def __init__(self, model: str, layers: Any, hidden: int, heads: int) -> None:
        super().__init__()
        self.norm = torch.nn.LayerNorm(hidden)
        self.after = torch.nn.Linear(hidden, hidden)
        self.feed_forward = None
        if model == "gt":
            self.conv = layers.TransformerConv(hidden, hidden // heads, heads, root_weight=False)
            self.feed_forward = torch.nn.Sequential(
                torch.nn.LayerNorm(hidden),
                torch.nn.Linear(hidden, 2 * hidden),
                torch.nn.ReLU(),
                torch.nn.Linear(2 * hidden, hidden),
            )
        elif model == "gat":
            self.conv = layers.GATConv(hidden, hidden // heads, heads)
        else:
            self.conv = layers.AGNNConv()

    def forward(self, x: Tensor, structure: Tensor | Graph) -> Tensor:
        x = x + self.after(self.conv(self.norm(x), structure)).relu()
        return x if self.feed_forward is None else x + self.feed_forward(x)


class Net(torch.nn.Module):
    """A class for each node."""

    def __init__(self, model: str, layers: Any, arguments: argparse.Namespace) -> None:
        super().__init__()
        hidden = arguments.hidden
        self.encoder = torch.nn.Linear(arguments.features, hidden)
        self.blocks = torch.nn.ModuleList(
            Block(model, layers, hidden, arguments.heads) for _ in range(arguments.layers)
        )
        self.classifier = torch.nn.Linear(hidden, arguments.classes)

    def forward(self, x: Tensor, structure: Tensor | Graph) -> Tensor:
        x = self.encoder(x)
        for block in self.blocks:
            x = block(x, structure)
        return self.classifier(x)


@dataclass
class Case:
    """One measurement; milliseconds are medians."""

    workload: str
    model: str
    dtype: str
    backend: str
    step_ms: float | None = None
    phases_ms: dict[str, float] = field(default_factory=dict)
    loss: float | None = None
    note: str = ""


class Training:
    """A model, its optimizer and the graphs of its batch."""

    def __init__(self, case: Case, graphs: list[Data], arguments: argparse.Namespace) -> None:
        self.case, self.device = case, arguments.device
        self.is_ours = case.backend.startswith("dfgnn")
        self.is_compiled = case.backend.endswith("-compiled")
        self.is_precomputed = self.is_ours and case.backend != "dfgnn-convert"
        self.self_loops = case.model != "gt"
        self.graphs = graphs
        if self.is_precomputed:
            transform = PrecomputeGraph(getattr(torch, arguments.index_dtype))
            self.graphs = [transform(graph) for graph in graphs]
        torch.manual_seed(0)
        layers = pyg_dfgnn.nn if self.is_ours else torch_geometric.nn
        net = Net(case.model, layers, arguments).to(self.device)
        self.optimizer = torch.optim.Adam(net.parameters(), fused=True)
        self.net = torch.compile(net) if self.is_compiled else net

    def structure_of(self, batch: Batch) -> Tensor | Graph:
        if self.is_precomputed and self.is_compiled:
            return batch.graph(self.self_loops)
        if self.is_ours:  # what the first layer would do; it then finds it
            build_graph(batch.edge_index, batch.num_nodes, batch.num_nodes, self.self_loops)
        return batch.edge_index

    def step(self, finished: Callable[[str], None]) -> Tensor:
        """The loss; ``finished`` is called with the name of each phase at its end."""
        batch = Batch.from_data_list(self.graphs)
        if self.device == "cuda":
            batch = batch.pin_memory()
        finished("collate")
        batch = batch.to(self.device, non_blocking=True)
        finished("copy")
        structure = self.structure_of(batch)
        finished("structure")
        with torch.autocast(self.device, DTYPES[self.case.dtype], self.case.dtype != "fp32"):
            loss = F.cross_entropy(self.net(batch.x, structure), batch.y)
        finished("forward")
        loss.backward()
        finished("backward")
        self.optimizer.step()
        self.optimizer.zero_grad()
        finished("optimizer")
        return loss.detach()


def wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def measure(case: Case, graphs: list[Data], arguments: argparse.Namespace) -> None:
    training = Training(case, graphs, arguments)
    case.loss = float(training.step(lambda _: None))
    for _ in range(arguments.warm_up):
        training.step(lambda _: None)

    totals = []
    for _ in range(arguments.repeats):
        wait(training.device)
        start = time.perf_counter()
        training.step(lambda _: None)
        wait(training.device)
        totals.append(time.perf_counter() - start)
    case.step_ms = 1000 * statistics.median(totals)

    times: dict[str, list[float]] = {phase: [] for phase in PHASES}
    for _ in range(arguments.repeats):
        last = time.perf_counter()

        def finished(phase: str) -> None:
            nonlocal last
            wait(training.device)
            now = time.perf_counter()
            times[phase].append(now - last)
            last = now

        training.step(finished)
    case.phases_ms = {phase: 1000 * statistics.median(found) for phase, found in times.items()}


@contextmanager
def noted(case: Case) -> Iterator[None]:
    """What fails becomes a row that says so."""
    try:
        yield
    except torch.OutOfMemoryError:
        case.note = "out of memory"
    except RuntimeError as error:
        case.note = f"failed: {str(error).splitlines()[0]}"
    finally:
        torch._dynamo.reset()
        torch.cuda.empty_cache()


def run(arguments: argparse.Namespace) -> list[Case]:
    cases: list[Case] = []
    for name in tqdm(arguments.names, file=sys.stderr, disable=None):
        graphs = batches.load(
            name,
            arguments.workloads,
            arguments.batch_size,
            arguments.features,
            arguments.classes,
            arguments.device,
        )
        for model in arguments.models:
            for dtype in arguments.dtypes:
                alike = [Case(name, model, dtype, backend) for backend in arguments.backends]
                for case in alike:
                    with noted(case):
                        measure(case, graphs, arguments)
                check_losses(alike)
                cases += alike
    return cases


def check_losses(cases: list[Case]) -> None:
    """Marks those that do not compute what the first does."""
    losses = [case.loss for case in cases if case.loss is not None]
    for case in cases:
        if case.loss is not None:
            error = abs(case.loss - losses[0]) / abs(losses[0])
            if not error <= TOLERANCE[case.dtype]:
                case.note = f"{case.note} [loss differs by {error:.0e}]".strip()


def table(cases: list[Case]) -> str:
    """Markdown: milliseconds of each phase, of their sum, and of a step without waiting."""
    columns = ("workload", "model", "dtype", "backend", *PHASES, "sum", "step", "note")
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    for case in cases:
        times = [case.phases_ms.get(phase) for phase in PHASES]
        times += [sum(case.phases_ms.values()) if case.phases_ms else None, case.step_ms]
        cells = ["" if t is None else f"{t:.2f}" for t in times]
        names = (case.workload, case.model, case.dtype, case.backend)
        lines.append("| " + " | ".join([*names, *cells, case.note]) + " |")
    return "\n".join(lines)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workloads", type=Path, help="Python file that makes batches (default: PATTERN alone)")
    add("--names", nargs="+", default=["PATTERN"], help="workloads to run")
    add("--models", nargs="+", default=["gt", "gat"], choices=MODELS)
    add("--dtypes", nargs="+", default=["fp32", "bf16"], choices=list(DTYPES), help="of autocast")
    add(
        "--backends",
        nargs="+",
        default=["dfgnn", "dfgnn-convert", "pyg", "pyg-compiled"],
        choices=BACKENDS,
    )
    add("--device", default="cuda", choices=["cuda", "cpu"])
    add("--batch-size", type=int, default=1024, help="graphs")
    add("--layers", type=int, default=10)
    add("--hidden", type=int, default=128, help="features of a node in all layers")
    add("--heads", type=int, default=1)
    add("--features", type=int, default=16, help="of a node")
    add("--classes", type=int, default=6, help="of nodes")
    add("--index-dtype", default="int16", choices=["int16", "int32"])
    add("--warm-up", type=int, default=3, help="steps, after the first")
    add("--repeats", type=int, default=10, help="steps that are measured, whole and in parts")
    add("--out", type=Path, help="folder for steps.json and steps.md")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    arguments = parse(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("pyg_dfgnn.bench.steps: error: there is no CUDA GPU to measure", file=sys.stderr)
        return 1
    cases = run(arguments)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
        results = {
            "options": {name: str(value) for name, value in vars(arguments).items()},
            "torch": torch.__version__,
            "cases": [asdict(case) for case in cases],
        }
        (arguments.out / "steps.json").write_text(json.dumps(results, indent=1))
        (arguments.out / "steps.md").write_text(table(cases) + "\n")
    print(table(cases))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
