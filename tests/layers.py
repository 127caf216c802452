"""Our layers beside PyG's with the same weights, and the comparison of what they compute."""

import copy
from typing import Any

import graphs
import pytest
import torch
import torch_geometric.nn
from graphs import Csr
from torch import Tensor
from torch.nn.parameter import UninitializedParameter
from torch_geometric.typing import SparseTensor

import pyg_dfgnn.nn

# Every constructor argument of every layer, in the way that `pair` takes them.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "transformer": ("TransformerConv", {}),
    "transformer_one_head": ("TransformerConv", {"heads": 1}),
    "transformer_mean": ("TransformerConv", {"concat": False}),
    "transformer_beta": ("TransformerConv", {"beta": True}),
    "transformer_beta_mean": ("TransformerConv", {"beta": True, "concat": False}),
    "transformer_dropout": ("TransformerConv", {"dropout": 0.6}),
    "transformer_no_bias": ("TransformerConv", {"bias": False}),
    "transformer_no_root": ("TransformerConv", {"root_weight": False, "beta": True}),
    "gat": ("GATConv", {}),
    "gat_one_head": ("GATConv", {"heads": 1}),
    "gat_mean": ("GATConv", {"concat": False}),
    "gat_slope": ("GATConv", {"negative_slope": 0.5}),
    "gat_dropout": ("GATConv", {"dropout": 0.6}),
    "gat_no_loops": ("GATConv", {"add_self_loops": False}),
    "gat_edge_dim": ("GATConv", {"edge_dim": 3, "fill_value": "add"}),
    "gat_no_bias": ("GATConv", {"bias": False}),
    "gat_residual": ("GATConv", {"residual": True}),
    "gat_residual_mean": ("GATConv", {"residual": True, "concat": False}),
    "gatv2": ("GATv2Conv", {}),
    "gatv2_one_head": ("GATv2Conv", {"heads": 1}),
    "gatv2_mean": ("GATv2Conv", {"concat": False}),
    "gatv2_slope": ("GATv2Conv", {"negative_slope": 0.5}),
    "gatv2_dropout": ("GATv2Conv", {"dropout": 0.6}),
    "gatv2_no_loops": ("GATv2Conv", {"add_self_loops": False}),
    "gatv2_edge_dim": ("GATv2Conv", {"edge_dim": 3, "fill_value": "add"}),
    "gatv2_no_bias": ("GATv2Conv", {"bias": False}),
    "gatv2_shared": ("GATv2Conv", {"share_weights": True}),
    "gatv2_residual": ("GATv2Conv", {"residual": True}),
    "gatv2_residual_mean": ("GATv2Conv", {"residual": True, "concat": False}),
    "supergat": ("SuperGATConv", {}),
    "supergat_sd": ("SuperGATConv", {"attention_type": "SD"}),
    "supergat_one_head": ("SuperGATConv", {"heads": 1}),
    "supergat_mean": ("SuperGATConv", {"concat": False}),
    "supergat_slope": ("SuperGATConv", {"negative_slope": 0.5}),
    "supergat_dropout": ("SuperGATConv", {"dropout": 0.6}),
    "supergat_no_loops": ("SuperGATConv", {"add_self_loops": False}),
    "supergat_no_bias": ("SuperGATConv", {"bias": False}),
    "agnn": ("AGNNConv", {}),
    "agnn_fixed_beta": ("AGNNConv", {"requires_grad": False}),
    "agnn_no_loops": ("AGNNConv", {"add_self_loops": False}),
}

LAYERS = {
    "TransformerConv": "transformer",
    "GATConv": "gat",
    "GATv2Conv": "gatv2",
    "SuperGATConv": "supergat",
    "AGNNConv": "agnn",
}

EDGE_LAYERS = ["TransformerConv", "GATConv", "GATv2Conv"]  # those with an edge_dim
WEIGHT_LAYERS = EDGE_LAYERS  # those with return_attention_weights

FEATURES = 8


def make(
    library: Any, layer: str, in_channels: Any = FEATURES, seed: int = 0, **kwargs: Any
) -> Any:
    """A layer with random weights where PyG initialises with zeros or ones."""
    torch.manual_seed(seed)
    if layer == "AGNNConv":
        conv = library.AGNNConv(**kwargs)
    else:
        conv = getattr(library, layer)(in_channels, 5, **{"heads": 2, **kwargs})
    for parameter in conv.parameters():
        if not isinstance(parameter, UninitializedParameter) and parameter.dim() == 1:
            torch.nn.init.normal_(parameter)
    return conv


def pair(layer: str, device: str = "cpu", **kwargs: Any) -> tuple[Any, Any]:
    """Our layer and PyG's, of the same weights."""
    return tuple(
        make(lib, layer, **kwargs).to(device) for lib in (pyg_dfgnn.nn, torch_geometric.nn)
    )


def edge_index_of(graph: Csr) -> Tensor:
    """The edges, shuffled: PyG's order is any order."""
    edges = torch.stack([graph.sources(), graph.destinations()])
    order = torch.randperm(edges.size(1), generator=torch.Generator().manual_seed(0))
    return edges[:, order.to(edges.device)]


