"""The overloads of attention as operators whose arguments need no names."""

import io

import graphs
import pytest
import torch
from calls import SCORES, make_operands, operator
from torch import Tensor


def by_position(score: str) -> torch._ops.OpOverload:
    return getattr(torch.ops.dfgnn, f"{score}_attention").default


def arguments_of(score: str, graph: graphs.Csr) -> dict[str, object]:
    """Every argument of the operator, in its order."""
    given = {
        "rowptr": graph.rowptr,
        "col": graph.col,
        **graph.csc(),
        **make_operands(score, graph, edge_terms=True),
        "dropout_p": 0.5,
        "seed": torch.tensor([3], device=graph.col.device),
    }
    schema = by_position(score)._schema.arguments
    return {x.name: given.get(x.name, x.default_value) for x in schema}


@pytest.mark.parametrize("score", SCORES)
def test_arguments_are_those_of_the_overload(score):
    positional = by_position(score)._schema
    overload = operator("attention", score)._schema
    assert not any(x.kwarg_only for x in positional.arguments)
    for found, expected in zip(positional.arguments, overload.arguments, strict=True):
        assert found.name == expected.name
        assert str(found.type) == str(expected.type)
        assert found.default_value == expected.default_value


@pytest.mark.parametrize("score", SCORES)
def test_results_are_those_of_the_overload(score, device):
    arguments = arguments_of(score, graphs.mixed(device))
    leaves = [t.requires_grad_() for t in arguments.values() if is_leaf(t)]
    out, lse = by_position(score)(*arguments.values())
    found = (out, lse, *torch.autograd.grad(out.sum() + lse.nan_to_num(0, 0, 0).sum(), leaves))
    rowptr, col = (arguments.pop(name) for name in ("rowptr", "col"))
    out, lse = operator("attention", score)(rowptr, col, **arguments)
    expected = (out, lse, *torch.autograd.grad(out.sum() + lse.nan_to_num(0, 0, 0).sum(), leaves))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)


@pytest.mark.parametrize("score", SCORES)
def test_opcheck(score, device):
    arguments = arguments_of(score, graphs.mixed(device))
    for t in arguments.values():
        if is_leaf(t):
            t.requires_grad_()
    torch.library.opcheck(by_position(score), tuple(arguments.values()))


def is_leaf(argument: object) -> bool:
    return isinstance(argument, Tensor) and argument.is_floating_point()


def scripted(rowptr: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor):
    return torch.ops.dfgnn.dot_attention(rowptr, col, q, k, v, 0.5)


def test_script(device):
    graph = graphs.mixed(device)
    operands = make_operands("dot", graph)
    buffer = io.BytesIO()
    torch.jit.save(torch.jit.script(scripted), buffer)
    buffer.seek(0)
    found, _ = torch.jit.load(buffer)(graph.rowptr, graph.col, *operands.values())
    expected, _ = operator("attention", "dot")(graph.rowptr, graph.col, **operands, scale=0.5)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("score", SCORES)
def test_compile(score, device):
    """Compiled code calls the overload."""
    targets = []

    def backend(module, _):
        def inner(module, _):
            targets.extend(node.target for node in module.graph.nodes)
            return module.forward

        return torch._dynamo.backends.common.aot_autograd(fw_compiler=inner)(module, _)

    arguments = list(arguments_of(score, graphs.mixed(device)).values())

    def call(*tensors):
        return by_position(score)(*tensors)

    found = torch.compile(call, fullgraph=True, backend=backend)(*arguments)
    for a, b in zip(found, call(*arguments), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    assert operator("attention", score) in targets
