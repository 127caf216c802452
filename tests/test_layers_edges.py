"""Edge features: the numbers of PyG, fused."""

import pytest
import torch
from layers import (
    EDGE_LAYERS,
    assert_same,
    assert_same_call,
    edge_features,
    make,
    outputs_and_gradients,
    pair,
    same_weights,
    square,
    transposed,
    two_sided,
)
from torch_geometric import EdgeIndex
from torch_geometric.utils import remove_self_loops

import pyg_dfgnn
import pyg_dfgnn.nn
from pyg_dfgnn.nn._edges import with_loops

FILL_VALUES = [
    "mean",
    "add",
    "sum",
    "max",
    "min",
    "amax",
    "amin",
    "mul",
    2.0,
    1,
    torch.tensor([1.0, 2.0, 3.0]),
    torch.tensor(-1.0),
]


LOOPED = [layer for layer in EDGE_LAYERS if layer != "TransformerConv"]


def gradient_of_features(conv, x, edge_index, edge_attr):
    leaf = edge_attr.clone().requires_grad_()
    conv(x, edge_index, leaf).square().sum().backward()
    return leaf.grad


@pytest.mark.parametrize("layer", LOOPED)
@pytest.mark.parametrize("fill_value", FILL_VALUES, ids=str)
def test_dropped_loops_may_have_any_features(layer, fill_value, device, fused):
    """As reciprocal lengths have: those of a loop are infinite, and go with it."""
    if isinstance(fill_value, torch.Tensor):
        fill_value = fill_value.to(device)
    ours, theirs = pair(layer, device, edge_dim=3, fill_value=fill_value)
    edge_index, x = square("hub", device)
    edge_index = torch.cat([edge_index, torch.tensor([[2, 5, 2], [2, 5, 2]], device=device)], 1)
    edge_attr = edge_features(edge_index)
    edge_attr[edge_index[0] == edge_index[1]] = torch.inf
    assert_same_call(ours, theirs, x, edge_index, edge_attr)
    expected = gradient_of_features(theirs, x, edge_index, edge_attr)
    actual = gradient_of_features(ours, x, edge_index, edge_attr)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert actual.isfinite().all()
    assert len(fused) == 2


@pytest.mark.parametrize("layer", LOOPED)
def test_means_of_sums_out_of_range(layer, device, fused):
    """In float16, where a sum of features is more than there are numbers for."""
    edge_index, x = square("hub", device)
    edge_attr = torch.full((edge_index.size(1), 2), 100.0, device=device)
    ours, _ = pair(layer, device, edge_dim=2)
    expected = ours(x, edge_index, edge_attr)
    with torch.autocast(device, torch.float16):
        found = ours(x, edge_index, edge_attr)
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-1)
    found = ours.half()(x.half(), edge_index, edge_attr.half())
    torch.testing.assert_close(found.float(), expected, rtol=1e-2, atol=1e-1)
    assert len(fused) == 3


@pytest.mark.parametrize("fill_value", ["mean", "sum"])
def test_features_of_self_loops_in_autocast(fill_value, device):
    """Are sums of the features as they are, though what comes of them is of half precision."""
    edge_index, _ = square("hub", device)
    graph = pyg_dfgnn.build_graph(edge_index, 40, 40, self_loops=True)
    edge_attr = 1000 * edge_features(edge_index)
    expected = with_loops(edge_attr, graph, fill_value, "source_to_target")
    with torch.autocast(device, torch.bfloat16):
        found = with_loops(edge_attr, graph, fill_value, "source_to_target")
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("layer", LOOPED)
def test_no_features(layer, device):
    """Which PyG takes: by its steps, in every call."""
    edge_index, x = square("hub", device)
    ours, theirs = pair(layer, device, edge_dim=0)
    for _ in range(2):
        assert_same_call(ours, theirs, x, edge_index, edge_features(edge_index, 0))


