"""Times of attention on the graphs of a file, for work on a kernel.

    python -m pyg_dfgnn.bench.kernels --workloads graphs.py --out results/

``--workloads`` is a Python file with ``ALL``, a list of names, and ``make(name, device)``, which
returns ``(rowptr, col, ptr)``: a CSR by destination, and where the graphs of a batch begin (None
for a single graph). Measured as in :mod:`pyg_dfgnn.bench.attention`; what fails or runs out of
memory becomes a row that says so.
"""

import argparse
import json
import runpy
import sys
from pathlib import Path
from typing import Any

import torch
from tqdm import tqdm

from . import attention, machine
from .backends import BACKENDS
from .case import Row, noted
from .operands import DTYPES, SCORES
from .options import duration, positive
from .run import release
from .workload import Workload


def run(arguments: argparse.Namespace, workloads: dict[str, Any]) -> list[Row]:
    rows: list[Row] = []
    for name in tqdm(arguments.names or workloads["ALL"], file=sys.stderr, disable=None):
        row: Row = {"workload": name, "score": "", "dtype": "", "backend": "all"}
        with noted(row):
            workload = Workload.of_csr(name, *workloads["make"](name, arguments.device))
        if row["note"]:
            rows.append(row)
            continue
        for score in arguments.scores:
            for dtype in arguments.dtypes:
                for backend in arguments.backends:
                    row = {"workload": name, "score": score, "dtype": dtype}
                    row |= {"heads": arguments.heads, "head_dim": arguments.head_dim}
                    row["backend"] = backend
                    shape = (arguments.heads, arguments.head_dim)
                    with noted(row):
                        attention.measure(
                            row, workload, score, dtype, *shape, backend, arguments.budget_ms,
                            arguments.cuda_graphs,
                        )  # fmt: skip
                    release(arguments.device)
                    rows.append(row)
        del workload
    return rows


def table(rows: list[Row]) -> str:
    """Markdown: a column a backend, its cells forward / forward+backward ms (MiB of each)."""
    backends = list(dict.fromkeys(row["backend"] for row in rows))
    cells: dict[tuple[str, ...], list[str]] = {}
    for row in rows:
        cells.setdefault((row["workload"], row["score"], row["dtype"]), []).append(cell(row))
    lines = ["| " + " | ".join(["workload", "score", "dtype", *backends]) + " |"]
    lines.append("|---" * (3 + len(backends)) + "|")
    lines += ["| " + " | ".join([*key, *found]) + " |" for key, found in cells.items()]
    return "\n".join(lines)


def cell(row: Row) -> str:
    if "forward_ms" not in row:
        return row["note"]
    passes = ("forward", "forward_backward")
    times = (f"{row[f'{name}_ms'][0]:.3f}" if f"{name}_ms" in row else "" for name in passes)
    memory = (f"{row.get(f'{name}_mib') or 0:.0f}" for name in passes)
    return f"{' / '.join(times)} ({' / '.join(memory)}) {row.get('note', '')}".strip()


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workloads", required=True, help="Python file that makes the graphs")
    add("--names", nargs="*", help="workloads to run (default: all of the file's)")
    add("--scores", nargs="+", default=["dot"], choices=SCORES)
    add("--dtypes", nargs="+", default=["fp32", "bf16"], choices=list(DTYPES))
    add("--backends", nargs="+", default=["smmf", "pmf", "pyg"], choices=list(BACKENDS))
    add("--device", default="cuda", choices=["cuda", "cpu"])
    add("--heads", type=positive, default=1)
    add("--head-dim", type=positive, default=128)
    add("--budget-ms", type=duration, default=300, help="time for each measurement")
    add("--cuda-graphs", action="store_true", help="time replays, without the host")
    add("--out", type=Path, default=Path("results"), help="folder for kernels.json, kernels.md")
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("pyg_dfgnn.bench.kernels: error: there is no CUDA GPU to measure", file=sys.stderr)
        return 1
    if arguments.device == "cpu" and arguments.cuda_graphs:
        parser.error("--cuda-graphs: expected --device cuda, got cpu")
    try:
        arguments.out.mkdir(parents=True, exist_ok=True)
        workloads = runpy.run_path(arguments.workloads)
        workloads["ALL"], _ = [str(name) for name in workloads["ALL"]], workloads["make"]
    except Exception as error:  # of the file's code, too
        print(f"pyg_dfgnn.bench.kernels: error: {error!r}", file=sys.stderr)
        return 1
    rows = run(arguments, workloads)
    results = {
        "machine": machine.describe(arguments.device),
        "cuda_graphs": arguments.cuda_graphs,
        "cases": rows,
    }
    (arguments.out / "kernels.json").write_text(json.dumps(results, indent=1))
    (arguments.out / "kernels.md").write_text(table(rows) + "\n")
    print(table(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
