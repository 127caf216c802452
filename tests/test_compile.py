"""torch.compile: one graph, forward and backward, that serves graphs of every size."""

import graphs
import pytest
import torch
import torch_geometric.nn
from layers import (
    FEATURES,
    LAYERS,
    assert_same,
    edge_index_of,
    features,
    make,
    outputs_and_gradients,
    pair,
    variant,
)
from torch._dynamo.testing import CompileCounterWithBackend

import pyg_dfgnn
import pyg_dfgnn.nn


@pytest.fixture(autouse=True)
def fresh_dynamo():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def count_graphs(counter):
    """Compiled graphs, but for the empty one that dynamo makes of any MessagePassing by itself."""
    return sum(len(graph.graph.nodes) > 0 for graph in counter.graphs)


def random_graph(nodes, edges, device="cpu"):
    generator = torch.Generator().manual_seed(edges)
    edge_index = torch.randint(0, nodes, (2, edges), generator=generator).to(device)
    return features(nodes, device=device)[0], edge_index


class Stack(torch.nn.Module):
    def __init__(self, library):
        super().__init__()
        torch.manual_seed(0)
        self.transformer = library.TransformerConv(FEATURES, 4, heads=2, beta=True)
        self.gat = library.GATConv(8, 4, heads=2, residual=True)
        self.gatv2 = library.GATv2Conv(8, 4, heads=2)
        self.supergat = library.SuperGATConv(8, 4, heads=2).eval()  # does not compile in training
        self.agnn = library.AGNNConv()

    def forward(self, x, edge_index):
        x = self.transformer(x, edge_index).relu()
        for conv in (self.gat, self.gatv2, self.supergat):
            x = conv(x, edge_index).relu()
        return self.agnn(x, edge_index)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_one_graph(layer, dynamic, device):
    """No graph breaks, self-loops included, in either direction."""
    ours, theirs = variant(LAYERS[layer], device)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(ours, fullgraph=True, backend=counter, dynamic=dynamic)
    x, edge_index = random_graph(30, 100, device)
    expected = outputs_and_gradients(theirs, x, edge_index)
    actual = outputs_and_gradients(compiled, x, edge_index)
    assert_same({name.removeprefix("_orig_mod."): t for name, t in actual.items()}, expected)
    assert count_graphs(counter) == 1


def test_no_recompilation(device):
    """A dynamic number of nodes and edges: one compilation for all."""
    model, expected = Stack(pyg_dfgnn.nn).to(device), Stack(torch_geometric.nn).to(device)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    for nodes, edges in ((30, 100), (31, 90), (57, 400), (100, 57)):
        x, edge_index = random_graph(nodes, edges, device)
        for tensor, dim in ((x, 0), (edge_index, 1)):
            torch._dynamo.mark_dynamic(tensor, dim)
        out = compiled(x, edge_index)
        out.square().sum().backward()
        torch.testing.assert_close(out, expected(x, edge_index), rtol=1e-5, atol=1e-5)
    assert count_graphs(counter) == 1


def test_inductor(device):
    model, expected = Stack(pyg_dfgnn.nn).to(device), Stack(torch_geometric.nn).to(device)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    for nodes, edges in ((30, 100), (41, 300)):
        x, edge_index = random_graph(nodes, edges, device)
        results = outputs_and_gradients(compiled, x, edge_index)
        results = {name.removeprefix("_orig_mod."): t for name, t in results.items()}
        assert_same(results, outputs_and_gradients(expected, x, edge_index), scale=3.0)


@pytest.mark.parametrize("layer", LAYERS)
def test_graph_argument(layer, device):
    """A prebuilt structure is an ordinary argument; another graph of the layer's is no new one."""
    ours, theirs = variant(LAYERS[layer], device)
    loops = getattr(ours, "add_self_loops", False)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(ours, fullgraph=True, backend=counter, dynamic=True)
    for nodes, edges in ((30, 100), (31, 90), (57, 400)):
        x, edge_index = random_graph(nodes, edges, device)
        graph = pyg_dfgnn.build_graph(edge_index, nodes, nodes, loops)
        torch.testing.assert_close(compiled(x, graph), theirs(x, edge_index), rtol=1e-5, atol=1e-5)
    assert count_graphs(counter) == 1


def test_two_node_sets(device):
    edge_index = edge_index_of(graphs.make("bipartite", device))
    x = tuple(features(29, 13, device=device))
    for layer, arguments in (
        ("TransformerConv", {}),
        ("GATConv", {}),
        ("GATConv", {"size": (29, 13)}),
    ):
        ours, theirs = pair(layer, device, in_channels=(FEATURES, FEATURES))
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        result, expected = compiled(x, edge_index, **arguments), theirs(x, edge_index, **arguments)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", ["TransformerConv", "GATConv", "GATv2Conv"])
def test_dropout(layer, device):
    """Compiled code draws new masks at every call; its backward pass has those of the forward."""
    conv = make(pyg_dfgnn.nn, layer, dropout=0.5).to(device)
    x, edge_index = random_graph(30, 100, device)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    first, second = compiled(x, edge_index), compiled(x, edge_index)
    assert not torch.equal(first, second)
    torch.manual_seed(2)
    actual = outputs_and_gradients(compiled, x, edge_index)
    torch.manual_seed(2)
    expected = outputs_and_gradients(conv, x, edge_index)
    assert_same({name.removeprefix("_orig_mod."): t for name, t in actual.items()}, expected)


def test_out_of_range():
    conv = make(pyg_dfgnn.nn, "GATConv")
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    x, edge_index = random_graph(30, 100)
    with pytest.raises(RuntimeError, match=r"edge_index: .*out of range"):
        compiled(x, edge_index + 1)


def test_eager_cache_is_left_alone():
    conv = make(pyg_dfgnn.nn, "GATConv")
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    before = len(pyg_dfgnn._cache._entries)
    x, edge_index = random_graph(30, 100)
    compiled(x, edge_index)
    assert len(pyg_dfgnn._cache._entries) == before


@pytest.mark.parametrize("layer", LAYERS)
def test_export(layer):
    ours, theirs = pair(layer)
    x, edge_index = random_graph(30, 100)
    nodes, edges = (torch.export.Dim(name, min=2, max=2**30) for name in ("nodes", "edges"))
    program = torch.export.export(
        ours.eval(), (x, edge_index), dynamic_shapes=({0: nodes}, {1: edges})
    )
    for sizes in ((30, 100), (57, 400)):
        x, edge_index = random_graph(*sizes)
        expected = theirs.eval()(x, edge_index)
        torch.testing.assert_close(program.module()(x, edge_index), expected, rtol=1e-5, atol=1e-5)
