"""PrecomputeGraph: what it stores collates to the structure that build_graph makes of a batch."""

import copy

import numpy as np
import pytest
import torch
import torch_geometric.nn
from graphs import Csr
from layers import LAYERS, make
from precomputed import KINDS, edges_of, graph_of, graphs_of, prepare
from structures import check_prepared
from tilings import sizes_of
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend
from torch_geometric.data import Batch, Data

import pyg_dfgnn
from pyg_dfgnn import Graph, build_graph
from pyg_dfgnn.transforms import PrecomputeGraph


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("remove_edge_index", [False, True])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_batch(kind, dtype, remove_edge_index, self_loops, device):
    graphs = graphs_of(kind)
    transform = PrecomputeGraph(dtype, remove_edge_index)
    batch = Batch.from_data_list([transform(data) for data in graphs]).to(device)
    assert batch.num_edges == sum(data.num_edges for data in graphs)
    check_prepared(batch, self_loops)
    assert edges_of(batch) == edges_of(Batch.from_data_list(graphs))
    assert batch.edge_index is batch.edge_index
    assert batch.edge_index.dtype == torch.int64
    assert ("edge_index" in batch.to_dict()) != remove_edge_index


@pytest.mark.parametrize("kind", KINDS)
def test_single_graphs(kind, device):
    for original in graphs_of(kind):
        before = original.edge_index.clone()
        data = PrecomputeGraph()(original).to(device)
        check_prepared(data, False)
        check_prepared(data, True)
        assert edges_of(data) == edges_of(original)
        assert data.num_nodes == original.num_nodes
        assert type(original) is Data  # it is as it was
        assert torch.equal(original.edge_index, before)


@pytest.mark.parametrize("nodes", [1, 2, 5, 20, 33, 64, 117, 300])
@pytest.mark.parametrize("density", [0.1, 0.5, 1.0])
def test_tile_blocks(nodes, density):
    """The estimate, of batches of graphs of a kind."""
    graphs = [graph_of(nodes, density, "loops", seed) for seed in range(12)]
    batch = Batch.from_data_list([PrecomputeGraph(torch.int32)(data) for data in graphs])
    graph = batch.graph(self_loops=True)
    _, blocks = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    assert abs(graph.tile_blocks - int(blocks)) <= 0.2 * int(blocks) + 2


