"""coo_to_csr and csr_to_csc against torch's stable sort and SciPy's, compress against them."""

import itertools
from functools import partial

import graphs
import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import pad

coo_to_csr = torch.ops.dfgnn.coo_to_csr
csr_to_csc = torch.ops.dfgnn.csr_to_csc
compress = torch.ops.dfgnn.compress

# src, dst, num_src, num_dst
COO = {
    "bipartite": ([5, 0, 3, 3, 1], [1, 0, 1, 2, 0], 6, 3),
    "duplicates": ([1, 1, 0, 1], [2, 2, 2, 2], 3, 3),
    "loops": ([0, 1, 2, 1, 2, 0], [0, 1, 2, 2, 2, 1], 3, 3),
    "no_edges": ([], [], 4, 3),
    "no_nodes": ([], [], 0, 0),
    "out_of_range": ([0, -1, 9, 2, 1], [1, 0, 0, 7, -5], 3, 2),
    "reversed": (list(range(50)), list(range(49, -1, -1)), 50, 50),
    "sorted": ([3, 1, 2, 0], [0, 0, 1, 3], 4, 4),
}


def random_coo() -> tuple[list[int], list[int], int, int]:
    generator = np.random.default_rng(0)
    src, dst = generator.integers(0, 700, 20_000), generator.integers(0, 900, 20_000)
    return src.tolist(), dst.tolist(), 700, 900


def skewed_coo() -> tuple[list[int], list[int], int, int]:
    src, dst, num_src, num_dst = random_coo()
    return src, [0 if d % 2 else d for d in dst], num_src, num_dst


def batch_coo(
    sizes: list[int], density: float | list[float] = 0.4
) -> tuple[list[int], list[int], int, int]:
    """Graphs side by side, sorted by source; edges of a node are near each other in the list."""
    generator = np.random.default_rng(0)
    ends, first = [], 0
    for nodes, share in zip(sizes, np.broadcast_to(density, len(sizes)), strict=True):
        ends.append(np.argwhere(generator.random((nodes, nodes)) < share) + first)
        first += nodes
    src, dst = np.concatenate(ends).T.tolist()
    return src, dst, first, first


def late_bad_coo() -> tuple[list[int], list[int], int, int]:
    """The same, but for a source near the end."""
    src, dst, num_src, num_dst = batch_coo([110, 90, 150])
    src[-5] = num_src
    return src, dst, num_src, num_dst


# Chunks of 2048 edges are looked at: "batch" has several, "small" too many nodes in one, and
# "dense" more of one graph than are added up.
COO |= {
    "batch": batch_coo([110, 90, 150, 1, 0, 200, 117]),
    "dense": batch_coo([540], 0.95),
    "late_bad": late_bad_coo(),
    "random": random_coo(),
    "skewed": skewed_coo(),
    "small": batch_coo([4] * 2500, 0.2),
}


