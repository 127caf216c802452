"""The parts of pyg_dfgnn.bench measure what they say, and say what is wrong."""

import json

import pytest
import torch
from torch._dynamo.utils import counters
from torch_geometric.utils import is_undirected

from pyg_dfgnn.bench import (
    attention,
    backends,
    conversion,
    kernels,
    launches,
    layers,
    operands,
    registry,
    reordering,
    stand_ins,
    steps,
)
from pyg_dfgnn.bench.case import noted
from pyg_dfgnn.bench.lab import Lab
from pyg_dfgnn.bench.run import take
from pyg_dfgnn.bench.workload import Workload
from pyg_dfgnn.reorder import METHODS


@pytest.fixture
def lab(device) -> Lab:
    return Lab(device, budget_ms=1)


@pytest.mark.parametrize(
    ("layer", "edge_dim"),
    [
        *((layer, None) for layer in layers.NAMES),
        *((layer, 4) for layer in ("GATConv", "TransformerConv", "GATv2Conv")),
    ],
)
def test_layers_memory(layer, edge_dim, lab):
    """PyG's steps keep tensors [E, heads, channels]; ours keep none."""
    edges = 400000 if lab.device == "cuda" else 100000  # many chunks
    rows = [
        take(layers.Layer(layer, library, 100, edges, 16, edge_dim, heads=4, channels=32), lab)
        for library in ("dfgnn", "pyg")
    ]
    assert not any("note" in row for row in rows), rows
    ours, theirs = ([row[n] for n in ("first_peak", "later_peak", "kept")] for row in rows)
    assert min(theirs[:2]) > edges * 4 * 32 * 4
    assert max(ours) < edges * 4 * 32 * 4


@pytest.mark.parametrize("backend", ["auto", "pyg"])
def test_launches(backend, lab, monkeypatch):
    monkeypatch.setattr(launches, "CALLS", 200)
    row = take(launches.Launches("Cora", "dot", "fp32", backend, 2, 8), lab)
    assert "note" not in row, row
    times = {name for name in row if name.endswith("_ms")}
    expected = {"eager_forward_ms", "eager_forward_backward_ms"}
    if lab.device == "cuda":
        expected.add("one_thread_forward_backward_ms")
    if lab.device == "cuda" and backend == "auto":
        expected |= {"graph_forward_ms", "graph_forward_backward_ms"}
    assert times == expected
    assert all(row[name][0] > 0 for name in times)


def test_kernels_of_graphs_that_cannot_be_made(tmp_path, capsys):
    """Become a row that says so; a file without graphs is an error of one line."""
    graphs = tmp_path / "graphs.py"
    graphs.write_text("ALL = ['none']\ndef make(name, device):\n    raise ValueError('no graph')\n")
    options = ["--device", "cpu", "--out", str(tmp_path / "out")]
    assert kernels.main(["--workloads", str(graphs), *options]) == 0
    assert "failed: ValueError: no graph" in (tmp_path / "out" / "kernels.md").read_text()
    assert kernels.main(["--workloads", str(tmp_path / "missing.py"), *options]) == 1
    assert capsys.readouterr().err.strip().split("\n")[-1].startswith("pyg_dfgnn.bench.kernels: ")


@pytest.mark.parametrize("name", ["PATTERN", "CLUSTER", "MNIST", "CIFAR10", "PascalVOC-SP"])
def test_stand_ins_of_batches(name, device):
    """Their graphs have about the sizes of the data set's, and edges among themselves."""
    dataset, count = registry.DATASETS[name], 100
    made = dataset.make(name, count, device, 0)
    assert not made.is_real
    assert made.ptr.numel() == count + 1
    assert made.num_nodes == pytest.approx(count * dataset.nodes, rel=0.1)
    assert made.num_edges == pytest.approx(count * dataset.edges, rel=0.15)
    src, dst = made.edge_index()
    graph = torch.arange(count, device=device).repeat_interleave(made.ptr.to(device).diff())
    assert torch.equal(graph[src], graph[dst])
    assert bool((src != dst).all())
    assert (dst * made.num_nodes + src).unique().numel() == src.numel()
    assert is_undirected(made.edge_index()) == (name not in ("MNIST", "CIFAR10"))
    again = dataset.make(name, count, device, 0)
    assert torch.equal(again.col, made.col)


def test_nearest_neighbours_are_k(device):
    made = stand_ins.nearest_neighbours("k", 10, 40, 5, device)
    assert bool((made.rowptr.diff() == 5).all())


