"""The layers give what PyG's layers of the same weights give, and run fused where they should."""

import copy
import inspect
import io
import pickle

import graphs
import pytest
import torch
import torch_geometric.nn
from layers import (
    FEATURES,
    LAYERS,
    VARIANTS,
    assert_same,
    assert_same_call,
    edge_index_of,
    features,
    largest_gradient,
    make,
    outputs_and_gradients,
    pair,
    transposed,
)
from torch_geometric import EdgeIndex
from torch_geometric.nn.conv import MessagePassing

import pyg_dfgnn
import pyg_dfgnn.nn

SQUARE = [name for name, graph in graphs.GRAPHS.items() if graph().num_src == graph().num_dst]
BIPARTITE = ["bipartite", "bipartite_few_sources", "no_destinations", "no_sources"]
PLAIN = [name for name in VARIANTS if VARIANTS[name][1].get("dropout", 0) == 0]


@pytest.fixture
def fused(monkeypatch):
    """The names of the fused operators that layers call, in the order of the calls."""
    calls = []
    for module, name in (
        (pyg_dfgnn.nn.transformer_conv, "dot_attention"),
        (pyg_dfgnn.nn.gat_conv, "additive_attention"),
        (pyg_dfgnn.nn.agnn_conv, "cosine_attention"),
    ):
        original = getattr(module, name)

        def record(*args, _name=name, _original=original, **kwargs):
            calls.append(_name)
            return _original(*args, **kwargs)

        monkeypatch.setattr(module, name, record)
    return calls


def variant(name, device="cpu", **kwargs):
    layer, arguments = VARIANTS[name]
    ours, theirs = pair(layer, device, **{**arguments, **kwargs})
    return ours.eval(), theirs.eval()


def square(name, device="cpu"):
    """A graph and features of its nodes."""
    graph = graphs.make(name, device)
    return edge_index_of(graph), features(graph.num_dst, device=device)[0]


def two_sided(name, device="cpu"):
    graph = graphs.make(name, device)
    return edge_index_of(graph), tuple(features(graph.num_src, graph.num_dst, device=device))


def bipartite_layers(device="cpu", **kwargs):
    """A pair of each layer that takes two node sets."""
    for layer in ("TransformerConv", "GATConv"):
        yield pair(layer, device, in_channels=(FEATURES, FEATURES), **kwargs)
        yield pair(layer, device, in_channels=FEATURES, **kwargs)


# Construction


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


# Fused calls


@pytest.mark.parametrize("name", VARIANTS)
@pytest.mark.parametrize("graph", ["hub", "multigraph", "empty_rows"])
def test_same_as_pyg(name, graph, device, fused):
    ours, theirs = variant(name, device)
    edge_index, x = square(graph, device)
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == 1


@pytest.mark.parametrize("name", ["transformer", "gat", "gat_no_loops", "agnn", "agnn_no_loops"])
@pytest.mark.parametrize("graph", SQUARE)
def test_graphs(name, graph, device, fused):
    ours, theirs = variant(name, device)
    edge_index, x = square(graph, device)
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == 1


@pytest.mark.parametrize("graph", BIPARTITE)
@pytest.mark.parametrize("add_self_loops", [True, False])
def test_bipartite(graph, add_self_loops, device, fused):
    edge_index, x = two_sided(graph, device)
    for ours, theirs in bipartite_layers(device):
        if hasattr(ours, "add_self_loops"):
            ours.add_self_loops = theirs.add_self_loops = add_self_loops
        assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == 4


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
        if name == "gat_edge_dim":
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
    assert len(fused) == 4


@pytest.mark.parametrize("layer", LAYERS)
def test_edge_index_class(layer, device, fused):
    ours, theirs = pair(layer, device)
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
@pytest.mark.parametrize("method", ["smmf", "pmf"])
def test_method(layer, method, device, fused):
    ours, theirs = pair(layer, device)
    ours.method = method
    edge_index, x = square("hub", device)
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == 1


def test_method_is_passed_on_and_checked():
    for layer in LAYERS:
        ours = make(pyg_dfgnn.nn, layer, method="fastest")
        edge_index, x = square("hub")
        with pytest.raises(RuntimeError, match="method"):
            ours(x, edge_index)


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
    ours, theirs = pair(layer, device)
    edge_index, x = square("hub", device)
    with torch.autocast(device, dtype=torch.bfloat16):
        expected = outputs_and_gradients(theirs, x, edge_index)
        result = outputs_and_gradients(ours, x, edge_index)
        half = theirs(x.bfloat16(), edge_index), ours(x.bfloat16(), edge_index)
    assert len(fused) == 2
    assert half[0].dtype == half[1].dtype
    for name, value in expected.items():
        assert result[name].dtype == value.dtype, name
        error = (result[name] - value).abs().max()
        largest = max(value.abs().max(), 0.2 * largest_gradient(expected))
        assert error <= (1e-4 if layer == "AGNNConv" else 0.03) * largest, name


