"""The graph structure: what it holds, and that it is built once per object and never stale."""

import copy
import gc
import pickle
import threading
import weakref

import graphs
import pytest
import torch
import torch_geometric.nn
from layers import LAYERS, edge_index_of, features, make, transposed
from torch.fx.experimental.proxy_tensor import make_fx
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data

import pyg_dfgnn
from pyg_dfgnn import Graph, build_graph


@pytest.fixture
def conversions(monkeypatch):
    """The arguments of every conversion that is not answered by the cache."""
    calls = []
    original = pyg_dfgnn.graph._build_checked

    def record(edge_index, *arguments):
        calls.append(arguments)
        return original(edge_index, *arguments)

    monkeypatch.setattr(pyg_dfgnn.graph, "_build_checked", record)
    return calls


def edges_of(graph: Graph) -> list[tuple[int, int, int]]:
    """(source, destination, position in edge_index) of every edge, by destination."""
    count = int(graph.rowptr[-1])
    dst = torch.arange(graph.num_dst, device=graph.rowptr.device).repeat_interleave(
        graph.rowptr.diff()
    )
    columns = (graph.col[:count], dst, graph.eid[:count])
    return [tuple(edge) for edge in torch.stack([c.long() for c in columns], 1).tolist()]


def expected_edges(edge_index, num_src, num_dst, self_loops):
    edges = [(s, d, e) for e, (s, d) in enumerate(edge_index.t().tolist())]
    if self_loops:
        edges = [edge for edge in edges if edge[0] != edge[1]]
        edges += [(i, i, edge_index.size(1) + i) for i in range(min(num_src, num_dst))]
    return sorted(edges, key=lambda edge: edge[1])


def check_by_source(graph: Graph) -> None:
    """colptr, row and perm are the same edges, by source."""
    edges = edges_of(graph)
    count = len(edges)
    src = torch.arange(graph.num_src, device=graph.colptr.device).repeat_interleave(
        graph.colptr.diff()
    )
    perm = graph.perm[:count].tolist()
    assert sorted(perm) == list(range(count))
    for s, d, position in zip(src.tolist(), graph.row[:count].tolist(), perm, strict=True):
        assert (s, d) == edges[position][:2]


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
        assert torch.equal(graph.tiles, tiles)
        assert graph.tile_blocks == int(blocks)
        moved = graph.to("cpu")
        assert torch.equal(moved.tiles, tiles.cpu())
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
    assert torch.equal(found.tiles, expected.tiles)
    assert found.tile_blocks == -1


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
    with pytest.raises(ValueError, match="sideways"):
        build_graph(edge_index, 29, 13, flow="sideways")


# A value of many kinds


def test_is_a_pytree_that_moves_and_pickles(device):
    graph = build_graph(edge_index_of(graphs.make("hub", device)), 40, 40)
    leaves, spec = torch.utils._pytree.tree_flatten(graph)
    assert len(leaves) == 12
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


# The cache


def hub(device="cpu"):
    return edge_index_of(graphs.make("hub", device)), features(40, device=device)[0]


def test_one_conversion_per_object(conversions, device):
    edge_index, x = hub(device)
    adj_t = transposed(edge_index, 40, 40)
    convs = [make(pyg_dfgnn.nn, "GATConv").to(device), make(pyg_dfgnn.nn, "AGNNConv").to(device)]
    for edges in (edge_index, adj_t):
        conversions.clear()
        for _ in range(3):
            for conv in convs:
                conv(x, edges).sum().backward()
        assert conversions == [(40, 40, True, "source_to_target")]
        make(pyg_dfgnn.nn, "TransformerConv").to(device)(x, edges)
        assert len(conversions) == 2  # this one has no self-loops


def test_cache_keeps_nothing_alive():
    edge_index, _ = hub()
    adj_t = transposed(edge_index, 40, 40)
    before = len(pyg_dfgnn._cache._entries)
    watched = [weakref.ref(build_graph(e, 40, 40).rowptr) for e in (edge_index, adj_t)]
    assert all(ref() is not None for ref in watched)
    assert len(pyg_dfgnn._cache._entries) == before + 2
    watched += [weakref.ref(edge_index), weakref.ref(adj_t)]
    del edge_index, adj_t
    gc.collect()
    assert all(ref() is None for ref in watched)
    assert len(pyg_dfgnn._cache._entries) == before


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.copy_(e.flip(1).flip(0)),
        lambda e: e[0].fill_(3),
        lambda e: e.view(-1)[:5].zero_(),
        lambda e: e.set_(e.flip(0)),
        lambda e: setattr(e, "data", e.flip(0)),
        lambda e: e.resize_(2, 5),
    ],
    ids=["copy_", "row", "view", "set_", "data", "resize_"],
)
def test_change_in_place(change, device):
    edge_index, x = hub(device)
    conv = make(pyg_dfgnn.nn, "GATConv").to(device)
    conv(x, edge_index)
    change(edge_index)
    assert torch.equal(conv(x, edge_index), conv(x, edge_index.clone()))
    assert edges_of(build_graph(edge_index, 40, 40)) == expected_edges(edge_index, 40, 40, False)


