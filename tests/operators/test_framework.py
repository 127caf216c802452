"""What torch asks of operators: opcheck, TorchScript, torch.compile, CUDA graphs, meta tensors."""

import io

import graphs
import pytest
import torch
from calls import (
    DTYPES,
    FAMILIES,
    METHODS,
    SCORES,
    backward_arguments,
    captured,
    gradients,
    make_operands,
    operator,
    run,
)
from torch import Tensor
from torch._dynamo.testing import CompileCounterWithBackend

pytestmark = pytest.mark.usefixtures("fresh_dynamo")


@pytest.mark.parametrize("options", [{}, {"dropout_p": 0.5}], ids=["plain", "dropout"])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES)
def test_opcheck_forward(op, score, options, device):
    graph = graphs.mixed(device)
    operands = make_operands(score, graph, edge_terms=True)
    if options:
        options = {**options, "seed": torch.tensor([3], device=device)}
    leaves = {name: t.requires_grad_() for name, t in operands.items()}
    arguments = {"rowptr": graph.rowptr, "col": graph.col, **leaves, **options}
    torch.library.opcheck(operator(op, score), (), arguments)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES.values())
def test_opcheck_backward(op, score, device):
    graph = graphs.mixed(device)
    operands = make_operands(score, graph, edge_terms=True)
    torch.library.opcheck(operator(op, score), (), backward_arguments(score, graph, operands))


@pytest.mark.parametrize("self_loops", [False, True])
def test_opcheck_graph_operators(self_loops, device):
    src, dst = torch.randint(6, (2, 20), device=device)
    csr = torch.ops.dfgnn.coo_to_csr.default
    torch.library.opcheck(csr, (src, dst, 6, 6), {"self_loops": self_loops})
    rowptr, col, _, _ = csr(src, dst, 6, 6, self_loops=self_loops)
    torch.library.opcheck(torch.ops.dfgnn.csr_to_csc.default, (rowptr, col, 6))
    torch.library.opcheck(torch.ops.dfgnn.find_tiles.default, (rowptr, col))
    keywords = {"self_loops": self_loops, "with_tiles": True}
    torch.library.opcheck(torch.ops.dfgnn.compress.default, (src, dst, 6, 6), keywords)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES)
def test_meta(op, score, dtype):
    """Shapes and dtypes without data."""
    graph = graphs.mixed()
    operands = make_operands(score, graph, dtype=dtype)
    expected = operator(op, score)(graph.rowptr, graph.col, **operands)
    moved = {name: t.to("meta") for name, t in operands.items()}
    found = operator(op, score)(graph.rowptr.to("meta"), graph.col.to("meta"), **moved)
    for a, b in zip(found, expected, strict=True):
        assert a.is_meta
        assert (a.shape, a.dtype) == (b.shape, b.dtype)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES)
def test_what_needs_no_gradient(op, score, device):
    """Records nothing, and is the same bits as with a graph."""
    graph = graphs.mixed(device)
    operands = make_operands(score, graph, edge_terms=True)
    leaves = {name: t.clone().requires_grad_() for name, t in operands.items()}
    recorded = operator(op, score)(graph.rowptr, graph.col, **leaves)
    assert all(t.requires_grad for t in recorded)
    with torch.no_grad():
        without = operator(op, score)(graph.rowptr, graph.col, **leaves)
    for results in (without, operator(op, score)(graph.rowptr, graph.col, **operands)):
        for found, expected in zip(results, recorded, strict=True):
            assert not found.requires_grad
            assert torch.equal(found, expected)


@pytest.mark.parametrize("grad", [True, False])
def test_no_forward_mode(grad):
    graph = graphs.mixed()
    operands = make_operands("dot", graph)
    with torch.set_grad_enabled(grad), torch.autograd.forward_ad.dual_level():
        operands["v"] = torch.autograd.forward_ad.make_dual(operands["v"], operands["v"])
        with pytest.raises(RuntimeError, match="jvp is not implemented"):
            operator("attention", "dot")(graph.rowptr, graph.col, **operands)


# Scripts name the operator without its overload, which the keyword arguments choose.
def scripted_dot(rowptr: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor):
    return torch.ops.dfgnn.attention(rowptr, col, q=q, k=k, v=v, scale=0.5)


