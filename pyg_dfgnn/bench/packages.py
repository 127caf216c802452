"""Attention of other packages, where they are installed."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .operands import Operands
from .unsupported import Unsupported
from .workload import Workload


def imported(name: str) -> Any:
    """The module; Unsupported where it is not installed."""
    try:
        return importlib.import_module(name)
    except (ImportError, OSError):  # OSError: a library that it needs is missing
        raise Unsupported("not installed") from None


def dgl(score: str, workload: Workload) -> Callable[[Operands], Tensor]:
    """DGL's generalized sampled product, edge softmax and sparse product."""
    package, ops = imported("dgl"), imported("dgl.ops")
    if score == "additive_v2":
        raise Unsupported("only dot, cosine and additive scores")
    src, dst = workload.edge_index()
    graph = package.graph((src, dst), num_nodes=workload.num_nodes)

    def call(operands: Operands) -> Tensor:
        x = operands
        if score == "dot":
            s = ops.v_dot_u(graph, x["q"], x["k"]) * x["q"].size(-1) ** -0.5
            value = x["v"]
        elif score == "cosine":
            unit = torch.nn.functional.normalize(x["x_src"], dim=-1)
            s, value = ops.v_dot_u(graph, unit, unit) * x["beta"], x["x_src"]
        else:
            a_dst, a_src = x["a_dst"].unsqueeze(-1), x["a_src"].unsqueeze(-1)
            s = torch.nn.functional.leaky_relu(ops.v_add_u(graph, a_dst, a_src), 0.2)
            value = x["v"]
        return ops.u_mul_e_sum(graph, value, ops.edge_softmax(graph, s))

    return call
