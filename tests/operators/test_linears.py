"""Linear layers of one x, biases and sums over nodes, against torch's own in float64."""

import copy

import pytest
import torch
import torch.nn.functional as F
from calls import DTYPES, assert_near
from torch import Tensor, nn
from torch.autograd import gradcheck, gradgradcheck

from pyg_dfgnn.nn import GATConv, GATv2Conv, TransformerConv

ops = torch.ops.dfgnn

# Of one block and of many; columns of less than a vector, of some, and of more than a block's.
ROWS = [0, 1, 15, 16, 17, 511, 1025, 70_000]
COLUMNS = [0, 1, 2, 3, 4, 8, 16, 17, 96, 100, 128, 130, 520]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 2e-6, torch.float16: 2e-6, torch.bfloat16: 2e-6}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("rows", ROWS)
def test_feature_sums(rows, columns, dtype, device):
    if rows * columns > 10_000_000:
        pytest.skip("as it is with fewer columns")
    x = torch.rand(rows, columns, device=device).to(dtype)
    found = ops.feature_sums(x)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_near(found, x.double().sum(0), TOLERANCE[dtype], "sums", terms=1)
    torch.testing.assert_close(ops.feature_sums(x), found, rtol=0, atol=0)


def test_feature_sums_of_few_columns_and_many_rows(device):
    x = torch.rand(1_500_000, 2, device=device)
    assert_near(ops.feature_sums(x), x.double().sum(0), 2e-6, "sums", terms=1)


def test_feature_sums_of_views(device):
    x = torch.rand(300, 24, device=device)
    for view in (x.t(), x[:, 3:], x[::2], x.flatten()[1:-23].view(299, 24)):
        torch.testing.assert_close(ops.feature_sums(view), view.sum(0))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rows", [0, 5, 3000])
@pytest.mark.parametrize("count", [1, 4, 8, 19])
def test_feature_sums_of_lists(count, rows, dtype, device):
    """Of several at once, whatever their strides."""
    x = torch.rand(count, rows, 24, device=device).to(dtype)
    matrices = [*x[:-1], x[-1].t().contiguous().t()]
    found = ops.feature_sums(matrices)
    assert found.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert_near(found, x.double().sum(1), TOLERANCE[dtype], "sums", terms=1)
    torch.testing.assert_close(ops.feature_sums(matrices), found, rtol=0, atol=0)


@pytest.mark.parametrize("widths", [(16, 16, 16), (16, 8, 16)], ids=str)
def test_gradients_of_many_biases(widths, device):
    """Of many nodes, at once where layers are of a width."""
    x = torch.rand(20_000, 4, device=device)
    weights = [torch.rand(width, 4, device=device) for width in widths]
    biases = [torch.zeros(width, device=device, requires_grad=True) for width in widths]
    given = [torch.rand(20_000, width, device=device) for width in widths]
    found = torch.autograd.grad(ops.linears(x, weights, biases), biases, given)
    for a, b in zip(found, given, strict=True):
        assert_near(a, b.double().sum(0), 2e-6, "gradient", terms=1)
    last = torch.autograd.grad(ops.linears(x, weights, biases)[-1], biases[-1], given[-1])
    torch.testing.assert_close(last[0], found[-1], rtol=2e-6, atol=0)


def operands(device: str, dtype: torch.dtype = torch.float32, nodes: int = 50) -> list[Tensor]:
    """x, three weights and two biases."""
    rng = torch.Generator().manual_seed(0)
    shapes = [(nodes, 12), (8, 12), (5, 12), (16, 12), (8,), (16,)]
    return [torch.randn(s, generator=rng).to(device, dtype).requires_grad_() for s in shapes]


def call(x: Tensor, a: Tensor, b: Tensor, c: Tensor, a_bias: Tensor, c_bias: Tensor):
    return ops.linears(x, [a, b, c], [a_bias, None, c_bias])


def separate(x: Tensor, a: Tensor, b: Tensor, c: Tensor, a_bias: Tensor, c_bias: Tensor):
    return [F.linear(x, a, a_bias), F.linear(x, b), F.linear(x, c, c_bias)]


@pytest.mark.parametrize("nodes", [0, 1, 50, 40_000])
def test_linears(nodes, device):
    leaves = operands(device, nodes=nodes)
    exact = [t.detach().double().requires_grad_() for t in leaves]
    found, apart, wanted = call(*leaves), separate(*leaves), separate(*exact)
    weights = [torch.randn_like(t) for t in found]
    torch.testing.assert_close(found, apart, rtol=0, atol=0)
    gradients = torch.autograd.grad(found, leaves, weights)
    expected = torch.autograd.grad(wanted, exact, [w.double() for w in weights])
    for a, b in zip(gradients, expected, strict=True):
        assert a.dtype == torch.float32
        assert_near(a, b, 2e-5, "gradient", terms=1)


