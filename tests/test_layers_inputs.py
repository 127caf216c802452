"""Every form of graph that PyG's layers take."""

import copy
import warnings

import pytest
import torch
from layers import (
    EDGE_LAYERS,
    FEATURES,
    LAYERS,
    VARIANTS,
    WEIGHT_LAYERS,
    assert_same,
    assert_same_call,
    assert_same_error,
    bipartite_layers,
    edge_features,
    features,
    outputs_and_gradients,
    pair,
    square,
    transposed,
    two_sided,
    variant,
)
from torch_geometric import EdgeIndex

import pyg_dfgnn
import pyg_dfgnn.nn

BIPARTITE = ["bipartite", "bipartite_few_sources", "no_destinations", "no_sources"]
PLAIN = [name for name in VARIANTS if VARIANTS[name][1].get("dropout", 0) == 0]


@pytest.mark.parametrize("graph", BIPARTITE)
@pytest.mark.parametrize("add_self_loops", [True, False])
def test_bipartite(graph, add_self_loops, device, fused):
    edge_index, x = two_sided(graph, device)
    for ours, theirs in bipartite_layers(device):
        if hasattr(ours, "add_self_loops"):
            ours.add_self_loops = theirs.add_self_loops = add_self_loops
        assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == 6


@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("in_channels", [FEATURES, (FEATURES, FEATURES)])
def test_gat_of_sources_only(in_channels, residual, device, fused):
    ours, theirs = pair("GATConv", device, in_channels=in_channels, residual=residual)
    edge_index, x = square("hub", device)
    assert_same_call(ours, theirs, (x, None), edge_index)
    edge_index, (x, _) = two_sided("bipartite_few_sources", device)
    assert_same_call(ours, theirs, (x, None), edge_index, size=(3, 30))
    assert_same_call(ours, theirs, (x, None), transposed(edge_index, 3, 30))
    assert len(fused) == 3


def test_edge_index_class_of_sources_only(device):
    """PyG reads the number of destinations off an EdgeIndex, and else takes that of the sources."""
    ours, theirs = pair("GATConv", device)
    edge_index, (x, _) = two_sided("bipartite", device)
    for sizes in ((29, 13), (None, None)):
        edges = EdgeIndex(edge_index, sparse_size=sizes)
        assert_same_call(ours, theirs, (x, None), edges, size=(29, 13))


@pytest.mark.parametrize("size", [(29, None), (None, 13), (None, None)])
def test_gat_size_in_part(size, device):
    ours, theirs = pair("GATConv", device, add_self_loops=False)
    edge_index, (x_src, x_dst) = two_sided("bipartite", device)
    assert_same_call(ours, theirs, (x_src, x_dst), edge_index, size=size)
    if size[1] is None:
        assert_same_call(ours, theirs, (x_src, None), edge_index, size=size)


def test_gat_size(device, fused):
    ours, theirs = pair("GATConv", device)
    edge_index, x = two_sided("bipartite", device)
    assert_same_call(ours, theirs, x, edge_index, size=(29, 13))
    assert len(fused) == 1


@pytest.mark.parametrize("layer", LAYERS)
def test_int32(layer, device, fused):
    ours, theirs = pair(layer, device)
    edge_index, x = square("empty_rows", device)
    expected = outputs_and_gradients(theirs, x, edge_index)
    assert_same(outputs_and_gradients(ours, x, edge_index.int()), expected)
    assert len(fused) == 1


@pytest.mark.parametrize("name", PLAIN)
def test_sparse_tensor(name, device, fused):
    ours, theirs = variant(name, device)
    edge_index, x = square("hub", device)
    value = torch.rand(edge_index.size(1), device=device)
    calls = 0
    for values in (None, value):
        adj_t = transposed(edge_index, 40, 40, values)
        if name in ("gat_edge_dim", "gatv2_edge_dim"):
            assert_same_error(ours, theirs, x, adj_t)
            continue
        assert_same_call(ours, theirs, x, adj_t)
        calls += 1
    assert len(fused) == calls


