"""The graph structure: what it holds, of whatever it is built."""

import copy
import pickle
import re
from itertools import pairwise

import graphs
import numpy as np
import pytest
import torch
import torch_geometric.nn
from layers import edge_index_of, transposed
from structures import check_by_source, check_masks, edges_of, expected_edges, has_orders
from torch_geometric import EdgeIndex

from pyg_dfgnn import Graph, build_graph


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_edges(name, self_loops, dtype, device):
    csr = graphs.make(name, device)
    edge_index = edge_index_of(csr).to(dtype)
    graph = build_graph(edge_index, csr.num_src, csr.num_dst, self_loops)
    expected = expected_edges(edge_index, csr.num_src, csr.num_dst, self_loops)
    assert edges_of(graph) == expected
    check_by_source(graph)
    degrees = [0, *graph.rowptr.diff().tolist()]
    assert graph[6:10] == (csr.num_dst, csr.num_src, max(degrees), self_loops)


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("cached", [False, True])
def test_sparse_tensor(name, self_loops, cached, device):
    csr = graphs.make(name, device)
    adj_t = transposed(edge_index_of(csr), csr.num_src, csr.num_dst)
    if cached:
        adj_t.storage.csr2csc()
        adj_t.storage.colptr()
    graph = build_graph(adj_t, csr.num_src, csr.num_dst, self_loops)
    dst, src, _ = adj_t.coo()
    edge_index = torch.stack([src, dst])
    assert edges_of(graph) == expected_edges(edge_index, csr.num_src, csr.num_dst, self_loops)
    check_by_source(graph)
    degrees = [0, *graph.rowptr.diff().tolist()]
    assert graph[6:10] == (csr.num_dst, csr.num_src, max(degrees), self_loops)


@pytest.mark.parametrize("name", ["hub", "bipartite", "empty_rows", "no_edges", "no_nodes"])
@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_torch_sparse(name, self_loops, layout, device):
    csr = graphs.make(name, device)
    edges = edge_index_of(csr)
    adj_t = torch.zeros(csr.num_dst, csr.num_src, device=device)
    adj_t[edges[1], edges[0]] = 1
    adj_t = adj_t.to_sparse(layout=layout)
    edge_index = adj_t.to_sparse_coo().coalesce().indices().flip(0)
    expected = expected_edges(edge_index, csr.num_src, csr.num_dst, self_loops)
    for build in (build_graph, torch.jit.script(build_graph)):
        graph = build(adj_t, csr.num_src, csr.num_dst, self_loops)
        assert edges_of(graph) == expected
        check_by_source(graph)


def test_torch_sparse_of_int32_may_change(device):
    """What was made of it does not."""
    crow, col = torch.tensor([0, 1, 2], device=device), torch.tensor([1, 0], device=device)
    adj_t = torch.sparse_csr_tensor(crow.int(), col.int(), torch.ones(2, device=device), (2, 2))
    graph = build_graph(adj_t, 2, 2)
    adj_t.col_indices().fill_(0)
    adj_t.crow_indices().fill_(0)
    assert (graph.rowptr.tolist(), graph.col.tolist()) == ([0, 1, 2], [1, 0])


@pytest.mark.parametrize("name", ["hub", "bipartite", "empty_rows", "no_edges"])
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
@pytest.mark.parametrize("order", ["row", "col"])
@pytest.mark.parametrize("is_filled", [False, True])
def test_caches_of_an_edge_index(name, flow, order, is_filled, device):
    """Neither read nor filled: PyG takes them along when edges are sorted, flipped or changed."""
    csr = graphs.make(name, device)
    edge_index = edge_index_of(csr)
    sizes = (csr.num_src, csr.num_dst)
    if flow == "target_to_source":
        edge_index, sizes = edge_index.flip(0), sizes[::-1]
    edge_index = EdgeIndex(edge_index, sparse_size=sizes).sort_by(order).values
    if is_filled:
        edge_index.fill_cache_()
    graph = build_graph(edge_index, csr.num_src, csr.num_dst, flow=flow)
    plain = edge_index.as_tensor()
    if flow == "target_to_source":
        plain = plain.flip(0)
    expected = expected_edges(plain, csr.num_src, csr.num_dst, False)
    assert sorted(edges_of(graph)) == sorted(expected)
    check_by_source(graph)
    assert graph.max_degree == max([0, *graph.rowptr.diff().tolist()])
    for cache in (edge_index._indptr, edge_index._T_perm, edge_index._T_indptr):
        assert (cache is not None) == is_filled