@pytest.mark.parametrize("name", ["Cora", "CiteSeer", "PubMed"])
def test_stand_ins_of_whole_graphs(name, device):
    dataset = registry.DATASETS[name]
    made = dataset.make(name, 1, device, 0)
    assert (made.num_nodes, made.num_edges) == (dataset.nodes, dataset.edges)
    assert made.max_degree == pytest.approx(dataset.max_degree, rel=0.02)
    assert made.ptr is None
    src, dst = made.edge_index()
    assert torch.equal(src.bincount(minlength=made.num_nodes), dst.bincount())
    assert (dst * made.num_nodes + src).unique().numel() == src.numel()
    assert bool((src != dst).all())


@pytest.mark.parametrize("name", registry.SKEWED)
def test_skewed_graphs(name, device):
    """Few edges of them repeat others or are loops, as their hubs are large."""
    dataset = registry.KNOWN[name]
    made = registry.load(name, 1, device, 0, [], download=False)
    assert (made.num_nodes, made.num_edges) == (dataset.nodes, dataset.edges)
    assert made.max_degree == pytest.approx(dataset.max_degree, rel=0.02)
    assert made.max_degree > 39 * made.num_edges / made.num_nodes
    src, dst = made.edge_index()
    assert torch.equal(src.bincount(minlength=made.num_nodes), dst.bincount())
    assert (dst * made.num_nodes + src).unique().numel() > 0.999 * src.numel()
    assert int((src == dst).sum()) < 0.001 * src.numel()


def test_degrees_of_ablations(device):
    equal = registry.load("equal degrees, small", 1, device, 0, [], download=False)
    skewed = registry.load("skewed degrees, small", 1, device, 0, [], download=False)
    assert (equal.num_nodes, equal.num_edges) == (skewed.num_nodes, skewed.num_edges)
    assert equal.max_degree == 20
    assert skewed.max_degree == pytest.approx(200, rel=0.02)


HUBS = {"path": {1}, "star": {10_000}, "star of stars": {99, 100}}


@pytest.mark.parametrize("name", [name for name in registry.TREES if "10K" in name])
def test_trees(name, device):
    """Of 10,000 edges: nodes have one at most in one direction, hubs all others in the other."""
    made = registry.load(name, 1, device, 0, [], download=False)
    assert (made.num_nodes, made.num_edges) == (10_001, 10_000)
    assert made.max_degree == registry.KNOWN[name].max_degree
    incoming, outgoing = made.rowptr.diff(), made.csc["colptr"].diff()
    one, many = (incoming, outgoing) if "out" in name else (outgoing, incoming)
    assert int(one.max()) == 1
    kind = name.split(",")[0].removesuffix(" in").removesuffix(" out")
    assert set(many[many > 0].tolist()) == HUBS[kind]


@pytest.mark.parametrize("name", ["random graphs of 60, 40 %", "random graphs of 200, 2 %"])
def test_random_graphs(name, device):
    """Of two to four thirds of the nodes, all edges inside, as many of all pairs at the most."""
    nodes, share = (int(word.removesuffix(",")) for word in name.split()[3:5])
    made = registry.load(name, 30, device, 0, [], download=False)
    sizes, graph = made.ptr.diff(), torch.searchsorted(made.ptr, made.edge_index(), right=True)
    assert 2 * nodes // 3 <= int(sizes.min()) < nodes < int(sizes.max()) <= 4 * nodes // 3
    assert torch.equal(*graph)
    assert made.edge_index().unique(dim=1).size(1) == made.num_edges
    density = made.num_edges / int((sizes**2).sum()) * 100 / share
    assert 0.75 < density <= 1 + 1e-3


def test_unknown_data_set():
    with pytest.raises(ValueError, match="unknown data set 'Corra'; known: PATTERN"):
        registry.load("Corra", 1, "cpu", 0, [], download=False)


def test_shuffled_is_the_same_graph(device):
    made = registry.load("MNIST", 5, device, 0, [], download=False)
    shuffled = made.shuffled()
    assert not torch.equal(made.col, shuffled.col)
    for one, other in ((made, shuffled), (made.csc, shuffled.csc)):
        pointers = [(g["colptr"] if isinstance(g, dict) else g.rowptr).diff() for g in (one, other)]
        assert torch.equal(pointers[0].sort().values, pointers[1].sort().values)


@pytest.mark.parametrize("method", METHODS)
def test_reorderings(method, lab):
    """The same graph by other numbers, in which attention is measured too."""
    row = take(reordering.Reordering("Cora", 1, method), lab)
    assert "note" not in row
    assert row["reorder_ms"][0] > 0
    made, shuffled = (lab.workload("Cora", 1, order) for order in (method, "shuffled"))
    number = lab.reordering("Cora", 1, method).number
    assert torch.equal(made.rowptr.diff()[number], shuffled.rowptr.diff())
    src, dst = number[shuffled.edge_index()]
    edges = dst * made.num_nodes + src, made.edge_index()[1] * made.num_nodes + made.edge_index()[0]
    assert torch.equal(edges[0].sort().values, edges[1])
    case = attention.Attention("Cora", 1, "dot", "fp32", "auto", 1, 8, order=method)
    assert "note" not in take(case, lab)


