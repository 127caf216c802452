"""Lists of edges, and what sorts of them must be."""

import numpy as np
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