@pytest.mark.parametrize("layer", LOOPED)
def test_other_fill_values(layer, device, fused):
    edge_index, x = square("hub", device)
    for fill_value in (None, torch.nn.Parameter(torch.ones(3))):
        ours, theirs = pair(layer, device, edge_dim=3, fill_value=fill_value)
        same_weights(ours, theirs)
        assert_same_call(ours, theirs, x, edge_index, edge_features(edge_index))
    ours.fill_value = theirs.fill_value = None
    assert_same_call(ours, theirs, x, edge_index, edge_features(edge_index))
    assert len(fused) == 3


@pytest.mark.parametrize("layer", EDGE_LAYERS)
@pytest.mark.parametrize("graph", ["hub", "multigraph", "empty_rows", "no_edges", "no_nodes"])
@pytest.mark.parametrize("dim", [1, 3])
def test_edge_features(layer, graph, dim, device, fused):
    ours, theirs = pair(layer, device, edge_dim=dim)
    edge_index, x = square(graph, device)
    edge_attr = edge_features(edge_index, dim)
    assert_same_call(ours, theirs, x, edge_index, edge_attr)
    expected = gradient_of_features(theirs, x, edge_index, edge_attr)
    actual = gradient_of_features(ours, x, edge_index, edge_attr)
    if expected is not None:  # PyG's result may be independent of features that are no edge's
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert len(fused) == 2


@pytest.mark.parametrize("layer", LOOPED)
@pytest.mark.parametrize("fill_value", FILL_VALUES, ids=str)
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_features_of_self_loops(layer, fill_value, flow, device, fused):
    if isinstance(fill_value, torch.Tensor):
        fill_value = fill_value.to(device)
    ours, theirs = pair(layer, device, edge_dim=3, fill_value=fill_value, flow=flow)
    edge_index, x = square("hub", device)
    edge_attr = edge_features(edge_index)
    assert_same_call(ours, theirs, x, edge_index, edge_attr)
    expected = gradient_of_features(theirs, x, edge_index, edge_attr)
    actual = gradient_of_features(ours, x, edge_index, edge_attr)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)
    assert len(fused) == 2


@pytest.mark.parametrize("layer", EDGE_LAYERS)
@pytest.mark.parametrize("flow", ["source_to_target", "target_to_source"])
def test_same_bits_in_every_run(layer, flow, device, fused):
    ours, _ = pair(layer, device, edge_dim=3, flow=flow)
    edge_index, x = square("hub", device)
    edge_attr = edge_features(edge_index)
    first = outputs_and_gradients(ours, x, edge_index, edge_attr)
    for _ in range(5):
        for name, value in outputs_and_gradients(ours, x, edge_index, edge_attr).items():
            assert torch.equal(value, first[name]), name
    assert len(fused) == 6


@pytest.mark.parametrize("layer", LOOPED)
@pytest.mark.parametrize("fill_value", ["mean", 2.0, torch.tensor([1.5]), torch.tensor(0.5)])
def test_one_feature_as_a_vector(layer, fill_value, device, fused):
    ours, theirs = pair(layer, device, edge_dim=1, fill_value=fill_value)
    edge_index, x = square("hub", device)
    assert_same_call(ours, theirs, x, edge_index, edge_features(edge_index, 1).view(-1))
    assert len(fused) == 1


@pytest.mark.parametrize("layer", LOOPED)
@pytest.mark.parametrize("graph", ["bipartite", "no_destinations"])
def test_two_node_sets(layer, graph, device, fused):
    edge_index, x = two_sided(graph, device)
    for add_self_loops in (True, False):
        ours, theirs = pair(layer, device, edge_dim=3, add_self_loops=add_self_loops)
        assert_same_call(ours, theirs, x, edge_index, edge_features(edge_index))
    assert len(fused) == 2


