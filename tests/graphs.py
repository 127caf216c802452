"""Small graphs that hurt attention kernels, each with a name that says how."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Csr:
    """A graph by destination: the sources of row ``i`` are ``col[rowptr[i]:rowptr[i + 1]]``."""

    rowptr: Tensor
    col: Tensor
    num_src: int

    @property
    def num_dst(self) -> int:
        return self.rowptr.numel() - 1

    @property
    def num_edges(self) -> int:
        """The edges there are; ``col`` may hold unused entries behind them."""
        return int(self.rowptr[-1])

    @property
    def capacity(self) -> int:
        return self.col.numel()

    def destinations(self) -> Tensor:
        """The row of each edge, int64 [num_edges]."""
        rows = torch.arange(self.num_dst, device=self.rowptr.device)
        return rows.repeat_interleave(self.rowptr.diff())

    def sources(self) -> Tensor:
        """The column of each edge, int64 [num_edges]."""
        return self.col[: self.num_edges].long()

    def only(self, kept: Tensor) -> "Csr":
        """Of the edges, those of a mask, bool [num_edges]."""
        degrees = self.destinations()[kept].bincount(minlength=self.num_dst)
        rowptr = torch.nn.functional.pad(degrees.cumsum(0), (1, 0)).to(self.rowptr.dtype)
        return Csr(rowptr, self.col[: self.num_edges][kept], self.num_src)

    def csc(self) -> dict[str, Tensor]:
        """The same edges by source, as the operators take them: colptr, row and perm."""
        perm = self.sources().argsort(stable=True)
        row = self.destinations()[perm]
        colptr = torch.zeros(self.num_src + 1, dtype=torch.int64, device=self.col.device)
        colptr[1:] = self.sources().bincount(minlength=self.num_src).cumsum(0)
        unused = (0, self.capacity - self.num_edges)
        return {
            "colptr": colptr.to(self.col.dtype),
            "row": torch.nn.functional.pad(row, unused).to(self.col.dtype),
            "perm": torch.nn.functional.pad(perm, unused).to(self.col.dtype),
        }

    def to(self, device: str | torch.device, dtype: torch.dtype = torch.int32) -> "Csr":
        return Csr(self.rowptr.to(device, dtype), self.col.to(device, dtype), self.num_src)


def from_degrees(degrees: list[int], num_src: int) -> Csr:
    """Random sources for rows of these degrees."""
    generator = torch.Generator().manual_seed(len(degrees))
    rowptr = torch.tensor([0, *degrees]).cumsum(0)
    edges = int(rowptr[-1])
    return Csr(rowptr, torch.randint(max(num_src, 1), (edges,), generator=generator), num_src)


def from_rows(rows: list[list[int]], num_src: int) -> Csr:
    degrees = torch.tensor([0, *map(len, rows)])
    col = torch.tensor([source for row in rows for source in row], dtype=torch.int64)
    return Csr(degrees.cumsum(0), col, num_src)


def tree(nodes: int) -> Csr:
    """Rows of one edge, from a node's parent, but for the root's."""
    return from_rows([[], *([(i - 1) // 3] for i in range(1, nodes))], nodes)


def spare_capacity() -> Csr:
    graph = from_degrees([2, 0, 5, 1], 6)
    rubbish = torch.tensor([-7, 6, 1 << 30])
    return Csr(graph.rowptr, torch.cat([graph.col, rubbish]), graph.num_src)


# That point to entries as none should, of four rows and eight edges.
BROKEN_ROWPTRS = {
    "decreasing": [0, 5, 3, 8, 8],
    "beyond_the_end": [0, 4, 9, 1000, 1 << 30],
    "negative": [-5, -1, 3, 6, 8],
    "backwards": [8, 6, 4, 2, 0],
    "all_beyond": [100, 200, 300, 400, 500],
}

# Degrees around the widths of warps, blocks and their multiples.
TILE_DEGREES = [*range(1, 71), *range(127, 131), *range(255, 258), 1000, 1025]


def in_pieces(short_rows: int = 0) -> Csr:
    """Rows that several blocks of a GPU share, and rows about as long as what one of them takes;
    behind them so many of one edge, and entries of no row."""
    graph = from_degrees([5, 9000, 0, 1024, 1025, 9000, 3] + [1] * short_rows, 60)
    spare = torch.full((3000,), 99, dtype=graph.col.dtype)
    return Csr(graph.rowptr, torch.cat([graph.col, spare]), graph.num_src)


def batch(
    sizes: list[int], density: float, self_loops: bool = False, band: int | None = None
) -> Csr:
    """Random graphs of these sizes side by side; ``band`` keeps edges among nodes that near.

    Self-loops, one a node, come last in each row, where build_graph puts them.
    """
    generator = torch.Generator().manual_seed(sum(sizes))
    rows, begin = [], 0
    for size in sizes:
        adjacent = torch.rand(size, size, generator=generator) < density
        if band is not None:
            adjacent &= (torch.arange(size)[:, None] - torch.arange(size)).abs() <= band
        for i in range(size):
            sources = [begin + j for j in adjacent[i].nonzero().flatten().tolist()]
            if self_loops:
                sources = [j for j in sources if j != begin + i] + [begin + i]
            rows.append(sources)
        begin += size
    return from_rows(rows, begin)


def repeat(graph: Csr, times: int) -> Csr:
    """A square graph as often side by side."""
    edges, nodes = graph.num_edges, graph.num_dst
    ends = graph.rowptr[1:] + edges * torch.arange(times)[:, None]
    col = graph.col[:edges] + nodes * torch.arange(times)[:, None]
    return Csr(
        torch.cat([graph.rowptr[:1], ends.flatten()]).int(), col.flatten().int(), nodes * times
    )


# Sizes around the windows, bands and chunks of the tile kernels.
BATCH_SIZES = [1, 15, 16, 17, 0, 31, 32, 33, 63, 64, 65, 2, 1, 1, 119, 128, 129, 3]


def duplicate_edges(graph: Csr) -> Csr:
    """The same graph, every seventh row of it with an edge twice."""
    rows = graph.col.tensor_split(graph.rowptr[1:-1])
    return from_rows(
        [row.tolist() * (2 if i % 7 == 0 else 1) for i, row in enumerate(rows)], graph.num_src
    )


GRAPHS: dict[str, Callable[[], Csr]] = {
    "batch": lambda: batch(BATCH_SIZES, 0.3),
    "batch_dense": lambda: batch([40, 70, 100], 1.0),
    "batch_duplicates": lambda: duplicate_edges(batch([30, 80, 60], 0.2)),
    "batch_one_wide": lambda: batch([20, 850, 40], 0.5, band=6),
    "batch_self_loops": lambda: batch([50, 90, 20], 0.3, self_loops=True),
    "batch_sparse": lambda: batch([300, 1, 250], 0.5, band=5),
    "bipartite": lambda: from_degrees([3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9], 29),
    "bipartite_few_sources": lambda: from_degrees([2, 7, 1, 8, 2, 8] * 5, 3),
    "chain": lambda: from_rows([[], *([i] for i in range(40))], 41),
    "degrees_around_tiles": lambda: from_degrees(TILE_DEGREES, 97),
    "empty_rows": lambda: from_degrees([0, 0, 3, 0, 1, 0, 0, 7, 0], 9),
    "hub": lambda: from_degrees([2] * 20 + [700] + [1] * 19, 40),
    "isolated": lambda: from_rows([[], [2, 3], [3], [1], []], 5),
    "multigraph": lambda: from_rows([[1, 1, 1, 0], [2, 2], [0, 1, 0, 1, 0]], 3),
    "no_destinations": lambda: from_rows([], 4),
    "no_edges": lambda: from_rows([[]] * 5, 5),
    "no_nodes": lambda: from_rows([], 0),
    "no_sources": lambda: from_rows([[]] * 4, 0),
    "self_loops": lambda: from_rows([[i] for i in range(33)], 33),
    "single_edge": lambda: from_rows([[0]], 1),
    "spare_capacity": spare_capacity,
    "star_of_sources": lambda: from_degrees([1] * 900, 1),
    "super_node": lambda: from_degrees([3, 13000, 1024, 1025, 0, 1500, 1100, 2], 50),
    "super_source": lambda: from_degrees([1] * 17000, 1),
}


def make(name: str, device: str = "cpu", dtype: torch.dtype = torch.int32) -> Csr:
    return GRAPHS[name]().to(device, dtype)


def mixed(device: str = "cpu", dtype: torch.dtype = torch.int32) -> Csr:
    """A little of everything in 60 edges, for tests that sweep something else."""
    return from_degrees([0, 1, 2, 33, 0, 5, 8, 9, 1, 0], 11).to(device, dtype)


def random(nodes: int, degree: int, device: str = "cpu", dtype: torch.dtype = torch.int32) -> Csr:
    """Degrees between 0 and twice ``degree``; enough work for every thread when it is large."""
    generator = torch.Generator().manual_seed(nodes)
    degrees = torch.randint(2 * degree + 1, (nodes,), generator=generator).tolist()
    return from_degrees(degrees, nodes).to(device, dtype)


def short_rows(num_src: int, device: str = "cpu", dtype: torch.dtype = torch.int32) -> Csr:
    """So many short rows that groups of lanes take one each; some too long for that, some empty,
    the last among them."""
    degrees = [0, 1, 2, 3, 1, 2, 0, 4] * (1 << 12) + [0, 15, 16, 17, 40] * 50 + [1] * 7 + [0] * 30
    return from_degrees(degrees, num_src).to(device, dtype)


def long_rows(device: str) -> Csr:
    """More rows than a GPU holds blocks, of 70 edges, and one of 20,000."""
    return from_degrees([70] * 3000 + [20_000] + [70] * 3000, 4000).to(device)


def very_long_rows(device: str, index: torch.dtype = torch.int32) -> Csr:
    """Rows and columns of some 260 edges, which are listed by their lengths and go by whole blocks,
    some of none, of two or three pieces, and one of 30,000; their number is no multiple of a
    neighbourhood's."""
    degrees = [200 + 37 * i % 130 + 700 * (i % 60 == 0) for i in range(16_500)]
    degrees[4000:4000] = [*[0] * 40, 30_000]
    return from_degrees(degrees, 16_400).to(device, index)


def rises(graph: Csr, step: float) -> Tensor:
    """Of each edge: `step` times its place in its row, of those past the 70th the same; or, where
    that is -inf, -inf for the first half of a row, and 0."""
    rows = graph.destinations()
    places = torch.arange(rows.numel(), device=rows.device) - graph.rowptr[rows]
    if step == -torch.inf:
        return torch.where(places < graph.rowptr.diff()[rows] // 2, step, 0.0)
    return places.clamp(max=70) * step


def rows_of_70(device: str, index: torch.dtype = torch.int32) -> Csr:
    """And one of no edges, of one, of more than a piece has, and of a few batches."""
    return from_degrees([70] * 200 + [0, 1, 2100, 130], 150).to(device, index)