def test_batches_are_taken_apart(device):
    made = registry.load("PATTERN", 3, device, 0, [], download=False)
    graphs = made.graphs()
    assert [g.num_nodes for g in graphs] == made.ptr.diff().tolist()
    again = stand_ins.join("again", graphs, device)
    assert torch.equal(again.rowptr, made.rowptr)
    assert torch.equal(again.col, made.col)
    with pytest.raises(ValueError, match="expected a batch of graphs"):
        registry.load("Cora", 1, device, 0, [], download=False).graphs()


SCORES = {
    "unfused": ["dot"],
    "cusparse": ["dot"],
    "sdpa": ["dot"],
    "pyg": operands.SCORES,
    "auto": operands.SCORES,
    "smmf": operands.SCORES,
    "pmf": operands.SCORES,
    "tile": operands.SCORES,
}


@pytest.mark.parametrize(("backend", "score"), [(b, s) for b in SCORES for s in SCORES[b]])
def test_backends_agree_with_the_reference(backend, score, lab):
    case = attention.Attention("MNIST", 3, score, "fp32", backend, heads=2, head_dim=8)
    row = take(case, lab)
    assert "note" not in row
    assert row["graph"] == "stand-in"
    for name in ("forward_ms", "forward_backward_ms"):
        median, low, high = row[name]
        assert 0 < low <= median <= high


def test_flex_agrees_with_the_reference(lab, monkeypatch):
    """Without torch.compile, which takes long."""
    monkeypatch.setattr(torch, "compile", lambda call, **_: call)
    row = take(attention.Attention("MNIST", 3, "dot", "fp32", "flex", heads=2, head_dim=16), lab)
    assert row["forward_ms"][0] > 0
    on_cpu = "FlexAttention has no backward pass on the CPU"
    assert row.get("note", "") == ("" if lab.device == "cuda" else on_cpu)


@pytest.mark.parametrize("backend", ["sdpa", "flex", "cusparse", "unfused"])
def test_backends_that_have_no_such_score(backend, lab):
    row = take(attention.Attention("MNIST", 3, "additive", "fp32", backend), lab)
    assert row["note"] == "only dot scores"


def test_masks_that_do_not_fit(lab, monkeypatch):
    monkeypatch.setattr("pyg_dfgnn.bench.dense.MASK_BYTES", 1000)
    row = take(attention.Attention("MNIST", 3, "dot", "fp32", "sdpa"), lab)
    assert row["note"] == "its mask does not fit"


def test_packages_that_are_not_installed(lab, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "dgl", None)
    row = take(attention.Attention("MNIST", 3, "dot", "fp32", "dgl"), lab)
    assert row["note"] == "not installed"


def wrong(factor: float, grad_factor: float):
    """PyG's attention, with results and gradients that are off."""

    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * factor

        @staticmethod
        def backward(ctx, grad):
            return grad * grad_factor

    def backend(score: str, workload: Workload):
        call = backends.eager(score, workload)
        return lambda x: Scaled.apply(call(x))

    return backend


@pytest.mark.parametrize(
    ("factors", "note"),
    [((1.01, 1.0), "[error 1e-02]"), ((1.0, 1.01), "[error 1e-02 in the gradient of q]")],
)
def test_wrong_results_are_noted(factors, note, lab, monkeypatch):
    monkeypatch.setitem(backends.BACKENDS, "pyg", wrong(*factors))
    row = take(attention.Attention("MNIST", 3, "dot", "fp32", "pyg"), lab)
    assert row["note"].startswith(note)
    assert "forward_ms" in row


def test_gradients_that_are_zero(lab, monkeypatch):
    """Scores of rows of one edge have none; what is found of them is compared with others."""
    case = attention.Attention("path, 10K edges", 1, "dot", "fp32", "pyg", head_dim=8)
    assert "note" not in take(case, lab)
    monkeypatch.setitem(backends.BACKENDS, "pyg", with_gradients(0.01))
    assert "in the gradient of q" in take(case, lab)["note"]


def with_gradients(much: float):
    """PyG's attention, and ``much`` more gradient of q."""

    def backend(score: str, workload: Workload):
        call = backends.eager(score, workload)
        return lambda x: call(x) + much * (x["q"] - x["q"].detach())

    return backend


