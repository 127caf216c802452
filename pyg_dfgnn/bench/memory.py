"""What a training step of a layer allocates beyond its inputs, outputs and parameters.

    python -m pyg_dfgnn.bench.memory                                      # of Reddit's size
    python -m pyg_dfgnn.bench.memory --nodes 2000 --edges 60000 --device cpu --libraries dfgnn pyg

The graph is made in place, of random edges between nodes some of which have many. Inputs are the
features, ``edge_index`` and edge features; outputs are the layer's and the gradients of parameters
and edge features. The first step also converts ``edge_index``, and keeps that for later ones.
"""

import argparse
import sys
from collections.abc import Callable
from itertools import accumulate
from typing import Any, NamedTuple

import torch
import torch_geometric.nn
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import pyg_dfgnn.nn

REDDIT_NODES, REDDIT_EDGES = 232965, 114615892
LIBRARIES = {"dfgnn": pyg_dfgnn.nn, "pyg": torch_geometric.nn}
LAYERS = ("GATConv", "TransformerConv", "GATv2Conv", "AGNNConv", "SuperGATConv")
GIB = 2**30


class Step(NamedTuple):
    """Bytes beyond inputs, outputs and parameters: the largest number, and what remains."""

    peak: int
    kept: int


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--nodes", type=int, default=REDDIT_NODES)
    parser.add_argument("--edges", type=int, default=REDDIT_EDGES)
    parser.add_argument("--features", type=int, default=602, help="of a node")
    parser.add_argument("--edge-dim", type=int, help="features of an edge (default: none)")
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--channels", type=int, default=32, help="of a head")
    parser.add_argument(
        "--layers", nargs="+", default=["GATConv", "TransformerConv"], choices=LAYERS
    )
    parser.add_argument("--libraries", nargs="+", default=["dfgnn"], choices=list(LIBRARIES))
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    if arguments.device == "cuda" and not torch.cuda.is_available():
        print("pyg_dfgnn.bench.memory: error: there is no CUDA GPU to measure", file=sys.stderr)
        return 1
    print("| layer | library | first step, GiB | later steps, GiB | kept, GiB |")
    print("|---|---|---|---|---|")
    for layer in arguments.layers:
        for library in arguments.libraries:
            print(f"| {layer} | {library} | {row(layer, library, arguments)} |", flush=True)
    return 0


def row(layer: str, library: str, arguments: argparse.Namespace) -> str:
    try:
        first, later = steps(layer, library, arguments)
    except torch.OutOfMemoryError:
        return "out of memory | |"
    return f"{first.peak / GIB:.4f} | {later.peak / GIB:.4f} | {later.kept / GIB:.4f}"


def steps(layer: str, library: str, arguments: argparse.Namespace) -> tuple[Step, Step]:
    """The first training step and the second."""
    torch.manual_seed(0)
    device, nodes, edges = arguments.device, arguments.nodes, arguments.edges
    edge_index = random_edges(nodes, edges, device)
    edge_attr = None
    if arguments.edge_dim is not None:
        edge_attr = torch.randn(edges, arguments.edge_dim, device=device, requires_grad=True)
    conv = make(getattr(LIBRARIES[library], layer), arguments).to(device)
    width = arguments.heads * arguments.channels if layer == "AGNNConv" else arguments.features
    x = torch.randn(nodes, width, device=device, requires_grad=layer == "AGNNConv")
    options = {} if edge_attr is None else {"edge_attr": edge_attr}
    leaves = [t for t in (x, edge_attr, *conv.parameters()) if t is not None and t.requires_grad]

    def train() -> list[Tensor]:
        out = conv(x, edge_index, **options)
        out.backward(out.detach())
        return [out.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]

    few = edge_index[:, :1]  # so that the workspaces of torch's BLAS are there
    conv(x, few, **{name: value[:1] for name, value in options.items()}).sum().backward()
    kept, measured = 0, []
    for _ in range(2):
        for leaf in leaves:
            leaf.grad = None
        peak, remaining, outputs = allocations(train, device)
        size = sum(output.nbytes for output in outputs)
        peak, kept = kept + peak - size, kept + remaining - size
        measured.append(Step(peak, kept))
        del outputs
    return measured[0], measured[1]


def random_edges(nodes: int, edges: int, device: str) -> Tensor:
    """``[2, edges]``; the first of Reddit's nodes gets 30 thousand edges as either end."""

    def ends() -> Tensor:
        return (torch.rand(edges, device=device) ** 1.5 * nodes).long().clamp_(max=nodes - 1)

    return torch.stack([ends(), ends()])


def make(layer: Any, arguments: argparse.Namespace) -> torch.nn.Module:
    if layer.__name__ == "AGNNConv":
        return layer()
    options = {} if arguments.edge_dim is None else {"edge_dim": arguments.edge_dim}
    return layer(arguments.features, arguments.channels, heads=arguments.heads, **options)


def allocations(call: Callable[[], list[Tensor]], device: str) -> tuple[int, int, list[Tensor]]:
    """The most bytes that ``call`` has allocated at a time, what remains of them, its result."""
    if device == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        result = call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before
        return peak, torch.cuda.memory_allocated() - before, result
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    events = profiler.profiler.kineto_results.events()
    changes = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    totals = list(accumulate(size for _, size in changes))
    return max(totals, default=0), totals[-1] if totals else 0, result


if __name__ == "__main__":
    raise SystemExit(main())
