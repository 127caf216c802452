"""The layers give what PyG's layers of the same weights give, and run fused where they should."""

import copy
import inspect

import graphs
import pytest
import torch
import torch_geometric.nn
from layers import (
    LAYERS,
    VARIANTS,
    assert_same_call,
    largest_gradient,
    make,
    outputs_and_gradients,
    pair,
    square,
    variant,
)
from torch_geometric.nn.conv import MessagePassing

import pyg_dfgnn
import pyg_dfgnn.nn

# Some graphs with all variants, and all graphs with some.
SOME_GRAPHS = ("hub", "multigraph", "empty_rows")
SOME_VARIANTS = ("transformer", "gat", "gat_no_loops", "agnn", "agnn_no_loops")
SQUARE = [name for name, graph in graphs.GRAPHS.items() if graph().num_src == graph().num_dst]
CASES = [(name, graph) for name in VARIANTS for graph in SOME_GRAPHS]
CASES += [(name, graph) for name in SOME_VARIANTS for graph in SQUARE if graph not in SOME_GRAPHS]


@pytest.mark.parametrize("name", VARIANTS)
def test_is_constructed_alike(name):
    layer, arguments = VARIANTS[name]
    ours, theirs = (make(lib, layer, **arguments) for lib in (pyg_dfgnn.nn, torch_geometric.nn))
    assert isinstance(ours, type(theirs))
    assert isinstance(ours, MessagePassing)
    assert repr(ours) == repr(theirs)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value), key


@pytest.mark.parametrize("layer", LAYERS)
def test_signature_is_that_of_pyg_and_method(layer):
    ours = inspect.signature(getattr(pyg_dfgnn.nn, layer).__init__).parameters
    theirs = inspect.signature(getattr(torch_geometric.nn, layer).__init__).parameters
    without_method = [name for name in ours if name != "method"]
    assert without_method == list(theirs)
    assert all(ours[name].default == theirs[name].default for name in theirs)
    assert ours["method"].default == "auto"
    forward = inspect.signature(getattr(pyg_dfgnn.nn, layer).forward).parameters
    assert list(forward) == list(
        inspect.signature(getattr(torch_geometric.nn, layer).forward).parameters
    )


@pytest.mark.parametrize(("name", "graph"), CASES)
def test_same_as_pyg(name, graph, device, fused):
    ours, theirs = variant(name, device)
    edge_index, x = square(graph, device)
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == 1


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("method", ["smmf", "pmf"])
def test_method(layer, method, device, fused):
    ours, theirs = pair(layer, device)
    ours.method = method
    edge_index, x = square("hub", device)
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == 1


def test_method_is_passed_on_and_checked():
    for layer in LAYERS:
        with pytest.raises(ValueError, match=r"method: expected one of auto, .*'fastest'"):
            make(pyg_dfgnn.nn, layer, method="fastest")


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16, torch.float16])
def test_dtypes(layer, dtype, device, fused):
    ours, theirs = pair(layer, device)
    edge_index, x = square("empty_rows", device)
    reference = outputs_and_gradients(theirs.double(), x.double(), edge_index)
    result = outputs_and_gradients(ours.to(dtype), x.to(dtype), edge_index)
    assert len(fused) == 1
    assert result["out"].dtype == dtype
    tolerance = {torch.float64: 1e-12, torch.bfloat16: 0.05, torch.float16: 0.01}[dtype]
    for name, expected in reference.items():
        error = (result[name].double() - expected).abs().max()
        assert error <= tolerance * max(expected.abs().max(), 0.2 * largest_gradient(reference)), (
            name
        )


@pytest.mark.parametrize("layer", LAYERS)
def test_autocast(layer, device, fused):
    """Near PyG, or near exact results where PyG is not: it sums in half precision on CUDA."""
    ours, theirs = pair(layer, device)
    edge_index, x = square("hub", device)
    exact = outputs_and_gradients(copy.deepcopy(theirs).double(), x.double(), edge_index)
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = outputs_and_gradients(theirs, x, edge_index)
        result = outputs_and_gradients(ours, x, edge_index)
        half = theirs(x.bfloat16(), edge_index), ours(x.bfloat16(), edge_index)
    assert len(fused) == 2
    assert half[0].dtype == half[1].dtype
    for name, value in expected.items():
        assert result[name].dtype == value.dtype, name
        error = min((result[name] - near).abs().max() for near in (value, exact[name]))
        largest = max(value.abs().max(), 0.2 * largest_gradient(expected))
        assert error <= (1e-4 if layer == "AGNNConv" else 0.03) * largest, name


@pytest.mark.parametrize("layer", ["TransformerConv", "GATConv"])
def test_dropout(layer, device):
    """Averages over many passes come close to the pass without dropout; no two passes are alike."""
    arguments = {"heads": 1, "dropout": 0.5}
    if layer == "GATConv":
        arguments["add_self_loops"] = False
    else:
        arguments["root_weight"] = False
    conv = make(pyg_dfgnn.nn, layer, **arguments).to(device)
    edge_index, x = square("hub", device)
    torch.manual_seed(3)
    passes = torch.stack([conv(x, edge_index).detach() for _ in range(400)])
    assert not torch.equal(passes[0], passes[1])
    torch.manual_seed(3)
    assert torch.equal(conv(x, edge_index), passes[0])
    expected = conv.eval()(x, edge_index)
    error = (passes.mean(0) - expected).abs() / passes.std(0).clamp_min(1e-6)
    assert error.max() < 5 / 400**0.5  # five standard errors


@pytest.mark.parametrize("layer", ["TransformerConv", "GATConv"])
def test_dropout_of_everything(layer, device):
    ours, theirs = pair(layer, device, dropout=1.0)
    edge_index, x = square("hub", device)
    assert_same_call(ours, theirs, x, edge_index)