def test_failures_are_noted():
    row = {"note": "[error 1e-02]", "forward_ms": [1.0, 1.0, 1.0]}
    with noted(row):
        raise torch.OutOfMemoryError
    assert row["note"] == "[error 1e-02] out of memory"
    with noted(row := {}):
        raise KeyError("what")
    assert row["note"] == "failed: KeyError: 'what'"


@pytest.mark.parametrize("model", steps.MODELS)
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_steps(model, dtype, lab):
    """All backends compute what PyG's layers do in float64; each part has a time."""
    for backend in ("dfgnn", "dfgnn-convert", "dfgnn-device", "pyg"):
        case = steps.TrainingStep("MNIST", 3, model, dtype, backend, layers=2, hidden=16)
        row = take(case, lab)
        assert "note" not in row
        assert all(row[f"{phase}_ms"][0] > 0 for phase in (*steps.PHASES, "step"))


def test_steps_compiled(lab):
    for backend in ("dfgnn-compiled", "pyg-compiled"):
        case = steps.TrainingStep("MNIST", 3, "gt", "fp32", backend, layers=1, hidden=16)
        assert "note" not in take(case, lab)


def test_steps_share_what_is_compiled(lab):
    """Batches of another data set run in code that is there; another model is compiled anew."""
    counts = []
    for name, model in (("MNIST", "gt"), ("PATTERN", "gt"), ("PATTERN", "agnn")):
        case = steps.TrainingStep(name, 3, model, "fp32", "pyg-compiled", layers=2, hidden=16)
        before = counters["stats"]["unique_graphs"]
        assert "note" not in take(case, lab)
        counts.append(counters["stats"]["unique_graphs"] - before)
    assert counts[1] == 0 < counts[0]
    assert counts[2] > 0


def test_steps_that_compute_something_else(lab, monkeypatch):
    monkeypatch.setattr(steps, "reference", lambda net, *_: (2.0, net.encoder.weight.detach()))
    case = steps.TrainingStep("MNIST", 3, "gt", "fp32", "dfgnn", layers=1, hidden=16)
    note = take(case, lab)["note"]
    assert "in the loss]" in note
    assert "in the gradient]" in note


@pytest.mark.parametrize(
    "order", [*conversion.ORDERS, conversion.IN_GRAPHS, conversion.PRECOMPUTED]
)
@pytest.mark.parametrize("self_loops", [False, True])
def test_conversions(order, self_loops, lab):
    row = take(conversion.Conversion("MNIST", 3, order, self_loops), lab)
    assert "note" not in row
    assert row["all_ms"][0] > 0
    assert ("coo_to_csr_ms" in row) == (order != conversion.PRECOMPUTED)


# A file of graphs, as --workloads takes it.
WORKLOADS = """
import torch

ALL = ["ring", "squares"]

def make(name, device):
    rowptr = torch.arange(0, 41, 2, dtype=torch.int32, device=device)
    nodes = torch.arange(20, dtype=torch.int32, device=device)
    if name == "ring":
        return rowptr, torch.stack([(nodes - 1) % 20, (nodes + 1) % 20], 1).flatten(), None
    return rowptr, torch.stack([nodes ^ 1, nodes ^ 2], 1).flatten(), torch.arange(0, 21, 4)
"""


def test_kernels(device, tmp_path, capsys):
    (tmp_path / "graphs.py").write_text(WORKLOADS)
    options = ["--workloads", str(tmp_path / "graphs.py"), "--out", str(tmp_path)]
    options += ["--dtypes", "fp32", "--backends", "smmf", "auto", "pyg", "sdpa", "cusparse"]
    assert kernels.main([*options, "--device", device, "--budget-ms", "1", "--head-dim", "8"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    assert [line.split(" | ")[0] for line in lines] == [
        "| workload",
        "|---" * 8 + "|",
        "| ring",
        "| squares",
    ]
    written = json.loads((tmp_path / "kernels.json").read_text())
    assert len(written["cases"]) == 10
    assert {case["note"] for case in written["cases"]} == {""}


def test_kernels_in_cuda_graphs(device, tmp_path, capsys):
    """Are timed without the host, where there is a GPU."""
    (tmp_path / "graphs.py").write_text(WORKLOADS)
    options = ["--workloads", str(tmp_path / "graphs.py"), "--out", str(tmp_path), "--cuda-graphs"]
    options += ["--dtypes", "fp32", "--backends", "auto", "--device", device, "--budget-ms", "1"]
    if device == "cpu":
        with pytest.raises(SystemExit, match="2"):
            kernels.main(options)
        assert "--cuda-graphs: expected --device cuda, got cpu" in capsys.readouterr().err
        return
    assert kernels.main(options) == 0
    written = json.loads((tmp_path / "kernels.json").read_text())
    assert written["cuda_graphs"]
    assert all(case["forward_backward_ms"][0] > 0 for case in written["cases"])
