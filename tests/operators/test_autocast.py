"""Under autocast features are cast as in the layers of PyG; results are those of cast operands."""

import graphs
import pytest
import torch
from calls import PATHS, SCORES, gradients, make_operands, run
from graphs import Csr
from torch import Tensor

CAST = {
    "dot": {"q", "k", "v"},
    "cosine": set(),
    "additive": {"v"},
    "additive_v2": {"x_dst", "x_src"},
}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("score", SCORES)
def test_autocast(score, path, dtype, device):
    graph = graphs.mixed(device)
    leaves = {
        name: t.requires_grad_() for name, t in make_operands(score, graph, edge_terms=True).items()
    }
    with torch.autocast(device, dtype):
        out, lse = run(path, score, graph, leaves)
    cast = {name: t.to(dtype) if name in CAST[score] else t for name, t in leaves.items()}
    expected = run(path, score, graph, cast)
    assert out.dtype == expected[0].dtype
    assert lse.dtype == torch.float32
    torch.testing.assert_close((out, lse), expected, rtol=0, atol=0)
    found = gradients((out, lse), leaves, with_lse=True)
    wanted = gradients(expected, leaves, with_lse=True)
    torch.testing.assert_close(found, wanted, rtol=0, atol=0)
    assert all(t.dtype == torch.float32 for t in found.values())


def numbers(like: Tensor, *shape: int) -> Tensor:
    rng = torch.Generator().manual_seed(sum(shape))
    return torch.randn(shape, generator=rng).to(like.device).requires_grad_()


def operator_and_operands(name: str, graph: Csr):
    """A call of one of the operators beside attention, by names of its operands, and these."""
    edges, col = graph.capacity, graph.col
    x_dst, x_src = numbers(col, graph.num_dst, 2, 8), numbers(col, graph.num_src, 2, 8)
    weight, features = numbers(col, edges, 2), numbers(col, edges, 8)
    second = torch.arange(edges).to(col)  # col, or which features are an edge's
    messages = {"features": features, "projection": numbers(col, 16, 8)}
    operands = {
        "sddmm": {"a": x_dst, "b": x_src},
        "spmm": {"weight": weight, "x": x_src},
        "edge_sddmm": {"a": x_dst, "features": features},
        "edge_spmm": {"weight": weight, "features": features},
        "edge_spmm_t": {"weight": weight, "a": x_dst},
        "additive_v2_logits": {"x_dst": x_dst, "x_src": x_src, "att": numbers(col, 2, 8)},
        "message_sddmm": {"a": x_dst, "b": x_src, **messages},
        "message_spmm": {"weight": weight, "x": x_src, **messages},
    }[name]
    of_messages = {"eid": second}
    rests = {
        "edge_spmm_t": {"rows": edges},
        "message_sddmm": of_messages,
        "message_spmm": of_messages,
    }
    rest = rests.get(name, {})
    index = second if name.startswith("edge_") else col

    def call(**given: Tensor) -> Tensor:
        return getattr(torch.ops.dfgnn, name)(graph.rowptr, index, **given, **rest)

    return call, operands


@pytest.mark.parametrize("with_features", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_logits(dtype, with_features, device):
    """Nodes' and edges' features and W are cast, whatever their precision; vectors att are not."""
    graph = graphs.mixed(device)
    call, operands = operator_and_operands("additive_v2_logits", graph)
    rest = {}
    if with_features:
        operands["features"] = numbers(graph.col, graph.capacity, 4)
        operands["weight"] = numbers(graph.col, 16, 4)
        rest = {"eid": torch.arange(graph.capacity).to(graph.col)}
    halves = {name: t if name == "att" else t.detach().to(dtype) for name, t in operands.items()}
    expected = call(**halves, **rest)
    operands["x_src"] = operands["x_src"].detach().to(dtype)
    with torch.autocast(device, dtype):
        found = call(**operands, **rest)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("forward", [torch.bfloat16, None], ids=str)
@pytest.mark.parametrize(
    "name",
    [
        "sddmm", "spmm", "edge_sddmm", "edge_spmm", "edge_spmm_t", "additive_v2_logits",
        "message_sddmm", "message_spmm",
    ],
)  # fmt: skip
def test_backward_in_another_mode(name, forward, create_graph, device):
    """That of the forward pass says what gradients are made of."""
    call, operands = operator_and_operands(name, graphs.mixed(device))
    with torch.autocast(device, torch.bfloat16, forward is not None):
        total, leaves = call(**operands).float().square().sum(), list(operands.values())
        expected = torch.autograd.grad(total, leaves, retain_graph=True, create_graph=create_graph)
    with torch.autocast(device, torch.bfloat16, forward is None):
        found = torch.autograd.grad(total, leaves, create_graph=create_graph)
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
