"""fuse and unfuse change what runs, and nothing else of a model."""

import copy
import io

import pytest
import torch
import torch_geometric.nn
from fused_calls import FusedCalls
from layers import (
    FEATURES,
    LAYERS,
    VARIANTS,
    assert_same,
    edge_features,
    hub,
    make,
    outputs_and_gradients,
)
from torch import Tensor
from torch_geometric.nn import GATConv, TransformerConv

import pyg_dfgnn
import pyg_dfgnn.nn
from pyg_dfgnn import fuse, unfuse

pytestmark = pytest.mark.filterwarnings("ignore:.*TorchScript:DeprecationWarning")


def is_fused(call, *args) -> bool:
    with FusedCalls() as calls, torch.no_grad():
        call(*args)
    return bool(calls.names)


class Net(torch.nn.Module):
    """A layer at two places, one in a list, one that nobody fuses."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = TransformerConv(FEATURES, 4, heads=2)
        self.again = self.first
        self.more = torch.nn.ModuleList([GATConv(8, FEATURES)])
        self.last = torch_geometric.nn.GCNConv(FEATURES, 3)

    def forward(self, x, edge_index):
        x = self.first(x, edge_index).relu()
        x = self.again(self.more[0](x, edge_index), edge_index).relu()
        return self.last(x, edge_index)


@pytest.mark.parametrize("name", VARIANTS)
def test_layer(name, device):
    layer, arguments = VARIANTS[name]
    conv = make(torch_geometric.nn, layer, **arguments).to(device).eval()
    arguments = hub(device)
    expected = outputs_and_gradients(conv, *arguments)
    assert not is_fused(conv, *arguments)
    before = dict(vars(conv))
    fuse(conv)
    assert type(conv) is getattr(pyg_dfgnn.nn, layer)
    assert is_fused(conv, *arguments)
    assert_same(outputs_and_gradients(conv, *arguments), expected)
    unfuse(conv)
    assert type(conv) is getattr(torch_geometric.nn, layer)
    assert vars(conv) == before
    assert not is_fused(conv, *arguments)
    assert_same(outputs_and_gradients(conv, *arguments), expected)


@pytest.mark.parametrize("layer", LAYERS)
def test_fused_layer_is_like_a_constructed_one(layer):
    conv, ours = (make(lib, layer) for lib in (torch_geometric.nn, pyg_dfgnn.nn))
    plain = set(vars(conv))
    fuse(conv)
    assert set(vars(conv)) == set(vars(ours))
    assert conv.may_fuse()
    unfuse(ours)
    assert set(vars(ours)) == plain


def test_report():
    model = Net()
    swaps = fuse(model)
    assert swaps.swapped == {
        "first": "TransformerConv",
        "again": "TransformerConv",
        "more.0": "GATConv",
    }
    assert list(swaps.left) == ["last"]
    assert swaps.left["last"].startswith("GCNConv is not among")
    assert repr(swaps).splitlines()[:2] == [
        "3 swapped, 1 left",
        "  swapped: first: TransformerConv",
    ]
    assert not fuse(model).swapped
    swaps = unfuse(model)
    assert list(swaps.swapped) == ["first", "again", "more.0"]
    assert list(swaps.left) == ["last"]
    assert "(the model)" in repr(fuse(GATConv(3, 4)))


def test_model_keeps_its_objects():
    model = Net()
    arguments = hub()
    expected = outputs_and_gradients(model, *arguments)
    modules, parameters = list(model.modules()), list(model.parameters())
    fuse(model)
    assert all(a is b for a, b in zip(model.modules(), modules, strict=True))
    assert all(a is b for a, b in zip(model.parameters(), parameters, strict=True))
    assert model.first is model.again
    assert_same(outputs_and_gradients(model, *arguments), expected)


def test_state():
    model = Net().eval()
    model.first.lin_key.weight.requires_grad_(False)
    model.first.register_buffer("extra", torch.ones(2))
    keys = list(model.state_dict())
    fuse(model, method="pmf")
    assert list(model.state_dict()) == keys
    assert not model.first.training
    assert not model.first.lin_key.weight.requires_grad
    assert model.first.method == "pmf"


def test_optimizer_goes_on():
    losses = []
    for swap in (False, True):
        model, (x, edge_index) = Net(), hub()
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        losses.append([])
        for step in range(6):
            if swap and step == 3:
                fuse(model)
            optimizer.zero_grad()
            loss = model(x, edge_index).square().mean()
            loss.backward()
            optimizer.step()
            losses[-1].append(loss.item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    assert losses[0][-1] < losses[0][0]


def test_hooks():
    calls = []
    conv, (x, edge_index) = make(torch_geometric.nn, "GATConv"), hub()
    conv.register_forward_pre_hook(lambda *_: calls.append("pre"))
    conv.register_forward_hook(lambda *_: calls.append("forward"))
    conv.register_full_backward_hook(lambda *_: calls.append("backward"))
    conv.register_state_dict_post_hook(lambda *_: calls.append("state_dict"))
    fuse(conv)
    assert is_fused(conv, x, edge_index)
    calls.clear()
    conv(x.requires_grad_(), edge_index).sum().backward()
    conv.state_dict()
    assert calls == ["pre", "forward", "backward", "state_dict"]


def test_hooks_of_message_passing():
    calls = []
    conv, arguments = make(torch_geometric.nn, "GATConv"), hub()
    handle = conv.register_message_forward_hook(lambda *_: calls.append("message"))
    fuse(conv)
    assert not is_fused(conv, *arguments)
    assert calls == ["message"]
    handle.remove()
    assert is_fused(conv, *arguments)


@pytest.mark.parametrize("explain", [True, False])
def test_explain(explain):
    """Where explain was set, PyG has put a bound method into the layer."""
    conv, arguments = make(torch_geometric.nn, "GATConv"), hub()
    conv.explain = explain
    fuse(conv)
    assert conv.may_fuse() is not explain
    conv.explain = False
    make(pyg_dfgnn.nn, "GATConv")
    assert is_fused(conv, *arguments)
    unfuse(conv)
    expected = make(torch_geometric.nn, "GATConv")(*arguments)
    assert torch.equal(conv(*arguments), expected)


class Derived(GATConv):
    pass


class OurDerived(pyg_dfgnn.nn.GATConv):
    pass


def replace_message(conv):
    conv.message = lambda x_j, alpha: x_j
    return conv


@pytest.mark.parametrize(
    ("layer", "reason"),
    [
        (lambda: Derived(3, 4), "Derived may differ from GATConv, which it derives from"),
        (lambda: GATConv(3, 4, aggr="mean"), "GATConv has aggr='mean'; only sums are fused"),
        (lambda: GATConv(3, 4, decomposed_layers=2), "GATConv has decomposed_layers=2"),
        (lambda: replace_message(GATConv(3, 4)), "GATConv has a message of its own"),
        (lambda: pyg_dfgnn.nn.GATConv(3, 4), "GATConv is a layer of pyg_dfgnn"),
        (lambda: torch.jit.script(pyg_dfgnn.nn.GATConv(3, 4)), "GATConv is scripted; fuse first"),
    ],
)
def test_leaves(layer, reason):
    model = torch.nn.Sequential(layer())
    before = type(model[0])
    assert fuse(model).left == {"0": reason}
    assert type(model[0]) is before


@pytest.mark.parametrize("layer", [Derived, OurDerived])
def test_unfuse_leaves(layer):
    model = torch.nn.Sequential(layer(3, 4))
    assert unfuse(model).left == {"0": f"{layer.__name__} is not a layer of pyg_dfgnn"}
    assert type(model[0]) is layer


class Plain(torch.nn.Module):
    def __init__(self, conv) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edge_index: Tensor):
        return self.conv(x, edge_index)


class WithFeatures(Plain):
    def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor):
        return self.conv(x, edge_index, edge_attr)


@pytest.mark.parametrize("name", VARIANTS)
def test_scripts(name):
    layer, arguments = VARIANTS[name]
    conv = make(torch_geometric.nn, layer, **arguments).eval()
    inputs, wrapper = hub(), Plain
    if "edge_dim" in arguments:
        inputs, wrapper = (*inputs, edge_features(inputs[1])), WithFeatures
    expected = conv(*inputs)
    fuse(conv)
    scripted = torch.jit.script(wrapper(conv))
    torch.testing.assert_close(scripted(*inputs), expected, rtol=1e-5, atol=1e-5)


def test_model_scripts():
    model = Net()
    arguments = hub()
    expected = model(*arguments)
    fuse(model)
    torch.testing.assert_close(torch.jit.script(model)(*arguments), expected)


def test_copies():
    conv, arguments = make(torch_geometric.nn, "GATConv"), hub()
    fuse(conv)
    expected = conv(*arguments)
    buffer = io.BytesIO()
    torch.save(conv, buffer)
    buffer.seek(0)
    for twin in (copy.deepcopy(conv), torch.load(buffer, weights_only=False)):
        assert is_fused(twin, *arguments)
        assert torch.equal(twin(*arguments), expected)
        assert unfuse(twin).swapped == {"": "GATConv"}


def test_lazy_layers():
    (x, edge_index), outputs = hub(), []
    for swap in (False, True):
        torch.manual_seed(0)
        conv = GATConv((-1, -1), 4)
        if swap:
            fuse(conv)
        outputs.append(conv((x, x), edge_index))
    torch.testing.assert_close(*outputs)


def test_compiled_model():
    model, arguments = Net(), hub()
    expected = model(*arguments)
    compiled = torch.compile(model, backend="eager")
    torch.testing.assert_close(compiled(*arguments), expected)
    assert not is_fused(compiled, *arguments)
    assert "_orig_mod.first" in fuse(compiled).swapped
    assert is_fused(compiled, *arguments)
    torch.testing.assert_close(compiled(*arguments), expected)


def test_models_of_pyg():
    x, edge_index = hub()
    edge_attr = torch.randn(edge_index.size(1), 3)
    batch = torch.arange(40) // 10
    torch.manual_seed(0)
    models = torch_geometric.nn.models
    for model, args in (
        (models.GAT(FEATURES, 16, 3, 4, heads=2), (x, edge_index)),
        (models.AttentiveFP(FEATURES, 16, 4, 3, 2, 2), (x, edge_index, edge_attr, batch)),
        (models.Polynormer(FEATURES, 16, 4, local_attn=True), (x, edge_index, batch)),
    ):
        model.eval()
        expected = model(*args)
        swaps = fuse(model)
        assert swaps.swapped
        assert all("GATEConv" in reason for reason in swaps.left.values())
        assert is_fused(model, *args)
        torch.testing.assert_close(model(*args), expected, rtol=1e-4, atol=1e-5)
