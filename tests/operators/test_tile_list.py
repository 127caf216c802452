"""with_list and tile_sizes, what method resident reads of tiles, against plain Python."""

from itertools import pairwise

import graphs
import pytest
import torch
from graphs import Csr
from tilings import forms, make_tests

ops = torch.ops.dfgnn
# cuda/resident_geometry.h
GROUPS, BATCH, MOST_NODES = 8, 2, 1824


def arguments_of(graph: Csr) -> tuple[torch.Tensor, ...]:
    """tiles, rowptr and colptr."""
    given = forms(graph)
    return given["tiles"], given["rowptr"], given["colptr"]


def expected_sizes(tiles: list[int], *ptrs: list[int]) -> list[int]:
    nodes = batches_of_tile = 0
    for begin, end in pairwise(tiles):
        nodes = max(nodes, end - begin)
        if begin == end or end - begin > MOST_NODES:
            continue
        for ptr in ptrs:
            own = [-(-(b - a) // BATCH) for a, b in pairwise(ptr[begin : end + 1])]
            batches_of_tile = max(batches_of_tile, sum(own) // GROUPS + max(own) + 1)
    return [nodes, batches_of_tile]


def check(graph: Csr) -> None:
    tiles, *ptrs = arguments_of(graph)
    sizes = ops.tile_sizes(tiles, *ptrs)
    assert (sizes.dtype, sizes.shape) == (torch.int64, (2,))
    assert sizes.tolist() == expected_sizes(tiles.tolist(), *(ptr.tolist() for ptr in ptrs))

    listed = ops.with_list(tiles, graph.num_dst)
    assert listed.dtype == tiles.dtype
    count = tiles.numel()
    assert torch.equal(listed[:count], tiles)
    each = [a for a, b in pairwise(tiles.tolist()) if a < b]
    assert listed[count:].tolist() == each + [graph.num_dst] * (count - len(each))


test_graphs, test_drawn = make_tests(check)


def test_more_tiles_than_a_block_of_the_gpu_has_threads(device):
    check(graphs.batch([3, 70, 0, 130] * 700, 0.02).to(device))


def test_tiles_too_large_to_fit(device):
    """Nodes are counted, edges of no use."""
    graph = graphs.batch([64, MOST_NODES, MOST_NODES + 1], 1.0, band=7).to(device)
    check(graph)
    assert int(ops.tile_sizes(*arguments_of(graph))[0]) == MOST_NODES + 1


def test_behind_masks(device):
    graph = graphs.make("batch", device)
    tiles, rowptr, _, colptr, row = forms(graph).values()
    masks = ops.with_masks(tiles, rowptr, graph.col, colptr, row)
    listed = ops.with_list(masks, graph.num_dst)
    assert torch.equal(
        ops.with_masks(ops.with_list(tiles, graph.num_dst), rowptr, graph.col, colptr, row), listed
    )
    assert torch.equal(listed[: masks.numel()], masks)
    assert torch.equal(
        listed[masks.numel() :], ops.with_list(tiles, graph.num_dst)[tiles.numel() :]
    )
    assert torch.equal(ops.tile_sizes(masks, rowptr, colptr), ops.tile_sizes(tiles, rowptr, colptr))


def test_graphs_that_are_none(device):
    """Pointers and tiles out of range give some sizes."""
    ptr = torch.tensor([-5, 3, 2, 1 << 40, 9, 9], device=device)
    for tiles in ([0, 5], [-7, 1 << 30], [3, 2]):
        tiles = torch.tensor(tiles, dtype=torch.int32, device=device)
        assert ops.tile_sizes(tiles, ptr, ptr).cpu().shape == (2,)
        assert ops.with_list(tiles, 5).cpu().shape == (4,)


def test_framework(device):
    graph = graphs.make("batch", device)
    tiles, rowptr, colptr = arguments_of(graph)
    torch.library.opcheck(ops.with_list.default, (tiles, graph.num_dst))
    torch.library.opcheck(ops.tile_sizes.default, (tiles, rowptr, colptr))
    expected = ops.with_list(tiles, graph.num_dst)
    assert torch.equal(torch.compile(ops.with_list, fullgraph=True)(tiles, graph.num_dst), expected)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tiles", lambda t: t[1:]),
        ("tiles", lambda t: t.long()),
        ("tiles", lambda t: t.unsqueeze(0)),
        ("rowptr", lambda t: t.float()),
        ("rowptr", lambda t: t[:0]),
        ("colptr", lambda t: t[1:]),
        ("colptr", lambda t: t.long()),
    ],
)
def test_bad_input(name, change, device):
    graph = graphs.make("batch", device)
    given = dict(zip(("tiles", "rowptr", "colptr"), arguments_of(graph), strict=True))
    wrong = given | {name: change(given[name])}
    with pytest.raises(RuntimeError, match=f"^{name}: expected .*got "):
        ops.tile_sizes(**wrong)
    if name == "tiles":
        with pytest.raises(RuntimeError, match=f"^{name}: expected .*got "):
            ops.with_list(wrong["tiles"], graph.num_dst)


def test_bad_number_of_nodes(device):
    tiles, _, _ = arguments_of(graphs.make("batch", device))
    with pytest.raises(RuntimeError, match=r"^num_nodes: expected .*got -1"):
        ops.with_list(tiles, -1)


def test_more_nodes_than_tiles_count(device):
    """In int32, of which the list is."""
    tiles = torch.zeros(1, dtype=torch.int32, device=device).expand((1 << 25) + 1)
    with pytest.raises(RuntimeError, match=r"^num_nodes: expected fewer than .*got 2147483648"):
        ops.with_list(tiles, 1 << 31)