@pytest.mark.parametrize("used", [(0,), (1,), (2,), (0, 2)], ids=str)
def test_results_that_nobody_uses(used, device):
    leaves = operands(device)
    totals = [sum(f(*leaves)[i].square().sum() for i in used) for f in (call, separate)]
    found, expected = (torch.autograd.grad(t, leaves, allow_unused=True) for t in totals)
    for a, b in zip(found, expected, strict=True):
        assert (a is None) == (b is None)
        if b is not None:
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("forward", [torch.bfloat16, torch.float16, None], ids=str)
@pytest.mark.parametrize("backward", [torch.bfloat16, torch.float16, None], ids=str)
def test_backward_in_another_mode(forward, backward, device):
    """That of the forward pass says what gradients are made of."""
    leaves = operands(device)
    with torch.autocast(device, forward or torch.bfloat16, forward is not None):
        results = call(*leaves)
    total = sum(y.float().square().sum() for y in results)
    expected = torch.autograd.grad(total, leaves, retain_graph=True)
    with torch.autocast(device, backward or torch.bfloat16, backward is not None):
        found = torch.autograd.grad(total, leaves)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_only_what_gradients_need_is_saved(device):
    """So that the rest may change in place, as with torch's."""

    def saved(*leaves: Tensor) -> list[int]:
        kept: list[int] = []
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: kept.append(t.data_ptr()) or t, lambda t: t
        ):
            call(*leaves)
        return sorted(kept)

    leaves = operands(device)
    x, *layers = leaves
    pointers = [t.data_ptr() for t in leaves]
    assert saved(*leaves) == sorted(pointers[:4])
    assert saved(x.detach(), *layers) == [pointers[0]]
    assert saved(x, *(t.detach() for t in layers)) == sorted(pointers[1:4])
    biases_alone = [t.detach() for t in leaves[:4]] + leaves[4:]
    assert saved(*biases_alone) == []


def test_a_weight_that_changed(device):
    leaves = operands(device)
    total = sum(y.square().sum() for y in call(*leaves))
    with torch.no_grad():
        leaves[1].add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        total.backward()


@pytest.mark.parametrize("frozen", range(6))
def test_what_needs_no_gradient(frozen, device):
    leaves = operands(device)
    leaves[frozen].requires_grad_(False)
    others = [t for t in leaves if t.requires_grad]
    found, expected = (
        torch.autograd.grad(sum(y.square().sum() for y in f(*leaves)), others)
        for f in (call, separate)
    )
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def test_gradients_of_any_order(device):
    leaves = operands(device, torch.float64, nodes=3)
    assert gradcheck(call, leaves)
    assert gradgradcheck(call, leaves)
    both = [leaves[0], torch.randn(12, dtype=torch.float64, device=device, requires_grad=True)]
    assert gradcheck(lambda x, y: ops.add_features(x, y, torch.float64), both)
    assert gradgradcheck(lambda x, y: ops.add_features(x, y, torch.float64) ** 3, both)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_autocast(dtype, device):
    """Results as separate ones'; gradients of biases are more exact."""
    leaves = operands(device, nodes=30_000)
    with torch.autocast(device, dtype):
        found, expected = call(*leaves), separate(*leaves)
    assert {y.dtype for y in found} == {dtype}
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    weights = [torch.rand_like(y) for y in found]
    gradients = torch.autograd.grad(found, leaves, weights)
    assert {g.dtype for g in gradients} == {torch.float32}
    for a, b in zip(gradients, torch.autograd.grad(expected, leaves, weights), strict=True):
        assert_near(a, b, 3e-2, "gradient", terms=1)
    for sums, weight in zip(gradients[4:], weights[::2], strict=True):
        assert_near(sums, weight.double().sum(0), 2e-6, "gradient of a bias", terms=1)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("features", [8, 20, 24])
@pytest.mark.parametrize("nodes", [0, 1, 9, 40_000])
def test_add_features(nodes, features, dtype, device):
    """Of biases and of rows, in the dtype of either and in others."""
    x = torch.randn(nodes, features, device=device).to(dtype).requires_grad_()
    for shape in ((features,), (nodes, features)):
        for y_dtype in {dtype, torch.float32}:
            y = torch.randn(shape, device=device).to(y_dtype).requires_grad_()
            for to in {dtype, torch.float32, torch.float64}:
                found = ops.add_features(x, y, to)
                torch.testing.assert_close(found, x.to(to) + y.to(to), rtol=0, atol=0)
                weight = torch.rand_like(found)
                of_x, of_y = torch.autograd.grad(found, [x, y], weight)
                assert (of_x.dtype, of_y.dtype) == (dtype, y_dtype)
                torch.testing.assert_close(of_x, weight.to(dtype), rtol=0, atol=0)
                expected = weight.double().sum(0) if len(shape) == 1 else weight.double()
                assert_near(of_y, expected, max(torch.finfo(y_dtype).eps, 2e-6), "of y", terms=1)


