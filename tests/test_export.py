"""torch.export and AOTInductor: models for inference, for graphs of every size."""

import shutil

import pytest
import torch
import torch_geometric.nn
from layers import (
    EDGE_LAYERS,
    LAYERS,
    WEIGHT_LAYERS,
    OfSomeEdges,
    WithWeights,
    edge_features,
    features,
    pair,
)

import pyg_dfgnn.nn

NODES, EDGES = (torch.export.Dim(name, min=2, max=2**30) for name in ("nodes", "edges"))
SIZES = ((30, 100), (57, 400), (90, 40))


def random_graph(nodes, edges):
    generator = torch.Generator().manual_seed(edges)
    return features(nodes)[0], torch.randint(0, nodes, (2, edges), generator=generator)


def assert_exports(ours, theirs):
    """For graphs of other sizes, with the results of PyG's."""
    program = torch.export.export(
        ours, random_graph(*SIZES[0]), dynamic_shapes=({0: NODES}, {1: EDGES})
    )
    for sizes in SIZES:
        arguments = random_graph(*sizes)
        expected = theirs(*arguments)
        torch.testing.assert_close(program.module()(*arguments), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_export(layer):
    assert_exports(*(conv.eval() for conv in pair(layer)))


@pytest.mark.parametrize("layer", LAYERS)
def test_edges_chosen_by_values(layer):
    assert_exports(*(OfSomeEdges(conv.eval()) for conv in pair(layer)))


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
def test_attention_weights(layer):
    assert_exports(*(WithWeights(conv.eval()) for conv in pair(layer)))


@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_edge_features(layer):
    ours, theirs = (conv.eval() for conv in pair(layer, edge_dim=3))
    x, edge_index = random_graph(*SIZES[0])
    program = torch.export.export(
        ours,
        (x, edge_index, edge_features(edge_index)),
        dynamic_shapes=({0: NODES}, {1: EDGES}, {0: EDGES}),
    )
    for sizes in SIZES:
        x, edge_index = random_graph(*sizes)
        arguments = x, edge_index, edge_features(edge_index)
        expected = theirs(*arguments)
        torch.testing.assert_close(program.module()(*arguments), expected, rtol=1e-5, atol=1e-5)


class Model(torch.nn.Module):
    def __init__(self, library):
        super().__init__()
        torch.manual_seed(0)
        self.transformer = library.TransformerConv(8, 4, heads=2, edge_dim=3)
        self.gat = library.GATConv(8, 4, heads=2, edge_dim=3)
        self.gatv2 = library.GATv2Conv(8, 4, heads=2)
        self.agnn = library.AGNNConv()

    def forward(self, x, edge_index, edge_attr):
        x = self.transformer(x, edge_index, edge_attr).relu()
        x = self.gat(x, edge_index, edge_attr).relu()
        return self.agnn(self.gatv2(x, edge_index), edge_index)


@pytest.mark.skipif(shutil.which("g++") is None, reason="there is no C++ compiler")
def test_aot_inductor(tmp_path):
    """A shared library of the model, in which our operators are called by name."""
    model, expected = Model(pyg_dfgnn.nn).eval(), Model(torch_geometric.nn).eval()
    x, edge_index = random_graph(*SIZES[0])
    with torch.no_grad():
        program = torch.export.export(
            model,
            (x, edge_index, edge_features(edge_index)),
            dynamic_shapes=({0: NODES}, {1: EDGES}, {0: EDGES}),
        )
        package = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "model.pt2")
        )
        loaded = torch._inductor.aoti_load_package(package)
        for sizes in SIZES:
            x, edge_index = random_graph(*sizes)
            arguments = x, edge_index, edge_features(edge_index)
            out = loaded(*arguments)
            torch.testing.assert_close(out, expected(*arguments), rtol=1e-5, atol=1e-5)
