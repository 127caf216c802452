"""Operands for the attention operators, calls of them by name, comparison with the reference."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import reference
import torch
from graphs import Csr
from torch import Tensor

import pyg_dfgnn

SCORES = ("dot", "cosine", "additive", "additive_v2")
DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)
FAMILIES = {
    "smmf_fwd": "smmf_bwd",
    "pmf_fwd": "pmf_bwd",
    "tile_fwd": "tile_bwd",
    "attention": "attention_bwd",
}
# Every way to a kernel: the operator and what chooses the method.
PATHS = {
    "smmf_fwd": ("smmf_fwd", {}),
    "pmf_fwd": ("pmf_fwd", {}),
    "tile_fwd": ("tile_fwd", {}),
    "attention": ("attention", {}),
    "attention_smmf": ("attention", {"method": "smmf"}),
    "attention_pmf": ("attention", {"method": "pmf"}),
    "attention_tile": ("attention", {"method": "tile"}),
    "attention_resident": ("attention", {"method": "resident"}),
}
METHODS = ("smmf_fwd", "pmf_fwd", "tile_fwd")
# (heads, head_dim): every head size that some width divides or leaves a remainder of.
HEAD_DIMS = (1, 3, 8, 16, 17, 32, 64, 100, 128, 130, 256, 513)
SHAPES = tuple(zip((1, 3, 8, 2) * 3, HEAD_DIMS, strict=True))

# Error relative to the largest element of the reference: a few roundings of the result's dtype.
FORWARD_TOLERANCE = {
    torch.float64: 1e-13,
    torch.float32: 1e-5,
    torch.float16: 1e-3,
    torch.bfloat16: 8e-3,
}
# Gradients also carry the rounding of `out` (through <grad_out, out>) and cancel more.
BACKWARD_TOLERANCE = {
    torch.float64: 1e-12,
    torch.float32: 2e-5,
    torch.float16: 4e-3,
    torch.bfloat16: 3e-2,
}


SPARE = 2  # rows of features that are no edge's


def eid_of(csr: Csr) -> Tensor:
    """The row of features of each edge: in another order than edges, and not all of them used."""
    generator = torch.Generator().manual_seed(csr.capacity)
    return torch.randperm(csr.capacity + SPARE, generator=generator)[: csr.capacity].to(csr.col)


def graph_of(csr: Csr) -> pyg_dfgnn.Graph:
    """Its edges' features lie in another order than the edges."""
    sizes = {"num_dst": csr.num_dst, "num_src": csr.num_src}
    return pyg_dfgnn.Graph(csr.rowptr, csr.col, eid_of(csr), **csr.csc(), **sizes)


def normal(csr: Csr, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers on the graph's device, the same of a shape."""
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=generator).to(csr.col.device, dtype)


def captured(step: Callable[[], Any]) -> tuple[torch.cuda.CUDAGraph, Any]:
    """A CUDA graph of what a call does, which it has done once before, and its results."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return graph, results


def make_operands(
    score: str,
    graph: Csr,
    heads: int = 2,
    head_dim: int = 8,
    dtype: torch.dtype = torch.float32,
    edge_terms: bool = False,
) -> dict[str, Tensor]:
    """Random operands under the names of the operator's schema, on the graph's device."""
    generator = torch.Generator().manual_seed(heads * 1000 + head_dim)

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator).to(graph.col.device, dtype)

    def away_from_zero(t: Tensor) -> Tensor:
        return (
            t + 0.5 * t.sign()
        )  # the gradient of a cosine grows with 1 / |x|, and its error with it

    if score == "dot":
        shapes = {"q": graph.num_dst, "k": graph.num_src, "v": graph.num_src}
        x = {name: normal(nodes, heads, head_dim) for name, nodes in shapes.items()}
    elif score == "cosine":
        x = {
            "x_dst": away_from_zero(normal(graph.num_dst, heads, head_dim)),
            "x_src": away_from_zero(normal(graph.num_src, heads, head_dim)),
            "beta": normal(1) + 2,
        }
    elif score == "additive_v2":
        x = {
            "x_dst": normal(graph.num_dst, heads, head_dim),
            "x_src": normal(graph.num_src, heads, head_dim),
            "att": normal(heads, head_dim),
        }
    else:
        x = {
            "a_dst": normal(graph.num_dst, heads),
            "a_src": normal(graph.num_src, heads),
            "v": normal(graph.num_src, heads, head_dim),
        }
    if edge_terms:
        x["bias"] = normal(graph.capacity, heads)
        if score == "additive":
            x["a_edge"] = normal(graph.capacity, heads)
    return x


def of_one_x(operands: dict[str, Tensor]) -> dict[str, Tensor]:
    """As AGNN has them: one tensor at both ends of cosine scores' edges."""
    return operands | {"x_dst": operands["x_src"]} if "beta" in operands else operands