def test_sparse_tensor_of_two_node_sets(device, fused):
    edge_index, x = two_sided("bipartite", device)
    for ours, theirs in bipartite_layers(device):
        adj_t = transposed(edge_index, 29, 13)
        adj_t.storage.csr2csc()  # cached, and so reused
        assert_same_call(ours, theirs, x, adj_t)
    assert len(fused) == 6


@pytest.mark.parametrize("layer", LAYERS)
def test_edge_index_class(layer, device, fused):
    ours, theirs = variant(LAYERS[layer], device)  # PyG's SuperGATConv cannot train on one
    edge_index, x = square("empty_rows", device)
    assert_same_call(ours, theirs, x, EdgeIndex(edge_index))
    sized = EdgeIndex(edge_index, sparse_size=(9, 9))
    assert_same_call(ours, theirs, x, sized)
    assert_same_call(ours, theirs, x, sized.sort_by("col").values)
    assert len(fused) == 3


@pytest.mark.parametrize("layer", LAYERS)
def test_target_to_source(layer, device, fused):
    ours, theirs = pair(layer, device, flow="target_to_source")
    edge_index, x = square("empty_rows", device)
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == 1


def test_target_to_source_of_two_node_sets(device):
    ours, theirs = pair("TransformerConv", device, flow="target_to_source")
    edge_index, x = two_sided("bipartite", device)
    assert_same_call(ours, theirs, x, edge_index.flip(0))


@pytest.mark.parametrize("layer", LAYERS)
def test_graph_argument(layer, device, fused):
    ours, theirs = pair(layer, device)
    edge_index, x = square("hub", device)
    loops = getattr(ours, "add_self_loops", False)
    graph = pyg_dfgnn.build_graph(edge_index, 40, 40, self_loops=loops)
    expected = outputs_and_gradients(theirs, x, edge_index)
    assert_same(outputs_and_gradients(ours, x, graph), expected)
    assert len(fused) == 1
    other = pyg_dfgnn.build_graph(edge_index, 40, 40, self_loops=not loops)
    with pytest.raises(ValueError, match="self_loops"):
        ours(x, other)
    with pytest.raises(ValueError, match="num_src=40"):
        ours(x, pyg_dfgnn.build_graph(edge_index, 41, 40, self_loops=loops))
    ours.register_message_forward_hook(lambda *_: None)
    with pytest.raises(ValueError, match="hooks"):
        ours(x, graph)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_torch_sparse(layer, layout, device, fused):
    ours, theirs = variant(LAYERS[layer], device)  # PyG's SuperGATConv cannot train on one
    edge_index, x = square("isolated", device)
    adj_t = torch.zeros(5, 5, device=device)
    adj_t[edge_index[1], edge_index[0]] = 1
    adj_t = adj_t.to_sparse(layout=layout)
    if layout == torch.sparse_coo:
        adj_t = adj_t.coalesce()
    assert_same_call(ours, theirs, x, adj_t)
    assert len(fused) == 1


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("convert", [EdgeIndex.to_sparse_coo, EdgeIndex.to_sparse_csr])
@pytest.mark.parametrize("self_loops", [False, True])
def test_torch_sparse_with_duplicates(layer, convert, self_loops, device, fused):
    """PyG drops them where it adds self-loops; attention weights make no difference."""
    has_loops = layer != "TransformerConv"
    ours, theirs = variant(
        LAYERS[layer], device, **{"add_self_loops": self_loops} if has_loops else {}
    )
    ends = [[0, 0, 0, 1, 2, 3, 3, 3], [2, 1, 2, 3, 3, 3, 0, 3]]  # 0 to 2 and 3 to 3 twice
    edge_index = EdgeIndex(ends, sparse_size=(5, 5), sort_order="row", device=device)
    adj_t, x = convert(edge_index), features(5, device=device)[0]
    assert_same_call(ours, theirs, x, adj_t)
    assert len(fused) == 1
    if layer in WEIGHT_LAYERS:
        results = [
            conv(x, adj_t, return_attention_weights=True)[1][1].flatten().sort().values
            for conv in (ours, theirs)
        ]
        torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
