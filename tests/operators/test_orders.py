"""with_orders, what kernels of few edges read of a graph, against plain Python."""

from itertools import pairwise

import graphs
import pytest
import torch
from graphs import Csr
from tilings import forms, make_tests

ops = torch.ops.dfgnn
MOST_EDGES = 2**9 - 1  # cuda/tile_geometry.h


def arguments_of(graph: Csr) -> dict[str, torch.Tensor]:
    return {name: t for name, t in forms(graph).items() if name != "row"}


def check(graph: Csr) -> None:
    given = arguments_of(graph)
    tiles, found = given["tiles"], ops.with_orders(**given)
    assert found.dtype == torch.int32
    assert torch.equal(found[: tiles.numel()], tiles)
    ptrs = [given[name].tolist() for name in ("rowptr", "colptr")]
    sizes = [[end - begin for begin, end in pairwise(ptr)] for ptr in ptrs]
    orders = [
        sorted(range(graph.num_dst), key=lambda i, of=of: -min(of[i], MOST_EDGES)) for of in sizes
    ]
    expected = [
        *orders,
        *([ptr[i] for i in order] for ptr, order in zip(ptrs, orders, strict=True)),
        *([of[i] for i in order] for of, order in zip(sizes, orders, strict=True)),
    ]
    assert found[tiles.numel() :].view(6, -1).tolist() == expected


test_graphs, test_drawn = make_tests(check)


def test_rows_that_count_as_equal(device):
    lengths = [5, MOST_EDGES - 1, MOST_EDGES, MOST_EDGES + 1, 0, 70000, MOST_EDGES, 33]
    check(graphs.from_degrees(lengths, len(lengths)).to(device))


def test_more_rows_than_a_sort_takes_at_once(device):
    check(graphs.from_degrees([(7 * i * i) % 23 for i in range(20000)], 20000).to(device))


def test_pointers_that_are_none(device):
    ptr = torch.tensor([-5, 3, 2, 1 << 40, 9, 9], device=device)
    col = torch.zeros(9, dtype=torch.int64, device=device)
    tiles = torch.tensor([0, 5], dtype=torch.int32, device=device)
    rows, begins, sizes = ops.with_orders(tiles, ptr, col, ptr)[2:].cpu().view(3, 2, 5)
    assert rows.sort().values.tolist() == [[0, 1, 2, 3, 4]] * 2
    assert ((begins >= 0) & (sizes >= 0) & (begins + sizes <= 9)).all()


def test_framework(device):
    given = tuple(arguments_of(graphs.make("batch", device)).values())
    torch.library.opcheck(ops.with_orders.default, given)
    expected = ops.with_orders(*given)
    assert torch.equal(torch.compile(ops.with_orders, fullgraph=True)(*given), expected)


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("tiles", lambda t: t[1:]),
        ("tiles", lambda t: t.long()),
        ("tiles", lambda t: t.repeat(2)),
        ("rowptr", lambda t: t.float()),
        ("rowptr", lambda t: t[:0]),
        ("col", lambda t: t.long()),
        ("colptr", lambda t: t[1:]),
        ("colptr", lambda t: t.long()),
    ],
)
def test_bad_input(name, change, device):
    given = arguments_of(graphs.make("batch", device))
    with pytest.raises(RuntimeError, match=f"^{name}: expected .*got "):
        ops.with_orders(**given | {name: change(given[name])})


def test_nothing_goes_behind_orders(device):
    graph = graphs.make("batch", device)
    tiles = ops.with_orders(**arguments_of(graph))
    with pytest.raises(RuntimeError, match=r"^tiles: expected .*got "):
        ops.with_list(tiles, graph.num_dst)
    with pytest.raises(RuntimeError, match=r"^tiles: expected .*got "):
        ops.with_masks(**forms(graph) | {"tiles": tiles})
