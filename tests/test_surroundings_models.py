"""What PyG builds around layers takes ours, and gives what it gives with PyG's."""

import sys

import graphs
import pytest
import torch
import torch_geometric.nn
from layers import FEATURES, edge_index_of, features, hub
from surroundings import BIPARTITE, LAYERS, assert_alike, twins
from torch_geometric.data import HeteroData
from torch_geometric.nn import DirGNNConv, GPSConv, HeteroConv, Sequential, to_hetero

import pyg_dfgnn.nn
import pyg_dfgnn.nn.models


def hetero():
    """Two kinds of nodes, with edges either way and within one kind."""
    edges = edge_index_of(graphs.make("bipartite"))
    data = HeteroData()
    data["a"].x, data["b"].x = features(29, 13)
    data["a", "to", "b"].edge_index = edges
    data["b", "back", "a"].edge_index = edges.flip(0)
    data["b", "near", "b"].edge_index = torch.arange(13).repeat(2, 1).roll(3, 1)
    return data


V2 = [False, *([True] if hasattr(pyg_dfgnn.nn, "GATv2Conv") else [])]


@pytest.mark.parametrize("v2", V2)
@pytest.mark.parametrize(
    "arguments",
    [
        {"heads": 2},
        {"heads": 2, "jk": "cat", "norm": "batch", "add_self_loops": False},
        {"edge_dim": 3, "act": "elu", "act_first": True},
        {"out_channels": None, "residual": True},
    ],
    ids=lambda arguments: "-".join(arguments),
)
def test_gat_model(arguments, v2, device):
    arguments = {"num_layers": 3, "out_channels": 5, "v2": v2, **arguments}
    models = twins(lambda nn: nn.models.GAT(FEATURES, 16, **arguments), device)
    assert isinstance(models[0], torch_geometric.nn.models.GAT)
    assert repr(models[0]) == repr(models[1])
    name = "GATv2Conv" if v2 else "GATConv"
    assert all(type(conv) is getattr(pyg_dfgnn.nn, name) for conv in models[0].convs)
    x, edge_index = hub(device)
    edge_attr = torch.randn(edge_index.size(1), 3).to(device) if "edge_dim" in arguments else None
    assert_alike(models, lambda model: model(x, edge_index, edge_attr=edge_attr), operators=3)


def test_gat_model_takes_a_method_and_refuses_what_pyg_refuses():
    model = pyg_dfgnn.nn.models.GAT(FEATURES, 16, 2, method="pmf")
    assert [conv.method for conv in model.convs] == ["pmf", "pmf"]
    with pytest.raises(ValueError, match="divisible"):
        pyg_dfgnn.nn.models.GAT(FEATURES, 16, 2, heads=3)


@pytest.mark.parametrize("layer", LAYERS)
def test_basic_gnn(layer):
    """A model of PyG's own base class, with our layer as its convolution."""

    def build(nn):
        class Model(torch_geometric.nn.models.basic_gnn.BasicGNN):
            supports_edge_weight = False
            supports_edge_attr = False

            def init_conv(self, in_channels, out_channels, **kwargs):
                return LAYERS[layer](nn)

        return Model(FEATURES, FEATURES, num_layers=2, norm="layer").eval()

    x, edge_index = hub()
    assert_alike(twins(build), lambda model: model(x, edge_index))


@pytest.mark.parametrize("layer", LAYERS)
def test_gps(layer, device):
    models = twins(lambda nn: GPSConv(FEATURES, LAYERS[layer](nn), heads=2).eval(), device)
    x, edge_index = hub(device)
    batch = torch.arange(40, device=device) // 20
    assert_alike(models, lambda model: model(x, edge_index, batch))
    for model in models:
        torch.manual_seed(2)
        model.reset_parameters()
    assert_alike(models, lambda model: model(x, edge_index, batch))


@pytest.mark.parametrize("layer", LAYERS)
def test_dir_gnn(layer):
    models = twins(lambda nn: DirGNNConv(LAYERS[layer](nn), 0.3, root_weight=False).eval())
    x, edge_index = hub()
    assert_alike(models, lambda model: model(x, edge_index))


@pytest.mark.parametrize("layer", LAYERS)
def test_sequential(layer):
    def build(nn):
        convs = [(LAYERS[layer](nn), "x, edge_index -> x"), torch.nn.ReLU(inplace=False)]
        head = torch.nn.Linear(FEATURES, 3)
        return Sequential("x, edge_index", [*convs, *convs, head]).eval()

    x, edge_index = hub()
    assert_alike(twins(build), lambda model: model(x, edge_index))


@pytest.mark.parametrize("layer", BIPARTITE)
def test_hetero_conv(layer):
    data = hetero()
    models = twins(lambda nn: HeteroConv({e: LAYERS[layer](nn) for e in data.edge_types}))
    assert_alike(models, lambda model: model(data.x_dict, data.edge_index_dict), operators=3)


def test_hetero_conv_refuses_self_loops_between_kinds_of_nodes():
    for model in twins(lambda nn: nn.GATConv(FEATURES, 4)):
        with pytest.raises(ValueError, match="add_self_loops"):
            HeteroConv({("a", "to", "b"): model})


@pytest.mark.parametrize("layer", BIPARTITE)
def test_to_hetero(layer):
    data = hetero()
    loops = {} if layer == "TransformerConv" else {"add_self_loops": False}

    def build(nn):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.first = getattr(nn, layer)((-1, -1), 4, heads=2, **loops)
                self.lin = torch_geometric.nn.Linear(-1, 8)
                self.second = getattr(nn, layer)((-1, -1), 5, **loops)

            def forward(self, x, edge_index):
                x = (self.first(x, edge_index) + self.lin(x)).relu()
                return self.second(x, edge_index)

        model = to_hetero(Model(), data.metadata())
        torch.manual_seed(2)
        with torch.no_grad():
            model(data.x_dict, data.edge_index_dict)
        return model

    models = twins(build)
    assert_alike(models, lambda model: model(data.x_dict, data.edge_index_dict), operators=6)


def test_to_hetero_of_the_gat_model():
    data = hetero()

    def build(nn):
        model = nn.models.GAT((-1, -1), 16, 2, 5, add_self_loops=False)
        model = to_hetero(model, data.metadata())
        torch.manual_seed(2)
        with torch.no_grad():
            model(data.x_dict, data.edge_index_dict)
        return model

    assert_alike(twins(build), lambda model: model(data.x_dict, data.edge_index_dict))


@pytest.mark.parametrize("layer", LAYERS)
def test_summary(layer, monkeypatch):
    """The same table: shapes of inputs and outputs, numbers of parameters."""
    module = sys.modules["torch_geometric.nn.summary"]
    monkeypatch.setattr(module, "make_table", lambda rows, max_depth: rows)  # needs tabulate
    x, edge_index = hub()
    tables = [torch_geometric.nn.summary(model, x, edge_index) for model in twins(LAYERS[layer])]
    assert tables[0] == tables[1]
    assert tables[0][0]["input_shape"].startswith(f"[40, {FEATURES}], [2, ")


@pytest.mark.parametrize("layer", LAYERS)
def test_data_parallel_replicas(layer):
    """Replicas are shallow copies whose parameters are no longer Parameters."""
    x, edge_index = hub()
    model = twins(LAYERS[layer])[0].eval()
    replica = model._replicate_for_data_parallel()
    replica._parameters = {
        name: None if p is None else p.detach().clone() for name, p in model._parameters.items()
    }
    torch.testing.assert_close(replica(x, edge_index), model(x, edge_index))