@pytest.mark.parametrize("order", ["row", "col"])
def test_caches_of_changed_edges(order):
    edge_index = EdgeIndex([[0, 0, 1, 2], [0, 1, 2, 0]], sparse_size=(3, 3)).sort_by(order).values
    edge_index.fill_cache_()
    edge_index[1, 0] = 2
    graph = build_graph(edge_index, 3, 3)
    assert edges_of(graph) == expected_edges(edge_index.as_tensor(), 3, 3, False)


@pytest.mark.parametrize("size", [-1, 1 << 48])
def test_sizes(size):
    message = f"num_src, num_dst: expected numbers >= 0 and below 2^48, got {size} and 3"
    with pytest.raises(ValueError, match=re.escape(message)):
        build_graph(torch.zeros(2, 0, dtype=torch.long), size, 3)


def test_saved(tmp_path):
    graph = build_graph(torch.tensor([[0, 1], [1, 0]]), 2, 2)
    torch.save(graph, tmp_path / "graph.pt")
    torch.testing.assert_close(torch.load(tmp_path / "graph.pt"), graph)


def test_edge_index_of_unknown_size():
    """Its size remains unknown: graphs of other sizes may have the same edges."""
    edge_index = EdgeIndex([[0, 1, 1], [1, 0, 2]], sort_order="row")
    for nodes in (3, 5):
        graph = build_graph(edge_index, nodes, nodes)
        assert edges_of(graph) == expected_edges(edge_index.as_tensor(), nodes, nodes, False)
    assert edge_index.sparse_size() == (None, None)


def test_edge_index_out_of_range():
    edge_index = EdgeIndex([[0, 1, 7], [1, 0, 2]], sparse_size=(4, 4), sort_order="row")
    with pytest.raises(IndexError, match="out of range"):
        build_graph(edge_index, 4, 4)


def test_target_to_source():
    csr = graphs.make("bipartite")
    edge_index = edge_index_of(csr)
    graph = build_graph(edge_index.flip(0), 29, 13, flow="target_to_source")
    assert edges_of(graph) == edges_of(build_graph(edge_index, 29, 13))


def test_edge_index_class(conversions):
    csr = graphs.make("bipartite")
    plain = edge_index_of(csr)
    edge_index = EdgeIndex(plain, sparse_size=(29, 13))
    for _ in range(2):
        graph = build_graph(edge_index, 29, 13)
        assert edges_of(graph) == edges_of(build_graph(plain, 29, 13))
        assert all(type(field) in (torch.Tensor, int, bool) for field in graph if field is not None)
    assert len(conversions) == 2
    with pytest.raises(ValueError, match="edge_index"):
        build_graph(EdgeIndex(plain, sparse_size=(30, 13)), 29, 13)


# Tiles


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("name", ["batch", "batch_one_wide", "hub", "no_edges", "no_nodes"])
def test_tiles(name, self_loops, cuda):
    csr = graphs.make(name, cuda)
    edge_index = edge_index_of(csr)
    by_source = edge_index[:, edge_index[0].argsort(stable=True)]
    known_order = EdgeIndex(by_source, sparse_size=(csr.num_src, csr.num_dst), sort_order="row")
    for edges in (edge_index, known_order, transposed(edge_index, csr.num_src, csr.num_dst)):
        graph = build_graph(edges, csr.num_src, csr.num_dst, self_loops)
        tiles, blocks = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
        assert torch.equal(graph.tiles[: tiles.numel()], tiles)
        assert graph.tile_blocks == int(blocks)
        check_masks(graph, tiles)
        moved = graph.to("cpu")
        assert torch.equal(moved.tiles, graph.tiles.cpu())
        assert moved.tile_blocks == graph.tile_blocks


def test_no_tiles(device):
    """On the CPU, which has no use for them, and where sources are other nodes."""
    name = "hub" if device == "cpu" else "bipartite"
    csr = graphs.make(name, device)
    graph = build_graph(edge_index_of(csr), csr.num_src, csr.num_dst)
    assert graph.tiles is None
    assert graph.tile_blocks == -1


def test_tiles_without_looking(cuda):
    csr = graphs.make("batch", cuda)
    edge_index = edge_index_of(csr)
    compiled = torch.compile(lambda e: build_graph(e, csr.num_src, csr.num_dst), fullgraph=True)
    found, expected = compiled(edge_index), build_graph(edge_index, csr.num_src, csr.num_dst)
    assert torch.equal(found.tiles, expected.tiles[: found.tiles.numel()])
    assert found.tile_blocks == -1


