"""Runs a case on PyG's layer and on ours, and compares all that a caller can see."""

import contextlib
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch_geometric.nn
from conformance.cases import Case, torch_dtype
from conformance.inputs import build, make, seed
from torch import Tensor
from torch.nn.parameter import is_lazy
from torch_geometric import EdgeIndex
from torch_geometric.typing import SparseTensor

import pyg_dfgnn.nn

# Errors relative to the largest element: forward, gradients.
TOLERANCES = {
    "float32": (1e-5, 1e-4),
    "float64": (1e-12, 1e-11),
    "bfloat16": (0.06, 0.2),
    "float16": (0.01, 0.04),
}
HALF = ("bfloat16", "float16")
# What PyG raises for a call that it refuses. Others, such as RuntimeErrors of scatter for a dtype,
# are limits, which our layers need not have.
REFUSALS = (ValueError, AssertionError, NotImplementedError, IndexError)


@dataclass
class Outcome:
    """What a call gave: tensors and their gradients, what else there is to compare, or an error."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    error: Exception | None = None


def check(case: Case, device: str = "cpu") -> None:
    """Fails where our layer differs from PyG's.

    The numbers to compare with are those of PyG's layer in float64, on weights and inputs of the
    case's dtype. Where PyG's layer in half precision is further off, its numbers will do, too.
    """
    dtype = torch_dtype(case.dtype)
    # Of int32, torch 2.13 computes wrong gradients of scatter_add.
    wide = replace(case, form="int64") if case.form == "int32" else case
    expected = outcome(torch_geometric.nn, wide, "cpu", torch.float64)
    if device != "cpu":
        if expected.error is not None:
            return  # on a GPU, a node that is out of range ends the process
        expected = outcome(torch_geometric.nn, wide, device, torch.float64)
    actual = outcome(pyg_dfgnn.nn, case, device, dtype)
    if expected.error is not None:
        if is_refusal(expected.error):
            assert_same_error(actual.error, expected.error)
        return
    if actual.error is not None:
        raise AssertionError("PyG's layer takes this call") from actual.error

    assert actual.facts == expected.facts
    theirs = outcome(torch_geometric.nn, case, device, dtype)
    for name in expected.tensors:
        if name in actual.tensors and name in theirs.tensors:
            dtypes = [result.tensors[name].dtype for result in (actual, theirs)]
            assert dtypes[0] == dtypes[1], f"{name} has the dtypes {dtypes}"
        try:
            assert_close(name, actual, expected, case)
        except AssertionError:
            if case.precision not in HALF or name not in theirs.tensors:
                raise
            with contextlib.suppress(AssertionError):
                assert_close(name, theirs, expected, case)
                raise
            assert_close(name, actual, theirs, case)


def is_refusal(error: Exception) -> bool:
    # PyG samples negative edges of no edges as floating-point numbers, and then cannot use them.
    return isinstance(error, REFUSALS) and "tensors used as indices" not in str(error)


def assert_same_error(actual: Exception | None, expected: Exception) -> None:
    if actual is None:
        raise AssertionError("PyG's layer refuses this call") from expected
    if type(actual) is not type(expected):
        raise AssertionError(f"PyG's layer raises {expected!r}") from actual


def assert_close(name: str, actual: Outcome, expected: Outcome, case: Case) -> None:
    theirs = expected.tensors[name]
    is_gradient = name.endswith(".grad")
    if is_gradient and case.precision in HALF and case.has_kink:
        return
    # What no edge uses has no gradient in one of the two, and gradient 0 in the other.
    ours = (
        actual.tensors.get(name, torch.zeros_like(theirs)) if is_gradient else actual.tensors[name]
    )
    if not theirs.is_floating_point():
        assert torch.equal(ours.long(), theirs.long()), name
        return
    assert ours.shape == theirs.shape, f"shape of {name}"
    if name == "x[0].grad" and case.layer == "AGNNConv" and case.zeros:
        # Every second row is 0, and its gradient a difference over its norm, which counts as 1e-12.
        ours, theirs = ours[1::2], theirs[1::2]
    scale = max(largest(theirs), 0.01)
    if is_gradient:  # one that cancels to nothing counts relative to the others, or to results
        share = 0.25 if case.precision in HALF else 0.05
        of_grads, of_results = (
            max(
                (largest(t) for n, t in expected.tensors.items() if n.endswith(".grad") == is_grad),
                default=0.0,
            )
            for is_grad in (True, False)
        )
        scale = max(scale, share * (of_grads if of_grads > 1e-12 else of_results))
    torch.testing.assert_close(
        ours.double(),
        theirs.double(),
        rtol=0,
        atol=scale * TOLERANCES[case.precision][is_gradient],
        equal_nan=True,
        msg=lambda message: f"{name}: {message}",
    )


def largest(tensor: Tensor) -> float:
    """The largest magnitude of a finite element."""
    finite = tensor[tensor.isfinite()]
    return finite.abs().max().item() if finite.numel() else 0.0


def outcome(library: Any, case: Case, device: str, dtype: torch.dtype) -> Outcome:
    """What a library's layer gives in ``dtype``."""
    precision = contextlib.nullcontext()
    if case.autocast and dtype == torch.float32:
        precision = torch.autocast(device, dtype=torch_dtype(case.autocast))
    try:
        layer = make(library, case)
    except Exception as error:
        return Outcome(error=error)
    call = build(layer, case, device, dtype)
    seed(case.seed)
    try:
        with precision:
            result = layer(call.x, call.edge_index, **call.options)
        tensors, facts = flatten(result)
        if hasattr(layer, "get_attention_loss"):
            tensors["loss"] = layer.get_attention_loss()
        backward(tensors.values())
    except Exception as error:
        return Outcome(error=error)
    facts["repr"] = repr(layer)
    facts["state_dict"] = {
        key: None if is_lazy(value) else value.shape for key, value in layer.state_dict().items()
    }
    tensors = {name: tensor.detach() for name, tensor in tensors.items()}
    for name, leaf in call.leaves.items():
        if leaf.grad is not None:
            tensors[f"{name}.grad"] = leaf.grad
    return Outcome(tensors, facts)


