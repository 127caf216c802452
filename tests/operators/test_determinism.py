"""The same bits from run to run, whatever else the machine does."""

import calls
import graphs
import messages
import pytest
import torch
from calls import (
    DTYPES,
    METHODS,
    SCORES,
    assert_same_bits,
    cpu_threads,
    make_operands,
)


def results(path: str, score: str, graph: graphs.Csr, dtype: torch.dtype) -> list[torch.Tensor]:
    """With all that edges can have."""
    operands = make_operands(score, graph, 2, 24, dtype, edge_terms=True)
    seed = torch.tensor([11], device=graph.col.device)
    return calls.results(path, score, graph, operands, dropout_p=0.2, seed=seed)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", ["hub", "star_of_sources", "degrees_around_tiles"])
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("score", SCORES)
def test_two_runs(score, path, name, dtype, device):
    graph = graphs.make(name, device)
    expected = results(path, score, graph, dtype)
    for _ in range(3):
        assert_same_bits(results(path, score, graph, dtype), expected)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("name", ["super_node", "random"])
def test_any_number_of_threads(name, score):
    graph = graphs.random(2000, 12) if name == "random" else graphs.make(name)
    found = []
    for threads in (1, 2, 3, 7):
        with cpu_threads(threads):
            found.append(results("attention", score, graph, torch.float32))
    for other in found[1:]:
        assert_same_bits(other, found[0])


def test_one_number_of_many_nodes_with_any_number_of_threads():
    """The gradient of beta, a sum over more nodes than torch's sums leave to one thread."""
    graph = graphs.random(40_000, 5)
    x = torch.randn(40_000, 1, 1, generator=torch.Generator().manual_seed(0))
    found = []
    for threads in (1, 2, 3):
        with cpu_threads(threads):
            beta = torch.ones(1, requires_grad=True)
            operands = {"x_dst": x, "x_src": x, "beta": beta}
            out, _ = torch.ops.dfgnn.attention(graph.rowptr, graph.col, **operands)
            out.square().sum().backward()
            found.append(beta.grad)
    for other in found[1:]:
        assert_same_bits([other], [found[0]])


def test_sums_over_nodes_with_any_number_of_threads():
    """The gradients of vectors att: torch's sums take columns in other orders with many threads."""
    generator = torch.Generator().manual_seed(0)
    x, grad = (torch.randn(50_001, 1, n, generator=generator) for n in (100, 1))
    att = torch.randn(1, 100, generator=generator)
    graph = graphs.random(50_001, 1)
    found = []
    for threads in (1, 2, 9, 16):
        with cpu_threads(threads):
            of_scores = torch.ops.dfgnn.node_scores_bwd(grad.squeeze(2), None, x, att)
            leaf = att.clone().requires_grad_()
            out, _ = torch.ops.dfgnn.attention(
                graph.rowptr, graph.col, x_dst=x, x_src=x.flip(0), att=leaf
            )
            found.append([*of_scores, *torch.autograd.grad(out.square().sum(), leaf)])
    for other in found[1:]:
        assert_same_bits(other, found[0])


def test_messages_with_any_number_of_threads():
    graph = graphs.random(5000, 6).to("cpu")
    operands = messages.operands_of(graph, 4, 16, 40)
    found = []
    for threads in (1, 2, 8, 16):
        with cpu_threads(threads):
            leaves = {name: x.detach().requires_grad_() for name, x in operands.items()}
            y = messages.call(graph, leaves)
            nodes = [leaves[name] for name in ("q", "k", "v", "features")]
            found.append([y, *torch.autograd.grad(y.square().sum(), nodes)])
    for other in found[1:]:
        assert_same_bits(other, found[0])


@pytest.mark.parametrize("self_loops", [False, True])
def test_graphs_with_any_number_of_threads(self_loops):
    generator = torch.Generator().manual_seed(0)
    src, dst = torch.randint(3000, (2, 60_000), generator=generator)
    found = []
    for threads in (1, 2, 3, 7):
        with cpu_threads(threads):
            csr = torch.ops.dfgnn.coo_to_csr(src, dst, 3000, 3000, self_loops=self_loops)
            found.append([*csr, *torch.ops.dfgnn.csr_to_csc(csr[0], csr[1], 3000)])
    for other in found[1:]:
        assert_same_bits(other, found[0])