def expected_csr(
    src: Tensor, dst: Tensor, num_src: int, num_dst: int, self_loops: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """rowptr, col, eid and stats, by a stable sort."""
    capacity = src.numel() + (min(num_src, num_dst) if self_loops else 0)
    valid = (src >= 0) & (src < num_src) & (dst >= 0) & (dst < num_dst)
    dropped = (src == dst) & self_loops  # wherever they are
    keep = valid & ~dropped
    loops = torch.arange(capacity - src.numel(), device=src.device)
    rows = torch.cat([dst[keep], loops])
    order = rows.argsort(stable=True)
    col = torch.cat([src[keep], loops])[order]
    eid = torch.cat([keep.nonzero().flatten(), src.numel() + loops])[order]
    degrees = rows.bincount(minlength=num_dst)
    unused = (0, capacity - rows.numel())
    return (
        pad(degrees.cumsum(0), (1, 0)).int(),
        pad(col, unused).int(),
        pad(eid, unused).int(),
        torch.stack([degrees.max() if num_dst > 0 else degrees.sum(), (~valid & ~dropped).sum()]),
    )


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", COO)
def test_coo_to_csr(name, index, self_loops, device):
    """The results are int32, however wide the input was."""
    src, dst, num_src, num_dst = COO[name]
    ends = [torch.tensor(t, dtype=index, device=device) for t in (src, dst)]
    result = coo_to_csr(*ends, num_src, num_dst, self_loops=self_loops)
    expected = expected_csr(*(end.long() for end in ends), num_src, num_dst, self_loops)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def assert_as_sorted(
    src: Tensor, dst: Tensor, num_src: int, num_dst: int, index: torch.dtype, self_loops: bool
) -> None:
    """Both operators that sort, of indices of that dtype, beside torch's stable sort."""
    sizes = num_src, num_dst
    result = coo_to_csr(src.to(index), dst.to(index), *sizes, self_loops=self_loops)
    expected = expected_csr(src, dst, *sizes, self_loops)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)

    rowptr, col = (t.to(index) for t in result[:2])
    rows = torch.full(col.shape, -1, device=col.device)  # of entries that are no edges
    numbers = torch.arange(num_dst, device=col.device)
    rows[: int(rowptr[-1])] = numbers.repeat_interleave(rowptr.long().diff())
    expected = expected_csr(rows, col.long(), num_dst, num_src, False)[:3]
    csc = csr_to_csc(rowptr, col, num_src)
    torch.testing.assert_close(csc, tuple(t.to(index) for t in expected), rtol=0, atol=0)


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_long_lists(index, self_loops, cuda):
    """From 2^24 edges on, another kernel sorts."""
    sizes, edges = (3000, 5000), (1 << 24) + 1001
    generator = torch.Generator(cuda).manual_seed(0)
    ends = [
        torch.randint(-1, size + 1, (edges,), device=cuda, generator=generator) for size in sizes
    ]
    assert_as_sorted(*ends, *sizes, index, self_loops)

    ends = [end.to(index) for end in ends]
    assert_as_by_parts(*ends, *sizes, self_loops)
    order = ends[0].argsort(stable=True)
    assert_as_by_parts(
        *(end[order] for end in ends), *sizes, self_loops
    )  # rows ascend as they come


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("longest", [0, 32, 33, 100, 255, 256, 257, 6000])
@pytest.mark.parametrize("is_hub_source", [False, True])
def test_many_nodes_of_few_edges(is_hub_source, longest, index, self_loops, device):
    """In no order, some bad and some twice, and one node of that many: around where edges of a node
    are too many to be ranked by lanes, and one by one at all."""
    sizes, edges, hub = (30_000, 20_000), 100_000, 17
    generator = torch.Generator().manual_seed(longest)
    src, dst = (torch.randint(hub + 1, n, (edges,), generator=generator) for n in sizes)
    ends = src if is_hub_source else dst
    ends[:longest] = hub
    src[6000:6050] = dst[6000:6050]  # self-loops
    src[-100:], dst[-100:] = src[-200:-100].clone(), dst[-200:-100].clone()
    src[20_000], dst[20_001], dst[20_002] = -1, sizes[1], -(2**31)
    assert int(ends[ends >= 0].bincount()[hub]) == longest
    order = torch.randperm(edges, generator=generator)
    ends = [end[order].to(device) for end in (src, dst)]
    assert_as_sorted(*ends, *sizes, index, self_loops)
    assert_as_by_parts(*(end.to(index) for end in ends), *sizes, self_loops)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
def test_assert_in_range(index, device):
    """Of good edges; bad ones would end the process on a GPU."""
    rowptr = torch.tensor([0, 1], dtype=index, device=device)
    stats = torch.tensor([1, 0], device=device)
    assert torch.ops.dfgnn.assert_in_range(rowptr, stats) is rowptr
    with pytest.raises(RuntimeError, match=r"stats: expected .*, got Int of shape \[2\]"):
        torch.ops.dfgnn.assert_in_range(rowptr, stats.int())
    with pytest.raises(RuntimeError, match=r"stats: expected .*, got Long of shape \[1\]"):
        torch.ops.dfgnn.assert_in_range(rowptr, stats[:1])