def test_add_features_of_views(device):
    x = torch.randn(30, 32, device=device).bfloat16()
    y = torch.randn(30, 32, device=device).bfloat16()
    for a, b in ((x[:, :16], y[:, 16:]), (x.t(), y.t()), (x[1:], y[:-1]), (x, y[0])):
        found = ops.add_features(a, b, torch.float32)
        torch.testing.assert_close(found, a.float() + b.float(), rtol=0, atol=0)
    shifted = x.flatten()[1 : 1 + 29 * 32].view(29, 32)
    found = ops.add_features(shifted, shifted, torch.float32)
    torch.testing.assert_close(found, 2 * shifted.float(), rtol=0, atol=0)


def test_opcheck(device):
    x, a, b, c, a_bias, c_bias = operands(device)
    torch.library.opcheck(ops.linears.default, (x, [a, b, c], [a_bias, None, c_bias]))
    for y in (torch.rand(12, device=device, requires_grad=True), x.detach()):
        for dtype in (torch.float32, torch.float64):
            torch.library.opcheck(ops.add_features.default, (x, y, dtype))
    half = x.detach().bfloat16()
    torch.library.opcheck(ops.add_features.default, (half, half, torch.float32))
    torch.library.opcheck(ops.feature_sums.default, (x.detach(),))
    torch.library.opcheck(ops.feature_sums.list, ([x.detach(), x.detach() + 1],))


def test_compiled(device):
    leaves = operands(device, nodes=30_000)

    def total(*leaves: Tensor) -> Tensor:
        results = [ops.add_features(y, y[0].detach(), y.dtype) for y in call(*leaves)]
        return sum(y.square().sum() for y in results)

    found = torch.autograd.grad(torch.compile(total, fullgraph=True)(*leaves), leaves)
    expected = torch.autograd.grad(total(*leaves), leaves)
    for a, b in zip(found, expected, strict=True):
        assert_near(a, b.double(), 1e-5, "gradient", terms=1)


MISTAKES = [
    (r"x: expected 2 dimensions, got", lambda x, w, b: ops.linears(x[0], [w], [b])),
    (r"x: expected floating point, got", lambda x, w, b: ops.linears(x.long(), [w], [b])),
    (r"biases: expected as many as weights", lambda x, w, b: ops.linears(x, [w, w], [b])),
    (r"biases: expected as many as weights", lambda x, w, b: ops.linears(x, [w], [b, b])),
    (r"weights: expected shape .* got", lambda x, w, b: ops.linears(x, [w[:, 1:]], [b])),
    (r"weights: expected shape .* got", lambda x, w, b: ops.linears(x, [w[0]], [b])),
    (r"weights: expected the dtype of x", lambda x, w, b: ops.linears(x, [w.double()], [b])),
    (r"weights: expected a tensor on", lambda x, w, b: ops.linears(x, [w.to("meta")], [b])),
    (r"biases: expected a tensor on", lambda x, w, b: ops.linears(x, [w], [b.to("meta")])),
    (r"biases: expected shape .* got", lambda x, w, b: ops.linears(x, [w], [b[:1]])),
    (r"biases: expected shape .* got", lambda x, w, b: ops.linears(x, [w], [b.unsqueeze(0)])),
    (r"biases: expected floating", lambda x, w, b: ops.linears(x, [w], [b.to(torch.cfloat)])),
    (r"y: expected shape .* got", lambda x, w, b: ops.add_features(x, b, x.dtype)),
    (r"y: expected shape .* got", lambda x, w, b: ops.add_features(x, x[1:], x.dtype)),
    (r"y: expected floating", lambda x, w, b: ops.add_features(x, x.long(), x.dtype)),
    (r"dtype: expected floating", lambda x, w, b: ops.add_features(x, x, torch.int64)),
    (r"x: expected 2 dimensions, got", lambda x, w, b: ops.feature_sums(b)),
    (r"x: expected floating point, got", lambda x, w, b: ops.feature_sums(x.long())),
    (r"xs: expected 2 dimensions, got", lambda x, w, b: ops.feature_sums([x, b])),
    (r"xs: expected tensors of the first", lambda x, w, b: ops.feature_sums([x, x[1:]])),
    (r"xs: expected tensors of the first", lambda x, w, b: ops.feature_sums([x, x.double()])),
]


