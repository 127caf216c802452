"""Dot attention without fusion: sampled product, softmax, sparse product, one after the other."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..graph import Graph
from ..ops import edge_softmax
from .operands import Operands
from .unsupported import Unsupported
from .workload import Workload


def unfused(score: str, workload: Workload) -> Callable[[Operands], Tensor]:
    """Three operators of this package; scores and weights ``[E, heads]`` are stored."""
    if score != "dot":
        raise Unsupported("only dot scores")
    rowptr, col, csc, n = workload.rowptr, workload.col, workload.csc, workload.num_nodes
    none = torch.empty(0, dtype=col.dtype, device=col.device)  # of no use to a softmax
    graph = Graph(rowptr, col, none, csc["colptr"], csc["row"], csc["perm"], n, n)

    def call(operands: Operands) -> Tensor:
        q, k, v = operands["q"], operands["k"], operands["v"]
        s = torch.ops.dfgnn.sddmm(rowptr, col, a=q, b=k, **csc) * q.size(-1) ** -0.5
        weight = edge_softmax(s, graph).to(v.dtype)
        return torch.ops.dfgnn.spmm(rowptr, col, weight=weight, x=v, **csc)

    return call


def cusparse(score: str, workload: Workload) -> Callable[[Operands], Tensor]:
    """torch's sparse products (cuSPARSE on a GPU, MKL on the CPU), head by head."""
    if score != "dot":
        raise Unsupported("only dot scores")

    def call(operands: Operands) -> Tensor:
        q, k, v = operands["q"], operands["k"], operands["v"]
        if q.dtype not in (torch.float32, torch.float64):
            raise Unsupported("torch.sparse.sampled_addmm has no half precision")
        heads = [
            SparseAttention.apply(q[:, h], k[:, h], v[:, h], workload) for h in range(q.size(1))
        ]
        return torch.stack(heads, dim=1)

    return call


class SparseAttention(torch.autograd.Function):
    """softmax(A ∘ QKᵀ / √d) V for ``q, k, v [N, d]``, every product one of torch.sparse."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, graph: Workload) -> Tensor:
        s = _sampled(graph, q, k) * q.size(1) ** -0.5
        weight = (s - _per_edge(graph, _reduced(graph, s, "max"))).exp_()
        weight /= _per_edge(graph, _reduced(graph, weight, "sum"))
        ctx.graph = graph
        ctx.save_for_backward(q, k, v, weight)
        return _csr(graph, weight) @ v

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        [grad_out] = grads
        q, k, v, weight = ctx.saved_tensors
        graph = ctx.graph
        grad_weight = _sampled(graph, grad_out, v)
        mean = _reduced(graph, weight * grad_weight, "sum")
        grad_s = weight * (grad_weight - _per_edge(graph, mean)) * q.size(1) ** -0.5
        return (
            _csr(graph, grad_s) @ k,
            _transposed(graph, grad_s) @ q,
            _transposed(graph, weight) @ grad_out,
            None,
        )


def _csr(graph: Workload, values: Tensor) -> Tensor:
    size = (graph.num_nodes, graph.num_nodes)
    return torch.sparse_csr_tensor(graph.rowptr, graph.col, values, size, check_invariants=False)


def _transposed(graph: Workload, values: Tensor) -> Tensor:
    size = (graph.num_nodes, graph.num_nodes)
    csc, values = graph.csc, values[graph.csc["perm"]]
    return torch.sparse_csr_tensor(csc["colptr"], csc["row"], values, size, check_invariants=False)


def _sampled(graph: Workload, a: Tensor, b: Tensor) -> Tensor:
    pattern = _csr(graph, a.new_zeros(graph.num_edges))
    return torch.sparse.sampled_addmm(pattern, a.contiguous(), b.t(), beta=0).values()


def _reduced(graph: Workload, values: Tensor, reduce: str) -> Tensor:
    return torch.segment_reduce(
        values, reduce, offsets=graph.rowptr, initial=0 if reduce == "sum" else None
    )


def _per_edge(graph: Workload, values: Tensor) -> Tensor:
    degree = graph.rowptr.diff()
    return values.repeat_interleave(degree, output_size=graph.num_edges)