def test_assert_in_range_compiled():
    graph = graphs.mixed()
    rowptr, *_, stats = torch.ops.dfgnn.compress(
        graph.sources(), graph.destinations(), graph.num_src, graph.num_dst
    )
    call = torch.compile(
        lambda *t: torch.ops.dfgnn.assert_in_range(*t) + 0,
        fullgraph=True,
        backend="aot_eager",
        dynamic=True,
    )
    assert torch.equal(call(rowptr, stats), rowptr)


def test_assert_in_range_of_bad_edges():
    src, dst = torch.tensor([[0, 7], [1, 1]])
    rowptr, _, _, stats = coo_to_csr(src, dst, 3, 3)
    with pytest.raises(RuntimeError, match="edge_index: holds nodes that are out of range"):
        torch.ops.dfgnn.assert_in_range(rowptr, stats)


def test_wide_results(device):
    """Numbers of nodes past 2^31 ask for 64 bits, if the edges are few or not."""
    ends = torch.tensor([(1 << 31) + 5, 2], device=device), torch.tensor([1, 1], device=device)
    rowptr, col, eid, stats = coo_to_csr(*ends, (1 << 31) + 6, 2)
    assert {rowptr.dtype, col.dtype, eid.dtype} == {torch.int64}
    assert col.tolist() == [(1 << 31) + 5, 2]
    assert rowptr.tolist() == [0, 0, 2]
    assert stats.tolist() == [2, 0]


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_csr_to_csc(name, index, device):
    graph = graphs.make(name, device, index)
    colptr, row, perm = csr_to_csc(graph.rowptr, graph.col, graph.num_src)
    expected = graph.csc()
    torch.testing.assert_close((colptr, row, perm), tuple(expected.values()), rtol=0, atol=0)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_csr_to_csc_is_scipys(name, device):
    scipy_sparse = pytest.importorskip("scipy.sparse")
    graph = graphs.make(name, device)
    edges = graph.num_edges
    arrays = (np.arange(edges), graph.sources().cpu().numpy(), graph.rowptr.cpu().numpy())
    csc = scipy_sparse.csr_array(arrays, shape=(graph.num_dst, graph.num_src)).tocsc()
    colptr, row, perm = csr_to_csc(graph.rowptr, graph.col, graph.num_src)
    assert colptr.tolist() == csc.indptr.tolist()
    assert row[:edges].tolist() == csc.indices.tolist()
    assert perm[:edges].tolist() == csc.data.tolist()


def test_csr_to_csc_leaves_out_what_is_out_of_range(device):
    rowptr = torch.tensor([0, 3, 5], device=device)
    col = torch.tensor([1, -1, 0, 2, 1], device=device)
    colptr, row, perm = csr_to_csc(rowptr, col, 2)
    assert colptr.tolist() == [0, 1, 3]
    assert row.tolist() == [0, 0, 1, 0, 0]
    assert perm.tolist() == [2, 0, 4, 0, 0]


@pytest.mark.parametrize(
    "rowptr", [[0, 5, 3, 8], [8, 6, 4, 2], [-5, 100, 2, 1 << 30]], ids=["a", "b", "c"]
)
def test_csr_to_csc_of_a_rowptr_that_is_none(rowptr, device):
    """Ends, in bounds; every entry that it yields is an edge."""
    col = torch.tensor([0, 4, 2, 3, 1, 1, 0, 4], device=device)
    colptr, row, perm = csr_to_csc(torch.tensor(rowptr, device=device), col, 5)
    count = int(colptr[-1])
    assert (colptr.diff() >= 0).all()
    assert 0 <= count <= col.numel()
    sources = torch.arange(5, device=device).repeat_interleave(colptr.diff())
    assert torch.equal(col[perm[:count]], sources)
    assert ((row >= 0) & (row < 3)).all()


