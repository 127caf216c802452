"""Calls of scripted layers beside the plain one: edge features, attention weights, PyG's steps."""

import io
import zipfile

import pytest
import torch
import torch_geometric.nn
from layers import EDGE_LAYERS, LAYERS, WEIGHT_LAYERS, make, pair, square, transposed
from torch import Tensor
from torch_geometric.typing import SparseTensor

import pyg_dfgnn
import pyg_dfgnn.nn
from pyg_dfgnn.ops import dot_attention

pytestmark = pytest.mark.filterwarnings("ignore:.*TorchScript:DeprecationWarning")


class OnFeatures(torch.nn.Module):
    """A layer that is called with features of edges."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
        return self.conv(x, edge_index, edge_attr)


def saved_modules(scripted: torch.jit.ScriptModule) -> str:
    """The files of a saved module; those of code are named as the Python modules."""
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    return " ".join(zipfile.ZipFile(buffer).namelist())


def test_other_calls_are_refused():
    """PyG's steps are left out, and with them the operators of torch_scatter."""
    conv = torch.jit.script(make(pyg_dfgnn.nn, "TransformerConv"))
    x, edge_index = reversed(square("hub"))
    with pytest.raises(torch.jit.Error, match="needs PyG's message passing"):
        conv.forward__0(x, edge_index, torch.rand(edge_index.size(1), 2, 5))
    with pytest.raises(torch.jit.Error, match="edge_index: expected an int32 or int64 tensor"):
        conv.forward__0(x, edge_index.float())


