"""What happens to a layer besides calls: lazy weights, copies, resets, captures."""

import copy
import io
import pickle

import pytest
import torch
import torch_geometric.nn
from layers import (
    EDGE_LAYERS,
    LAYERS,
    assert_same_call,
    edge_features,
    pair,
    square,
    variant,
)

import pyg_dfgnn
import pyg_dfgnn.nn


@pytest.mark.parametrize("in_channels", [-1, (-1, -1)])
@pytest.mark.parametrize("name", ["transformer_beta", "gat", "gat_residual"])
def test_lazy_initialisation(name, in_channels):
    ours, theirs = variant(name, in_channels=in_channels)
    edge_index, x = square("hub")
    for conv in (ours, theirs):
        torch.manual_seed(5)
        conv(x, edge_index)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    assert_same_call(ours, theirs, x, edge_index)


@pytest.mark.parametrize("name", ["transformer", "gat", "gat_residual", "gatv2"])
def test_first_call_of_a_lazy_layer_in_a_checkpoint(name):
    """It keeps what the second keeps."""
    ours, theirs = variant(name, in_channels=-1)
    edge_index, x = square("hub")
    results = []
    for conv in (ours, theirs):
        torch.manual_seed(5)
        out = torch.utils.checkpoint.checkpoint(conv, x, edge_index, use_reentrant=False)
        out.sum().backward()
        results.append([out, *(p.grad for p in conv.parameters())])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_lazy_layers_draw_the_same_weights_beside_dropout():
    """lin_skip's are drawn behind the edges that are dropped."""
    results = []
    for library in (pyg_dfgnn.nn, torch_geometric.nn):
        edge_index, x = square("hub")
        torch.manual_seed(3)
        conv = library.TransformerConv(-1, 4, heads=2, dropout=0.5, aggr="max")
        results.append([conv(x, edge_index), *conv.parameters()])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", ["TransformerConv", "GATConv", "GATv2Conv"])
def test_hooks_before_a_lazy_layer_is_sized(layer):
    """They say how wide x is."""
    results = []
    for library in (pyg_dfgnn.nn, torch_geometric.nn):
        edge_index, x = square("hub")
        torch.manual_seed(3)
        conv = getattr(library, layer)(-1, 4)
        for lin in conv.modules():
            if isinstance(lin, torch_geometric.nn.Linear):
                lin.register_forward_pre_hook(lambda _, x: (x[0][:, :3],), prepend=True)
        results.append([conv(x, edge_index), *conv.parameters()])
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_lazy_layers_draw_the_same_weights(layer):
    """In PyG's order, that of features of edges among them."""
    results = []
    for library in (pyg_dfgnn.nn, torch_geometric.nn):
        edge_index, x = square("hub")
        torch.manual_seed(3)
        conv = getattr(library, layer)(-1, 4, heads=2, edge_dim=-1)
        results.append(conv(x, edge_index, edge_features(edge_index)))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_copies(layer, fused):
    ours, theirs = variant(LAYERS[layer])  # in training, PyG's SuperGATConv keeps what has no copy
    edge_index, x = square("hub")
    expected = ours(x, edge_index)
    buffer = io.BytesIO()
    torch.save(ours, buffer)
    buffer.seek(0)
    for twin in (
        copy.deepcopy(ours),
        pickle.loads(pickle.dumps(ours)),
        torch.load(buffer, weights_only=False),
    ):
        assert torch.equal(twin(x, edge_index), expected)
        assert twin.method == "auto"
    theirs.__class__ = type(ours)  # as a swap in place does
    assert torch.equal(theirs(x, edge_index), expected)
    assert len(fused) == 5


BARE = {  # layers that add nothing to what the operator gives
    "TransformerConv": {"root_weight": False},
    "GATConv": {"bias": False},
    "GATv2Conv": {"bias": False},
    "SuperGATConv": {"bias": False},
    "AGNNConv": {},
}


class Step(torch.nn.Module):
    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
        return self.conv(x, edge_index).relu_()


@pytest.mark.parametrize("mode", ["eager", "compiled", "scripted"])
@pytest.mark.parametrize("layer", BARE)
def test_results_may_be_changed_in_place(layer, mode, device):
    ours, theirs = (Step(conv).eval() for conv in pair(layer, device, **BARE[layer]))
    edge_index, x = square("hub", device)

    def gradient(step):
        leaf = x.clone().requires_grad_()
        step(leaf, edge_index).square().sum().backward()
        return leaf.grad

    expected = gradient(theirs)
    if mode == "compiled":
        ours = torch.compile(ours, backend="aot_eager", fullgraph=True)
    if mode == "scripted":
        ours = torch.jit.script(ours)
    torch.testing.assert_close(gradient(ours), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", LAYERS)
def test_reset_parameters(layer):
    ours, theirs = pair(layer)
    for conv in (ours, theirs):
        torch.manual_seed(9)
        conv.reset_parameters()
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value)


@pytest.mark.parametrize("layer", LAYERS)
def test_inference_then_training(layer):
    """What was cached in inference mode serves training."""
    ours, theirs = pair(layer)
    edge_index, x = square("hub")
    with torch.inference_mode():
        ours(x, edge_index)
    assert_same_call(ours, theirs, x, edge_index)


@pytest.mark.parametrize(
    ("layer", "sizes"),
    [*((layer, {}) for layer in LAYERS), *((layer, {"edge_dim": 3}) for layer in EDGE_LAYERS)],
    ids=str,
)
def test_capture_in_a_cuda_graph(layer, sizes, cuda):
    """With a prebuilt Graph nothing in the layer waits for the device, forward and backward.

    But for SuperGATConv in training, which, as PyG's, draws pairs on the host.
    """
    ours, theirs = pair(layer, cuda, **sizes)
    if layer == "SuperGATConv":
        ours, theirs = ours.eval(), theirs.eval()
    edge_index, x = square("hub", cuda)
    attr = (edge_features(edge_index),) if sizes else ()
    loops = getattr(ours, "add_self_loops", False)
    graph = pyg_dfgnn.build_graph(edge_index, 40, 40, self_loops=loops)
    x = x.requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            ours(x, graph, *attr).square().sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    x.grad = None
    ours.zero_grad(set_to_none=True)
    capture = torch.cuda.CUDAGraph()
    with torch.cuda.graph(capture):
        out = ours(x, graph, *attr)
        out.square().sum().backward()
        rebuilt = ours(x, edge_index, *attr)  # the conversion is captured too
    with torch.no_grad():
        x.copy_(x.flip(0))
    capture.replay()
    expected = x.detach().clone().requires_grad_()
    result = theirs(expected, edge_index, *attr)
    result.square().sum().backward()
    torch.testing.assert_close(out, result, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rebuilt, result, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, expected.grad, rtol=1e-4, atol=1e-4)
