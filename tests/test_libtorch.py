"""examples/libtorch: a C++ program finds the operators with CMake and trains as Python does."""

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import pyg_dfgnn

EXAMPLE = Path(__file__).resolve().parents[1] / "examples" / "libtorch"
PACKAGE = Path(pyg_dfgnn.__file__).resolve().parents[1]  # also where it is not installed


def missing() -> str:
    """Why the program cannot be built; empty where it can."""
    if not shutil.which("cmake"):
        return "there is no cmake"
    if not shutil.which(os.environ.get("CXX", "c++")):
        return "there is no C++ compiler"
    if not any(Path(pyg_dfgnn.cmake_prefix_path()).rglob("dfgnnConfig.cmake")):
        return "the library came alone, without its CMake package"
    return ""


pytestmark = pytest.mark.skipif(bool(missing()), reason=missing())


def run(*command, **environment) -> str:
    result = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=600,
    )
    assert result.returncode >= 0, "a crash"
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def configure(source: Path, build: Path, *prefixes: str) -> None:
    run("cmake", "-S", source, "-B", build, f"-DCMAKE_PREFIX_PATH={';'.join(prefixes)}")


def train_in_python(model: torch.nn.Module, steps: int) -> list[float]:
    """What train.cpp does, and its losses."""
    device = next(model.parameters()).device
    node, wave = torch.arange(64), torch.arange(1, 17)
    x = torch.sin(node[:, None] * wave * (2 * math.pi / 64)).to(device)
    hops = [torch.stack([node, (node + step) % 64]) for step in (1, 2, 3)]
    edge_index, target = torch.cat(hops, dim=1).to(device), (node // 16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    losses = []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x, edge_index), target)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_trains_in_cpp(tmp_path):
    model = tmp_path / "model.pt"
    run(sys.executable, EXAMPLE / "script_model.py", model, PYTHONPATH=str(PACKAGE))
    build = tmp_path / "build"
    configure(EXAMPLE, build, torch.utils.cmake_prefix_path, pyg_dfgnn.cmake_prefix_path())
    run("cmake", "--build", build)
    out = run(build / "train", model, 4)
    losses = [float(loss) for loss in re.findall(r"step \d: loss ([\d.]+)", out)]

    device = "cuda" if torch.cuda.is_available() else "cpu"
    assert losses == pytest.approx(
        train_in_python(torch.jit.load(model, map_location=device), 4), rel=1e-4
    )
    assert losses[-1] < losses[0]
    trained = torch.jit.load(f"{model}.trained", map_location=device)
    assert train_in_python(trained, 1)[0] < losses[-1]

    for arguments, message in (([tmp_path / "none.pt"], "none.pt"), ([model, "x"], "usage: ")):
        with pytest.raises(AssertionError, match=message):
            run(build / "train", *arguments)


def test_another_torch_is_refused(tmp_path):
    """By find_package, with the reason, where torch was found before and is another."""
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.24)\n"
        "project(other LANGUAGES CXX)\n"
        "set(Torch_FOUND TRUE)\n"
        "set(Torch_VERSION 1.13.1)\n"
        "find_package(dfgnn REQUIRED)\n"
    )
    with pytest.raises(AssertionError, match=r"torch\s+1\.13\.1 was found"):
        configure(tmp_path, tmp_path / "build", pyg_dfgnn.cmake_prefix_path())
