"""What the kernels cannot do takes PyG's own steps, with the same numbers."""

import contextlib

import pytest
import torch
import torch_geometric.nn
from layers import (
    EDGE_LAYERS,
    FEATURES,
    LAYERS,
    assert_same,
    assert_same_call,
    assert_same_error,
    make,
    outputs_and_gradients,
    pair,
    square,
)
from torch.utils.flop_counter import FlopCounterMode

import pyg_dfgnn
import pyg_dfgnn.nn


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("aggr", ["mean", "max", "sum"])
def test_aggregations(layer, aggr, device, fused):
    ours, theirs = pair(layer, device, aggr=aggr)
    edge_index, x = square("empty_rows", device)
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == (aggr == "sum")


@pytest.mark.parametrize("layer", LAYERS)
def test_several_aggregations(layer, device, fused):
    """PyG puts their results side by side, and cuts rows of the layer's width from that."""
    options = {"root_weight": False} if layer == "TransformerConv" else {}
    ours, theirs = pair(layer, device, aggr=["sum", "mean"], **options)
    edge_index, x = square("empty_rows", device)
    assert_same_call(ours, theirs, x, edge_index)
    assert not fused


@pytest.mark.parametrize("layer", LAYERS)
def test_int32(layer, device, fused):
    """The gradients of int64: those that torch computes for PyG's steps in int32 are wrong."""
    ours, theirs = pair(layer, device, aggr="mean")
    edge_index, x = square("empty_rows", device)
    expected = outputs_and_gradients(theirs, x, edge_index)
    assert_same(outputs_and_gradients(ours, x, edge_index.int()), expected)
    assert not fused


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


def test_own_steps_in_a_mixin(fused):
    class Doubling:
        def message(self, x_j, alpha):
            return 2 * alpha.unsqueeze(-1) * x_j

    class Ours(Doubling, pyg_dfgnn.nn.GATConv): ...

    class Theirs(Doubling, torch_geometric.nn.GATConv): ...

    class Derived(pyg_dfgnn.nn.GATConv): ...

    edge_index, x = square("hub")
    ours, theirs = Ours(FEATURES, 5, 2), Theirs(FEATURES, 5, 2)
    theirs.load_state_dict(ours.state_dict())
    assert_same_call(ours, theirs, x, edge_index)
    assert not fused
    Derived(FEATURES, 5, 2)(x, edge_index)
    assert len(fused) == 1


def test_own_aggregation(fused):
    class Negative(torch_geometric.nn.SumAggregation):
        def forward(self, *args, **kwargs):
            return -super().forward(*args, **kwargs)

    ours, theirs = pair("GATConv", aggr=Negative())
    edge_index, x = square("hub")
    assert_same_call(ours, theirs, x, edge_index)
    assert not fused


@contextlib.contextmanager
def doubled(how: str, *modules: torch.nn.Module):
    """What goes out of them is twice what they make."""

    def double(module, _inputs, out):
        return 2 * out if module in modules else None

    with contextlib.ExitStack() as stack:
        if how == "forward":
            for module in modules:
                made = module.forward
                module.forward = lambda *args, made=made, **kwargs: 2 * made(*args, **kwargs)
                stack.callback(delattr, module, "forward")
        elif how == "hook":
            for module in modules:
                stack.callback(module.register_forward_hook(double).remove)
        else:
            hook = torch.nn.modules.module.register_module_forward_hook(double)
            stack.callback(hook.remove)
        yield


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("how", ["forward", "hook"])
def test_watched_aggregation(layer, how, fused):
    ours, theirs = pair(layer)
    edge_index, x = square("hub")
    with doubled(how, ours.aggr_module, theirs.aggr_module):
        assert_same_call(ours, theirs, x, edge_index)
        ours.eval(), theirs.eval()  # SuperGATConv does not compile in training
        compiled = torch.compile(ours, backend="eager", fullgraph=True)
        expected = outputs_and_gradients(theirs, x, edge_index)
        assert_same(outputs_and_gradients(compiled, x, edge_index), expected)
    assert not fused
    assert_same_call(ours, theirs, x, edge_index)
    assert len(fused) == 1


def test_counted_operations(fused):
    """What counts or tracks sees all modules by hooks, and the layer's own path by these."""
    ours, theirs = pair("GATConv")
    edge_index, x = square("hub")
    graph = pyg_dfgnn.build_graph(edge_index, 40, 40, self_loops=True)
    with FlopCounterMode(display=False) as counter:
        out = ours(x, graph)
    assert counter.get_total_flops() > 0
    torch.testing.assert_close(out, theirs(x, edge_index), rtol=1e-5, atol=1e-5)
    assert len(fused) == 1


@pytest.mark.parametrize("layer", EDGE_LAYERS)
@pytest.mark.parametrize("how", ["forward", "hook", "global hook"])
def test_edge_features_made_otherwise(layer, how):
    ours, theirs = pair(layer, edge_dim=3)
    edge_index, x = square("hub")
    edge_attr = torch.randn(edge_index.size(1), 3)
    with doubled(how, ours.lin_edge, theirs.lin_edge):
        assert_same_call(ours, theirs, x, edge_index, edge_attr)
        torch.testing.assert_close(ours(x, edge_index, edge_attr), theirs(x, edge_index, edge_attr))


@pytest.mark.parametrize("layer", EDGE_LAYERS)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
def test_sparse_edge_features(layer, layout):
    loops = {} if layer == "TransformerConv" else {"add_self_loops": False}
    ours, theirs = pair(layer, edge_dim=3, **loops)
    edge_index, x = square("hub")
    edge_attr = torch.eye(3)[torch.arange(edge_index.size(1)) % 3].to_sparse(layout=layout)
    assert_same_call(ours, theirs, x, edge_index, edge_attr)
    with pytest.raises(ValueError, match="edge_attr: expected a dense tensor"):
        ours(x, pyg_dfgnn.build_graph(edge_index, 40, 40), edge_attr)


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