def leaves_of(operands: dict[str, Tensor], dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Copies that require gradients; what is one tensor stays one."""
    made = {id(t): t.detach().to(dtype or t.dtype).requires_grad_() for t in operands.values()}
    return {name: made[id(t)] for name, t in operands.items()}


def operator(name: str, score: str) -> torch._ops.OpOverload:
    return getattr(getattr(torch.ops.dfgnn, name), score)


def run(path: str, score: str, graph: Csr, operands: dict[str, Tensor], **options):
    """(out, lse) of one of PATHS."""
    name, route = PATHS[path]
    return operator(name, score)(graph.rowptr, graph.col, **operands, **route, **options)


def backward_arguments(
    score: str, graph: Csr, operands: dict[str, Tensor], **options
) -> dict[str, Tensor]:
    """Arguments of a backward operator, from a forward pass with unit gradients."""
    out, lse = run("smmf_fwd", score, graph, operands, **options)
    return {
        "grad_out": torch.ones_like(out),
        "grad_lse": None,
        "out": out,
        "lse": lse,
        "rowptr": graph.rowptr,
        "col": graph.col,
        **graph.csc(),
        **operands,
        **options,
    }


def assert_near(
    actual: Tensor, expected: Tensor, tolerance: float, name: str, terms: float = 0.1
) -> None:
    """Within ``tolerance`` of the largest finite element; NaN and infinities in the same places.

    ``terms`` is the size of what was added up, where that cancels to less.
    """
    assert actual.shape == expected.shape, f"{name}: {actual.shape} instead of {expected.shape}"
    finite = expected[expected.isfinite()].abs()
    largest = max(float(finite.max()), terms) if finite.numel() else terms
    torch.testing.assert_close(
        actual.double(),
        expected.double(),
        rtol=tolerance,
        atol=tolerance * largest,
        equal_nan=True,
        msg=lambda text: f"{name}: {text}",
    )


def assert_same_bits(first: list[Tensor], second: list[Tensor]) -> None:
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


def check_forward(
    path: str,
    score: str,
    graph: Csr,
    operands: dict[str, Tensor],
    *,
    hints: dict[str, Any] | None = None,
    **options,
) -> None:
    """``hints``: arguments that change no result."""
    out, lse = run(path, score, graph, operands, **options, **hints or {})
    value = operands[reference.VALUE[score]]
    accumulate = torch.float64 if value.dtype == torch.float64 else torch.float32
    assert out.dtype == value.dtype
    assert lse.dtype == accumulate
    expected_out, expected_lse = reference.attention(score, graph, operands, **options)
    assert_near(out, expected_out, FORWARD_TOLERANCE[value.dtype], "out")
    assert_near(lse, expected_lse, FORWARD_TOLERANCE[accumulate], "lse")


def check_not_finite(path: str, score: str, graph: Csr, operands: dict[str, Tensor]) -> None:
    """Infinities and NaNs of a few values are where the reference has them, and nowhere else."""
    out, _ = run(path, score, graph, operands)
    expected, _ = reference.attention(score, graph, operands)
    assert 0 < int((~expected.isfinite()).sum()) < expected.numel() / 8
    assert_near(out, expected, FORWARD_TOLERANCE[out.dtype], "out")


def projection(t: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Random numbers of its shape that are exact in every dtype, the same of as many."""
    generator = generator or torch.Generator().manual_seed(t.numel())
    return (torch.randint(-8, 9, t.shape, generator=generator) / 4).to(t)


def gradients(
    outputs, operands: dict[str, Tensor], with_lse: bool, create_graph: bool = False
) -> dict[str, Tensor]:
    """Of a fixed random projection of out (and lse), by operand."""
    out, lse = outputs
    generator = torch.Generator().manual_seed(out.numel())

    def projected(t: Tensor) -> Tensor:
        return (t * projection(t, generator)).sum()

    total = projected(out)
    if with_lse:
        total = total + projected(lse.masked_fill(lse == -torch.inf, 0.0))
    found = torch.autograd.grad(
        total, list(operands.values()), materialize_grads=True, create_graph=create_graph
    )
    return dict(zip(operands, found, strict=True))


def results(
    path: str, score: str, graph: Csr, operands: dict[str, Tensor], **options
) -> list[Tensor]:
    """out, lse and their gradients."""
    leaves = leaves_of(operands)
    outputs = run(path, score, graph, leaves, **options)
    return [*outputs, *gradients(outputs, leaves, with_lse=True).values()]


def gradient_terms(name: str, head_dim: int) -> float:
    """The size of what is added up in a gradient; those of beta and att are sums over all edges."""
    return {"beta": 1.0, "att": 2.0 * head_dim**0.5}.get(name, 0.1)


def check_backward(
    path: str,
    score: str,
    graph: Csr,
    operands: dict[str, Tensor],
    *,
    with_lse: bool = True,
    csc: bool = False,
    but: tuple[str, ...] = (),
    hints: dict[str, Any] | None = None,
    slack: float = 1.0,
    **options,
) -> None:
    """Gradients of operands, ``but`` for some, against the reference's by autograd in float64.

    ``slack``: how many times the usual error they may have.
    """
    leaves = leaves_of(operands)
    given = (graph.csc() if csc else {}) | (hints or {})
    found = gradients(run(path, score, graph, leaves, **given, **options), leaves, with_lse)
    exact = leaves_of(operands, torch.float64)
    expected = gradients(reference.attention(score, graph, exact, **options), exact, with_lse)
    value = operands[reference.VALUE[score]]
    for name, gradient in found.items():
        assert gradient.dtype == operands[name].dtype, name
        if name in but:
            continue
        tolerance = slack * BACKWARD_TOLERANCE[value.dtype]
        terms = gradient_terms(name, value.size(-1))
        assert_near(gradient, expected[name], tolerance, f"gradient of {name}", terms)


@contextmanager
def cpu_threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def check_function(
    function: Callable[..., Tensor],
    expected: Callable[..., Tensor],
    operands: Sequence[Tensor],
    result: torch.dtype,
    slack: float = 1.0,
) -> None:
    """The result and the gradients of all operands, beside those of ``expected`` in float64.

    ``slack``: of the result's tolerance, which is that of the second operand's dtype.
    """
    dtype = operands[1].dtype
    leaves = [t.detach().requires_grad_() for t in operands]
    exact = [t.detach().double().requires_grad_() for t in operands]
    found, wanted = function(*leaves), expected(*exact)
    assert found.dtype == result
    assert_near(found, wanted.detach(), FORWARD_TOLERANCE[dtype] * slack, "result")
    weights = projection(found, torch.Generator().manual_seed(1))
    found, wanted = (
        torch.autograd.grad((y * weights.to(y)).sum(), x)
        for y, x in ((found, leaves), (wanted, exact))
    )
    for k, (t, a, b) in enumerate(zip(operands, found, wanted, strict=True)):
        assert a.dtype == t.dtype
        assert_near(a, b, BACKWARD_TOLERANCE[dtype], f"gradient of operand {k}")