# Dropout


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


# PyG's path


def edge_features(edge_index, dim=3):
    return torch.randn(edge_index.size(1), dim, generator=torch.Generator().manual_seed(1)).to(
        edge_index.device
    )


@pytest.mark.parametrize("fill_value", ["mean", "max", 2.0, torch.tensor([1.0, 2.0, 3.0])])
def test_gat_edge_features(fill_value, device, fused):
    if isinstance(fill_value, torch.Tensor):
        fill_value = fill_value.to(device)
    ours, theirs = pair("GATConv", device, edge_dim=3, fill_value=fill_value)
    edge_index, x = square("hub", device)
    assert_same_call(ours, theirs, x, edge_index, edge_features(edge_index))
    assert not fused


def test_gat_ignores_edge_features_without_edge_dim(device, fused):
    ours, theirs = pair("GATConv", device)
    edge_index, x = square("hub", device)
    assert_same_call(ours, theirs, x, edge_index, edge_features(edge_index))
    assert len(fused) == 1


@pytest.mark.parametrize("edge_dim", [3, None])
def test_transformer_edge_features(edge_dim, device, fused):
    ours, theirs = pair("TransformerConv", device, edge_dim=edge_dim)
    edge_index, x = square("hub", device)
    shape = (3,) if edge_dim else (2, 5)  # without edge_dim, PyG adds them to the values
    attributes = torch.randn(edge_index.size(1), *shape, device=device)
    assert_same_call(ours, theirs, x, edge_index, attributes)
    adj_t = transposed(edge_index, 40, 40, attributes)
    assert_same_call(ours, theirs, x, adj_t)
    assert not fused


def gat_without_loops(device):
    return pair("GATConv", device, add_self_loops=False, edge_dim=3)


def test_gat_sparse_edge_features(device, fused):
    ours, theirs = gat_without_loops(device)
    edge_index, x = square("hub", device)
    adj_t = transposed(edge_index, 40, 40, edge_features(edge_index))
    assert_same_call(ours, theirs, x, adj_t)
    assert not fused


@pytest.mark.parametrize("flag", [True, False])
@pytest.mark.parametrize("layer", ["TransformerConv", "GATConv"])
def test_attention_weights(layer, flag, device, fused):
    ours, theirs = pair(layer, device)
    edge_index, x = square("multigraph", device)
    result, expected = (c(x, edge_index, return_attention_weights=flag) for c in (ours, theirs))
    if layer == "GATConv" and not flag:
        torch.testing.assert_close(result, expected)
        assert len(fused) == 1
        return
    assert not fused
    torch.testing.assert_close(result[0], expected[0])
    assert torch.equal(result[1][0], expected[1][0])
    torch.testing.assert_close(result[1][1], expected[1][1])
    adj_t = transposed(edge_index, 3, 3)
    result, expected = (c(x, adj_t, return_attention_weights=True) for c in (ours, theirs))
    torch.testing.assert_close(result[0], expected[0])
    torch.testing.assert_close(result[1].to_dense(), expected[1].to_dense())


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_torch_sparse(layer, layout, device):
    ours, theirs = pair(layer, device)
    edge_index, x = square("isolated", device)
    adj_t = torch.zeros(5, 5, device=device)
    adj_t[edge_index[1], edge_index[0]] = 1
    adj_t = adj_t.to_sparse(layout=layout)
    if layout == torch.sparse_coo:
        adj_t = adj_t.coalesce()
    assert_same_call(ours, theirs, x, adj_t)
    if layer != "AGNNConv":
        result, expected = (c(x, adj_t, return_attention_weights=True) for c in (ours, theirs))
        torch.testing.assert_close(result[0], expected[0])
        torch.testing.assert_close(result[1][0].to_dense(), expected[1][0].to_dense())
        torch.testing.assert_close(result[1][1], expected[1][1])


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("aggr", ["mean", "max", "sum"])
def test_aggregations(layer, aggr, device, fused):
    ours, theirs = pair(layer, device, aggr=aggr)
    edge_index, x = square("empty_rows", device)
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == (aggr == "sum")


