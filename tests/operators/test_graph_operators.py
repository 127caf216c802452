"""coo_to_csr and csr_to_csc against torch's stable sort and SciPy's; errors of compress, too."""

from functools import partial

import graphs
import numpy as np
import pytest
import torch
from edge_lists import (
    COO,
    assert_as_by_parts,
    assert_as_sorted,
    compress,
    coo_to_csr,
    csr_to_csc,
    expected_csr,
)
from torch import Tensor


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
