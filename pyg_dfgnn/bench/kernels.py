"""Times of the attention operators on graphs, beside PyG's eager message passing.

    python -m pyg_dfgnn.bench.kernels --workloads graphs.py --out results/

``--workloads`` is a Python file with ``ALL``, a list of names, and ``make(name, device)``, which
returns ``(rowptr, col, ...)``, a CSR by destination. Every forward pass is checked against
float64 on a sample of rows before it is timed; one that is less exact, fails or runs out of memory
becomes a row that says so.
"""

import argparse
import json
import runpy
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from torch import Tensor
from torch_geometric.nn import MessagePassing
from torch_geometric.utils import softmax
from tqdm import tqdm

import pyg_dfgnn

from .measure import peak_mib, time_ms

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SCORES = ("dot", "cosine", "additive", "additive_v2")
OURS = ("smmf", "pmf", "tile", "auto")
BACKENDS = (*OURS, "pyg", "compiled", "sdpa")
L2_BYTES = 128 * 2**20  # inputs are rotated where they would fit a cache of this size
# Largest error of a result, relative to the largest element of the float64 reference.
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 8e-3, torch.float16: 2e-3}


class EagerAttention(MessagePassing):
    """What the layers of torch_geometric.nn do between their linear layers."""

    def __init__(self, score: str) -> None:
        super().__init__(aggr="add", node_dim=0)
        self.score = score

    def forward(self, edge_index: Tensor, operands: dict[str, Tensor], num_nodes: int) -> Tensor:
        size = (num_nodes, num_nodes)
        if self.score == "dot":
            q, k, v = operands["q"], operands["k"], operands["v"]
            return self.propagate(
                edge_index, size=size, dst=(q, q), src=(k, k), value=(v, v), factor=None
            )
        if self.score == "cosine":
            x, beta = operands["x_dst"], operands["beta"]
            unit = torch.nn.functional.normalize(x, dim=-1)
            return self.propagate(
                edge_index, size=size, dst=(unit, unit), src=(unit, unit), value=(x, x), factor=beta
            )
        if self.score == "additive_v2":
            x_dst, x_src, att = operands["x_dst"], operands["x_src"], operands["att"]
            return self.propagate(
                edge_index,
                size=size,
                dst=(x_dst, x_dst),
                src=(x_src, x_src),
                value=(x_src, x_src),
                factor=att,
            )
        a_dst, a_src, v = operands["a_dst"], operands["a_src"], operands["v"]
        return self.propagate(
            edge_index, size=size, dst=(a_dst, a_dst), src=(a_src, a_src), value=(v, v), factor=None
        )

    def message(
        self,
        dst_i: Tensor,
        src_j: Tensor,
        value_j: Tensor,
        factor: Optional[Tensor],  # PyG reads the annotation, and does not know |
        index: Tensor,
        size_i: Optional[int],
    ) -> Tensor:
        if self.score == "additive":
            s = torch.nn.functional.leaky_relu(dst_i + src_j, 0.2)
        elif self.score == "additive_v2" and factor is not None:
            s = (torch.nn.functional.leaky_relu(dst_i + src_j, 0.2) * factor).sum(-1)
        else:
            s = (dst_i * src_j).sum(-1) * (dst_i.size(-1) ** -0.5 if factor is None else factor)
        return value_j * softmax(s, index, num_nodes=size_i).unsqueeze(-1)


@dataclass
class Case:
    """One measurement: milliseconds are medians, ``memory`` is MiB beyond inputs and outputs."""

    workload: str
    score: str
    dtype: str
    heads: int
    head_dim: int
    backend: str
    forward_ms: float | None = None
    forward_backward_ms: float | None = None
    forward_memory: float | None = None
    backward_memory: float | None = None
    note: str = ""


@dataclass
class Workload:
    """A graph in the forms that the backends take."""

    name: str
    rowptr: Tensor
    col: Tensor
    csc: dict[str, Tensor]
    max_degree: int
    tiles: Tensor
    tile_blocks: int
    graphs: Tensor | None  # where the graphs of a batch begin, and the end

    @classmethod
    def load(cls, name: str, make: Callable[..., tuple], device: str) -> "Workload":
        rowptr, col, graphs = make(name, device)
        colptr, row, perm = torch.ops.dfgnn.csr_to_csc(rowptr, col, rowptr.numel() - 1)
        tiles, blocks = torch.ops.dfgnn.find_tiles(rowptr, col)
        return cls(
            name,
            rowptr,
            col,
            {"colptr": colptr, "row": row, "perm": perm},
            int(rowptr.diff().max()),
            tiles,
            int(blocks),
            graphs,
        )

    @property
    def num_nodes(self) -> int:
        return self.rowptr.numel() - 1

    def edge_index(self) -> Tensor:
        nodes = torch.arange(self.num_nodes, device=self.col.device)
        return torch.stack([self.col.long(), nodes.repeat_interleave(self.rowptr.diff())])