def test_edges_of_an_edge_index_class_stay_as_they_are(layer, device):
    """PyG's operations, which take its caches along, find none of ours in it."""
    ours, theirs = variant(LAYERS[layer], device)
    edge_index, x = square("hub", device)
    nodes = x.size(0)
    sorted_edges = EdgeIndex(edge_index, sparse_size=(nodes, nodes)).sort_by("row").values
    ours(x, sorted_edges)
    for other in (sorted_edges.sort_by("col").values, sorted_edges.flip(0), sorted_edges + 0):
        expected = theirs(x, other.as_tensor())
        for conv in (ours, theirs):
            torch.testing.assert_close(conv(x, other), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_traced(layer, edge_dim, device):
    """For graphs of other sizes, as PyG's."""
    if edge_dim is not None and layer not in EDGE_LAYERS:
        pytest.skip("has no edge features")
    arguments = {} if edge_dim is None else {"edge_dim": edge_dim}
    ours, theirs = (conv.eval() for conv in pair(layer, device, **arguments))

    def call(name):
        edge_index, x = square(name, device)
        return (x, edge_index) if edge_dim is None else (x, edge_index, edge_features(edge_index))

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of sizes that are compared in Python
        traced = torch.jit.trace(ours, call("hub"))
    for name in ("hub", "isolated"):
        torch.testing.assert_close(traced(*call(name)), theirs(*call(name)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("edge_dim", [None, 3])
@pytest.mark.parametrize("layer", LAYERS)
def test_traced_in_another_precision(layer, edge_dim, device):
    """A trace is of no precision: it may be converted, and run in autocast."""
    if edge_dim is not None and layer not in EDGE_LAYERS:
        pytest.skip("has no edge features")
    arguments = {} if edge_dim is None else {"edge_dim": edge_dim}
    ours, theirs = (conv.eval() for conv in pair(layer, device, **arguments))
    edge_index, x = square("hub", device)
    features = () if edge_dim is None else (edge_features(edge_index),)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced, theirs_traced = (
            torch.jit.trace(conv, (x, edge_index, *features)) for conv in (ours, theirs)
        )
    exact = copy.deepcopy(theirs).double()
    inputs = (x.double(), edge_index, *(f.double() for f in features))
    expected = exact(*inputs)
    with torch.autocast(device, torch.bfloat16):
        found = traced(x, edge_index, *features)
        assert found.dtype == theirs_traced(x, edge_index, *features).dtype
    torch.testing.assert_close(found.double(), expected, rtol=5e-2, atol=5e-2)
    found = traced.double()(*inputs)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    found = traced.bfloat16()(*(t.bfloat16() if t.is_floating_point() else t for t in inputs))
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.double(), expected, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "TransformerConv"])
def test_dropped_self_loops_may_be_anywhere(layer, device, fused):
    """Such as those that fill up lists of edges: PyG drops them before it looks."""
    ours, theirs = pair(layer, device)
    edge_index, x = square("hub", device)
    filling = torch.tensor([-1, x.size(0), 2**33, -(2**40)], device=device)
    edge_index = torch.cat([edge_index, torch.stack([filling, filling])], dim=1)
    expected = theirs.eval()(x, edge_index)
    torch.testing.assert_close(ours.eval()(x, edge_index), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("layer", ["GATConv", "GATv2Conv", "SuperGATConv"])
def test_vectors_of_another_precision(layer, dtype, device):
    ours, theirs = (conv.eval() for conv in pair(layer, device))
    for conv in (ours, theirs):
        for name, vector in conv.named_parameters():
            if name.startswith("att"):
                vector.data = vector.data.to(dtype)
    edge_index, x = square("hub", device)
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index), rtol=1e-4, atol=1e-5)


def test_vector_of_edges_of_another_precision(device):
    ours, theirs = (conv.eval() for conv in pair("GATConv", device, edge_dim=3))
    for conv in (ours, theirs):
        conv.att_edge.data = conv.att_edge.data.double()
    edge_index, x = square("hub", device)
    inputs = (x, edge_index, edge_features(edge_index))
    torch.testing.assert_close(ours(*inputs), theirs(*inputs), rtol=1e-4, atol=1e-5)


