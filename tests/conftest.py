import fcntl
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

# torch's caches of compiled graphs do not know when an operator's schema has changed.
os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "0"
os.environ["TORCHINDUCTOR_AUTOGRAD_CACHE"] = "0"

import hypothesis
import pytest
import torch
from method_log import worker

import pyg_dfgnn

# The default draws the same cases every time; `--hypothesis-profile=deep` searches.
hypothesis.settings.register_profile(
    "default",
    deadline=None,
    derandomize=True,
    max_examples=60,
    suppress_health_check=list(hypothesis.HealthCheck),
)
hypothesis.settings.register_profile(
    "deep",
    hypothesis.settings.get_profile("default"),
    derandomize=False,
    max_examples=2000,
    print_blob=True,
)
hypothesis.settings.load_profile("default")

if "PYTEST_XDIST_WORKER" in os.environ:
    torch.set_num_threads(1)  # the workers share the cores; tests of threads ask for them


def missing_cuda() -> str:
    """Why CUDA tests cannot run here; empty where they can."""
    if not torch.cuda.is_available():
        return "there is no CUDA GPU"
    if pyg_dfgnn.cuda_version() < 0:
        return "the operators were built without CUDA"
    return ""


needs_cuda = pytest.mark.skipif(bool(missing_cuda()), reason=missing_cuda())


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=needs_cuda)])
def device(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def log() -> Iterator[Callable[..., str]]:
    """Calls of ``attention`` that return what they print of the method."""
    yield from worker("1")


@pytest.fixture(scope="module")
def silent_log() -> Iterator[Callable[..., str]]:
    """The same with the log switched off."""
    yield from worker("0")


@pytest.fixture
def fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture(params=[pytest.param("cuda", marks=needs_cuda)])
def cuda(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def alone() -> Iterator[None]:
    """For tests that take much of a GPU's memory: one at a time, whatever the number of workers,
    and none of it kept."""
    with open(Path(tempfile.gettempdir()) / "pyg_dfgnn_test_alone.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
        torch.cuda.empty_cache()


@pytest.fixture
def fused(monkeypatch):
    """The names of what layers call for attention that runs fused, in the order of the calls."""
    calls = []
    for module, name in (
        (pyg_dfgnn.nn.transformer_conv, "dot_attention"),
        (pyg_dfgnn.nn.transformer_conv, "message_attention"),
        (pyg_dfgnn.nn.transformer_conv, "attention_weights"),
        (pyg_dfgnn.nn.gat_conv, "additive_attention"),
        (pyg_dfgnn.nn.gat_conv, "attention_weights"),
        (pyg_dfgnn.nn.gatv2_conv, "additive_v2_attention"),
        (pyg_dfgnn.nn.gatv2_conv, "logits_attention"),
        (pyg_dfgnn.nn.gatv2_conv, "attention_weights"),
        (pyg_dfgnn.nn.supergat_conv, "logits_attention"),
        (pyg_dfgnn.nn.agnn_conv, "cosine_attention"),
    ):
        original = getattr(module, name)

        def record(*args, _name=name, _original=original, **kwargs):
            calls.append(_name)
            return _original(*args, **kwargs)

        monkeypatch.setattr(module, name, record)
    return calls


@pytest.fixture
def conversions(monkeypatch):
    """The arguments of every conversion that is not answered by the cache."""
    calls = []
    original = pyg_dfgnn.graph._build_checked

    def record(edge_index, *arguments):
        calls.append(arguments)
        return original(edge_index, *arguments)

    monkeypatch.setattr(pyg_dfgnn.graph, "_build_checked", record)
    return calls
