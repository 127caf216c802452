"""The layers inside of what PyG builds around layers."""

import pytest
import torch
import torch_geometric.nn
from layers import (
    FEATURES,
    features,
    make,
    pair,
    square,
    two_sided,
)

import pyg_dfgnn
import pyg_dfgnn.nn


def test_gps():
    edge_index, x = square("hub")
    results = []
    for library in (pyg_dfgnn.nn, torch_geometric.nn):
        conv = make(library, "TransformerConv", heads=1, concat=False)
        conv.out_channels = 5
        torch.manual_seed(1)
        inner = library.GATConv(FEATURES, FEATURES)
        results.append(torch_geometric.nn.GPSConv(FEATURES, inner, heads=2).eval()(x, edge_index))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_hetero():
    x = dict(zip(("a", "b"), features(29, 13), strict=True))
    edge_index = {
        ("a", "to", "b"): two_sided("bipartite")[0],
        ("b", "rev", "a"): two_sided("bipartite")[0].flip(0),
    }
    results = []
    for library in (pyg_dfgnn.nn, torch_geometric.nn):

        class Model(torch.nn.Module):
            def __init__(self, library=library):
                super().__init__()
                self.first = library.GATConv((-1, -1), 4, add_self_loops=False)
                self.second = library.TransformerConv((-1, -1), 4)

            def forward(self, x, edge_index):
                return self.second(self.first(x, edge_index).relu(), edge_index)

        torch.manual_seed(0)
        metadata = (list(x), list(edge_index))
        model = torch_geometric.nn.to_hetero(Model(), metadata)
        torch.manual_seed(1)
        wrapped = torch_geometric.nn.HeteroConv(
            {key: library.GATConv((-1, -1), 4, add_self_loops=False) for key in edge_index}
        )
        torch.manual_seed(2)
        results.append((model(x, edge_index), wrapped(x, edge_index)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["AttentionExplainer", "GNNExplainer"])
@pytest.mark.parametrize("layer", ["TransformerConv", "GATConv"])
def test_explainers(layer, algorithm):
    edge_index, x = square("hub")
    masks = []
    for conv in pair(layer):
        torch.manual_seed(0)
        explainer = torch_geometric.explain.Explainer(
            conv,
            getattr(torch_geometric.explain, algorithm)(),
            explanation_type="model",
            edge_mask_type="object",
            model_config={
                "mode": "regression",
                "task_level": "node",
                "return_type": "raw",
            },
        )
        masks.append(explainer(x, edge_index, index=0).edge_mask)
    torch.testing.assert_close(*masks, rtol=1e-4, atol=1e-4)