def make_operands(
    score: str, n: int, heads: int, head_dim: int, dtype: torch.dtype, device: str
) -> dict[str, Tensor]:
    def features() -> Tensor:
        return torch.randn(n, heads, head_dim, device=device, dtype=dtype).requires_grad_()

    def scalars() -> Tensor:
        return torch.randn(n, heads, device=device, dtype=dtype).requires_grad_()

    if score == "dot":
        return {"q": features(), "k": features(), "v": features()}
    if score == "cosine":
        x = features()
        return {
            "x_dst": x,
            "x_src": x,
            "beta": torch.ones(1, device=device, dtype=dtype).requires_grad_(),
        }
    if score == "additive_v2":
        att = torch.randn(heads, head_dim, device=device, dtype=dtype) * head_dim**-0.5
        return {"x_dst": features(), "x_src": features(), "att": att.requires_grad_()}
    return {"a_dst": scalars(), "a_src": scalars(), "v": features()}


def make_call(
    backend: str, score: str, workload: Workload
) -> Callable[[dict[str, Tensor]], Tensor]:
    if backend in ("pyg", "compiled"):
        layer: Callable[..., Tensor] = EagerAttention(score)
        edge_index = workload.edge_index()
        if backend == "compiled":
            layer = torch.compile(layer)
        return lambda operands: layer(edge_index, operands, workload.num_nodes)
    if backend == "sdpa":
        return dense_attention(score, workload)
    route: dict[str, Any] = {}
    if backend in ("tile", "auto"):
        route["tiles"] = workload.tiles
    if backend == "auto":
        route |= {"max_degree": workload.max_degree, "tile_blocks": workload.tile_blocks}
    family = (
        torch.ops.dfgnn.attention
        if backend == "auto"
        else getattr(torch.ops.dfgnn, f"{backend}_fwd")
    )
    op = getattr(family, score)
    return lambda operands: op(workload.rowptr, workload.col, **operands, **workload.csc, **route)[
        0
    ]


