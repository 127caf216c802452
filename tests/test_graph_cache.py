"""The graph structure is built once per object and never stale."""

import gc
import threading
import weakref

import graphs
import pytest
import torch
import torch_geometric.nn
from layers import FEATURES, LAYERS, edge_index_of, features, make, transposed
from structures import edges_of, expected_edges
from torch.fx.experimental.proxy_tensor import make_fx
from torch_geometric import EdgeIndex
from torch_geometric.data import Batch, Data

import pyg_dfgnn
from pyg_dfgnn import build_graph


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
    gc.collect()  # what other tests left
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


def test_change_of_strides():
    edge_index, conv = torch.tensor([[0, 0], [1, 1]]), make(pyg_dfgnn.nn, "GATConv")
    x = torch.randn(2, FEATURES)
    conv(x, edge_index)
    edge_index.data = edge_index.data.t()
    assert torch.equal(conv(x, edge_index), conv(x, edge_index.clone()))


def test_change_of_edge_index_object_in_place():
    edge_index, _ = hub()
    edge_index = EdgeIndex(edge_index, sparse_size=(40, 40))
    build_graph(edge_index, 40, 40)
    edge_index.as_tensor()[0].fill_(3)
    assert build_graph(edge_index, 40, 40).col.tolist() == [3] * edge_index.size(1)


@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.fill_(3),
        lambda e: e.copy_(torch.full_like(e.as_tensor(), 3)),
        lambda e: e[0].fill_(3),
        lambda e: e.__setitem__((slice(None), slice(None)), 3),
        lambda e: e.clamp_(3, 3),
    ],
)
def test_change_of_edge_index_object_by_itself(change):
    edge_index = EdgeIndex(hub()[0], sparse_size=(40, 40))
    build_graph(edge_index, 40, 40)
    change(edge_index)
    assert build_graph(edge_index, 40, 40).col.tolist() == [3] * edge_index.size(1)


def test_change_of_sparse_tensor_in_place():
    edge_index, _ = hub()
    adj_t = transposed(edge_index, 40, 40)
    build_graph(adj_t, 40, 40)
    adj_t.storage.col().fill_(3)
    assert build_graph(adj_t, 40, 40).col.tolist() == [3] * edge_index.size(1)


def test_few_are_kept_of_one_object(conversions):
    edge_index, _ = hub()
    for nodes in (*range(40, 80), 79, 78):
        build_graph(edge_index, nodes, nodes)
    assert len(conversions) == 40
    _, kept = pyg_dfgnn._cache._entries[edge_index]
    assert len(kept) == pyg_dfgnn._cache.MOST


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