def test_masks(cuda):
    """Where "auto" may choose "tile"."""
    csr = graphs.batch([700, 1, 130], 0.9).to(cuda)
    edge_index = torch.stack([csr.sources(), csr.destinations()])
    graph = build_graph(edge_index, csr.num_src, csr.num_dst)
    tiles, _ = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    assert graph.tiles.numel() > 2 * tiles.numel()
    check_masks(graph, tiles)
    assert (graph.tile_nodes, graph.tile_batches) == (-1, -1)


def test_list_of_tiles(cuda):
    """Where "auto" may choose "resident": its shared memory holds what the graph says."""
    csr = graphs.batch([700, 1, 130, 20, 300], 0.01).to(cuda)
    graph = build_graph(edge_index_of(csr), csr.num_src, csr.num_dst)
    tiles, _ = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    check_masks(graph, tiles)
    assert graph.tile_nodes == tiles.diff().max()
    for ptr in (graph.rowptr, graph.colptr):
        for begin, end in pairwise(tiles.tolist()):
            batches = (ptr[begin : end + 1].diff() + 1) // 2
            slices = batches.sort(descending=True).values[::8]  # as many batches as the first
            assert slices.sum() <= graph.tile_batches


@pytest.mark.parametrize(
    ("rows", "longest", "expected"),
    [(3000, 33, True), (3000, 32, False), (300, 4000, False), (66000, 40, False)],
)
def test_orders(rows, longest, expected, cuda):
    """Where warps take runs of rows, of few edges, and a row is too long for one."""
    csr = graphs.from_degrees([3] * (rows - 1) + [longest], rows).to(cuda)
    graph = build_graph(edge_index_of(csr), rows, rows)
    assert has_orders(graph) == expected
    check_masks(graph, torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)[0])


def test_no_list_of_a_tile_that_is_too_large(cuda):
    csr = graphs.batch([2000, 70], 0.002).to(cuda)
    graph = build_graph(edge_index_of(csr), csr.num_src, csr.num_dst)
    assert (graph.tile_nodes, graph.tile_batches) == (-1, -1)


# Errors


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda e: e - 1, r"sources in \[-1, 27\], expected \[0, 29\)"),
        (lambda e: e + 1, r"destinations in \[1, 13\], expected \[0, 13\)"),
        (lambda e: e + 2**31, r"expected \[0, 29\)"),
    ],
)
def test_out_of_range(change, found, device):
    edge_index = change(edge_index_of(graphs.make("bipartite", device)))
    with pytest.raises(IndexError, match=rf"^edge_index: [0-9]+ edges .*{found}"):
        build_graph(edge_index, 29, 13)