@pytest.mark.parametrize(("message", "mistake"), MISTAKES)
@pytest.mark.parametrize("with_gradients", [False, True])
def test_refused(message, mistake, with_gradients, device):
    shapes = [(5, 4), (6, 4), (6,)]
    given = [torch.rand(s, device=device, requires_grad=with_gradients) for s in shapes]
    with pytest.raises(RuntimeError, match=message):
        mistake(*given)


def calls_of(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of those of the operators that are called from now on."""
    called = []
    for name in ("linears", "add_features"):
        packet = getattr(ops, name)

        def watched(*args, name=name, packet=packet):
            called.append(name)
            return packet(*args)

        monkeypatch.setattr(ops, name, watched)
    return called


LAYERS = {
    "TransformerConv": (lambda: TransformerConv(12, 4, heads=2), ["linears"], "lin_query"),
    "GATv2Conv": (lambda: GATv2Conv(12, 4, heads=2), ["linears", "add_features"], "lin_l"),
    "GATConv": (lambda: GATConv(12, 4, heads=2, residual=True), ["linears", "add_features"], "lin"),
}


@pytest.mark.parametrize("layer", LAYERS)
class TestLayers:
    """Layers take the operators, but where somebody would see the difference."""

    @pytest.fixture(autouse=True)
    def setting(self, layer, device, monkeypatch):
        make, self.names, self.linear = LAYERS[layer]
        # Keys and values are of an operator, too, where queries are not.
        self.others = ["linears"] if layer == "TransformerConv" else ["add_features"]
        torch.manual_seed(0)
        self.conv = make().to(device)
        self.inputs = (
            torch.randn(9, 12, device=device),
            torch.randint(9, (2, 30), device=device),
        )
        self.expected = self.conv(*self.inputs)
        self.called = calls_of(monkeypatch)

    def check(self, names: list[str]) -> None:
        torch.testing.assert_close(self.conv(*self.inputs), self.expected)
        assert self.called == names

    def test_they_do(self):
        self.check(self.names)

    def test_hooks(self):
        seen = []
        lin = getattr(self.conv, self.linear)
        lin.register_forward_hook(lambda *_: seen.append(1))
        self.check(self.others)
        assert seen

    def test_other_modules(self):
        """As adapters of low rank put there."""

        class Adapter(nn.Module):
            def __init__(self, base: nn.Module) -> None:
                super().__init__()
                self.base, self.weight, self.bias = base, base.weight, base.bias

            def forward(self, x: Tensor) -> Tensor:
                return 1 + self.base(x)

        lin = getattr(self.conv, self.linear)
        setattr(self.conv, self.linear, Adapter(lin))
        found = self.conv(*self.inputs)
        assert self.called == self.others
        assert not torch.allclose(found, self.expected)

    def test_biases_elsewhere(self):
        """A buffer, or a plain tensor, in the place of the parameter."""
        lin = getattr(self.conv, self.linear)
        bias = torch.ones(lin.weight.size(0), device=lin.weight.device)
        if lin.bias is None:
            self.expected = None
            lin._parameters.pop("bias")
        else:
            bias = lin.bias.detach().clone()
            del lin.bias
        lin.register_buffer("bias", bias)
        if self.expected is None:
            self.expected = self.conv(*self.inputs)
            with torch.no_grad():
                lin.bias.zero_()
            assert not torch.allclose(self.conv(*self.inputs), self.expected)
        else:
            self.check(self.others)

    def test_biases_of_other_shapes(self):
        lin = getattr(self.conv, self.linear)
        if lin.bias is not None:
            lin.bias = nn.Parameter(lin.bias.detach().unsqueeze(0))
        if hasattr(self.conv, "bias"):
            self.conv.bias = nn.Parameter(torch.zeros(1, device=lin.weight.device))
        self.conv(*self.inputs).square().sum().backward()
        assert lin.bias is None or lin.bias.grad.shape == lin.bias.shape

    def test_parametrized(self):
        lin = getattr(self.conv, self.linear)
        nn.utils.parametrizations.weight_norm(lin)
        self.check(self.others)

    def test_forward_of_its_own(self):
        lin = getattr(self.conv, self.linear)
        lin.forward = copy.copy(type(lin)).forward.__get__(lin)
        self.check(self.others)

    def test_tensors_of_another_kind(self):
        class Other(Tensor):
            pass

        self.inputs = (self.inputs[0].as_subclass(Other), self.inputs[1])
        torch.testing.assert_close(self.conv(*self.inputs).as_subclass(Tensor), self.expected)
        assert "linears" not in self.called

    def test_scripted(self):
        class Model(nn.Module):
            def __init__(self, conv: nn.Module) -> None:
                super().__init__()
                self.conv = conv

            def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
                return self.conv(x, edge_index)

        scripted = torch.jit.script(Model(self.conv))
        torch.testing.assert_close(scripted(*self.inputs), self.expected)
        assert not self.called