def scripted_cosine(rowptr: Tensor, col: Tensor, x_dst: Tensor, x_src: Tensor, beta: Tensor):
    return torch.ops.dfgnn.attention(rowptr, col, x_dst=x_dst, x_src=x_src, beta=beta, eps=1e-12)


def scripted_additive(rowptr: Tensor, col: Tensor, a_dst: Tensor, a_src: Tensor, v: Tensor):
    return torch.ops.dfgnn.attention(rowptr, col, a_dst=a_dst, a_src=a_src, v=v, negative_slope=0.1)


def scripted_additive_v2(rowptr: Tensor, col: Tensor, x_dst: Tensor, x_src: Tensor, att: Tensor):
    return torch.ops.dfgnn.attention(
        rowptr, col, x_dst=x_dst, x_src=x_src, att=att, negative_slope=0.1
    )


def scripted_smmf_dot(rowptr: Tensor, col: Tensor, q: Tensor, k: Tensor, v: Tensor):
    return torch.ops.dfgnn.smmf_fwd(rowptr, col, q=q, k=k, v=v, scale=0.5)


def scripted_pmf_cosine(rowptr: Tensor, col: Tensor, x_dst: Tensor, x_src: Tensor, beta: Tensor):
    return torch.ops.dfgnn.pmf_fwd(rowptr, col, x_dst=x_dst, x_src=x_src, beta=beta)


def scripted_smmf_additive(rowptr: Tensor, col: Tensor, a_dst: Tensor, a_src: Tensor, v: Tensor):
    return torch.ops.dfgnn.smmf_fwd(rowptr, col, a_dst=a_dst, a_src=a_src, v=v)


def scripted_pmf_additive_v2(
    rowptr: Tensor, col: Tensor, x_dst: Tensor, x_src: Tensor, att: Tensor
):
    return torch.ops.dfgnn.pmf_fwd(rowptr, col, x_dst=x_dst, x_src=x_src, att=att)


SCRIPTED = {
    scripted_dot: "dot",
    scripted_cosine: "cosine",
    scripted_additive: "additive",
    scripted_additive_v2: "additive_v2",
    scripted_smmf_dot: "dot",
    scripted_pmf_cosine: "cosine",
    scripted_smmf_additive: "additive",
    scripted_pmf_additive_v2: "additive_v2",
}


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
@pytest.mark.parametrize("function", SCRIPTED, ids=lambda f: f.__name__)
def test_torchscript(function, device):
    """Scripted, saved and loaded, each call still means the overload it named."""
    graph = graphs.mixed(device)
    operands = make_operands(SCRIPTED[function], graph)
    leaves = {name: t.requires_grad_() for name, t in operands.items()}
    expected = function(graph.rowptr, graph.col, **leaves)
    wanted = gradients(expected, leaves, with_lse=True)
    scripted = torch.jit.script(function)
    buffer = io.BytesIO()
    torch.jit.save(scripted, buffer)
    buffer.seek(0)
    for module in (scripted, torch.jit.load(buffer)):
        for _ in range(3):  # profiled, then optimized
            found = module(graph.rowptr, graph.col, **leaves)
            torch.testing.assert_close(found, expected, rtol=0, atol=0)
            found = gradients(found, leaves, with_lse=True)
            torch.testing.assert_close(found, wanted, rtol=0, atol=0)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES)
def test_compile(op, score, device):
    """One graph, forward and backward, which serves graphs of every size once sizes are dynamic."""
    counter = CompileCounterWithBackend("aot_eager")

    @torch.compile(fullgraph=True, backend=counter)
    def compiled(rowptr, col, operands):
        return operator(op, score)(rowptr, col, **operands)

    for nodes in (40, 50, 77):
        graph = graphs.random(nodes, 3, device)
        operands = make_operands(score, graph, edge_terms=True)
        leaves = {name: t.requires_grad_() for name, t in operands.items()}
        for t in (graph.rowptr, graph.col, *leaves.values()):
            if t.numel() > 1:  # beta has one element whatever the graph
                torch._dynamo.mark_dynamic(t, 0)
        found = compiled(graph.rowptr, graph.col, leaves)
        expected = operator(op, score)(graph.rowptr, graph.col, **leaves)
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
        found, expected = (gradients(t, leaves, with_lse=True) for t in (found, expected))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert counter.frame_count == 1