def backward(tensors: Any) -> None:
    """From a weighted sum of all that is differentiable."""
    sums = []
    for tensor in tensors:
        if tensor.requires_grad:
            weights = torch.linspace(-1, 2, tensor.numel(), dtype=torch.float64)
            weights = weights.to(tensor.device, tensor.dtype).view_as(tensor)
            sums.append((tensor * weights).sum())
    if sums:
        sum(sums).backward()


def flatten(result: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a layer's result by name, and what else there is to compare."""
    tensors: dict[str, Tensor] = {}
    facts: dict[str, Any] = {}

    def add(name: str, value: Any) -> None:
        facts[name] = type(value)
        if isinstance(value, Tensor):
            facts[f"{name}.requires_grad"] = value.requires_grad
        if isinstance(value, tuple):
            for i, part in enumerate(value):
                add(f"{name}[{i}]", part)
        elif isinstance(value, SparseTensor):
            facts[f"{name}.sizes"] = value.sizes()
            for part, tensor in zip(("row", "col", "value"), value.coo(), strict=True):
                tensors[f"{name}.{part}"] = tensor
        elif isinstance(value, EdgeIndex):
            facts[f"{name}.order"] = value.sort_order
            facts[f"{name}.sizes"] = value.sparse_size()
            tensors[name] = value.as_tensor()
        elif value.layout != torch.strided:
            facts[f"{name}.layout"] = value.layout
            facts[f"{name}.sizes"] = value.shape
            coo = value if value.layout == torch.sparse_coo else value.to_sparse_coo()
            tensors[f"{name}.indices"], tensors[f"{name}.values"] = coo._indices(), coo._values()
        else:
            tensors[name] = value

    add("result", result)
    return tensors, facts
