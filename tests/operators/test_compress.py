"""compress against coo_to_csr, csr_to_csc and find_tiles."""

import itertools
from functools import partial

import numpy as np
import pytest
import torch
from edge_lists import COO, assert_as_by_parts, batch_coo, compress, coo_to_csr
from torch import Tensor

WIDEST = 576  # nodes of a tile that compress transposes by itself


def connected_coo(edges: int) -> tuple[list[int], list[int], int, int]:
    """One tile of WIDEST nodes with so many edges, a path and others, none of them a loop."""
    far = ((i, i + step) for step in range(2, WIDEST) for i in range(WIDEST - step))
    path = ((i, i + 1) for i in range(WIDEST - 1))
    src, dst = zip(*itertools.islice(itertools.chain(path, far), edges), strict=True)
    return list(src), list(dst), WIDEST, WIDEST


# What compress copies of sorted lists, or makes of others, by tiles: graphs around the sizes of
# words and of the widest tile, some of them sparse; nodes without edges in a row, few and many;
# and as many edges of the widest tile as there is just room for, of 4 bytes each and of 6; dense
# tiles with room for the first alone; and more dense tiles than blocks.
BATCHES = {
    "words": batch_coo([1, 2, 31, 32, 33, 63, 64, 65, 0, 127, 128, 129]),
    "sparse": batch_coo([30, 500, 70, 1, 200] * 5, 0.01),
    "widest": batch_coo([WIDEST, 64, WIDEST - 1], 0.05),
    "too_wide": batch_coo([20, WIDEST + 1, 30], 0.05),
    "too_wide_together": batch_coo([WIDEST, 3, WIDEST - 1], 0.05),
    "sparse_widest": batch_coo([WIDEST, 64, WIDEST - 1, 40], 0.01),
    "sparse_too_wide": batch_coo([40, 600, 70], 0.01),
    "wide_last": batch_coo([70] * 300 + [600], 0.02),
    "full": batch_coo([40, 70], 1.0),
    "mixed": batch_coo([*[64] * 5, 200, 300] * 8, [*[0.5] * 5, 0.01, 0.01] * 8),
    "room_for_half": batch_coo([200, 64, 128], [0.3, 0.5, 0.8]),
    "many_dense": batch_coo([64] * 60, 0.3),
}
BATCHES |= {
    f"room_{edges + more - loops}": connected_coo(edges + more - loops)
    for edges in (853, 1280)
    for loops in (0, WIDEST)
    for more in (0, 1)
    if edges - loops >= WIDEST - 1
}


def with_gaps(gap: int) -> tuple[list[int], list[int], int, int]:
    """Two graphs with so many nodes without edges before, between and behind them."""
    src, dst, nodes, _ = batch_coo([50, 60])
    moved = [[i + gap + gap * (i >= 50) for i in ends] for ends in (src, dst)]
    return *moved, nodes + 3 * gap, nodes + 3 * gap


def stars_coo(nodes: int) -> tuple[list[int], list[int], int, int]:
    """Few edges, most of them of one node: two stars, whose edges go both ways."""
    hubs = [first for first in (0, nodes) for _ in range(nodes - 1)]
    leaves = [i for first in (0, nodes) for i in range(first + 1, first + nodes)]
    return hubs + leaves, leaves + hubs, 2 * nodes, 2 * nodes


def path_coo(nodes: int) -> tuple[list[int], list[int], int, int]:
    return list(range(nodes - 1)), list(range(1, nodes)), nodes, nodes