@pytest.mark.parametrize("layer", LAYERS)
def test_decomposed_layers(layer, fused):
    """PyG's result, whatever it is worth (attention does not decompose), or PyG's error."""
    ours, theirs = pair(layer, decomposed_layers=2)
    edge_index, x = square("hub")
    if layer == "AGNNConv":
        assert_same_call(ours, theirs, x, edge_index)
    else:
        assert_same_error(ours, theirs, x, edge_index)
    assert not fused


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    "register",
    ["propagate_forward", "message_forward", "aggregate_forward", "message_forward_pre"],
)
def test_hooks(layer, register, fused):
    ours, _ = pair(layer)
    edge_index, x = square("hub")
    seen = []
    hook = getattr(ours, f"register_{register}_hook")(lambda *args: seen.append(args))
    expected = ours(x, edge_index)
    assert seen
    assert not fused
    hook.remove()
    torch.testing.assert_close(ours(x, edge_index), expected, rtol=1e-5, atol=1e-5)
    assert len(fused) == 1


def test_edge_update_hook(fused):
    ours, _ = pair("GATConv")
    edge_index, x = square("hub")
    ours.register_edge_update_forward_hook(lambda module, inputs, out: torch.zeros_like(out))
    torch.testing.assert_close(ours(x, edge_index), ours.bias.expand(40, -1))
    assert not fused


@pytest.mark.parametrize("layer", ["GATConv", "TransformerConv", "AGNNConv"])
def test_explain(layer, fused):
    """An edge mask changes the messages, also where PyG's own layer was made before ours."""
    theirs, ours = (make(lib, layer) for lib in (torch_geometric.nn, pyg_dfgnn.nn))
    edge_index, x = square("hub")
    for conv in (ours, theirs):
        conv.explain = True
        conv._edge_mask = torch.linspace(-3, 3, edge_index.size(1))
        conv._loop_mask = edge_index[0] != edge_index[1]
        if layer == "TransformerConv":
            conv._loop_mask = torch.ones_like(conv._loop_mask)
    assert_same_call(ours, theirs, x, edge_index)
    assert not fused
    for conv in (ours, theirs):
        conv.explain = None
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == 1


def test_own_steps_in_a_subclass(fused):
    class Doubled(pyg_dfgnn.nn.GATConv):
        def message(self, x_j, alpha):
            return 2 * alpha.unsqueeze(-1) * x_j

    edge_index, x = square("hub")
    conv, doubled = make(pyg_dfgnn.nn, "GATConv", bias=False), Doubled(FEATURES, 5, 2, bias=False)
    doubled.load_state_dict(conv.state_dict())
    torch.testing.assert_close(doubled(x, edge_index), 2 * conv(x, edge_index))
    conv.message = lambda x_j, alpha: torch.zeros_like(x_j)
    assert conv(x, edge_index).abs().max() == 0
    assert len(fused) == 1


@pytest.mark.parametrize("layer", LAYERS)
def test_functional_transforms(layer, fused):
    ours, theirs = pair(layer)
    edge_index, x = square("hub")
    for transform in (
        lambda conv: torch.func.grad(lambda x: conv(x, edge_index).square().sum())(x),
        lambda conv: torch.func.jvp(lambda x: conv(x, edge_index), (x,), (x.flip(0),))[1],
        lambda conv: torch.func.vmap(lambda t: conv(t * x, edge_index))(torch.ones(3)),
    ):
        try:
            expected = transform(theirs)
        except RuntimeError:  # PyG cannot
            continue
        torch.testing.assert_close(transform(ours), expected, rtol=1e-4, atol=1e-4)
    assert not fused


# Errors


def assert_same_error(ours, theirs, *args, **kwargs):
    with pytest.raises(Exception) as expected:  # noqa: PT011
        theirs(*args, **kwargs)
    with pytest.raises(Exception) as actual:  # noqa: PT011
        ours(*args, **kwargs)
    assert type(actual.value) is type(expected.value)
    return str(actual.value)


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


@pytest.mark.parametrize("layer", LAYERS)
def test_other_errors(layer):
    ours, theirs = pair(layer)
    edge_index, x = square("hub")
    assert_same_error(ours, theirs, x[:, :3] if layer != "AGNNConv" else x[0], edge_index)
    assert_same_error(ours, theirs, x, transposed(edge_index, 41, 41))
    assert_same_error(ours, theirs, x[None].expand(2, -1, -1), edge_index.expand(3, 2, -1))
    ours.flow = theirs.flow = "target_to_source"
    assert_same_error(ours, theirs, x, transposed(edge_index, 40, 40))


def test_gat_errors():
    ours, theirs = pair("GATConv", edge_dim=3)
    edge_index, x = square("hub")
    assert_same_error(ours, theirs, x, edge_index, size=(40, 41))
    assert_same_error(ours, theirs, (x, None), edge_index, size=(41, 40))
    assert_same_error(ours, theirs, x[None], edge_index)
    assert_same_error(ours, theirs, x, transposed(edge_index, 40, 40))
    assert_same_error(ours, theirs, x, edge_index, edge_features(edge_index)[:5])


