"""What PyG refuses is refused, by an error of the same type."""

import pytest
import torch
import torch_geometric.nn
from layers import (
    LAYERS,
    assert_same_error,
    edge_features,
    make,
    pair,
    square,
    transposed,
)
from torch_geometric import EdgeIndex

import pyg_dfgnn
import pyg_dfgnn.nn


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "change",
    [
        lambda e: e.float(),
        lambda e: e.view(-1),
        lambda e: e.t(),
        lambda e: torch.cat([e, e]),
        lambda e: e.tolist(),
        lambda e: None,
        lambda e: e - 1,
        lambda e: e + 1,
        lambda e: EdgeIndex(e, sparse_size=(50, 50)),
    ],
    ids=["float", "1d", "transposed", "4_rows", "list", "None", "negative", "large", "other_size"],
)
def test_refused_edge_index(layer, change):
    ours, theirs = pair(layer)
    edge_index, x = square("hub")
    assert_same_error(ours, theirs, x, change(edge_index))


@pytest.mark.parametrize("layer", LAYERS)
def test_out_of_range_names_the_values(layer):
    ours, _ = pair(layer)
    edge_index, x = square("hub")
    with pytest.raises(IndexError, match=r"edge_index: .*\[-1, 38\].*\[0, 40\)"):
        ours(x, edge_index - 1)


@pytest.mark.parametrize("layer", [name for name in LAYERS if name != "AGNNConv"])
@pytest.mark.parametrize("dropout", [-0.1, 1.5])
@pytest.mark.parametrize("training", [False, True])
def test_dropout_that_is_no_probability(layer, dropout, training):
    ours, theirs = (conv.train(training) for conv in pair(layer, dropout=dropout))
    edge_index, x = square("hub")
    assert_same_error(ours, theirs, x, edge_index)
    with pytest.raises(ValueError, match=rf"dropout: expected .* \[0, 1\], got {dropout}"):
        ours(x, edge_index)


@pytest.mark.parametrize("layer", LAYERS)
def test_other_errors(layer):
    ours, theirs = pair(layer)
    edge_index, x = square("hub")
    assert_same_error(ours, theirs, x[:, :3] if layer != "AGNNConv" else x[0], edge_index)
    assert_same_error(ours, theirs, x, transposed(edge_index, 41, 41))
    assert_same_error(ours, theirs, x[None].expand(2, -1, -1), edge_index.expand(3, 2, -1))
    ours.flow = theirs.flow = "target_to_source"
    assert_same_error(ours, theirs, x, transposed(edge_index, 40, 40))


@pytest.mark.parametrize("layer", ["GATConv", "GATv2Conv"])
def test_errors_of_edge_features(layer):
    ours, theirs = pair(layer, edge_dim=3)
    edge_index, x = square("hub")
    edge_attr = edge_features(edge_index)
    assert_same_error(ours, theirs, x[None], edge_index)
    assert_same_error(ours, theirs, x, transposed(edge_index, 40, 40))
    assert_same_error(ours, theirs, x, transposed(edge_index, 40, 40), edge_attr)
    assert_same_error(ours, theirs, x, edge_index, edge_attr[:5])
    assert_same_error(ours, theirs, x, edge_index, edge_attr[:, :2])
    assert_same_error(ours, theirs, x, edge_index, edge_attr[:, 0])
    assert_same_error(ours, theirs, x, edge_index, edge_attr.double())
    ours, theirs = pair(layer, edge_dim=3, fill_value="median")
    assert_same_error(ours, theirs, x, edge_index, edge_attr)


def test_gat_errors():
    ours, theirs = pair("GATConv")
    edge_index, x = square("hub")
    assert_same_error(ours, theirs, x, edge_index, size=(40, 41))
    assert_same_error(ours, theirs, (x, None), edge_index, size=(41, 40))
    assert_same_error(ours, theirs, x, edge_index, edge_features(edge_index)[:5])


def test_gatv2_errors():
    ours, theirs = pair("GATv2Conv")
    edge_index, x = square("hub")
    assert_same_error(ours, theirs, (x, None), edge_index)
    assert_same_error(ours, theirs, x, edge_index, edge_features(edge_index))


def test_supergat_errors():
    for arguments in (
        {"attention_type": "XX"},
        {"neg_sample_ratio": 0.0},
        {"edge_sample_ratio": 1.5},
        {"heads": 0},
    ):
        errors = []
        for library in (pyg_dfgnn.nn, torch_geometric.nn):
            with pytest.raises(Exception) as error:  # noqa: PT011
                make(library, "SuperGATConv", **arguments)(*reversed(square("hub")))
            errors.append(type(error.value))
        assert errors[0] is errors[1]


@pytest.mark.parametrize("change", [lambda e: e + 40, lambda e: e.float(), lambda e: e.t()])
def test_errors_of_given_negatives(change):
    edge_index, x = square("hub")
    negatives = change(torch.tensor([[0, 1, 2], [5, 6, 7]]))
    with pytest.raises((IndexError, ValueError), match=r"^neg_edge_index: "):
        make(pyg_dfgnn.nn, "SuperGATConv")(x, edge_index, neg_edge_index=negatives)


def test_transformer_errors():
    ours, theirs = pair("TransformerConv", edge_dim=3)
    edge_index, x = square("hub")
    assert_same_error(ours, theirs, x, edge_index)
    assert_same_error(ours, theirs, (x, None), edge_index)
    assert_same_error(ours, theirs, x, edge_index, edge_features(edge_index)[:, 0])


@pytest.mark.parametrize("create_graph", [False, True])
def test_numbers_of_nodes_without_edges(create_graph, device):
    """What a node without edges has, be it no number, is nobody else's."""
    ours, theirs = pair("AGNNConv", device, add_self_loops=False)
    edge_index = torch.tensor([[0, 1], [1, 2]], device=device)
    x = torch.randn(4, 200, device=device)
    x[3] = torch.nan
    ours_grad, theirs_grad = (
        torch.autograd.grad(conv(x, edge_index)[:3].sum(), conv.beta, create_graph=create_graph)
        for conv in (ours, theirs)
    )
    torch.testing.assert_close(ours_grad[0], theirs_grad[0], rtol=1e-4, atol=1e-5)
    assert ours_grad[0].isfinite().all()


@pytest.mark.parametrize("layer", LAYERS)
def test_constructor_errors(layer):
    for arguments in ({"flow": "sideways"}, {"no_such_argument": 1}, {"aggr": "no_such"}):
        errors = []
        for library in (pyg_dfgnn.nn, torch_geometric.nn):
            with pytest.raises(Exception) as error:  # noqa: PT011
                make(library, layer, **arguments)
            errors.append(type(error.value))
        assert errors[0] is errors[1]