BATCHES |= {f"gaps_{n}": with_gaps(n) for n in (30, 31, 32, 33, 200)}
BATCHES |= {f"stars_{n}": stars_coo(n) for n in (33, 300)}
BATCHES |= {f"path_{n}": path_coo(n) for n in (500, 3000)}
BATCHES |= {f"{n}_loops": ([0] * n, [0] * n, 1, 1) for n in (0, 1, 3)}
words = BATCHES["words"]
BATCHES["twice"] = [*words[0], words[0][7]], [*words[1], words[1][7]], *words[2:]
ORDERS = {
    "as_it_is": lambda src, dst: np.arange(src.numel()),
    "by_dst": lambda src, dst: np.lexsort((src, dst)),
    "by_src": lambda src, dst: np.lexsort((dst, src)),
    "by_dst_alone": lambda src, dst: np.lexsort((-src, dst)),
    "by_src_alone": lambda src, dst: np.lexsort((-dst, src)),
    "loops_last": lambda src, dst: np.lexsort((src, dst, src == dst)),
    "near": lambda src, dst: np.lexsort((random_like(src), dst // 128)),
    "random": lambda src, dst: np.argsort(random_like(src)),
}


def random_like(ends: Tensor) -> np.ndarray:
    return np.random.default_rng(0).random(ends.numel())


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", [*COO, *BATCHES])
def test_compress(name, order, index, self_loops, device):
    """The same as by its parts, of a list whose sources ascend, with and without tiles."""
    src, dst, num_src, num_dst = (COO | BATCHES)[name]
    ends = [torch.tensor(t, dtype=index) for t in (src, dst)]
    positions = torch.from_numpy(ORDERS[order](*ends))
    src, dst = (end[positions].to(device) for end in ends)
    assert_as_by_parts(src, dst, num_src, num_dst, self_loops)
    if self_loops:
        without = src != dst
        assert_as_by_parts(src[without], dst[without], num_src, num_dst, self_loops)


FITTING = [n for n in BATCHES if n == "mixed" or "widest" in n or "room" in n]


@pytest.mark.parametrize("name", FITTING)
def test_tiles_that_are_not_too_wide(name):
    """Those of which the results in test_compress are of the transposed tiles."""
    src, dst, num_src, num_dst = BATCHES[name]
    rowptr, col, *_ = coo_to_csr(torch.tensor(src), torch.tensor(dst), num_src, num_dst)
    assert torch.ops.dfgnn.find_tiles(rowptr, col)[0].diff().max() <= WIDEST


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("at", [0, 1000, 1024, 7777, -1])
@pytest.mark.parametrize("order", ["by_dst", "by_src"])
@pytest.mark.parametrize("bad", [None, -1, (1 << 31) - 1, -(1 << 31), (1 << 32) + 3])
def test_compress_a_disorder(bad, order, at, self_loops, device):
    """One edge is elsewhere than where a sorted list would have it, or has a bad end."""
    src, dst, num_src, num_dst = batch_coo([110, 90, 150])
    ends = torch.tensor([src, dst])
    ends = ends[:, torch.from_numpy(ORDERS[order](*ends))]
    if bad is None:
        ends[:, at] = ends[:, at // 2].clone()
    else:
        ends[int(order == "by_src"), at] = bad
        ends[int(order == "by_dst"), at // 2] = bad
    assert_as_by_parts(*ends.to(device), num_src, num_dst, self_loops)


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("longest", [1, 2, 31, 32, 33, 255, 256, 257, 600])
@pytest.mark.parametrize("rows", [1, 40, 70_000])
def test_compress_rows_in_any_order(rows, longest, self_loops, device):
    """As of a sampled graph: some rows have edges, in no order and some twice, others none."""
    generator = torch.Generator().manual_seed(longest)
    with_edges = min(rows, 300)
    degrees = torch.randint(1, longest + 1, (with_edges,), generator=generator)
    degrees[0] = longest
    dst = torch.arange(with_edges).repeat_interleave(degrees)
    src = torch.randint(rows, (dst.numel(),), generator=generator)
    src[1::7] = src[::7][: src[1::7].numel()]
    for order in (torch.arange(dst.numel()), torch.randperm(dst.numel(), generator=generator)):
        assert_as_by_parts(src[order].to(device), dst[order].to(device), rows, rows, self_loops)


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("num_graphs", [3000, 6000, 12_000, 24_000])
@pytest.mark.parametrize("longest", [100, 10_000])
def test_compress_many_nodes(longest, num_graphs, self_loops, cuda):
    """Tiles that begin and end anywhere in what blocks of the GPU share out, or reach beyond one
    of these shares; the same as on the CPU."""
    generator = torch.Generator().manual_seed(0)
    sizes = torch.randint(1, 100, (num_graphs,), generator=generator)
    sizes[num_graphs // 2] = longest
    nodes = int(sizes.sum())
    ends_path = torch.zeros(nodes, dtype=torch.bool)
    ends_path[sizes.cumsum(0) - 1] = True
    path = (~ends_path).nonzero().flatten()  # from each node of a path to the next
    src, dst = torch.stack([torch.cat([path + 1, path]), torch.cat([path, path + 1])])
    order = torch.from_numpy(np.lexsort((src, dst)))
    ends = src[order], dst[order]
    mixed = torch.randperm(src.numel(), generator=generator)
    for some_order in (ends, ends[::-1], (src[mixed], dst[mixed])):
        assert_as_on_cpu(*some_order, nodes, self_loops, cuda)


def assert_as_on_cpu(src: Tensor, dst: Tensor, nodes: int, self_loops: bool, cuda: str) -> None:
    call = partial(compress, self_loops=self_loops, with_tiles=True)
    on_cpu = call(src, dst, nodes, nodes)
    on_gpu = call(src.to(cuda), dst.to(cuda), nodes, nodes)
    for result, expected in zip(on_gpu, on_cpu, strict=True):
        torch.testing.assert_close(result.cpu(), expected, rtol=0, atol=0)
    found, blocks = torch.ops.dfgnn.find_tiles(*on_gpu[:2])
    assert torch.equal(found, on_gpu[6])
    assert torch.equal(blocks.flatten(), on_gpu[7][2:])


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("one", ["as_it_is", "twice", "far", "loop", "bad_src", "bad_dst"])
def test_compress_complete_graphs(one, self_loops, cuda):
    """More edges of some rows than a block has room for, in random order, and one edge that is
    there again, joins two graphs, is a self-loop, or ends nowhere."""
    sizes = [520, 300, 0, 64, *[90] * 20]
    begins = list(itertools.accumulate(sizes, initial=0))
    pairs = [
        torch.combinations(torch.arange(begin, begin + size)).T
        for begin, size in zip(begins, sizes, strict=False)
    ]
    ends = torch.cat([*pairs, *(pair.flip(0) for pair in pairs)], 1)
    ends = ends[:, torch.randperm(ends.size(1), generator=torch.Generator().manual_seed(1))]
    nodes = begins[-1]
    changes = {
        "twice": ends[:, 70],
        "far": torch.tensor([0, nodes - 1]),
        "loop": torch.tensor([5, 5]),
        "bad_src": torch.tensor([-1, 7]),
        "bad_dst": torch.tensor([7, nodes]),
    }
    if one in changes:
        ends[:, 1001] = changes[one]
    assert_as_on_cpu(*ends, nodes, self_loops, cuda)


@pytest.mark.parametrize("with_tiles", [False, True])
def test_compress_without_nodes(with_tiles, device):
    ends = torch.empty(2, 0, dtype=torch.long, device=device)
    *forms, tiles, stats = compress(*ends, 0, 0, with_tiles=with_tiles)
    assert [form.tolist() for form in forms] == [[0], [], [], [0], [], []]
    assert tiles.tolist() == [0] * with_tiles
    assert stats.tolist() == [0, 0, 0 if with_tiles else -1]


@pytest.mark.parametrize("hub", [0, 1500, 2999])
@pytest.mark.parametrize("order", ["by_dst", "mixed"])
def test_compress_stars(order, hub, cuda):
    """Rows that reach far, and whose nodes have no edges but theirs."""
    nodes = torch.arange(9000)
    hubs = nodes // 3000 * 3000 + hub
    src, dst = nodes[nodes != hubs], hubs[nodes != hubs]
    if order == "mixed":
        mixed = torch.randperm(src.numel(), generator=torch.Generator().manual_seed(0))
        src, dst = src[mixed], dst[mixed]
    assert_as_on_cpu(src, dst, 9000, False, cuda)