def test_inference_tensors(device):
    """Of what an encoder made that is not trained; AGNN has no product before it saves."""
    ours, theirs = pair("AGNNConv", device)
    edge_index, x = square("hub", device)
    with torch.inference_mode():
        x = 2 * x
    (found,), (expected,) = (
        torch.autograd.grad(conv(x, edge_index).square().sum(), conv.beta)
        for conv in (ours, theirs)
    )
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def test_bias_of_another_precision(device):
    """Is an error in float32 and none in autocast, in PyG's layers, too."""
    edge_index, x = square("hub", device)
    for conv in pair("TransformerConv", device):
        conv.lin_key.bias = torch.nn.Parameter(conv.lin_key.bias.double())
        with pytest.raises(RuntimeError, match="dtype"):
            conv(x, edge_index)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_weights_by_vectors_of_another_half_precision(dtype, device):
    """As models of one have in autocast to the other."""
    other = {torch.float16: torch.bfloat16, torch.bfloat16: torch.float16}[dtype]
    conv, _ = pair("GATv2Conv", device)
    edge_index, x = square("hub", device)
    expected = conv(x, edge_index, return_attention_weights=True)
    with torch.autocast(device, dtype):
        found = conv.to(other)(x.to(other), edge_index, return_attention_weights=True)
    torch.testing.assert_close(found[0].float(), expected[0], rtol=5e-2, atol=5e-2)
    torch.testing.assert_close(found[1][1].float(), expected[1][1], rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("layer", ["GATConv", "GATv2Conv"])
def test_residuals_of_another_precision(layer, bias, device):
    """Results are promoted to it, as PyG's."""
    ours, theirs = pair(layer, device, residual=True, bias=bias)
    for conv in (ours, theirs):
        conv.res.double()
        conv.res.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    edge_index, x = square("hub", device)
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index), rtol=1e-4, atol=1e-5)


def test_values_of_another_precision(device):
    ours, theirs = pair("TransformerConv", device)
    for conv in (ours, theirs):
        conv.lin_value.double()
        conv.lin_value.register_forward_pre_hook(lambda _, inputs: (inputs[0].double(),))
    edge_index, x = square("hub", device)
    torch.testing.assert_close(ours(x, edge_index), theirs(x, edge_index), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("grad", [False, True])
def test_traced_results_may_be_changed_in_place(layer, grad):
    """In training, whatever the mode of the trace."""
    arguments = {"root_weight": False} if layer == "TransformerConv" else {"bias": False}
    ours, theirs = variant(LAYERS[layer], **arguments if layer != "AGNNConv" else {})
    edge_index, x = square("hub")
    with warnings.catch_warnings(), torch.set_grad_enabled(grad):
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(ours, (x, edge_index))
    results = []
    for conv in (traced, theirs):
        leaf = x.clone().requires_grad_()
        conv(leaf, edge_index).relu_().square().sum().backward()
        results.append(leaf.grad)
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("layer", LAYERS)
def test_traced_node_out_of_range(layer):
    ours, _ = variant(LAYERS[layer])
    edge_index, x = square("hub")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        traced = torch.jit.trace(ours, (x, edge_index))
    edge_index = edge_index.clone()
    edge_index[0, 3] = 40
    with pytest.raises(RuntimeError, match="edge_index: holds nodes that are out of range"):
        traced(x, edge_index)


@pytest.mark.parametrize("layer", LAYERS)
def test_refused_torch_sparse(layer):
    """CSC, an adjacency that is not coalesced, and one of another size, as far as PyG refuses."""
    ours, theirs = variant(LAYERS[layer])
    edge_index, x = square("isolated")
    values = torch.ones(edge_index.size(1))
    coo = torch.sparse_coo_tensor(edge_index.flip(0), values, (5, 5))
    for adj_t in (coo.to_sparse_csc(), torch.sparse_coo_tensor(edge_index, values, (6, 6))):
        assert_same_error(ours, theirs, x, adj_t)
    try:
        theirs(x, coo)
    except RuntimeError:
        assert_same_error(ours, theirs, x, coo)
    else:
        assert_same_call(ours, theirs, x, coo)