def dense_attention(score: str, workload: Workload) -> Callable[[dict[str, Tensor]], Tensor]:
    """scaled_dot_product_attention of graphs padded to the largest, with a mask; the mask is made
    before, operands are padded and results packed in the call."""
    if score != "dot" or workload.graphs is None:
        raise RuntimeError("only dot scores of batches")
    begins = workload.graphs.to(workload.col.device)
    sizes = begins.diff()
    nodes = torch.arange(workload.num_nodes, device=begins.device)
    graph = torch.arange(sizes.numel(), device=begins.device).repeat_interleave(sizes)
    place = nodes - begins[graph]
    width = -(-int(sizes.max()) // 8) * 8
    mask = torch.zeros(sizes.numel(), 1, width, width, dtype=torch.bool, device=begins.device)
    src, dst = workload.edge_index()
    mask[graph[dst], 0, place[dst], place[src]] = True
    padded = graph * width + place

    def call(operands: dict[str, Tensor]) -> Tensor:
        def pad(x: Tensor) -> Tensor:
            empty = x.new_zeros(sizes.numel() * width, *x.shape[1:])
            filled = empty.index_copy(0, padded, x)
            return filled.view(sizes.numel(), width, *x.shape[1:]).transpose(1, 2)

        q, k, v = (pad(operands[name]) for name in ("q", "k", "v"))
        out = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out.transpose(1, 2).reshape(-1, *out.shape[1:2], out.size(-1))[padded]

    return call


def reference_rows(
    score: str, workload: Workload, operands: dict[str, Tensor], rows: Tensor
) -> Tensor:
    """Rows of the result in float64, one by one."""
    x = {name: t.detach() for name, t in operands.items()}
    results = []
    for i in rows.tolist():
        begin, end = workload.rowptr[i : i + 2].tolist()
        j = workload.col[begin:end].long()
        value = x["v" if score in ("dot", "additive") else "x_src"][j].double()
        if score == "dot":
            s = (x["q"][i].double() * x["k"][j].double()).sum(-1) * value.size(-1) ** -0.5
        elif score == "cosine":
            unit = torch.nn.functional.normalize(x["x_dst"][i].double(), dim=-1)
            s = x["beta"].double() * (unit * torch.nn.functional.normalize(value, dim=-1)).sum(-1)
        elif score == "additive_v2":
            z = torch.nn.functional.leaky_relu(x["x_dst"][i].double() + value, 0.2)
            s = (x["att"].double() * z).sum(-1)
        else:
            s = torch.nn.functional.leaky_relu(x["a_dst"][i].double() + x["a_src"][j].double(), 0.2)
        results.append((s.softmax(0).unsqueeze(-1) * value).sum(0))
    return torch.stack(results)


def check(score: str, workload: Workload, operands: dict[str, Tensor], out: Tensor) -> str:
    """The error of a sample of rows, the longest among them; empty where it is within TOLERANCE."""
    degrees = workload.rowptr.diff()
    rows = torch.cat(
        [degrees.argmax().view(1), torch.randint(degrees.numel(), (63,), device=out.device)]
    )
    expected = reference_rows(score, workload, operands, rows)
    error = float((out.detach()[rows].double() - expected).abs().max() / expected.abs().max())
    return "" if error <= TOLERANCE[out.dtype] else f"[error {error:.0e}]"


def measure(case: Case, workload: Workload, device: str, budget_ms: float) -> None:
    dtype = DTYPES[case.dtype]
    call = make_call(case.backend, case.score, workload)
    one_set = workload.num_nodes * case.heads * case.head_dim * dtype.itemsize * 4
    sets = [
        make_operands(case.score, workload.num_nodes, case.heads, case.head_dim, dtype, device)
        for _ in range(max(1, min(8, -(-L2_BYTES // one_set))))
    ]
    grad_out = torch.randn(workload.num_nodes, case.heads, case.head_dim, device=device).to(dtype)

    def forward(i: int) -> Tensor:
        with torch.no_grad():
            return call(sets[i % len(sets)])

    def forward_backward(i: int) -> tuple[Tensor, ...]:
        operands = sets[i % len(sets)]
        unique = list({id(t): t for t in operands.values()}.values())
        return torch.autograd.grad(call(operands), unique, grad_out)

    case.note = check(case.score, workload, sets[0], forward(0))
    case.forward_memory = peak_mib(lambda: forward(0), device)
    case.forward_ms = time_ms(forward, device, budget_ms)
    case.backward_memory = peak_mib(lambda: forward_backward(0), device)
    case.forward_backward_ms = time_ms(forward_backward, device, budget_ms)


def run(arguments: argparse.Namespace) -> list[Case]:
    module = runpy.run_path(arguments.workloads)
    cases: list[Case] = []
    for name in tqdm(arguments.names or module["ALL"], file=sys.stderr, disable=None):
        workload = Workload.load(name, module["make"], arguments.device)
        for score in arguments.scores:
            for dtype in arguments.dtypes:
                for backend in arguments.backends:
                    case = Case(name, score, dtype, arguments.heads, arguments.head_dim, backend)
                    try:
                        measure(case, workload, arguments.device, arguments.budget_ms)
                    except torch.OutOfMemoryError:
                        case.note = "out of memory"
                    except RuntimeError as error:
                        case.note = f"failed: {str(error).splitlines()[0]}"
                    torch.cuda.empty_cache()
                    cases.append(case)
        del workload
        torch.cuda.empty_cache()
    return cases


def table(cases: list[Case]) -> str:
    """Markdown: a column a backend, its cells forward / forward+backward ms (MiB of each)."""
    backends = list(dict.fromkeys(case.backend for case in cases))
    lines = [
        "| workload | score | dtype | " + " | ".join(backends) + " |",
        "|---" * (3 + len(backends)) + "|",
    ]
    rows: dict[tuple[str, str, str], dict[str, Case]] = {}
    for case in cases:
        rows.setdefault((case.workload, case.score, case.dtype), {})[case.backend] = case

    def cell(case: Case) -> str:
        if case.forward_ms is None:
            return case.note
        if case.forward_backward_ms is None:
            return f"{case.forward_ms:.3f} / {case.note}"
        text = f"{case.forward_ms:.3f} / {case.forward_backward_ms:.3f}"
        if case.forward_memory is not None and case.backward_memory is not None:
            text += f" ({case.forward_memory:.0f}, {case.backward_memory:.0f} MiB)"
        return f"{text} {case.note}".strip()

    for key, by_backend in rows.items():
        lines.append("| " + " | ".join([*key, *(cell(by_backend[b]) for b in backends)]) + " |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", required=True, help="Python file that makes the graphs")
    parser.add_argument("--names", nargs="*", help="workloads to run (default: all of the file's)")
    parser.add_argument("--scores", nargs="+", default=["dot"], choices=SCORES)
    parser.add_argument("--dtypes", nargs="+", default=["fp32", "bf16"], choices=list(DTYPES))
    parser.add_argument("--backends", nargs="+", default=["smmf", "pmf", "pyg"], choices=BACKENDS)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--heads", type=int, default=1)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--budget-ms", type=float, default=300, help="time for each measurement")
    parser.add_argument(
        "--out", type=Path, default=Path("results"), help="folder for kernels.json, kernels.md"
    )
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("pyg_dfgnn.bench.kernels: error: there is no CUDA GPU to measure", file=sys.stderr)
        return 1
    cases = run(arguments)
    arguments.out.mkdir(parents=True, exist_ok=True)
    machine = {
        "device": torch.cuda.get_device_name()
        if arguments.device == "cuda"
        else f"CPU, {torch.get_num_threads()} threads, {torch.backends.cpu.get_cpu_capability()}",
        "torch": torch.__version__,
        "pyg_dfgnn": pyg_dfgnn.__version__,
    }
    results = {"machine": machine, "cases": [asdict(case) for case in cases]}
    (arguments.out / "kernels.json").write_text(json.dumps(results, indent=1))
    (arguments.out / "kernels.md").write_text(table(cases) + "\n")
    print(table(cases))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