def test_change_of_edge_index_object_in_place():
    edge_index, _ = hub()
    edge_index = EdgeIndex(edge_index, sparse_size=(40, 40))
    build_graph(edge_index, 40, 40)
    edge_index.as_tensor()[0].fill_(3)
    assert build_graph(edge_index, 40, 40).col.tolist() == [3] * edge_index.size(1)


def test_change_of_sparse_tensor_in_place():
    edge_index, _ = hub()
    adj_t = transposed(edge_index, 40, 40)
    build_graph(adj_t, 40, 40)
    adj_t.storage.col().fill_(3)
    assert build_graph(adj_t, 40, 40).col.tolist() == [3] * edge_index.size(1)


def test_reused_identity(conversions):
    """New tensors get the addresses of dead ones."""
    for i in range(50):
        edge_index = torch.tensor([[i % 4], [0]])
        assert build_graph(edge_index, 4, 4).col.tolist() == [i % 4]
        del edge_index
    assert len(conversions) == 50


def test_failed_conversion_is_not_cached():
    edge_index = torch.tensor([[0, 7], [0, 1]])
    for _ in range(2):
        with pytest.raises(IndexError):
            build_graph(edge_index, 3, 3)
    build_graph(edge_index, 8, 3)


def test_inference_tensors(conversions):
    """torch counts no versions of them: they are converted every time, and right."""
    with torch.inference_mode():
        edge_index, _ = hub()
        edge_index = edge_index.clone()
        build_graph(edge_index, 40, 40)
        edge_index[0] = 3
        assert build_graph(edge_index, 40, 40).col.tolist() == [3] * edge_index.size(1)
    assert len(conversions) == 2
    normal, _ = hub()
    with torch.inference_mode():
        assert not build_graph(normal, 40, 40).rowptr.is_inference()


def test_threads(conversions):
    """Threads that share some edge_index, and make others, all get their own graph right."""
    shared, _ = hub()
    expected = edges_of(build_graph(shared, 40, 40))
    failures = []

    def work(seed):
        generator = torch.Generator().manual_seed(seed)
        for _ in range(30):
            mine = torch.randint(0, 40, (2, 20), generator=generator)
            if edges_of(build_graph(mine, 40, 40)) != expected_edges(mine, 40, 40, False):
                failures.append(seed)
            if edges_of(build_graph(shared, 40, 40)) != expected:
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_tracing_modes_do_not_read_values(conversions):
    edge_index, _ = hub()
    traced = make_fx(lambda e: build_graph(e, 40, 40).col, tracing_mode="real")(edge_index)
    other = edge_index.flip(1).flip(0)
    assert torch.equal(traced(other), build_graph(other, 40, 40).col)
    with torch._subclasses.fake_tensor.FakeTensorMode() as mode:
        graph = build_graph(mode.from_tensor(edge_index), 40, 40)
        assert graph.max_degree == -1
    jit = torch.jit.trace(lambda e: build_graph(e, 40, 40).col, (edge_index,), check_trace=False)
    assert torch.equal(jit(other), build_graph(other, 40, 40).col)
    assert len(conversions) == 2 - 1  # `other`, once


def test_batches(conversions):
    """A batch is an object of its own: one conversion, whatever the number of layers."""
    edge_index, x = hub()
    batch = Batch.from_data_list([Data(x=x, edge_index=edge_index)] * 3)
    for layer in LAYERS:
        ours = make(pyg_dfgnn.nn, layer).eval()(batch.x, batch.edge_index)
        expected = make(torch_geometric.nn, layer).eval()(batch.x, batch.edge_index)
        torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-5)
    assert len(conversions) == 2


def test_capture_converts_at_every_replay(cuda):
    edge_index, _ = hub(cuda)
    build_graph(edge_index, 40, 40, True)
    capture = torch.cuda.CUDAGraph()
    with torch.cuda.graph(capture):
        graph = build_graph(edge_index, 40, 40, True)
    edge_index.copy_(edge_index.flip(0))
    capture.replay()
    assert edges_of(graph) == expected_edges(edge_index, 40, 40, True)