def test_transformer_errors():
    ours, theirs = pair("TransformerConv", edge_dim=3)
    edge_index, x = square("hub")
    assert_same_error(ours, theirs, x, edge_index)
    assert_same_error(ours, theirs, (x, None), edge_index)


@pytest.mark.parametrize("layer", LAYERS)
def test_constructor_errors(layer):
    for arguments in ({"flow": "sideways"}, {"no_such_argument": 1}, {"aggr": "no_such"}):
        errors = []
        for library in (pyg_dfgnn.nn, torch_geometric.nn):
            with pytest.raises(Exception) as error:  # noqa: PT011
                make(library, layer, **arguments)
            errors.append(type(error.value))
        assert errors[0] is errors[1]


# Life cycle


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


@pytest.mark.parametrize("layer", LAYERS)
def test_copies(layer, fused):
    ours, theirs = pair(layer)
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


@pytest.mark.parametrize("layer", LAYERS)
def test_capture_in_a_cuda_graph(layer, cuda):
    """With a prebuilt Graph nothing in the layer waits for the device, forward and backward."""
    ours, theirs = pair(layer, cuda)
    edge_index, x = square("hub", cuda)
    loops = getattr(ours, "add_self_loops", False)
    graph = pyg_dfgnn.build_graph(edge_index, 40, 40, self_loops=loops)
    x = x.requires_grad_()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            ours(x, graph).square().sum().backward()
    torch.cuda.current_stream().wait_stream(stream)
    x.grad = None
    ours.zero_grad(set_to_none=True)
    capture = torch.cuda.CUDAGraph()
    with torch.cuda.graph(capture):
        out = ours(x, graph)
        out.square().sum().backward()
        rebuilt = ours(x, edge_index)  # the conversion is captured too
    with torch.no_grad():
        x.copy_(x.flip(0))
    capture.replay()
    expected = x.detach().clone().requires_grad_()
    result = theirs(expected, edge_index)
    result.square().sum().backward()
    torch.testing.assert_close(out, result, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(rebuilt, result, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(x.grad, expected.grad, rtol=1e-4, atol=1e-4)


# What surrounds the layers


def test_gps():
    edge_index, x = square("hub")
    results = []
    for library in (pyg_dfgnn.nn, torch_geometric.nn):
        conv = make(library, "TransformerConv", heads=1, concat=False)
        conv.out_channels = 5
        torch.manual_seed(1)
        inner = library.GATConv(FEATURES, FEATURES)
        results.append(torch_geometric.nn.GPSConv(FEATURES, inner, heads=2).eval()(x, edge_index))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


def test_hetero():
    x = dict(zip(("a", "b"), features(29, 13), strict=True))
    edge_index = {
        ("a", "to", "b"): two_sided("bipartite")[0],
        ("b", "rev", "a"): two_sided("bipartite")[0].flip(0),
    }
    results = []
    for library in (pyg_dfgnn.nn, torch_geometric.nn):

        class Model(torch.nn.Module):
            def __init__(self, library=library):
                super().__init__()
                self.first = library.GATConv((-1, -1), 4, add_self_loops=False)
                self.second = library.TransformerConv((-1, -1), 4)

            def forward(self, x, edge_index):
                return self.second(self.first(x, edge_index).relu(), edge_index)

        torch.manual_seed(0)
        metadata = (list(x), list(edge_index))
        model = torch_geometric.nn.to_hetero(Model(), metadata)
        torch.manual_seed(1)
        wrapped = torch_geometric.nn.HeteroConv(
            {key: library.GATConv((-1, -1), 4, add_self_loops=False) for key in edge_index}
        )
        torch.manual_seed(2)
        results.append((model(x, edge_index), wrapped(x, edge_index)))
    torch.testing.assert_close(*results, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("algorithm", ["AttentionExplainer", "GNNExplainer"])
@pytest.mark.parametrize("layer", ["TransformerConv", "GATConv"])
def test_explainers(layer, algorithm):
    edge_index, x = square("hub")
    masks = []
    for conv in pair(layer):
        torch.manual_seed(0)
        explainer = torch_geometric.explain.Explainer(
            conv,
            getattr(torch_geometric.explain, algorithm)(),
            explanation_type="model",
            edge_mask_type="object",
            model_config={
                "mode": "regression",
                "task_level": "node",
                "return_type": "raw",
            },
        )
        masks.append(explainer(x, edge_index, index=0).edge_mask)
    torch.testing.assert_close(*masks, rtol=1e-4, atol=1e-4)
