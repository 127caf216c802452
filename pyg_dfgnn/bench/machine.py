"""What the results of a run depend on beside the code that is measured."""

import os
import platform
import subprocess
from pathlib import Path

import torch
import torch_geometric

import pyg_dfgnn


def describe(device: str, commit: str | None = None) -> dict[str, str]:
    """The device and the versions of what runs on it."""
    found = {
        "device": name(device),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "torch_geometric": torch_geometric.__version__,
        "pyg_dfgnn": pyg_dfgnn.__version__,
        "commit": commit or os.environ.get("DFGNN_COMMIT") or commit_here(),
    }
    if device == "cuda":
        found["cuda"] = torch.version.cuda or "none"
        found["driver"] = driver()
        found["calls"] = "queued"  # see measure.py; before, each was waited for
    return found


def name(device: str) -> str:
    if device == "cuda":
        return torch.cuda.get_device_name()
    threads, capability = torch.get_num_threads(), torch.backends.cpu.get_cpu_capability()
    return f"{processor()}, {threads} threads, {capability}"


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.machine()


def driver() -> str:
    return _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")


def commit_here() -> str:
    """The commit of the repository that this package is in, with a + where files differ."""
    folder = str(Path(__file__).parent)
    commit = _output("git", "-C", folder, "rev-parse", "--short=12", "HEAD")
    if commit == "unknown":
        return commit
    changed = _output("git", "-C", folder, "status", "--porcelain", "--untracked-files=no")
    return commit if changed == "unknown" else commit + "+"


def _output(*command: str) -> str:
    """What a program prints, its first line; "unknown" where it prints nothing or fails."""
    try:
        result = subprocess.run(command, capture_output=True, text=True, timeout=30, check=True)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return result.stdout.strip().split("\n")[0] or "unknown"
