"""Every example runs, and so does every Python snippet of the README and of documents."""

import json
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples"
PATH = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # also where not installed
DOCUMENTS = tuple(ROOT / name for name in ("README.md", "docs/transforms.md", "docs/reordering.md"))
SNIPPETS = [
    snippet
    for document in DOCUMENTS
    for snippet in re.findall(r"```python\n(.*?)```", document.read_text(), flags=re.DOTALL)
]
SMALL = ["--graphs=8", "--batch-size=4", "--epochs=2", "--hidden=16", "--heads=2", "--layers=1"]


def run(example: str, *options: str, **environment: str) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, EXAMPLES / example, *options],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": PATH, **environment},
        timeout=600,
    )


def succeed(example: str, *options: str) -> str:
    result = run(example, *options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def fail_in_one_line(*options: str, **environment: str) -> str:
    result = run("train.py", *options, **environment)
    assert result.returncode != 0
    assert result.stderr.count("\n") == 1, result.stderr
    return result.stderr


@pytest.mark.parametrize("example", ["torchscript_model.py", "raw_operators.py"])
def test_example(example):
    assert succeed(example)


def test_compiled_model():
    assert "epoch 2" in succeed("compiled_model.py", "--graphs", "20")


@pytest.mark.skipif(not (WITH_PYG_LIB or WITH_TORCH_SPARSE), reason="nothing that samples")
def test_neighbor_loader():
    out = succeed("neighbor_loader.py", "--nodes", "2000")
    accuracies = [float(value) for value in re.findall(r"accuracy ([\d.]+)", out)]
    assert accuracies[-1] > accuracies[0] > 1 / 8


@pytest.mark.parametrize("model", ["gt", "gat", "agnn"])
def test_train_on_made_graphs(model, tmp_path):
    dataset = "cluster" if model == "gat" else "pattern"
    options = ["--model", model, "--dataset", dataset, "--compare", "0.1", "--out", str(tmp_path)]
    out = succeed("train.py", *SMALL, *options)
    assert "test balanced accuracy" in out
    assert (tmp_path / f"{dataset}-{model}-dfgnn-0.png").stat().st_size > 1000
    result = json.loads((tmp_path / f"{dataset}-{model}-dfgnn-0.json").read_text())
    assert len(result["history"]) == 1 + 2
    ours, theirs = (result["same_weights"][name]["balanced accuracy"] for name in ("dfgnn", "pyg"))
    assert ours == pytest.approx(theirs, abs=0.01)
    assert result["times"]["dfgnn"]["training step (ms)"] > 0


def test_train_learns_alike_on_both_kinds_of_layers(tmp_path):
    options = ["--graphs=32", "--batch-size=4", "--epochs=6", "--hidden=32", "--layers=2"]
    val = {}
    for backend in ("dfgnn", "pyg"):
        succeed("train.py", *options, f"--backend={backend}", "--compare=0", f"--out={tmp_path}")
        history = json.loads((tmp_path / f"pattern-gt-{backend}-0.json").read_text())["history"]
        assert history[-1]["losses"][-1] < history[1]["losses"][0]
        val[backend] = history[-1]["val"]
    assert val["dfgnn"] > 0.7
    assert val["dfgnn"] == pytest.approx(val["pyg"], abs=0.05)


def write_tolokers_like(root: Path) -> None:
    """A raw file as HeterophilousGraphDataset reads it: a small graph of two unequal classes."""
    import numpy as np

    rng = np.random.default_rng(0)
    label = (rng.random(300) < 0.2).astype(np.int64)
    masks = np.zeros((3, 10, 300), dtype=bool)
    for split, mask in enumerate(masks):
        mask[:, split * 100 : (split + 1) * 100] = True
    folder = root / "tolokers" / "raw"
    folder.mkdir(parents=True)
    np.savez(
        folder / "tolokers.npz",
        node_features=(label[:, None] + rng.normal(size=(300, 10))).astype(np.float32),
        node_labels=label,
        edges=rng.integers(0, 300, (900, 2)),
        train_masks=masks[0],
        val_masks=masks[1],
        test_masks=masks[2],
    )


def test_train_on_a_whole_graph(tmp_path):
    write_tolokers_like(tmp_path)
    options = ["--dataset", "tolokers", "--root", str(tmp_path), "--out", str(tmp_path)]
    out = succeed("train.py", *SMALL, *options, "--compare", "0.1")
    assert "300 nodes" in out
    assert re.search(r"test ROC-AUC 0\.\d+, accuracy 0\.\d+", out)


def test_train_compiled(tmp_path):
    succeed("train.py", *SMALL, "--compile", "--compare", "0", "--out", str(tmp_path))


@pytest.mark.parametrize("epochs", [0, 1])
def test_train_interrupted(epochs, tmp_path, monkeypatch, capsys):
    """What epochs there were is kept."""
    from pyg_dfgnn.bench import training

    train_epoch, calls = training.train_epoch, iter(range(epochs))

    def interrupted(*arguments):
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return train_epoch(*arguments)

    monkeypatch.setattr(training, "train_epoch", interrupted)
    monkeypatch.setattr(sys, "argv", ["train.py", *SMALL, "--device=cpu", f"--out={tmp_path}"])
    monkeypatch.syspath_prepend(EXAMPLES)
    with pytest.raises(SystemExit) as stopped:
        runpy.run_path(str(EXAMPLES / "train.py"), run_name="__main__")
    assert stopped.value.code == 130
    errors = capsys.readouterr().err
    if epochs == 0:
        assert "train.py: error: interrupted\n" in errors
        assert not list(tmp_path.iterdir())
    else:
        assert "interrupted after 1 of 2 epochs" in errors
        result = json.loads(next(tmp_path.glob("*.json")).read_text())
        assert [epoch["epoch"] for epoch in result["history"]] == [0, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--model", "gcn"], "invalid choice: 'gcn'"),
        (["--dataset", "Corra"], "invalid choice: 'Corra'"),
        (["--method", "fast"], "invalid choice: 'fast'"),
        (["--device", "tpu"], "'tpu' is no torch device"),
        (["--device", "meta"], "run on cpu and cuda"),
        (["--heads", "7"], r"--hidden \(64\) must be a multiple of --heads \(7\)"),
        (["--epochs", "0"], "--epochs: expected 1 or more, got 0"),
        (["--walks", "-1"], "--walks: expected 0 or more, got -1"),
        (["--seed", "99999999999999999999"], "--seed: expected a number from 0 to"),
        (["--lr", "fast"], "--lr: expected a finite number >= 0, got fast"),
        (["--lr", "inf"], "--lr: expected a finite number >= 0, got inf"),
        (["--dropout", "2"], "--dropout: expected a number from 0 to 1, got 2"),
        (["--compare", "nan"], "--compare: expected a finite number >= 0, got nan"),
    ],
)
def test_train_names_a_wrong_option(options, message):
    assert re.search(message, fail_in_one_line(*options))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_train_without_gpu():
    assert "no CUDA GPU" in fail_in_one_line("--device", "cuda")


@pytest.mark.parametrize("dataset", ["Cora", "Tolokers", "Flickr"])
def test_train_without_data(dataset, tmp_path):
    nowhere = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    line = fail_in_one_line("--dataset", dataset, "--root", str(tmp_path), **nowhere)
    assert f"{dataset} is not under" in line


@pytest.mark.parametrize("number", range(len(SNIPPETS)))
def test_readme_snippet(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    snippet = tmp_path / "snippet.py"  # a file, for TorchScript reads the source
    snippet.write_text(SNIPPETS[number])
    runpy.run_path(str(snippet), run_name="snippet")
