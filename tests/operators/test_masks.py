"""with_masks: edges as bits, against a plain count, and the tile kernels that read them."""

from itertools import pairwise
from math import ceil

import graphs
import pytest
import torch
from calls import SCORES, backward_arguments, make_operands, operator
from graphs import Csr
from tilings import CHUNK, MAX_CHUNKS, WARP_ROWS, WINDOW, forms, make_tests, rows_of

ops = torch.ops.dfgnn

# cuda/tile_geometry.h
WORDS = 2 + MAX_CHUNKS
IRREGULAR, DISORDERED = 1 << MAX_CHUNKS, 1 << (MAX_CHUNKS + 1)
NO_LAST = MAX_CHUNKS * CHUNK


def masks_of(graph: Csr) -> tuple[torch.Tensor, torch.Tensor]:
    """The tiles, and the tiles with masks."""
    given = forms(graph)
    return given["tiles"], ops.with_masks(**given)


def expected_mask(row: list[int], begin: int, end: int) -> list[int]:
    inside = [j - begin for j in row]
    if (
        end - begin > NO_LAST
        or not all(0 <= j < end - begin for j in inside)
        or len(set(row)) < len(row)
    ):
        return [IRREGULAR, NO_LAST] + [0] * MAX_CHUNKS
    words = [sum(1 << j % CHUNK for j in inside if j // CHUNK == c) for c in range(MAX_CHUNKS)]
    first = sum(1 << c for c, word in enumerate(words) if word)
    if sorted(inside[:-1]) != inside[:-1]:
        first |= DISORDERED
    descends = len(inside) > 1 and inside[-1] < inside[-2]
    return [first, inside[-1] if descends else NO_LAST, *words]


def expected_windows(tiles: list[int]) -> list[tuple[int, int, int, int]]:
    """Of all tiles, 64 rows or less, in multiples of 16 that are about as large: the tile's first
    node and the one behind its last, the window's first and how many."""
    windows = []
    for begin, end in pairwise(tiles):
        if begin == end:
            continue
        count = ceil((end - begin) / WINDOW)
        size = ceil(ceil((end - begin) / count) / WARP_ROWS) * WARP_ROWS
        windows += [
            (begin, end, first, min(size, end - first)) for first in range(begin, end, size)
        ]
    return windows


def place_of(window: tuple[int, ...], tiles: list[int]) -> int:
    """Before all others, among them or behind them: those of small tiles at both ends."""
    begin, end, *_ = window
    count = len(set(tiles)) - 1
    is_small = 5 * (end - begin) * count < 4 * tiles[-1]
    return 1 if not is_small else 0 if begin < tiles[-1] // 2 else 2


def windows_in(tiles: torch.Tensor) -> slice:
    """Where with_masks puts windows behind these tiles, twice; the masks begin where they end."""
    begin = ceil(tiles.numel() / 4) * 4
    return slice(begin, begin + 2 * 2 * (tiles.numel() - 1) * 4)


def check_windows(tiles: torch.Tensor, found: torch.Tensor) -> None:
    boundaries = tiles.tolist()
    windows = [tuple(w) for w in found[windows_in(tiles)].view(-1, 4).tolist()]
    expected = sorted(expected_windows(boundaries), key=lambda w: (place_of(w, boundaries), w[2]))
    none = [(0, 0, 0, 0)] * (len(windows) - 2 * len(expected))
    assert windows == expected + none + expected


def check(graph: Csr) -> None:
    tiles, found = masks_of(graph)
    nodes, count = graph.num_dst, tiles.numel()
    places = windows_in(tiles)
    assert found.dtype == torch.int32
    check_windows(tiles, found)
    assert not found[count : places.start].any()
    assert found.numel() == places.stop + 2 * nodes * WORDS
    assert torch.equal(found[:count], tiles)
    *_, colptr, row = forms(graph).values()
    rows = rows_of(graph)
    columns = [row[a:b].tolist() for a, b in pairwise(colptr.tolist())]
    tile_of = torch.searchsorted(tiles, torch.arange(nodes, device=tiles.device), right=True)
    bounds = [(int(tiles[t - 1]), int(tiles[t])) for t in tile_of.tolist()]
    expected = [
        expected_mask(edges, *bound)
        for side in (rows, columns)
        for edges, bound in zip(side, bounds, strict=True)
    ]
    masks = found[places.stop :].view(-1, WORDS).long() & 0xFFFFFFFF
    assert masks.tolist() == expected


test_graphs, test_drawn = make_tests(check)


def test_more_windows_than_one_block_takes_at_a_time(device):
    graph = graphs.batch([70, 3, 130, 64, 200] * 600, 0.02).to(device)
    tiles, found = masks_of(graph)
    assert tiles.numel() > 4096
    check_windows(tiles, found)
    assert {place_of(w, tiles.tolist()) for w in expected_windows(tiles.tolist())} == {0, 1, 2}


@pytest.mark.parametrize("edge_terms", [False, True])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["batch", "batch_self_loops", "batch_duplicates", "hub"])
def test_the_same_bits(name, score, edge_terms, device):
    """Whether the caller has made the masks, or not even the tiles."""
    graph = graphs.make(name, device)
    tiles, with_masks = masks_of(graph)
    operands = make_operands(score, graph, heads=2, head_dim=32, edge_terms=edge_terms)
    backward = backward_arguments(score, graph, operands)
    for op, arguments in (
        ("tile_fwd", {"rowptr": graph.rowptr, "col": graph.col, **operands}),
        ("tile_bwd", backward),
    ):
        expected = operator(op, score)(**arguments)
        for given in (tiles, with_masks, with_masks.long()):
            found = operator(op, score)(**arguments, tiles=given)
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("rubbish", ["masks", "near windows", "windows", "boundaries"])
@pytest.mark.parametrize("edge_terms", [False, True])
@pytest.mark.parametrize("score", SCORES)
def test_masks_that_are_none(score, edge_terms, rubbish, device):
    """What follows is not said, but safe."""
    graph = graphs.make("batch", device)
    tiles, given = masks_of(graph)
    windows = windows_in(tiles)
    random = torch.randint_like(given, -(1 << 31), 1 << 31)
    if rubbish == "boundaries":  # from which masks are made
        given = random[: tiles.numel()] % (2 * graph.num_dst)
    else:
        given[windows.stop :] = random[windows.stop :]
        if rubbish == "windows":
            given[windows] = random[windows]
        elif rubbish == "near windows":
            given[windows] = random[windows] % (2 * graph.num_dst) - 70
    operands = make_operands(score, graph, heads=2, head_dim=32, edge_terms=edge_terms)
    seed = torch.ones(1, dtype=torch.long, device=device)
    options = {"tiles": given, "dropout_p": 0.3, "seed": seed}
    arguments = backward_arguments(score, graph, operands) | options
    gradients = operator("tile_bwd", score)(**arguments)
    expected = operator("smmf_bwd", score)(**backward_arguments(score, graph, operands))
    assert [g.cpu().shape for g in gradients] == [g.shape for g in expected]
    out, _ = operator("tile_fwd", score)(graph.rowptr, graph.col, **operands, **options)
    assert out.cpu().shape == arguments["out"].shape


@pytest.mark.parametrize("score", SCORES)
def test_masks_anywhere_in_memory(score, device):
    """A view that is not aligned."""
    graph = graphs.make("batch", device)
    _, masks = masks_of(graph)
    operands = make_operands(score, graph, heads=2, head_dim=32)
    buffer = torch.cat([masks[:1], masks])
    for op, arguments in (
        ("tile_fwd", {"rowptr": graph.rowptr, "col": graph.col, **operands}),
        ("tile_bwd", backward_arguments(score, graph, operands)),
    ):
        found = operator(op, score)(**arguments, tiles=buffer[1:])
        expected = operator(op, score)(**arguments, tiles=masks)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)


