"""Attention weights: the numbers of PyG, in its order and form."""

import warnings

import pytest
import torch
from layers import (
    WEIGHT_LAYERS,
    WithWeights,
    edge_features,
    pair,
    square,
    transposed,
    two_sided,
)
from torch_geometric import EdgeIndex

import pyg_dfgnn

FORMS = {
    "tensor": lambda edge_index, n: edge_index,
    "EdgeIndex": lambda edge_index, n: EdgeIndex(edge_index, sparse_size=(n, n)),
    "sorted_EdgeIndex": lambda edge_index, n: (
        EdgeIndex(edge_index, sparse_size=(n, n)).sort_by("col").values
    ),
    "SparseTensor": lambda edge_index, n: transposed(edge_index, n, n),
    "sparse_coo": lambda edge_index, n: torch.sparse_coo_tensor(
        edge_index.flip(0), torch.rand(edge_index.size(1), device=edge_index.device), (n, n)
    ).coalesce(),
    "sparse_csr": lambda edge_index, n: FORMS["sparse_coo"](edge_index, n).to_sparse_csr(),
}


def call(conv, x, *args, **kwargs):
    """The output, the edges, the weights, and the gradients of a function of both, those of the
    weights among them."""
    leaves = [t.clone().requires_grad_() for t in ((x,) if isinstance(x, torch.Tensor) else x)]
    conv.zero_grad()
    arguments = leaves[0] if isinstance(x, torch.Tensor) else tuple(leaves)
    out, weights = conv(arguments, *args, return_attention_weights=True, **kwargs)
    if isinstance(weights, tuple):
        edges, alpha = weights
    else:
        edges, alpha = weights, weights.storage.value()
    alpha.retain_grad()
    direction = torch.linspace(-1, 1, alpha.numel(), device=alpha.device).view_as(alpha)
    ((alpha * direction).sum() + out.square().sum()).backward()
    gradients = [leaf.grad for leaf in (*leaves, alpha)]
    parameters = {n: p.grad for n, p in conv.named_parameters() if p.grad is not None}
    return out.detach(), edges, alpha.detach(), gradients, parameters