@pytest.mark.parametrize("self_loops", [False, True])
def test_compile_graph_operators(self_loops, device):
    counter = CompileCounterWithBackend("aot_eager")

    def build(src, dst, nodes: int):
        rowptr, col, _, stats = torch.ops.dfgnn.coo_to_csr(
            src, dst, nodes, nodes, self_loops=self_loops
        )
        return rowptr, col, stats, *torch.ops.dfgnn.csr_to_csc(rowptr, col, nodes)

    compiled = torch.compile(build, fullgraph=True, backend=counter, dynamic=True)
    for nodes, edges in ((5, 20), (9, 31), (30, 64)):
        src, dst = torch.randint(nodes, (2, edges), device=device)
        torch.testing.assert_close(
            compiled(src, dst, nodes), build(src, dst, nodes), rtol=0, atol=0
        )
    assert counter.frame_count == 1


@pytest.mark.parametrize("dropout_p", [0.0, 0.5])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("path", [*METHODS, "attention"])
def test_cuda_graph(path, score, dropout_p, cuda):
    """Both passes captured, replayed on other numbers; dropout draws anew each time."""
    graph = graphs.make("hub", cuda)
    static = make_operands(score, graph, 2, 32, edge_terms=True)
    leaves = {name: t.requires_grad_() for name, t in static.items()}

    def step() -> tuple[Tensor, ...]:
        out, lse = run(path, score, graph, leaves, dropout_p=dropout_p)
        return out, lse, *torch.autograd.grad(out.sum() + lse.sum(), list(leaves.values()))

    replayed, results = captured(step)
    with torch.no_grad():
        for t in leaves.values():
            t.mul_(0.5).add_(0.25)
    replayed.replay()
    first = [t.clone() for t in results]
    replayed.replay()
    second = [t.clone() for t in results]
    if dropout_p:
        assert not torch.equal(first[0], second[0])
        torch.testing.assert_close(first[1], second[1], rtol=0, atol=0)  # lse knows no dropout
    else:
        torch.testing.assert_close(first, second, rtol=0, atol=0)
        torch.testing.assert_close(first, list(step()), rtol=0, atol=0)


class Aggregate(torch.nn.Module):
    """Operators among ordinary ones: from edges to features."""

    def forward(self, src: Tensor, dst: Tensor, x: Tensor) -> Tensor:
        rowptr, col, _, _ = torch.ops.dfgnn.coo_to_csr(src, dst, x.size(0), x.size(0))
        out, lse = torch.ops.dfgnn.attention(rowptr, col, q=x * 0.5, k=x.tanh(), v=x)
        return out.relu() + lse.masked_fill(lse == -torch.inf, 0.0).unsqueeze(-1)


def example(nodes: int, device: str = "cpu") -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(nodes)
    src, dst = torch.randint(nodes, (2, 5 * nodes), generator=generator).to(device)
    return src, dst, torch.randn(nodes, 2, 8, generator=generator).to(device).requires_grad_()


def test_inductor(device):
    """Generated code around the operators, with their shapes and strides as declared."""
    module = Aggregate()
    compiled = torch.compile(module, fullgraph=True, dynamic=True)
    for nodes in (20, 33):
        src, dst, x = example(nodes, device)
        results = []
        for function in (module, compiled):
            out = function(src, dst, x)
            results.append((out, torch.autograd.grad(out.sum(), x)))
        torch.testing.assert_close(*results)


def test_export(device):
    """One exported program for graphs of every size."""
    most = 2**31 - 2  # beyond, indices would be int64: another program
    nodes, edges = (torch.export.Dim(name, min=2, max=most) for name in ("nodes", "edges"))
    shapes = {"src": {0: edges}, "dst": {0: edges}, "x": {0: nodes}}
    module = Aggregate()
    program = torch.export.export(module, example(20, device), dynamic_shapes=shapes)
    other = example(33, device)
    torch.testing.assert_close(program.module()(*other), module(*other))