@pytest.mark.parametrize("order", ["by destination", "by source", "random"])
@pytest.mark.parametrize("sizes", [[40], [30] * 200, [3000]], ids=["few", "batch", "large"])
def test_dropped_loops_may_be_out_of_range(sizes, order, device):
    """Wherever they are in the list, and whichever way it is sorted."""
    csr = graphs.batch(sizes, min(1.0, 20 / max(sizes))).to(device)
    edge_index, nodes = edge_index_of(csr), csr.num_src
    rng = torch.Generator().manual_seed(0)
    outside = torch.tensor([-1, nodes, 2**31 + 5, -(2**33)])[
        torch.randint(4, (edge_index.size(1) // 5,), generator=rng)
    ]
    edges = torch.cat([edge_index, outside.to(device).expand(2, -1)], dim=1)
    if order == "random":
        edges = edges[:, torch.randperm(edges.size(1), generator=rng).to(device)]
    else:
        edges = edges[:, edges[1 if order == "by destination" else 0].argsort(stable=True)]
    graph = build_graph(edges, nodes, nodes, True)
    assert edges_of(graph) == expected_edges(edges, nodes, nodes, True)
    with pytest.raises(IndexError, match="out of range"):
        build_graph(edges, nodes, nodes)


def test_out_of_range_sparse_tensor(device):
    pytest.importorskip("torch_sparse")
    pytest.importorskip("torch_sparse")
    edge_index = edge_index_of(graphs.make("bipartite", device))
    adj_t = torch_geometric.typing.SparseTensor(
        row=edge_index[1], col=edge_index[0] + 1, sparse_sizes=(13, 29), trust_data=True
    )
    for self_loops in (False, True):
        with pytest.raises(IndexError, match=r"^edge_index: .*sources in \[1, 29\]"):
            build_graph(adj_t, 29, 13, self_loops)


def test_wrong_kinds():
    edge_index = edge_index_of(graphs.make("bipartite"))
    for wrong in (edge_index.float(), edge_index[0], edge_index.t(), edge_index.tolist(), None):
        with pytest.raises(ValueError, match=r"^edge_index: expected"):
            build_graph(wrong, 29, 13)
    with pytest.raises(ValueError, match=r"size \[13, 29\]"):
        build_graph(transposed(edge_index, 30, 13), 29, 13)
    with pytest.raises(ValueError, match=r"^flow: expected .*got 'sideways'"):
        build_graph(edge_index, 29, 13, flow="sideways")
    with pytest.raises(ValueError, match=r"got a list with"):
        build_graph(edge_index.tolist(), 29, 13)
    with pytest.raises(ValueError, match=r"an EdgeIndex of sparse size \(30, 13\)"):
        build_graph(EdgeIndex(edge_index, sparse_size=(30, 13)), 29, 13)
    with pytest.raises(ValueError, match=r", torch.sparse_csc with"):
        build_graph(torch.eye(3).to_sparse_csc(), 3, 3)
    uncoalesced = torch.sparse_coo_tensor(torch.zeros(2, 2).long(), torch.ones(2), (3, 3))
    with pytest.raises(ValueError, match=r", uncoalesced torch.sparse_coo with"):
        build_graph(uncoalesced, 3, 3)
    cube = torch.ones(3, 3, 3)
    cubes = cube.to_sparse().coalesce(), cube[0].to_sparse(1).coalesce(), cube.to_sparse_csr()
    for wrong in cubes:
        with pytest.raises(ValueError, match=r"^edge_index: expected"):
            build_graph(wrong, 3, 3)


# A value of many kinds


def test_is_a_pytree_that_moves_and_pickles(device):
    graph = build_graph(edge_index_of(graphs.make("hub", device)), 40, 40)
    leaves, spec = torch.utils._pytree.tree_flatten(graph)
    assert len(leaves) == 14
    assert isinstance(torch.utils._pytree.tree_unflatten(leaves, spec), Graph)
    moved = graph.to("cpu")
    assert moved.rowptr.device.type == "cpu"
    assert moved[6:10] == graph[6:10]
    for twin in (copy.deepcopy(graph), pickle.loads(pickle.dumps(graph))):
        assert edges_of(twin) == edges_of(graph)
    with pytest.raises(AttributeError):
        graph.col = graph.row


def test_meta_tensors():
    edge_index = torch.empty(2, 7, dtype=torch.int64, device="meta")
    graph = build_graph(edge_index, 5, 4, self_loops=True)
    assert graph.rowptr.shape == (5,)
    assert graph.colptr.shape == (6,)
    assert graph.col.shape == graph.eid.shape == graph.row.shape == graph.perm.shape == (11,)
    assert graph.max_degree == -1


def test_numbers_of_nodes_are_ints():
    edge_index = torch.tensor([[0], [1]])
    with pytest.raises(TypeError, match=r"num_src: expected an int, got 60\.0"):
        build_graph(edge_index, 60.0, 60)
    with pytest.raises(TypeError, match=r"num_dst: expected an int, got 60\.0"):
        build_graph(edge_index, 60, 60.0)
    with pytest.raises(TypeError, match="num_dst: expected an int, got tensor"):
        build_graph(edge_index, 60, torch.tensor(61.5))
    graph = build_graph(edge_index, np.int64(60), torch.tensor(61))
    assert (type(graph.num_src), type(graph.num_dst)) == (int, int)
    assert (graph.num_src, graph.num_dst) == (60, 61)
    with pytest.raises(TypeError, match="num_src"):
        build_graph(edge_index, 60.0, 61)  # though there is the same of an int


def test_scripted_errors_name_dtypes():
    def build(edge_index: torch.Tensor) -> Graph:
        return build_graph(edge_index, 3, 3)

    scripted = torch.jit.script(build)
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.bool, torch.complex64):
        edge_index = torch.zeros(2, 3, dtype=dtype)
        name = r"dtype \d+" if dtype == torch.complex64 else str(dtype)
        with pytest.raises(torch.jit.Error, match=f"a tensor of {name} and shape"):
            scripted(edge_index)
        with pytest.raises(ValueError, match=f"a tensor of {dtype} and shape"):
            build_graph(edge_index, 3, 3)