def assert_same_weights(ours, theirs, x, edge_index, *args, seed=None, **kwargs):
    results = []
    for conv in (ours, theirs):
        if seed is not None:
            torch.manual_seed(seed)
        results.append(call(conv, x, edge_index, *args, **kwargs))
    actual, expected = results
    assert type(actual[1]) is type(expected[1])
    dense = [result[1] for result in results]
    if not isinstance(dense[0], torch.Tensor) or dense[0].layout != torch.strided:
        dense = [edges.to_dense() for edges in dense]
    torch.testing.assert_close(*dense, rtol=1e-5, atol=1e-6)
    for a, b in ((actual[0], expected[0]), (actual[2], expected[2])):
        assert a.dtype == b.dtype
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(actual[3:], expected[3:], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("graph", ["multigraph", "hub", "no_edges"])
def test_attention_weights(layer, form, graph, device, fused):
    if graph == "multigraph" and form.startswith("sparse"):
        pytest.skip("an adjacency matrix holds an edge once")
    ours, theirs = pair(layer, device)
    edge_index, x = square(graph, device)
    edges = FORMS[form](edge_index, x.size(0))
    assert_same_weights(ours, theirs, x, edges)
    assert fused == ["attention_weights"]


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
def test_int32(layer, device, fused):
    """The weights of int64, of whose gradients PyG's of int32 are not."""
    conv, theirs = pair(layer, device)
    edge_index, x = square("multigraph", device)
    actual, expected = call(conv, x, edge_index.int()), call(conv, x, edge_index)
    assert actual[1].dtype == theirs(x, edge_index.int(), return_attention_weights=True)[1][0].dtype
    torch.testing.assert_close(actual, expected, check_dtype=False)
    assert len(fused) == 2


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_with_edge_features(layer, flow, device, fused):
    ours, theirs = pair(layer, device, edge_dim=3, flow=flow)
    edge_index, x = square("hub", device)
    assert_same_weights(ours, theirs, x, edge_index, edge_features(edge_index))
    assert fused == ["attention_weights"]


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
@pytest.mark.parametrize("form", ["tensor", "SparseTensor"])
def test_dropout_as_drawn_by_pyg(layer, form, device, fused):
    """Weights after dropout where PyG's are, and the same edges dropped for the same seed."""
    ours, theirs = pair(layer, device, dropout=0.5)
    edge_index, x = square("hub", device)
    assert_same_weights(ours, theirs, x, FORMS[form](edge_index, 40), seed=3)
    assert fused == ["attention_weights"]


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
@pytest.mark.parametrize("graph", ["bipartite", "bipartite_few_sources", "no_destinations"])
def test_two_node_sets(layer, graph, device, fused):
    ours, theirs = pair(layer, device)
    edge_index, x = two_sided(graph, device)
    assert_same_weights(ours, theirs, x, edge_index)
    assert fused == ["attention_weights"]


def test_gat_of_sources_only(device, fused):
    ours, theirs = pair("GATConv", device)
    edge_index, (x, _) = two_sided("bipartite_few_sources", device)
    results = [
        conv((x, None), edge_index, size=(3, 30), return_attention_weights=True)
        for conv in (ours, theirs)
    ]
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    assert fused == ["attention_weights"]


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
def test_traced(layer):
    """Of a graph with and one without self-loops, in the place of the other."""
    ours, theirs = pair(layer)
    edge_index, x = square("hub")
    without = edge_index[:, edge_index[0] != edge_index[1]]
    graphs = [without, without.clone()]
    graphs[1][0, 3] = graphs[1][1, 3]
    for example, other in (graphs, graphs[::-1]):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of sizes that are compared in Python
            traced = torch.jit.trace(WithWeights(ours), (x, example))
        expected = WithWeights(theirs)(x, other)
        torch.testing.assert_close(traced(x, other), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
def test_flag(layer, fused):
    """False asks for weights of a TransformerConv, and for none of the others."""
    ours, theirs = pair(layer)
    edge_index, x = square("hub")
    results = [conv(x, edge_index, return_attention_weights=False) for conv in (ours, theirs)]
    assert isinstance(results[0], tuple) == (layer == "TransformerConv")
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)
    assert len(fused) == 1


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(layer, dtype, device):
    ours, theirs = (conv.to(dtype) for conv in pair(layer, device))
    edge_index, x = square("empty_rows", device)
    results = [conv(x.to(dtype), edge_index, None, return_attention_weights=True)
               for conv in (ours, theirs)]  # fmt: skip
    ours, theirs = ((out, alpha) for out, (_, alpha) in results)
    for a, b in zip(ours, theirs, strict=True):
        assert a.dtype == b.dtype == dtype
        tolerance = 1e-12 if dtype == torch.float64 else 0.1
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
def test_autocast(layer, device):
    ours, theirs = pair(layer, device)
    edge_index, x = square("hub", device)
    with torch.autocast(device, dtype=torch.bfloat16):
        results = [conv(x, edge_index, return_attention_weights=True) for conv in (ours, theirs)]
    assert results[0][0].dtype == results[1][0].dtype
    assert results[0][1][1].dtype == results[1][1][1].dtype
    torch.testing.assert_close(results[0][1][1], results[1][1][1], rtol=0.05, atol=0.05)


@pytest.mark.parametrize("layer", WEIGHT_LAYERS)
def test_a_graph_has_no_edge_index_to_return(layer):
    ours, _ = pair(layer)
    edge_index, x = square("hub")
    graph = pyg_dfgnn.build_graph(edge_index, 40, 40, getattr(ours, "add_self_loops", False))
    with pytest.raises(ValueError, match="attention weights of a Graph"):
        ours(x, graph, return_attention_weights=True)


@pytest.mark.parametrize("trained", ["lin_value", "lin_skip", "lin_query"])
def test_weights_of_frozen_layers(trained, device):
    """Weights need gradients where what makes them does, not where other layers of x do."""
    ours, theirs = pair("TransformerConv", device)
    edge_index, x = square("hub", device)
    for conv in (ours, theirs):
        conv.requires_grad_(False)
        getattr(conv, trained).requires_grad_(True)
    found, expected = (c(x, edge_index, return_attention_weights=True) for c in (ours, theirs))
    assert found[0].requires_grad is expected[0].requires_grad
    assert found[1][1].requires_grad is expected[1][1].requires_grad
