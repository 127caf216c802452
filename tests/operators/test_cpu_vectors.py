"""How the CPU's kernels lay heads in vectors: several share one, one fills some, or edges take its
lanes. The same source is compiled for three instruction sets, whose vectors hold 4, 8 and 16."""

import os
import subprocess
import sys
from pathlib import Path

import graphs
import messages
import pytest
import torch
from calls import (
    SCORES,
    assert_same_bits,
    check_backward,
    check_forward,
    leaves_of,
    make_operands,
    run,
)

# Heads that share vectors, with and without a last vector that is not full, more of them than are
# worked on at a time, or that fill a few; ones of few features; and ones that divide no vector.
SHAPES = [
    *[
        (3, 1),
        (16, 1),
        (65, 1),
        (5, 2),
        (70, 2),
        (3, 4),
        (33, 4),
        (5, 8),
        (65, 16),
        (5, 32),
        (7, 64),
    ],
    *[(1, 1), (1, 2), (1, 3), (1, 5), (2, 3), (16, 3), (8, 7), (66, 3), (3, 33)],
    *[(6, 12), (5, 20), (7, 40), (9, 61)],
]


def mixed_rows() -> graphs.Csr:
    """Rows and columns of no edge, of few, of more than a block holds, and of several pieces."""
    degrees = [0, 1, 2, 3, 1, 0, 5, 16, 17, 40, 7, 1] * 12 + [300, 0, 129, 5000, 1, 2, 0]
    return graphs.from_degrees(degrees, 60)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
@pytest.mark.parametrize("score", SCORES)
def test_heads_of_any_width(score, heads, head_dim, dtype):
    graph = mixed_rows()
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms=heads % 2 == 1)
    options = {"dropout_p": 0.3, "seed": torch.tensor([5])} if head_dim % 2 == 1 else {}
    check_forward("smmf_fwd", score, graph, operands, **options)
    if dtype != torch.bfloat16:
        check_backward("smmf_fwd", score, graph, operands, **options)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(("heads", "head_dim"), SHAPES)
def test_messages_of_any_width(heads, head_dim, dtype):
    graph = mixed_rows().to("cpu")
    width = (1, 3, 16, 40)[heads % 4]
    messages.check(graph, messages.operands_of(graph, heads, head_dim, width, dtype))


@pytest.mark.parametrize(("heads", "head_dim"), [(8, 8), (3, 4), (1, 1), (1, 3), (1, 20), (4, 3)])
@pytest.mark.parametrize("score", SCORES)
def test_bits_of_any_width(score, heads, head_dim):
    """Are those of each row and column, whatever others share its block, and wherever in it."""
    degrees = [9, 1, 14, 3]
    one = graphs.from_degrees(degrees, 30).to("cpu")
    rows, times = len(degrees), 40
    rowptr = torch.cat([one.rowptr[:-1] + k * one.num_edges for k in range(times)])
    col = torch.cat([one.col + k * one.num_src for k in range(times)])
    end = torch.tensor([times * one.num_edges], dtype=torch.int32)
    many = graphs.Csr(torch.cat([rowptr, end]), col, times * one.num_src)
    operands = make_operands(score, one, heads, head_dim)
    shared = {"att", "beta"}
    repeated = {n: x if n in shared else torch.cat([x] * times) for n, x in operands.items()}

    def results_of_nodes(graph, operands):
        leaves = leaves_of(operands)
        out, lse = run("smmf_fwd", score, graph, leaves)
        terms = torch.linspace(-1, 1, out[:rows].numel()).view_as(out[:rows])
        nodes = [x for n, x in leaves.items() if n not in shared]
        return [out, lse, *torch.autograd.grad((out.view(-1, *terms.shape) * terms).sum(), nodes)]

    expected = results_of_nodes(one, operands)
    for result, x in zip(results_of_nodes(many, repeated), expected, strict=True):
        assert_same_bits(list(result.chunk(times)), [x] * times)


def test_invalid_neighbour():
    """Changes no bits of other rows."""
    graph = graphs.from_degrees([9, 1, 14, 3], 30).to("cpu")
    operands = make_operands("dot", graph, 1, 3)
    with torch.no_grad():
        expected = run("smmf_fwd", "dot", graph, operands)
        col = graph.col.clone()
        col[-1] = 1 << 20
        broken = graphs.Csr(graph.rowptr, col, graph.num_src)
        out = run("smmf_fwd", "dot", broken, operands)
    assert_same_bits([x[:3] for x in out], [x[:3] for x in expected])
    assert out[0][3].isnan().all()


@pytest.mark.parametrize("capability", ["default", "avx2"])
@pytest.mark.parametrize(
    ("file", "tests"),
    [
        (Path(__file__).name, "any_width and not narrower"),
        ("test_products.py", "cpu and (shapes or side_by_side or in_pieces)"),
        ("test_edge_features.py", "cpu and (graphs or shapes or many_edges or in_pieces)"),
        ("test_node_scores.py", "cpu and (shapes or dtypes)"),
        ("test_message_attention.py", "cpu and (graphs or shapes or dropout or gradients)"),
    ],
)
def test_narrower_instruction_sets(file, tests, capability):
    """Chosen once in a process."""
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-k", tests, file],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parent,
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert result.returncode == 0, result.stdout[-2000:]
