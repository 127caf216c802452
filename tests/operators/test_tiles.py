"""find_tiles against a plain search, row by row."""

from itertools import accumulate, pairwise
from math import ceil

import graphs
import pytest
import torch
from graphs import Csr
from tilings import CHUNK, MAX_CHUNKS, STRIDE, WARP_ROWS, WINDOW, make_tests, rows_of

find_tiles = torch.ops.dfgnn.find_tiles


def boundaries(rows: list[list[int]]) -> list[int]:
    """The nodes before which no edge passes, and the end."""
    begins, ends = [0] * (len(rows) + 2), [0] * (len(rows) + 2)
    for i, row in enumerate(rows):
        for j in row:
            if 0 <= j < len(rows):
                begins[min(i, j) + 1] += 1
                ends[max(i, j) + 1] += 1
    passing = accumulate(b - e for b, e in zip(begins, ends, strict=True))
    return [b for b, edges in enumerate(passing) if edges == 0 and b <= len(rows)]


def expected_tiles(rows: list[list[int]]) -> list[int]:
    bounds = boundaries(rows)
    starts = [*range(0, len(rows), STRIDE), len(rows)]
    return [min(b for b in bounds if b >= start) for start in starts]


def expected_blocks(rows: list[list[int]], tiles: list[int]) -> int:
    """Chunks that the rows of a warp have edges in, and edges of rows that no mask can hold."""
    total = 0
    for begin, end in pairwise(tiles):
        if begin == end:
            continue
        windows = ceil((end - begin) / WINDOW)
        size = ceil((end - begin) / windows / WARP_ROWS) * WARP_ROWS
        for window in range(begin, end, size):
            window_end = min(window + size, end)
            for band in range(window, window_end, WARP_ROWS):
                total += band_cost(rows[band : min(band + WARP_ROWS, window_end)], begin, end)
    return total


def band_cost(rows: list[list[int]], begin: int, end: int) -> int:
    chunks, single_edges = set(), 0
    for row in rows:
        is_regular = (
            end - begin <= MAX_CHUNKS * CHUNK
            and all(begin <= j < end for j in row)
            and len(set(row)) == len(row)
            and sorted(row[:-1]) == row[:-1]  # self-loops come last
        )
        if is_regular:
            chunks |= {(j - begin) // CHUNK for j in row}
        else:
            single_edges += len(row)
    return len(chunks) + single_edges


def check(graph: Csr) -> None:
    tiles, blocks = find_tiles(graph.rowptr, graph.col)
    rows = rows_of(graph)
    assert (tiles.dtype, blocks.dtype, blocks.shape) == (torch.int32, torch.int64, (1,))
    assert tiles.tolist() == expected_tiles(rows)
    assert int(blocks) == expected_blocks(rows, tiles.tolist())


test_graphs, test_drawn = make_tests(check)


def test_graphs_of_a_batch_are_apart():
    """However many nodes they have, no tile is wider than a graph and a stride."""
    graph = graphs.batch(graphs.BATCH_SIZES, 0.3)
    tiles, _ = find_tiles(graph.rowptr, graph.col)
    assert tiles.diff().max() < max(graphs.BATCH_SIZES) + STRIDE


def test_rowptr_that_is_none(device):
    """Pointers and columns out of range are no edges."""
    rowptr = torch.tensor([-5, 3, 2, 1 << 40, 9], device=device)
    col = torch.tensor([0, 1 << 40, -1, 3, 2], device=device)
    tiles, _ = find_tiles(rowptr, col)
    assert tiles.tolist() == [0, 4]


def test_script(device):
    graph = graphs.make("batch", device)

    @torch.jit.script
    def tiles_and_blocks(rowptr: torch.Tensor, col: torch.Tensor):
        return torch.ops.dfgnn.find_tiles(rowptr, col)

    expected = find_tiles(graph.rowptr, graph.col)
    torch.testing.assert_close(tiles_and_blocks(graph.rowptr, graph.col), expected)


def test_compile(device):
    """Also for other numbers of nodes."""
    torch._dynamo.reset()
    compiled = torch.compile(lambda *args: find_tiles(*args), fullgraph=True, dynamic=True)
    for name in ("batch", "hub", "batch_dense"):
        graph = graphs.make(name, device)
        expected = find_tiles(graph.rowptr, graph.col)
        torch.testing.assert_close(compiled(graph.rowptr, graph.col), expected)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("rowptr", lambda t: t.float()),
        ("rowptr", lambda t: t.unsqueeze(0)),
        ("rowptr", lambda t: t[:0]),
        ("col", lambda t: t.long()),
        ("col", lambda t: t.float()),
        ("col", lambda t: t.unsqueeze(0)),
    ],
)
def test_bad_input(name, change, device):
    graph = graphs.make("batch", device)
    given = {"rowptr": graph.rowptr, "col": graph.col}
    with pytest.raises(RuntimeError, match=f"^{name}: expected .*got "):
        find_tiles(**given | {name: change(given[name])})


@pytest.mark.parametrize("hub", [0, 1500, 2999])
def test_stars(hub, device):
    """Rows that reach far, and whose nodes have no edges but theirs."""
    rows = []
    for begin in (0, 3000, 6000):
        leaves = [j for j in range(begin, begin + 3000) if j != begin + hub]
        star = [[] for _ in range(3000)]
        star[hub] = leaves
        rows += star
    graph = graphs.from_rows(rows, 9000).to(device)
    tiles, _ = find_tiles(graph.rowptr, graph.col)
    assert tiles.tolist() == expected_tiles(rows)
