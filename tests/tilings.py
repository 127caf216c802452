"""Graphs in all that matters to method "tile", and how it cuts them."""

from collections.abc import Callable
from itertools import pairwise

import graphs
import hypothesis
import pytest
import torch
from graphs import Csr
from hypothesis import strategies as st

# cuda/tile_geometry.h
STRIDE, WARP_ROWS, WINDOW, CHUNK, MAX_CHUNKS = 64, 16, 64, 32, 24

SQUARE = [name for name in graphs.GRAPHS if (g := graphs.make(name)).num_src == g.num_dst]


def forms(graph: Csr) -> dict[str, torch.Tensor]:
    """What the operators that put something behind tiles read of a graph, by their names."""
    tiles, _ = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    colptr, row, _ = torch.ops.dfgnn.csr_to_csc(graph.rowptr, graph.col, graph.num_dst)
    given = {"tiles": tiles, "rowptr": graph.rowptr, "col": graph.col}
    return given | {"colptr": colptr, "row": row}


def rows_of(graph: Csr) -> list[list[int]]:
    return [graph.col[a:b].tolist() for a, b in pairwise(graph.rowptr.tolist())]


def sizes_of(graph: Csr, tiles: torch.Tensor) -> list[int]:
    """What method "resident" has to know of the largest tile: nodes, and batches of edges."""
    colptr, _, _ = torch.ops.dfgnn.csr_to_csc(graph.rowptr, graph.col, graph.num_dst)
    return torch.ops.dfgnn.tile_sizes(tiles, graph.rowptr, colptr).tolist()


def resident_route(graph: Csr, boundaries: list[int] | None = None, **sizes: int) -> dict:
    """Tiles with their list, as they are or cut anywhere; sizes of the largest, if not given."""
    found, _ = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    listed = sorted(set(found.tolist())) if boundaries is None else boundaries
    listed += [graph.num_dst] * (found.numel() - len(listed))
    tiles = torch.tensor(listed[: found.numel()], dtype=found.dtype, device=found.device)
    nodes, batches = sizes_of(graph, tiles)
    given = {"tile_nodes": nodes, "tile_batches": batches} | sizes
    return {"tiles": torch.cat([found, tiles]), **given}


@st.composite
def batches(draw) -> Csr:
    """Graphs side by side, in all that makes a row regular or not."""
    sizes = draw(st.lists(st.integers(0, 90) | st.sampled_from([130, 520, 800]), max_size=8))
    if sum(sizes) > 1500:
        sizes = sizes[:2]
    graph = graphs.batch(
        sizes,
        draw(st.sampled_from([0.0, 0.02, 0.3, 1.0])),
        self_loops=draw(st.booleans()),
        band=draw(st.none() | st.just(7)) if max(sizes, default=0) <= 130 else 7,
    )
    rng = draw(st.randoms(use_true_random=False))
    rows = rows_of(graph)
    for row in rng.sample(rows, min(len(rows), draw(st.integers(0, 3)))):
        change = rng.choice(["shuffle", "twice", "outside", "far"])
        if change == "shuffle":
            rng.shuffle(row)
        elif change == "twice":
            row += row[:2]
        else:
            row.append(rng.choice([-1, len(rows)]) if change == "outside" else len(rows) // 2)
    return graphs.from_rows(rows, len(rows))


def make_tests(check: Callable[[Csr], None]) -> tuple[Callable, Callable]:
    """``test_graphs`` and ``test_drawn``, which check graphs of either index type."""
    dtypes = [torch.int32, torch.int64]

    @pytest.mark.parametrize("index", dtypes, ids=str)
    @pytest.mark.parametrize("name", SQUARE)
    def test_graphs(name, index, device):
        check(graphs.make(name, device, index))

    @hypothesis.given(graph=batches(), index=st.sampled_from(dtypes))
    def test_drawn(graph, index, device):
        check(graph.to(device, index))

    return test_graphs, test_drawn