@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_other_forms_of_graphs(layer, device, fused):
    loops = {"add_self_loops": False} if layer in LOOPED else {}
    ours, theirs = pair(layer, device, edge_dim=3, **loops)
    edge_index, x = square("empty_rows", device)
    edge_attr = edge_features(edge_index)
    assert_same_call(ours, theirs, x, transposed(edge_index, 9, 9, edge_attr))
    assert_same_call(ours, theirs, x, transposed(edge_index, 9, 9), edge_attr)
    index, order = EdgeIndex(edge_index, sparse_size=(9, 9)).sort_by("row")
    assert_same_call(ours, theirs, x, index, edge_attr[order])
    adj_t = torch.sparse_coo_tensor(edge_index.flip(0), edge_attr, (9, 9, 3)).coalesce()
    assert_same_call(ours, theirs, x, adj_t)
    assert_same_call(ours, theirs, x, adj_t, adj_t.values())
    assert len(fused) == 5


@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_graph_argument(layer, device, fused):
    ours, theirs = pair(layer, device, edge_dim=3)
    edge_index, x = square("hub", device)
    graph = pyg_dfgnn.build_graph(edge_index, 40, 40, self_loops=layer in LOOPED)
    edge_attr = edge_features(edge_index)
    expected = outputs_and_gradients(theirs, x, edge_index, edge_attr)
    assert_same(outputs_and_gradients(ours, x, graph, edge_attr), expected)
    assert len(fused) == 1


@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_dropout(layer, device):
    """Averages over many passes come close to the pass without dropout."""
    loops = {"add_self_loops": False} if layer in LOOPED else {"root_weight": False}
    conv, _ = pair(layer, device, dropout=0.5, heads=1, edge_dim=3, **loops)
    edge_index, x = square("hub", device)
    edge_attr = edge_features(edge_index)
    passes = torch.stack([conv(x, edge_index, edge_attr).detach() for _ in range(400)])
    expected = conv.eval()(x, edge_index, edge_attr)
    error = (passes.mean(0) - expected).abs() / passes.std(0).clamp_min(1e-6)
    assert error.max() < 5 / 400**0.5


@pytest.mark.parametrize("layer", EDGE_LAYERS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(layer, dtype, device, fused):
    ours, theirs = pair(layer, device, edge_dim=3)
    edge_index, x = square("empty_rows", device)
    edge_attr = edge_features(edge_index)
    expected = theirs.double()(x.double(), edge_index, edge_attr.double())
    actual = ours.to(dtype)(x.to(dtype), edge_index, edge_attr.to(dtype))
    assert actual.dtype == dtype
    tolerance = 1e-12 if dtype == torch.float64 else 0.05 * expected.abs().max().item()
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance)
    assert len(fused) == 1


@pytest.mark.parametrize("layer", EDGE_LAYERS)
@pytest.mark.parametrize("sizes", [{"edge_dim": 3}, {"edge_dim": 1, "heads": 1}], ids=str)
def test_autocast(layer, sizes, device, fused):
    ours, theirs = pair(layer, device, **sizes)
    edge_index, x = square("hub", device)
    edge_attr = edge_features(edge_index, sizes["edge_dim"])
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = theirs(x, edge_index, edge_attr)
        actual = ours(x, edge_index, edge_attr)
    assert actual.dtype == expected.dtype
    atol = 0.03 * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, rtol=0, atol=atol)
    assert len(fused) == 1


@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_no_tensor_of_edges_heads_and_channels(layer):
    """Nothing that autograd keeps has as many numbers as edges × heads × channels."""
    conv, _ = pair(layer, heads=4, edge_dim=2)
    edge_index, x = square("hub")
    edge_attr = edge_features(edge_index, 2).requires_grad_()
    sizes = []

    def record(t):
        sizes.append(t.numel())
        return t

    with torch.autograd.graph.saved_tensors_hooks(record, lambda t: t):
        conv(x, edge_index, edge_attr).sum().backward()
    assert max(sizes) < edge_index.size(1) * 4 * 5