def test_masks(cuda):
    """Batches have them where "auto" may choose "tile"."""
    for density, has_masks in ((0.9, True), (0.003, False)):
        graphs = [graph_of(nodes, density, "plain", 0) for nodes in (700, 1, 130)]
        batch = Batch.from_data_list([PrecomputeGraph(torch.int32)(data) for data in graphs])
        graph = batch.to(cuda).graph()
        boundaries = -(-graph.num_dst // 64) + 1
        assert (graph.tiles.numel() > 2 * boundaries) == has_masks
        check_prepared(batch, False)


def test_list_of_tiles(cuda):
    """Batches have it where "auto" may choose "resident", with sizes that the host can tell."""
    graphs = [graph_of(nodes, 0.01, "plain", 0) for nodes in (300, 280, 310, 300)]
    batch = Batch.from_data_list([PrecomputeGraph()(data) for data in graphs]).to(cuda)
    for self_loops in (False, True):
        graph = batch.graph(self_loops)
        assert 310 <= graph.tile_nodes < 400
        csr = Csr(graph.rowptr, graph.col, graph.num_src)
        boundaries, _ = torch.ops.dfgnn.find_tiles(csr.rowptr, csr.col)
        assert sizes_of(csr, boundaries)[1] <= graph.tile_batches
    check_prepared(batch, False)


def test_bytes():
    """Two per edge, four per node."""
    data = PrecomputeGraph()(graph_of(200, 0.3, "plain", 0))
    stored = sum(v.nbytes for k, v in data.to_dict().items() if k.startswith("dfgnn_"))
    assert stored == 4 * data.num_nodes + 2 * data.num_edges


# Layers


@pytest.mark.parametrize("remove_edge_index", [False, True])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("layer", LAYERS)
def test_layers_find_it(layer, kind, remove_edge_index, monkeypatch, device):
    batch = Batch.from_data_list(prepare(kind, remove_edge_index=remove_edge_index)).to(device)
    expected = Batch.from_data_list(graphs_of(kind)).to(device)
    theirs = make(torch_geometric.nn, layer).eval().to(device)
    ours = make(pyg_dfgnn.nn, layer).eval().to(device)

    def with_gradient(conv: torch.nn.Module, edges: Tensor | Graph) -> tuple[Tensor, Tensor]:
        x = expected.x.clone().requires_grad_()
        out = conv(x, edges)
        return out, torch.autograd.grad(out.square().sum(), x)[0]

    result = with_gradient(theirs, expected.edge_index)
    monkeypatch.setattr(pyg_dfgnn.graph, "_convert", None)  # what any other conversion calls
    for edges in (batch.edge_index, batch.graph(layer != "TransformerConv")):
        torch.testing.assert_close(with_gradient(ours, edges), result, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", ["TransformerConv", "GATConv"])
def test_edge_features_are_sorted_with_edges(layer, device):
    batch = Batch.from_data_list(prepare("shuffled")).to(device)
    expected = Batch.from_data_list(graphs_of("shuffled")).to(device)
    ours = make(pyg_dfgnn.nn, layer, edge_dim=1).eval().to(device)
    theirs = make(torch_geometric.nn, layer, edge_dim=1).eval().to(device)
    torch.testing.assert_close(
        ours(batch.x, batch.edge_index, batch.edge_attr / 1e5),
        theirs(expected.x, expected.edge_index, expected.edge_attr / 1e5),
        rtol=1e-4,
        atol=1e-5,
    )


def test_made_in_inference_mode():
    batch = Batch.from_data_list(prepare())
    with torch.inference_mode():
        batch.graph()
    x = torch.randn(batch.num_nodes, 1, 4, requires_grad=True)
    pyg_dfgnn.ops.dot_attention(x, x, x, batch.graph()).sum().backward()
    assert x.grad is not None


def test_lists_and_arrays_of_edges_are_sorted_too():
    edge_index = torch.tensor([[2, 0, 1], [0, 1, 2]])
    names, array = ["to 0", "to 1", "to 2"], np.array([[0, 1, 2]]).T
    data = PrecomputeGraph()(
        Data(
            edge_index=edge_index.flip(1),
            edge_names=names[::-1],
            edge_array=array[::-1],
            num_nodes=3,
        )
    )
    assert data.edge_index[1].tolist() == [0, 1, 2]
    assert data.edge_names == names
    assert data.edge_array.tolist() == array.tolist()


def test_other_directions_and_sizes_are_converted(device):
    batch = Batch.from_data_list(prepare()).to(device)
    nodes, edge_index = batch.num_nodes, batch.edge_index
    for arguments in ((nodes + 1, nodes), (nodes, nodes, False, "target_to_source")):
        found = build_graph(edge_index, *arguments)
        expected = build_graph(edge_index.clone(), *arguments)
        torch.testing.assert_close(found[:6], expected[:6], rtol=0, atol=0)
        assert found.num_src == expected.num_src


def test_change_in_place(device):
    batch = Batch.from_data_list(prepare()).to(device)
    nodes, edge_index = batch.num_nodes, batch.edge_index
    before = build_graph(edge_index, nodes, nodes)
    batch.edge_index[0] = 0  # which is the same
    after = build_graph(batch.edge_index, nodes, nodes)
    assert int(after.col.sum()) == 0 != int(before.col.sum())


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = make(pyg_dfgnn.nn, "GATConv")

    def forward(self, x: Tensor, graph: Graph) -> Tensor:
        return self.conv(x, graph)


def test_scripted_and_compiled_models(device):
    batch = Batch.from_data_list(prepare()).to(device)
    model = Model().eval().to(device)
    expected = model.conv(batch.x, batch.edge_index)
    graph = batch.graph(self_loops=True)
    torch._dynamo.reset()
    for changed in (torch.jit.script(model), torch.compile(model, fullgraph=True)):
        torch.testing.assert_close(changed(batch.x, graph), expected, rtol=1e-4, atol=1e-5)


def test_models_do_not_compile_again(device):
    """Other batches have other numbers of nodes, edges and blocks."""
    torch._dynamo.reset()
    counter = CompileCounterWithBackend("aot_eager")
    model = Model().eval().to(device)
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    prepared = prepare()
    for count in (4, 8, 11, 12):
        batch = Batch.from_data_list(prepared[:count]).to(device)
        graph = batch.graph(self_loops=True)
        torch.testing.assert_close(compiled(batch.x, graph), model(batch.x, graph))
        if count == 8:
            settled = counter.frame_count
    assert counter.frame_count == settled


def test_nothing_waits(cuda):
    """From pinned memory through forward and backward passes."""
    batch = Batch.from_data_list(prepare())
    convs = [make(pyg_dfgnn.nn, name).to(cuda) for name in ("TransformerConv", "GATConv")]
    batch = batch.pin_memory()
    try:
        torch.cuda.set_sync_debug_mode("error")
        batch = batch.to(cuda, non_blocking=True)
        for conv in convs:
            conv(batch.x, batch.edge_index).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    for conv in convs:
        whole = conv(batch.x, batch.edge_index.clone())
        torch.testing.assert_close(conv(batch.x, batch.edge_index), whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("has_read_edges", [False, True])
def test_structure_in_a_compiled_function(has_read_edges, device):
    torch._dynamo.reset()
    batch = Batch.from_data_list(prepare()).to(device)
    conv = pyg_dfgnn.nn.GATConv(8, 8).to(device)
    if has_read_edges:
        assert batch.edge_index.size(1) == batch.num_edges
    compiled = torch.compile(lambda x: conv(x, batch.graph(True)), backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(batch.x), conv(batch.x, batch.edge_index))


def test_capture_builds_at_every_replay(cuda):
    """Of what the batch then holds."""
    graphs = prepare()
    batch = Batch.from_data_list(graphs).to(cuda)
    batch.graph(True)
    capture = torch.cuda.CUDAGraph()
    with torch.cuda.graph(capture):
        graph = batch.graph(True)
    other = Batch.from_data_list(graphs).to(cuda)
    batch.dfgnn_edge_perm.zero_()
    capture.replay()
    assert not torch.equal(graph.perm, other.graph(True).perm)
    batch.dfgnn_edge_perm.copy_(other.dfgnn_edge_perm)
    capture.replay()
    torch.testing.assert_close(graph[:6], other.graph(True)[:6], rtol=0, atol=0)


def test_training_step_in_a_cuda_graph(cuda):
    """The structure, both passes and the optimizer, replayed on batches of the same sizes."""
    torch.manual_seed(0)
    convs = [pyg_dfgnn.nn.TransformerConv(8, 8), pyg_dfgnn.nn.GATConv(8, 8)]
    model = torch.nn.ModuleList(convs).to(cuda)
    batches = [Batch.from_data_list(prepare()[::step]).to(cuda) for step in (1, -1)]
    held = copy.deepcopy(batches[0])

    def step(model: torch.nn.ModuleList, optimizer: torch.optim.Optimizer, batch: Batch) -> Tensor:
        x = model[0](batch.x, batch.graph()).relu()
        loss = model[1](x, batch.graph(self_loops=True)).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            optimizer.zero_grad()
            step(model, optimizer, held)
    torch.cuda.current_stream().wait_stream(stream)
    optimizer.zero_grad()
    capture = torch.cuda.CUDAGraph()
    with torch.cuda.graph(capture):
        loss = step(model, optimizer, held)

    twin = copy.deepcopy(model)
    of_twin = torch.optim.SGD(twin.parameters(), lr=0.1)
    for batch in (batches[1], batches[0], batches[1]):
        for name in ("x", "ptr", "dfgnn_node_degrees", "dfgnn_edge_perm"):
            held[name].copy_(batch[name])
        capture.replay()
        of_twin.zero_grad()
        torch.testing.assert_close(loss, step(twin, of_twin, batch), rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
