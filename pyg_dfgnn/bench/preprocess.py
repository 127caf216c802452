"""Times of what comes before attention: from the edges of a batch to both compressed forms.

    python -m pyg_dfgnn.bench.preprocess --workloads graphs.py --names PATTERN
    python -m pyg_dfgnn.bench.preprocess --device cpu --batch-size 8       # PATTERN, in place

Rows are orders of the edges in ``edge_index``, and what PrecomputeGraph has stored instead. Columns
are the operators one by one (milliseconds), and all together as ``build_graph`` calls them in code
that does not wait.
"""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch
from torch import Tensor
from torch_geometric.data import Batch

from .. import _side_by_side
from ..graph import Graph
from ..transforms import DEGREES, PERM, PrecomputeGraph
from . import batches
from .measure import time_ms

COLUMNS = ("coo_to_csr", "csr_to_csc", "find_tiles", "all")


def orders(edge_index: Tensor) -> dict[str, Tensor]:
    rng = torch.Generator().manual_seed(0)
    random = torch.randperm(edge_index.size(1), generator=rng).to(edge_index.device)
    return {
        "by destination": edge_index[:, edge_index[1].argsort(stable=True)],
        "by source": edge_index[:, edge_index[0].argsort(stable=True)],
        "random": edge_index[:, random],
    }


def conversions(
    edge_index: Tensor, nodes: int, self_loops: bool
) -> dict[str, Callable[[], object]]:
    """What to measure, by column."""
    src, dst = edge_index

    def coo_to_csr() -> tuple[Tensor, ...]:
        return torch.ops.dfgnn.coo_to_csr(src, dst, nodes, nodes, self_loops=self_loops)

    rowptr, col, _, _ = coo_to_csr()

    def everything() -> None:
        rowptr, col, _, _ = coo_to_csr()
        torch.ops.dfgnn.csr_to_csc(rowptr, col, nodes)
        torch.ops.dfgnn.find_tiles(rowptr, col)

    return {
        "coo_to_csr": coo_to_csr,
        "csr_to_csc": lambda: torch.ops.dfgnn.csr_to_csc(rowptr, col, nodes),
        "find_tiles": lambda: torch.ops.dfgnn.find_tiles(rowptr, col),
        "all": everything,
    }


def side_by_side(batch: Batch, self_loops: bool) -> Graph:
    """The structure of a collated batch, made anew."""
    made = _side_by_side.SideBySide(batch[DEGREES], batch[PERM], batch.ptr, -1)
    return made.graph(self_loops)


def rows(name: str, arguments: argparse.Namespace) -> list[list[str]]:
    device = arguments.device

    def time_of(call: Callable[[], object]) -> str:
        return f"{time_ms(lambda _: call(), device, arguments.budget_ms):.3f}"

    graphs = batches.load(name, arguments.workloads, arguments.batch_size, 1, 1, device)
    batch = Batch.from_data_list(graphs).to(device)
    transform = PrecomputeGraph(getattr(torch, arguments.index_dtype))
    collated = Batch.from_data_list([transform(graph) for graph in graphs]).to(device)
    found = []
    for self_loops in (False, True):
        loops = "yes" if self_loops else "no"
        for order, edge_index in orders(batch.edge_index).items():
            calls = conversions(edge_index, batch.num_nodes, self_loops)
            found.append([name, order, loops, *(time_of(calls[column]) for column in COLUMNS)])
        whole = time_of(partial(side_by_side, collated, self_loops))
        found.append([name, "PrecomputeGraph", loops, "", "", "", whole])
    return found


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--workloads", type=Path, help="Python file that makes batches (default: PATTERN alone)")
    add("--names", nargs="+", default=["PATTERN"], help="workloads to run")
    add("--batch-size", type=int, default=1024, help="graphs")
    add("--index-dtype", default="int16", choices=["int16", "int32"])
    add("--device", default="cuda", choices=["cuda", "cpu"])
    add("--budget-ms", type=float, default=300, help="time for each measurement")
    arguments = parser.parse_args(argv)
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("pyg_dfgnn.bench.preprocess: error: there is no CUDA GPU to measure", file=sys.stderr)
        return 1
    columns = ["workload", "edges", "self-loops", *COLUMNS]
    print("| " + " | ".join(columns) + " |\n" + "|---" * len(columns) + "|")
    for name in arguments.names:
        for row in rows(name, arguments):
            print("| " + " | ".join(row) + " |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
