"""The measurements of pyg_dfgnn.bench run, and show what they are there to show."""

import json
import sys
from pathlib import Path

import graphs
import pytest
import torch
from torch_geometric.data import Batch

from pyg_dfgnn.bench import batches, memory, preprocess, steps


@pytest.mark.parametrize(
    ("layer", "edge_dim"),
    [
        *((layer, None) for layer in memory.LAYERS),
        *((layer, 4) for layer in ("GATConv", "TransformerConv", "GATv2Conv")),
    ],
)
def test_memory(layer, edge_dim, device, monkeypatch, capsys):
    """PyG's steps keep tensors [E, heads, channels]; ours keep none."""
    edges, heads, channels = 400000 if device == "cuda" else 100000, 4, 32  # many chunks
    options = {"nodes": 100, "edges": edges, "features": 16, "heads": heads, "channels": channels}
    if edge_dim:
        options["edge-dim"] = edge_dim
    arguments = [part for name, value in options.items() for part in (f"--{name}", str(value))]
    libraries = ["--libraries", "dfgnn", "pyg"]
    monkeypatch.setattr(
        sys, "argv", ["memory", *arguments, "--device", device, "--layers", layer, *libraries]
    )
    assert memory.main() == 0
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines()[2:]]
    assert [row[:2] for row in rows] == [[layer, "dfgnn"], [layer, "pyg"]]
    ours, theirs = ([float(value) * memory.GIB for value in row[2:]] for row in rows)
    assert min(theirs[:2]) > edges * heads * channels * 4
    assert max(ours) < edges * heads * channels * 4


# A file of workloads, as --workloads takes it.
WORKLOADS = """
import torch, sys
sys.path.insert(0, {tests!r})
import graphs

def make(name, device):
    sizes = [20, 0, 1, 30]
    csr = graphs.batch(sizes, 0.4).to(device)
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    return csr.rowptr, csr.col, None if name == "whole" else ptr
"""


@pytest.fixture
def workloads(tmp_path) -> Path:
    path = tmp_path / "workloads.py"
    path.write_text(WORKLOADS.format(tests=str(Path(__file__).parent)))
    return path


def cells(output: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in output.splitlines()[2:]]


def test_batches_are_split_and_collated(workloads):
    loaded = batches.load("batch", workloads, 4, features=3, classes=2, device="cpu")
    csr = graphs.batch([20, 0, 1, 30], 0.4)
    batch = Batch.from_data_list(loaded)
    expected = sorted(zip(csr.sources().tolist(), csr.destinations().tolist(), strict=True))
    assert batch.edge_index.t().tolist() == [list(edge) for edge in expected]
    assert batch.ptr.tolist() == [0, 20, 20, 21, 51]
    assert batch.x.shape == (51, 3)
    assert set(batch.y.tolist()) == {0, 1}


def test_batches_that_are_none(workloads):
    with pytest.raises(ValueError, match="expected 5 graphs, got 4"):
        batches.load("batch", workloads, 5, features=3, classes=2, device="cpu")
    with pytest.raises(ValueError, match="expected a batch of graphs"):
        batches.load("whole", workloads, 1, features=3, classes=2, device="cpu")


@pytest.mark.parametrize("model", steps.MODELS)
def test_steps(model, workloads, device, tmp_path, capsys):
    """All backends compute the same; each part has a time, and they make up the sum."""
    options = ["--layers", "2", "--hidden", "16", "--batch-size", "4", "--repeats", "1"]
    options += ["--warm-up", "0", "--workloads", str(workloads), "--names", "batch"]
    options += ["--backends", "dfgnn", "dfgnn-convert", "pyg", "--out", str(tmp_path)]
    assert steps.main([*options, "--models", model, "--device", device]) == 0
    rows = cells(capsys.readouterr().out)
    backends = ["dfgnn", "dfgnn-convert", "pyg"]
    expected = [["batch", model, d, b] for d in ("fp32", "bf16") for b in backends]
    assert [row[:4] for row in rows] == expected
    for row in rows:
        *phases, total, _ = map(float, row[4:-1])
        assert len(phases) == len(steps.PHASES)
        assert abs(sum(phases) - total) < 0.05
        assert row[-1] == ""
    written = json.loads((tmp_path / "steps.json").read_text())
    assert [case["backend"] for case in written["cases"]] == backends * 2


def test_steps_compiled(workloads, device, capsys):
    options = ["--layers", "1", "--hidden", "16", "--batch-size", "4", "--repeats", "1"]
    options += ["--warm-up", "0", "--workloads", str(workloads), "--names", "batch"]
    options += ["--dtypes", "fp32", "--models", "gt", "--device", device]
    assert steps.main([*options, "--backends", "dfgnn", "dfgnn-compiled", "pyg-compiled"]) == 0
    assert [row[-1] for row in cells(capsys.readouterr().out)] == ["", "", ""]


def test_steps_that_go_wrong():
    """A backend that computes something else, or nothing, is a row that says so."""
    alike = [steps.Case("w", "gt", "fp32", b, loss=1.0) for b in ("dfgnn", "pyg")]
    alike[1].loss = 1.1
    with steps.noted(alike[0]):
        raise torch.OutOfMemoryError
    steps.check_losses(alike)
    assert alike[0].note == "out of memory"
    assert alike[1].note == "[loss differs by 1e-01]"


def test_preprocess(workloads, device, capsys):
    options = ["--batch-size", "4", "--workloads", str(workloads), "--names", "batch"]
    assert preprocess.main([*options, "--device", device, "--budget-ms", "1"]) == 0
    rows = cells(capsys.readouterr().out)
    orders = ["by destination", "by source", "random", "PrecomputeGraph"]
    assert [row[:3] for row in rows] == [["batch", o, s] for s in ("no", "yes") for o in orders]
    assert all(float(row[-1]) > 0 for row in rows)