def transposed(edge_index: Tensor, num_src: int, num_dst: int, value: Any = None) -> SparseTensor:
    pytest.importorskip("torch_sparse")
    return SparseTensor(
        row=edge_index[1], col=edge_index[0], value=value, sparse_sizes=(num_dst, num_src)
    )


def features(*sizes: int, device: str = "cpu", channels: int = FEATURES) -> list[Tensor]:
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(n, channels, generator=generator).to(device) for n in sizes]


def variant(name, device="cpu", **kwargs):
    layer, arguments = VARIANTS[name]
    ours, theirs = pair(layer, device, **{**arguments, **kwargs})
    return ours.eval(), theirs.eval()


def square(name, device="cpu"):
    """A graph and features of its nodes."""
    graph = graphs.make(name, device)
    return edge_index_of(graph), features(graph.num_dst, device=device)[0]


def hub(device="cpu"):
    edge_index, x = square("hub", device)
    return x, edge_index


def two_sided(name, device="cpu"):
    graph = graphs.make(name, device)
    return edge_index_of(graph), tuple(features(graph.num_src, graph.num_dst, device=device))


def bipartite_layers(device="cpu", **kwargs):
    """A pair of each layer that takes two node sets."""
    for layer in ("TransformerConv", "GATConv", "GATv2Conv"):
        yield pair(layer, device, in_channels=(FEATURES, FEATURES), **kwargs)
        yield pair(layer, device, in_channels=FEATURES, **kwargs)


class OfSomeEdges(torch.nn.Module):
    """A layer on edges whose number depends on values."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        return self.conv(x, edge_index[:, edge_index[0] > edge_index[1]])


class WithWeights(torch.nn.Module):
    """A layer that returns its attention weights, in the order of its edges, too."""

    def __init__(self, conv):
        super().__init__()
        self.conv = conv

    def forward(self, x, edge_index):
        out, (_, alpha) = self.conv(x, edge_index, return_attention_weights=True)
        return out, alpha


def edge_features(edge_index, dim=3):
    return torch.randn(edge_index.size(1), dim, generator=torch.Generator().manual_seed(1)).to(
        edge_index.device
    )


def outputs_and_gradients(conv: Any, x: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    """The output of a call with ``x``, a tensor or a tuple that may hold None; all gradients, of a
    compiled layer by the names that it had."""
    inputs = [x] if isinstance(x, Tensor) else list(x)
    leaves = [t if t is None else t.detach().clone().requires_grad_() for t in inputs]
    conv.zero_grad()
    out = conv(leaves[0] if isinstance(x, Tensor) else tuple(leaves), *args, **kwargs)
    weights = torch.linspace(-1, 1, out.numel(), device=out.device).view_as(out)
    (out * weights).sum().backward()
    results = {"out": out.detach()}
    for i, leaf in enumerate(leaves):
        if leaf is not None and leaf.grad is not None:
            results[f"x[{i}].grad"] = leaf.grad
    for name, parameter in conv.named_parameters():
        if parameter.grad is not None:
            results[f"{name.removeprefix('_orig_mod.')}.grad"] = parameter.grad.clone()
    return results


def largest_gradient(results: dict[str, Tensor]) -> float:
    sizes = [t.abs().max().item() for name, t in results.items() if name != "out" and t.numel()]
    return max(sizes, default=0.0)


def assert_same(actual: dict[str, Tensor], expected: dict[str, Tensor], scale: float = 1.0) -> None:
    """Forward within 1e-5 and gradients within 1e-4, relative to the largest entry.

    Gradients that cancel to nothing (of a bias of keys, for one) count relative to the others.
    A gradient may be missing on one side where it is zero on the other (PyG's graph of operations
    has no path to what no edge uses).
    """
    for name in sorted({*actual, *expected}):
        ours, theirs = actual.get(name), expected.get(name)
        ours = torch.zeros_like(theirs) if ours is None else ours
        theirs = torch.zeros_like(ours) if theirs is None else theirs
        assert ours.dtype == theirs.dtype, name
        tolerance = scale * (1e-5 if name == "out" else 1e-4)
        largest = theirs.abs().max().item() if theirs.numel() else 0.0
        atol = tolerance * max(largest, 0.01 * largest_gradient(expected))
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=atol, msg=lambda m, name=name: f"{name}: {m}"
        )


def assert_same_call(ours: Any, theirs: Any, x: Any, *args: Any, **kwargs: Any) -> None:
    """The same outputs and gradients of two layers."""
    expected = outputs_and_gradients(theirs, x, *args, **kwargs)
    assert_same(outputs_and_gradients(ours, x, *args, **kwargs), expected)


def same_weights(source: Any, target: Any) -> Any:
    target.load_state_dict(copy.deepcopy(source.state_dict()))
    return target


def assert_same_error(ours, theirs, *args, **kwargs):
    with pytest.raises(Exception) as expected:  # noqa: PT011
        theirs(*args, **kwargs)
    with pytest.raises(Exception) as actual:  # noqa: PT011
        ours(*args, **kwargs)
    assert type(actual.value) is type(expected.value)
    return str(actual.value)