@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_edge_features(layer):
    x, edge_index = reversed(square("hub"))
    edge_attr = torch.rand(edge_index.size(1), 3)
    ours, theirs = pair(layer, edge_dim=3)
    result = torch.jit.script(OnFeatures(ours))(x, edge_index, edge_attr)
    torch.testing.assert_close(result, theirs(x, edge_index, edge_attr), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", EDGE_LAYERS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_edge_features_in_autocast(layer, dtype, device):
    x, edge_index = reversed(square("hub", device))
    edge_attr = torch.rand(edge_index.size(1), 3, device=device, dtype=dtype)
    conv = make(pyg_dfgnn.nn, layer, edge_dim=3).to(device)
    scripted = torch.jit.script(OnFeatures(conv))
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        result, expected = (call(x, edge_index, edge_attr) for call in (scripted, conv))
    torch.testing.assert_close(result.float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("layer", ["GATConv", "GATv2Conv"])
def test_no_fill_value(layer, device):
    x, edge_index = reversed(square("hub", device))
    edge_attr = torch.rand(edge_index.size(1), 3, device=device)
    conv = make(pyg_dfgnn.nn, layer, edge_dim=3, fill_value=None).to(device)
    expected = conv(x, edge_index, edge_attr)
    scripted = torch.jit.script(OnFeatures(conv))
    torch.testing.assert_close(scripted(x, edge_index, edge_attr), expected)


@pytest.mark.parametrize("layer", LAYERS)
def test_autocast(layer, device):
    x, edge_index = reversed(square("hub", device))
    conv = make(pyg_dfgnn.nn, layer).to(device).eval()
    scripted = torch.jit.script(conv)
    with torch.autocast(torch.device(device).type, torch.bfloat16):
        method = "forward" if hasattr(scripted, "forward") else "forward__0"
        result, expected = getattr(scripted, method)(x, edge_index), conv(x, edge_index)
    # TorchScript's own autocast adds up in float32.
    torch.testing.assert_close(result.float(), expected.float(), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("layer", EDGE_LAYERS)
@pytest.mark.parametrize(
    "change",
    [
        lambda f: f[:-1],
        lambda f: torch.cat([f, f[:1]]),
        lambda f: f.t().contiguous(),
        lambda f: f.view(-1, 1),
        lambda f: f.view(-1),
        lambda f: f[:, :2],
        lambda f: f.double(),
        lambda f: f.long(),
    ],
    ids=["row_less", "row_more", "transposed", "column", "1d", "narrow", "float64", "int64"],
)
def test_edge_features_that_do_not_fit(layer, change):
    """Neither scripted code nor calls with a Graph have PyG's steps to take or refuse them."""
    x, edge_index = reversed(square("hub"))
    edge_attr = change(torch.rand(edge_index.size(1), 3))
    conv = make(pyg_dfgnn.nn, layer, edge_dim=3)
    with pytest.raises((torch.jit.Error, RuntimeError), match=r"edge_attr: expected|needs PyG's"):
        torch.jit.script(OnFeatures(conv))(x, edge_index, edge_attr)
    self_loops = getattr(conv, "add_self_loops", False)
    graph = pyg_dfgnn.build_graph(edge_index, 40, 40, self_loops)
    with pytest.raises(ValueError, match=r"edge_attr: expected|needs PyG's"):
        conv(x, graph, edge_attr)


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
def test_attention_weights(layer):
    class Weights(torch.nn.Module):
        def __init__(self, conv):
            super().__init__()
            self.conv = conv

        def forward(
            self, x: Tensor, edges: Tensor, edge_attr: Tensor
        ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            return self.conv(x, edges, edge_attr, return_attention_weights=True)

    class SparseWeights(torch.nn.Module):
        def __init__(self, conv):
            super().__init__()
            self.conv = conv

        def forward(self, x: Tensor, edges: SparseTensor) -> tuple[Tensor, SparseTensor]:
            return self.conv(x, edges, return_attention_weights=True)

    ours, theirs = pair(layer, edge_dim=3)
    x, edge_index = reversed(square("hub"))
    edge_attr = torch.rand(edge_index.size(1), 3)
    scripted = torch.jit.script(Weights(ours))
    expected = theirs(x, edge_index, edge_attr, return_attention_weights=True)
    torch.testing.assert_close(scripted(x, edge_index, edge_attr), expected, rtol=1e-5, atol=1e-5)
    assert "torch_geometric/utils/_scatter" not in saved_modules(scripted)

    loops = {} if layer == "TransformerConv" else {"add_self_loops": False}
    ours, theirs = pair(layer, edge_dim=3, **loops)
    adj_t = transposed(edge_index, 40, 40, edge_attr)
    out, weights = torch.jit.script(SparseWeights(ours))(x, adj_t)
    expected = theirs(x, adj_t, return_attention_weights=True)
    torch.testing.assert_close(out, expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(weights.to_dense(), expected[1].to_dense())


@pytest.mark.parametrize("layer", LAYERS)
def test_other_aggregation(layer):
    """By PyG's steps, also those of GATConv, which itself does not script in PyG 2.8."""

    class Model(torch.nn.Module):
        def __init__(self, conv):
            super().__init__()
            self.conv = conv

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)

    ours, theirs = pair(layer, aggr="mean")
    x, edge_index = reversed(square("hub"))
    result = torch.jit.script(Model(ours))(x, edge_index)
    torch.testing.assert_close(result, theirs(x, edge_index), rtol=1e-5, atol=1e-5)


class Doubled(torch.nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * torch.nn.functional.linear(x, self.weight)


def doubled(module: torch.nn.Module, inputs: tuple[Tensor], out: Tensor) -> Tensor:
    return 2 * out


def halved(module: torch.nn.Module, inputs: tuple[Tensor]) -> Tensor:
    return 0.5 * inputs[0]


# What users put in the place of lin_edge, or do to it.
CHANGES = {
    "bias": lambda conv: setattr(conv, "lin_edge", torch.nn.Linear(3, 5)),
    "subclass": lambda conv: setattr(conv, "lin_edge", Doubled(3, 5, bias=False)),
    "layers": lambda conv: setattr(
        conv, "lin_edge", torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.ReLU())
    ),
    "hook": lambda conv: conv.lin_edge.register_forward_hook(doubled),
    "pre-hook": lambda conv: conv.lin_edge.register_forward_pre_hook(halved),
    "aggregation": lambda conv: setattr(conv, "aggr_module", torch_geometric.nn.MeanAggregation()),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_changed_layers(layer, change):
    """Scripted code takes the operators only where they compute what the layer does by then."""
    x, edge_index = reversed(square("hub"))
    edge_attr = torch.rand(edge_index.size(1), 3)
    ours, theirs = pair(layer, edge_dim=3, heads=1, concat=False)
    torch.jit.script(OnFeatures(ours))  # before, by the operators
    for conv in (ours, theirs):
        torch.manual_seed(1)
        CHANGES[change](conv)
    expected = theirs(x, edge_index, edge_attr)
    torch.testing.assert_close(ours(x, edge_index, edge_attr), expected, rtol=1e-5, atol=1e-5)
    result = torch.jit.script(OnFeatures(ours))(x, edge_index, edge_attr)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


def test_two_calls_with_dropout():
    """Are two draws, in TorchScript too, which takes calls of the same arguments for one."""

    def difference(q: Tensor, graph: pyg_dfgnn.Graph) -> Tensor:
        first = dot_attention(q, q, q, graph, dropout_p=0.5)
        return (first - dot_attention(q, q, q, graph, dropout_p=0.5)).abs().max()

    edge_index, x = square("hub")
    nodes = x.size(0)
    graph = pyg_dfgnn.build_graph(edge_index, nodes, nodes)
    scripted = torch.jit.script(difference)
    for _ in range(3):
        assert scripted(torch.randn(nodes, 2, 8), graph) > 0


class Backward(torch.nn.Module):
    def forward(self, q: Tensor, out: Tensor, lse: Tensor, g: pyg_dfgnn.Graph) -> Tensor:
        grads = torch.ops.dfgnn.smmf_bwd(
            out, None, out, lse, g.rowptr, g.col, g.colptr, g.row, g.perm, x_dst=q, x_src=q,
            beta=torch.ones(1),
        )  # fmt: skip
        return grads[0]


def test_saved_calls_of_backward_operators(tmp_path):
    """Find their overload again, by the names of the operands."""
    edge_index, x = square("hub")
    nodes = x.size(0)
    g = pyg_dfgnn.build_graph(edge_index, nodes, nodes)
    q = torch.randn(nodes, 2, 8)
    out, lse = torch.ops.dfgnn.smmf_fwd(g.rowptr, g.col, x_dst=q, x_src=q, beta=torch.ones(1))
    torch.jit.script(Backward()).save(tmp_path / "backward.pt")
    found = torch.jit.load(tmp_path / "backward.pt")(q, out, lse, g)
    torch.testing.assert_close(found, Backward()(q, out, lse, g))
