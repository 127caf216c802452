"""Swaps the layers of a model in place: PyG's for ours, and back."""

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
import torch_geometric.nn
from torch_geometric.nn.aggr import SumAggregation
from torch_geometric.nn.conv import MessagePassing

from . import nn
from .nn._fused import OWN_ATTRIBUTES, FusedConv, check_method


class Swaps(NamedTuple):
    """What was swapped and what was not, by the names of the layers in the model.

    Attributes:
        swapped: The class of each layer that was swapped.
        left: Why each other layer that passes messages was not.
    """

    swapped: dict[str, str]
    left: dict[str, str]

    def __repr__(self) -> str:
        lines = [f"{len(self.swapped)} swapped, {len(self.left)} left"]
        for title, layers in self._asdict().items():
            lines += [f"  {title}: {name or '(the model)'}: {layers[name]}" for name in layers]
        return "\n".join(lines)


def fuse(model: torch.nn.Module, method: str = "auto") -> Swaps:
    """Makes PyG's attention layers in a model ours, in place.

    A layer remains the same object and only changes its class, so that all that it holds and all
    that refers to it stays: parameters (and the optimizers that have them), buffers, hooks, modes,
    and the places where it is used. Fuse before ``torch.jit.script`` and before what derives
    classes of its own, such as ``fully_shard`` and parametrizations of the layer.

    Args:
        model: A module, or a layer itself.
        method: That of the fused operators, ``"auto"`` or another of :mod:`pyg_dfgnn.ops`.

    Returns:
        What was swapped, and what was left and why: layers that would not run fused, and those of
        derived classes, which may compute something else.

    Raises:
        ValueError: of an unknown method.
    """
    check_method(method)

    def swap(layer: Any) -> str:
        reason = _why_not_to_fuse(layer)
        if not reason:
            _change_class(layer, _layers()[type(layer)])
            layer.set_up(method)
        return reason

    return _swap_all(model, swap)


def unfuse(model: torch.nn.Module) -> Swaps:
    """Makes our layers in a model PyG's, in place: the inverse of :func:`fuse`.

    Args:
        model: A module, or a layer itself.

    Returns:
        What was swapped, and what was left and why.
    """
    theirs = {ours: layer for layer, ours in _layers().items()}

    def swap(layer: Any) -> str:
        if type(layer) not in theirs:
            return f"{_name(layer)} is not a layer of pyg_dfgnn"
        _change_class(layer, theirs[type(layer)])
        for attribute in OWN_ATTRIBUTES:
            vars(layer).pop(attribute, None)
        return ""

    return _swap_all(model, swap)


@cache
def _layers() -> dict[type, type[FusedConv]]:
    """PyG's layers, and ours of the same names."""
    return {
        getattr(torch_geometric.nn, name): layer
        for name, layer in vars(nn).items()
        if isinstance(layer, type) and issubclass(layer, FusedConv)
    }


def _swap_all(model: torch.nn.Module, swap: Callable[[Any], str]) -> Swaps:
    """Calls ``swap`` for each layer, which returns why it left it; empty where it did not."""
    names: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, MessagePassing) or _is_scripted(module):
            names.setdefault(module, []).append(name)
    swaps = Swaps({}, {})
    for layer, aliases in names.items():
        reason = swap(layer)
        (swaps.left if reason else swaps.swapped).update(
            dict.fromkeys(aliases, reason or _name(layer))
        )
    return swaps


def _why_not_to_fuse(layer: Any) -> str:
    if _is_scripted(layer):
        return f"{_name(layer)} is scripted; fuse first"
    if isinstance(layer, FusedConv):
        return f"{_name(layer)} is a layer of pyg_dfgnn"
    if type(layer) not in _layers():
        for base in _layers():
            if isinstance(layer, base):
                return f"{_name(layer)} may differ from {base.__name__}, which it derives from"
        return f"{_name(layer)} is not among {', '.join(base.__name__ for base in _layers())}"
    if type(layer.aggr_module) is not SumAggregation:
        return f"{_name(layer)} has aggr={layer.aggr!r}; only sums are fused"
    if layer.decomposed_layers > 1:
        return f"{_name(layer)} has decomposed_layers={layer.decomposed_layers}"
    replaced = [
        name
        for name in vars(layer)
        if callable(getattr(type(layer), name, None)) and name != "propagate"
    ]
    if replaced:
        return f"{_name(layer)} has a {replaced[0]} of its own"
    return ""


def _change_class(layer: Any, target: type) -> None:
    source = type(layer)
    layer.__class__ = target
    # `explain` and `decomposed_layers`, once set, leave a bound propagate in the layer.
    propagate = getattr(vars(layer).get("propagate"), "__func__", None)
    if propagate is getattr(source, "_jinja_propagate", None):
        vars(layer).pop("propagate", None)
    layer._set_jittable_templates()


def _is_scripted(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.jit.ScriptModule) and module.original_name in {
        layer.__name__ for layer in _layers()
    }


def _name(layer: Any) -> str:
    return layer.original_name if _is_scripted(layer) else type(layer).__name__
