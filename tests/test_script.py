"""Models of the layers in TorchScript: scripted, saved, loaded without our Python, trained."""

import os
import subprocess
import sys

import graphs
import pytest
import torch
import torch_geometric.nn
from layers import (
    FEATURES,
    LAYERS,
    edge_features,
    edge_index_of,
    features,
    make,
    transposed,
)
from torch import Tensor
from torch_geometric.typing import SparseTensor

import pyg_dfgnn
import pyg_dfgnn._library
import pyg_dfgnn.nn
from pyg_dfgnn import Graph

pytestmark = pytest.mark.filterwarnings("ignore:.*TorchScript:DeprecationWarning")

CLASSES = 5


class Stack(torch.nn.Module):
    """All layers, one after the other."""

    def __init__(self, library=pyg_dfgnn.nn, dropout: float = 0.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.transformer = library.TransformerConv(FEATURES, 4, heads=2, beta=True, dropout=dropout)
        self.gat = library.GATConv(8, 4, heads=2, residual=True, dropout=dropout)
        self.gatv2 = library.GATv2Conv(8, 4, heads=2, dropout=dropout)
        self.supergat = library.SuperGATConv(8, 4, heads=2, dropout=dropout)
        self.agnn = library.AGNNConv()
        self.out = torch.nn.Linear(8, CLASSES)


class OnTensor(Stack):
    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        x = self.transformer(x, edge_index).relu()
        x = self.gat(x, edge_index).relu()
        x = self.supergat(self.gatv2(x, edge_index).relu(), edge_index)
        return self.out(self.agnn(x, edge_index))


class OnSparseTensor(Stack):
    def forward(self, x: Tensor, adj_t: SparseTensor) -> Tensor:
        x = self.transformer(x, adj_t).relu()
        x = self.gat(x, adj_t).relu()
        x = self.supergat(self.gatv2(x, adj_t).relu(), adj_t)
        return self.out(self.agnn(x, adj_t))


class OnGraphs(Stack):
    def forward(self, x: Tensor, graph: Graph, with_loops: Graph) -> Tensor:
        x = self.transformer(x, graph).relu()
        x = self.gat(x, with_loops).relu()
        x = self.supergat(self.gatv2(x, with_loops).relu(), with_loops)
        return self.out(self.agnn(x, with_loops))


class OnConverted(Stack):
    """build_graph is scriptable itself."""

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        n = x.size(0)
        graph = pyg_dfgnn.build_graph(edge_index, n, n)
        with_loops = pyg_dfgnn.build_graph(edge_index, n, n, self_loops=True)
        x = self.transformer(x, graph).relu()
        x = self.gat(x, with_loops).relu()
        x = self.supergat(self.gatv2(x, with_loops).relu(), with_loops)
        return self.out(self.agnn(x, with_loops))


def inputs(model: type[Stack], device="cpu"):
    edge_index = edge_index_of(graphs.make("hub", device))
    x = features(40, device=device)[0]
    if model is OnSparseTensor:
        return x, transposed(edge_index, 40, 40)
    if model is OnGraphs:
        return x, *(pyg_dfgnn.build_graph(edge_index, 40, 40, loops) for loops in (False, True))
    return x, edge_index


def train(model: torch.nn.Module, x: Tensor, *edges) -> list[float]:
    """The losses of some steps of gradient descent."""
    target = torch.arange(x.size(0), device=x.device) % CLASSES
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x, *edges), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


MODELS = [OnTensor, OnSparseTensor, OnGraphs, OnConverted]


@pytest.mark.parametrize("model", MODELS)
def test_scripts_and_trains(model, device):
    arguments = inputs(model, device)
    scripted = torch.jit.script(model().to(device))
    losses = train(scripted, *arguments)
    assert losses[-1] < losses[0]
    expected = train(OnTensor(torch_geometric.nn).to(device), *inputs(OnTensor, device))
    assert losses == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("model", MODELS)
def test_saves_and_loads(model, device, tmp_path):
    arguments = inputs(model, device)
    original = model().to(device)
    torch.jit.script(original).save(tmp_path / "model.pt")
    loaded = torch.jit.load(tmp_path / "model.pt", map_location=device)
    torch.testing.assert_close(loaded(*arguments), original(*arguments), rtol=1e-5, atol=1e-6)
    assert train(loaded, *arguments) == pytest.approx(train(original, *arguments), rel=1e-4)


LOAD = """
import sys, torch
library, folder, *modules = sys.argv[1:]
torch.ops.load_library(library)
for module in modules:
    __import__(module)
model = torch.jit.load(folder + "/model.pt")
x, edge_index, expected = torch.load(folder + "/data.pt", weights_only=False)
if modules:
    SparseTensor = sys.modules["torch_sparse"].SparseTensor
    edge_index = SparseTensor(row=edge_index[1], col=edge_index[0], sparse_sizes=(40, 40))
out = model(x, edge_index)
torch.testing.assert_close(out, expected, rtol=1e-5, atol=1e-6)
out.sum().backward()
assert all(p.grad is not None for p in model.parameters())
assert "pyg_dfgnn" not in sys.modules and "torch_geometric" not in sys.modules
"""

