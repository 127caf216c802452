"""torch.compile: one graph, forward and backward, that serves graphs of every size."""

import graphs
import pytest
import torch
import torch_geometric.nn
from layers import (
    EDGE_LAYERS,
    FEATURES,
    LAYERS,
    OfSomeEdges,
    assert_same,
    edge_features,
    edge_index_of,
    features,
    make,
    outputs_and_gradients,
    pair,
    transposed,
    variant,
)
from torch._dynamo.testing import CompileCounterWithBackend
from torch_geometric.data import Data
from torch_geometric.transforms import ToSparseTensor
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

import pyg_dfgnn
import pyg_dfgnn.nn

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


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
    assert_same(actual, expected)
    assert count_graphs(counter) == 1


@pytest.mark.parametrize("layer", LAYERS)
@torch._dynamo.config.patch(capture_dynamic_output_shape_ops=True)
def test_edges_chosen_by_values(layer, device):
    ours, theirs = (OfSomeEdges(conv) for conv in variant(LAYERS[layer], device))
    inputs = random_graph(30, 100, device)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager", dynamic=True)
    found, expected = (outputs_and_gradients(model, *inputs) for model in (compiled, theirs))
    assert_same(found, expected)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("compiles", [False, True])
def test_compiled_autograd(layer, compiles, device):
    """A backward pass that is compiled as a whole, of a layer that is and of one that is not."""
    ours, theirs = variant(LAYERS[layer], device)
    x, edge_index = random_graph(30, 100, device)
    expected = outputs_and_gradients(theirs, x, edge_index)
    called = torch.compile(ours, backend="aot_eager") if compiles else ours
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="aot_eager")):
        actual = outputs_and_gradients(called, x, edge_index)
    assert_same(actual, expected)


def test_second_derivatives_in_compiled_autograd(device):
    """GATv2's scores alone have some that are not made of the operators themselves."""
    ours, theirs = pair("GATv2Conv", device, edge_dim=3, add_self_loops=False)
    x, edge_index = random_graph(30, 100, device)

    def second(conv):
        leaf = x.clone().requires_grad_()
        out = conv(leaf, edge_index, edge_features(edge_index))
        (grad,) = torch.autograd.grad(out.square().sum(), leaf, create_graph=True)
        return torch.autograd.grad(grad.square().sum(), leaf)[0]

    expected = second(theirs)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        found = second(ours)
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


TRANSFORMS = {
    "grad": lambda conv, x, *args: torch.func.grad(lambda t: conv(t, *args).square().sum())(x),
    "vmap": lambda conv, x, *args: torch.func.vmap(lambda t: conv(t * x, *args))(torch.ones(3)),
}


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("transform", TRANSFORMS)
@pytest.mark.parametrize("compiles", ["the transform", "the layer"])
def test_functional_transforms(layer, transform, compiles):
    """By PyG's steps, whichever is compiled."""
    ours, theirs = variant(LAYERS[layer])
    x, edge_index = random_graph(30, 100)
    function = TRANSFORMS[transform]
    expected = function(theirs, x, edge_index)
    if compiles == "the layer":
        actual = function(torch.compile(ours, backend="aot_eager"), x, edge_index)
    else:
        compiled = torch.compile(lambda *args: function(ours, *args), backend="aot_eager")
        actual = compiled(x, edge_index)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


def test_own_message():
    conv = pyg_dfgnn.nn.GATConv(8, 4)
    conv.message = lambda x_j, alpha: torch.zeros_like(x_j)
    compiled = torch.compile(conv, backend="aot_eager")
    x, edge_index = random_graph(30, 100, "cpu")
    torch.testing.assert_close(compiled(x, edge_index), conv.bias.expand(30, -1))


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
        assert_same(results, outputs_and_gradients(expected, x, edge_index), scale=3.0)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("loops", [True, False])
@pytest.mark.parametrize("form", ["SparseTensor", "ToSparseTensor"])
def test_sparse_tensor(layer, loops, form):
    """Of one for which no call in eager mode has made what it may hold beside rows and columns."""
    has_loops = layer != "TransformerConv"
    ours, theirs = variant(LAYERS[layer], **({"add_self_loops": loops} if has_loops else {}))
    x, edge_index = random_graph(30, 100)
    if form == "ToSparseTensor":
        pytest.importorskip("torch_sparse")
        adj_t = ToSparseTensor()(Data(edge_index=edge_index, num_nodes=30)).adj_t
    else:
        adj_t = transposed(edge_index, 30, 30)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    actual = outputs_and_gradients(compiled, x, adj_t)
    assert_same(actual, outputs_and_gradients(theirs, x, adj_t))


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
    assert_same(actual, expected)


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


@pytest.mark.parametrize("layer", EDGE_LAYERS)
@pytest.mark.parametrize("fill_value", ["mean", "max", 2.0])
def test_edge_features(layer, fill_value, device):
    """No graph breaks either, and once sizes are dynamic no recompilation."""
    fill = {} if layer == "TransformerConv" else {"fill_value": fill_value}
    ours, theirs = pair(layer, device, edge_dim=3, **fill)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(ours, fullgraph=True, backend=counter)
    for nodes, edges in ((30, 100), (31, 90), (57, 400), (64, 64)):
        x, edge_index = random_graph(nodes, edges, device)
        edge_attr = edge_features(edge_index)
        expected = outputs_and_gradients(theirs, x, edge_index, edge_attr)
        actual = outputs_and_gradients(compiled, x, edge_index, edge_attr)
        assert_same(actual, expected)
    assert count_graphs(counter) == 2


def test_attention_weights_of_a_transformer(device):
    """As it adds no self-loops, the number of weights is known."""
    ours, theirs = pair("TransformerConv", device)
    compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
    x, edge_index = random_graph(30, 100, device)
    results = [conv(x, edge_index, return_attention_weights=True) for conv in (compiled, theirs)]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not (WITH_PYG_LIB or WITH_TORCH_SPARSE), reason="nothing that samples")
def test_neighbor_loader(device):
    """Batches of a NeighborLoader: one compilation for the first, one for all others."""
    x, edge_index = random_graph(300, 3000)
    loader = torch_geometric.loader.NeighborLoader(
        torch_geometric.data.Data(x=x, edge_index=edge_index), [4, 4], batch_size=23
    )
    model, expected = Stack(pyg_dfgnn.nn).to(device), Stack(torch_geometric.nn).to(device)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, fullgraph=True, backend=counter)
    sizes = set()
    for batch in loader:
        x, edge_index = batch.x.to(device), batch.edge_index.to(device)
        sizes.add((x.size(0), edge_index.size(1)))
        out = compiled(x, edge_index)
        out.square().sum().backward()
        torch.testing.assert_close(out, expected(x, edge_index), rtol=1e-4, atol=1e-4)
    assert len(sizes) > 4
    assert count_graphs(counter) == 2


def test_self_supervision_breaks_the_graph(device):
    """As PyG's does: it draws pairs outside of torch. What is around it compiles."""
    ours, theirs = pair("SuperGATConv", device)
    compiled = torch.compile(ours, backend="aot_eager")
    x, edge_index = random_graph(30, 100, device)
    results = []
    for conv, owner in ((compiled, ours), (theirs, theirs)):
        torch_geometric.seed_everything(1)
        results.append((conv(x, edge_index), owner.get_attention_loss()))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)