@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_projections_that_are_looked_at(layer, fused):
    """A hook on lin_edge, or another module in its place, sees the features of all edges."""
    ours, theirs = pair(layer, edge_dim=3)
    edge_index, x = square("hub")
    edge_attr = edge_features(edge_index)
    seen = []
    hook = ours.lin_edge.register_forward_hook(lambda _, inputs, out: seen.append(inputs[0]))
    assert_same_call(ours, theirs, x, edge_index, edge_attr)
    assert seen[0].size(0) >= remove_self_loops(edge_index)[0].size(1)
    hook.remove()
    for conv in (ours, theirs):
        conv.lin_edge = torch.nn.Sequential(conv.lin_edge, torch.nn.Tanh())
    assert_same_call(ours, theirs, x, edge_index, edge_attr)
    assert not fused


@pytest.mark.parametrize("layer", EDGE_LAYERS)
def test_lazy_initialisation(layer, fused):
    """The first call, which makes the weights, is PyG's."""
    ours, theirs = pair(layer, edge_dim=-1)
    edge_index, x = square("hub")
    edge_attr = edge_features(edge_index)
    for conv in (ours, theirs):
        torch.manual_seed(5)
        conv(x, edge_index, edge_attr)
    assert not fused
    assert_same_call(ours, theirs, x, edge_index, edge_attr)
    assert len(fused) == 1


@pytest.mark.parametrize("layer", LOOPED)
def test_ignored_or_missing_features(layer, device, fused):
    ours, theirs = pair(layer, device)
    edge_index, x = square("hub", device)
    if layer == "GATConv":  # GATv2Conv asserts that there is an edge_dim
        assert_same_call(ours, theirs, x, edge_index, edge_features(edge_index))
    ours, theirs = pair(layer, device, edge_dim=3)
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == (2 if layer == "GATConv" else 1)


def test_transformer_adds_features_to_values_without_edge_dim(device, fused):
    ours, theirs = pair("TransformerConv", device)
    edge_index, x = square("hub", device)
    edge_attr = torch.randn(edge_index.size(1), 2, 5, device=device)
    assert_same_call(ours, theirs, x, edge_index, edge_attr)
    assert not fused


@pytest.mark.parametrize("fill_value", ["mean", "max", "mul"])
@pytest.mark.parametrize("layer", LOOPED)
def test_int32_by_pygs_steps(layer, fill_value, device):
    """Torch has wrong gradients of what PyG does with int32."""
    conv = make(pyg_dfgnn.nn, layer, edge_dim=3, fill_value=fill_value).to(device)
    conv.register_message_forward_hook(lambda *_: None)
    edge_index, x = square("hub", device)
    edge_attr = edge_features(edge_index)
    wide, narrow = (
        gradient_of_features(conv, x, e, edge_attr) for e in (edge_index, edge_index.int())
    )
    torch.testing.assert_close(narrow, wide)
    _, (edges, _) = conv(x, edge_index.int(), edge_attr, return_attention_weights=True)
    assert edges.dtype == torch.int64  # as PyG's


@pytest.mark.parametrize("fill_value", ["mean", "max", "mul"])
@pytest.mark.parametrize("layer", LOOPED)
def test_int32_of_an_edge_index_with_weights(layer, fill_value, device):
    """PyG sorts self-loops in, whatever comes after."""
    conv = make(pyg_dfgnn.nn, layer, edge_dim=3, fill_value=fill_value).to(device)
    edge_index, x = square("hub", device)
    n = x.size(0)
    leaves = [edge_features(edge_index).requires_grad_() for _ in range(2)]
    for edges, leaf in zip((edge_index, edge_index.int()), leaves, strict=True):
        edges = EdgeIndex(edges, sparse_size=(n, n))
        out, (found, _) = conv(x, edges, leaf, return_attention_weights=True)
        assert (type(found), found.dtype) == (EdgeIndex, torch.int64)
        out.square().sum().backward()
    torch.testing.assert_close(leaves[1].grad, leaves[0].grad)
