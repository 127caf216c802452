"""Explainers look into messages: they see on our layers what they see on PyG's."""

import graphs
import pytest
import torch
from fused_calls import FusedCalls
from layers import FEATURES, edge_index_of, features
from surroundings import LAYERS, twins
from torch_geometric import explain
from torch_geometric.nn import Sequential

ALGORITHMS = {
    "AttentionExplainer": explain.AttentionExplainer,
    "GNNExplainer": lambda: explain.GNNExplainer(epochs=10),
    "DummyExplainer": explain.DummyExplainer,
    "PGExplainer": lambda: explain.PGExplainer(epochs=2, lr=0.01),
}
# Those that have attention weights to look at, in PyG.
ATTENTIVE = [layer for layer in LAYERS if not layer.startswith(("AGNN", "SuperGAT"))]


def hub():
    return features(40)[0], edge_index_of(graphs.make("hub"))


def two_layers(layer):
    def build(nn):
        convs = [(LAYERS[layer](nn), "x, edge_index -> x") for _ in range(2)]
        return Sequential("x, edge_index", [convs[0], torch.nn.ReLU(), convs[1]]).eval()

    return build


def explained(model, algorithm, **kinds):
    x, edge_index = hub()
    torch.manual_seed(0)
    method = ALGORITHMS[algorithm]()
    kinds = {"edge_mask_type": "object", **kinds}
    if algorithm == "PGExplainer":
        kinds = {"edge_mask_type": "object", "explanation_type": "phenomenon"}
    explainer = explain.Explainer(
        model,
        method,
        **{"explanation_type": "model", **kinds},
        model_config={
            "mode": "multiclass_classification",
            "task_level": "node",
            "return_type": "raw",
        },
    )
    target = torch.arange(40) % FEATURES
    if algorithm == "PGExplainer":
        for epoch in range(2):
            method.train(epoch, model, x, edge_index, target=target, index=3)
        return explainer(x, edge_index, target=target, index=3)
    return explainer(x, edge_index, index=3)


@pytest.mark.parametrize(
    ("layer", "algorithm"),
    [
        (layer, algorithm)
        for layer in LAYERS
        for algorithm in ALGORITHMS
        if algorithm != "AttentionExplainer" or layer in ATTENTIVE
    ],
)
def test_same_masks(layer, algorithm):
    models = twins(two_layers(layer))
    masks = [explained(model, algorithm).edge_mask for model in models]
    assert masks[0].any()
    torch.testing.assert_close(*masks, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", LAYERS)
def test_same_masks_of_features(layer):
    """Without an edge mask nobody looks at messages; the gradient is of the fused operator."""
    models = twins(two_layers(layer))
    explanations = [
        explained(model, "GNNExplainer", edge_mask_type=None, node_mask_type="attributes")
        for model in models
    ]
    torch.testing.assert_close(
        explanations[0].node_mask, explanations[1].node_mask, rtol=1e-3, atol=1e-4
    )


@pytest.mark.parametrize("layer", LAYERS)
def test_runs_fused_again(layer):
    model = twins(two_layers(layer))[0]
    explained(model, "GNNExplainer")
    with FusedCalls() as calls, torch.no_grad():
        model(*hub())
    assert len(calls.names) >= 2