SAVE_WITHOUT_TORCH_SPARSE = """
import sys
sys.modules["torch_sparse"] = None
folder, tests = sys.argv[1:]
sys.path.insert(0, tests)
import torch
from test_script import OnTensor
torch.jit.script(OnTensor()).save(folder + "/model.pt")
"""


def run_python(code, *arguments):
    result = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert result.returncode == 0, result.stderr


@pytest.mark.parametrize("model", [OnTensor, OnSparseTensor])
def test_loads_in_another_process(model, tmp_path):
    """Our library is all that it takes, and torch_sparse where the model names SparseTensor.

    The layers of every model do, in code that may never run, if there is a torch_sparse where the
    model is scripted; hence the first of the two is scripted where there is none.
    """
    original, modules = model(), []
    if model is OnTensor:
        run_python(SAVE_WITHOUT_TORCH_SPARSE, tmp_path, os.path.dirname(__file__))
    else:
        torch.jit.script(original).save(tmp_path / "model.pt")
        modules.append("torch_sparse")
    expected = original(*inputs(model)).detach()
    torch.save((*inputs(OnTensor), expected), tmp_path / "data.pt")
    run_python(LOAD, pyg_dfgnn._library.library_path(), tmp_path, *modules)


@pytest.mark.parametrize("model", [OnTensor, OnSparseTensor])
def test_freezes(model):
    """A frozen model, its training flag and attributes folded, computes the same."""
    arguments = inputs(model)
    original = model().eval()
    frozen = torch.jit.freeze(torch.jit.script(original))
    torch.testing.assert_close(frozen(*arguments), original(*arguments), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dropout", [0, 1])
def test_dropout_that_is_an_integer(dropout):
    arguments, model = inputs(OnTensor), OnTensor(dropout=dropout)
    torch.testing.assert_close(torch.jit.script(model)(*arguments), model(*arguments))


@pytest.mark.parametrize("layer", ["GATConv", "GATv2Conv"])
@pytest.mark.parametrize("number", [0, 1, True])
def test_integers_for_numbers(layer, number):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            arguments = {"edge_dim": 3, "negative_slope": number, "fill_value": number}
            self.conv = make(pyg_dfgnn.nn, layer, **arguments)

        def forward(self, x: Tensor, edge_index: Tensor, edge_attr: Tensor) -> Tensor:
            return self.conv(x, edge_index, edge_attr)

    x, edge_index = inputs(OnTensor)
    arguments, model = (x, edge_index, edge_features(edge_index)), Model()
    torch.testing.assert_close(torch.jit.script(model)(*arguments), model(*arguments))


def test_dropout_follows_the_mode():
    arguments = inputs(OnTensor)
    scripted = torch.jit.script(OnTensor(dropout=0.5))
    assert not torch.equal(scripted(*arguments), scripted(*arguments))
    scripted.eval()
    assert torch.equal(scripted(*arguments), scripted(*arguments))
    torch.testing.assert_close(scripted(*arguments), OnTensor()(*arguments), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("layer", LAYERS)
def test_out_of_range(layer):
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = make(pyg_dfgnn.nn, layer)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            return self.conv(x, edge_index)

    x, edge_index = inputs(OnTensor)
    scripted = torch.jit.script(Model())
    with pytest.raises(torch.jit.Error, match=r"IndexError: edge_index: .*out of range"):
        scripted(x, edge_index + 1)


def test_agnn_scripts_on_its_own():
    """As PyG's, which has no overloads either; it takes both kinds of edges."""
    conv = make(pyg_dfgnn.nn, "AGNNConv")
    scripted = torch.jit.script(conv)
    for model in (OnTensor, OnSparseTensor):
        arguments = inputs(model)
        torch.testing.assert_close(scripted(*arguments), conv(*arguments))


class Bipartite(torch.nn.Module):
    def __init__(self, library) -> None:
        super().__init__()
        self.transformer = make(library, "TransformerConv", (FEATURES, FEATURES))
        self.gat = make(library, "GATConv", (FEATURES, FEATURES))
        self.gatv2 = make(library, "GATv2Conv", (FEATURES, FEATURES))

    def forward(self, x: tuple[Tensor, Tensor], edge_index: Tensor) -> tuple[Tensor, Tensor]:
        one_sided = self.gat((x[0], None), edge_index, size=(x[0].size(0), x[1].size(0)))
        out = self.gat(x, edge_index) + one_sided + self.gatv2(x, edge_index)
        return self.transformer(x, edge_index), out


def test_two_node_sets():
    x = tuple(features(29, 13))
    edge_index = edge_index_of(graphs.make("bipartite"))
    result = torch.jit.script(Bipartite(pyg_dfgnn.nn))(x, edge_index)
    expected = Bipartite(torch_geometric.nn)(x, edge_index)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)