def test_graphs_that_are_none(device):
    """Pointers, columns and tiles out of range give some masks."""
    rowptr = torch.tensor([-5, 3, 2, 1 << 40, 9, 9], device=device)
    col = torch.tensor([0, 1 << 40, -1, 3, 2], device=device)
    for tiles in ([0, 5], [-7, 1 << 30], [3, 2], [5, 5]):
        tiles = torch.tensor(tiles, dtype=torch.int32, device=device)
        found = ops.with_masks(tiles, rowptr, col, rowptr, col)
        assert found[: tiles.numel()].tolist() == tiles.tolist()
        assert found.cpu().numel() == 4 + 2 * 2 * 4 + 2 * 5 * WORDS


def test_framework(device):
    graph = graphs.make("batch", device)
    _, expected = masks_of(graph)
    arguments = tuple(forms(graph).values())
    torch.library.opcheck(ops.with_masks.default, arguments)
    compiled = torch.compile(lambda *a: ops.with_masks(*a), fullgraph=True)
    assert torch.equal(compiled(*arguments), expected)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tiles", lambda t: t[1:]),
        ("tiles", lambda t: t.long()),
        ("tiles", lambda t: t.unsqueeze(0)),
        ("rowptr", lambda t: t.float()),
        ("rowptr", lambda t: t[:0]),
        ("col", lambda t: t.long()),
        ("colptr", lambda t: t[1:]),
        ("colptr", lambda t: t.long()),
        ("row", lambda t: t[1:]),
        ("row", lambda t: t.float()),
    ],
)
def test_bad_input(name, change, device):
    given = forms(graphs.make("batch", device))
    with pytest.raises(RuntimeError, match=f"^{name}: expected .*got "):
        ops.with_masks(**given | {name: change(given[name])})