@pytest.mark.parametrize("name", COO)
def test_round_trip(name, device):
    """The CSC of the CSR is the CSR of the reversed edges."""
    src, dst, num_src, num_dst = COO[name]
    ends = [torch.tensor(t, dtype=torch.int64, device=device) for t in (src, dst)]
    rowptr, col, _, _ = coo_to_csr(*ends, num_src, num_dst)
    colptr, row, _ = csr_to_csc(rowptr, col, num_src)
    sorted_ends = (t[ends[1].argsort(stable=True)] for t in ends)
    flipped = coo_to_csr(*reversed(list(sorted_ends)), num_dst, num_src)
    assert torch.equal(colptr, flipped[0])
    assert torch.equal(row, flipped[1])


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


def assert_as_by_parts(
    src: Tensor, dst: Tensor, num_src: int, num_dst: int, self_loops: bool
) -> None:
    arguments = (src, dst, num_src, num_dst)
    order = src.argsort(stable=True)
    rowptr, col, eid, stats = coo_to_csr(
        src[order], dst[order], num_src, num_dst, self_loops=self_loops
    )
    positions = torch.arange(eid.numel(), device=eid.device)
    eid = torch.cat([order, positions[order.numel() :]]).to(eid.dtype)[eid.long()]
    eid[rowptr[-1] :] = 0  # where nothing is left
    forms = rowptr, col, eid, *csr_to_csc(rowptr, col, num_src)
    *result, tiles, numbers = compress(*arguments, self_loops=self_loops)
    torch.testing.assert_close(tuple(result), forms, rtol=0, atol=0)
    assert tiles.shape == (0,)
    assert numbers.tolist() == [*stats.tolist(), -1]
    if num_src == num_dst:
        found, blocks = torch.ops.dfgnn.find_tiles(rowptr, col)
        *result, tiles, numbers = compress(*arguments, self_loops=self_loops, with_tiles=True)
        torch.testing.assert_close(tuple(result), forms, rtol=0, atol=0)
        torch.testing.assert_close(tiles, found, rtol=0, atol=0)
        assert numbers.tolist() == [*stats.tolist(), *blocks.tolist()]


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


def bad_calls() -> list[tuple[str, object, tuple]]:
    ends: tuple[Tensor, Tensor] = (torch.tensor([0, 1]), torch.tensor([1, 0]))
    rowptr, col = torch.tensor([0, 1, 2]), torch.tensor([1, 0])
    return [
        ("src", coo_to_csr, (ends[0].float(), ends[1], 2, 2)),
        ("src", coo_to_csr, (ends[0].unsqueeze(0), ends[1], 2, 2)),
        ("dst", coo_to_csr, (ends[0], ends[1].int(), 2, 2)),
        ("dst", coo_to_csr, (ends[0], ends[1][:1], 2, 2)),
        ("num_src", coo_to_csr, (*ends, -1, 2)),
        ("num_dst", coo_to_csr, (*ends, 2, -1)),
        ("rowptr", csr_to_csc, (rowptr.float(), col, 2)),
        ("rowptr", csr_to_csc, (rowptr[:0], col, 2)),
        ("col", csr_to_csc, (rowptr, col.int(), 2)),
        ("col", csr_to_csc, (rowptr, col.unsqueeze(0), 2)),
        ("num_src", csr_to_csc, (rowptr, col, -1)),
        ("dst", compress, (ends[0], ends[1].int(), 2, 2)),
        ("num_src", compress, (*ends, -1, 2)),
        ("with_tiles", partial(compress, with_tiles=True), (*ends, 3, 2)),
    ]


@pytest.mark.parametrize(("name", "op", "arguments"), bad_calls())
def test_bad_input(name, op, arguments, device):
    moved = [t.to(device) if isinstance(t, Tensor) else t for t in arguments]
    with pytest.raises(RuntimeError, match=f"^{name}: expected .*got "):
        op(*moved)
