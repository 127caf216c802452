"""How the CPU's kernels lay heads in vectors: several share one, one fills some, or edges take its
lanes. The same source is compiled for three instruction sets, whose vectors hold 4, 8 and 16."""

import os
import subprocess
import sys
from pathlib import Path

import graphs
import pytest
import torch
from calls import SCORES, assert_same_bits, check_backward, check_forward, make_operands, results

# Heads that share vectors, with and without a last vector that is not full, and more of them than
# are worked on at a time; ones of few features; and ones that do not divide a vector.
SHAPES = [
    *[(3, 1), (65, 1), (5, 2), (70, 2), (3, 4), (33, 4), (5, 8), (65, 16)],
    *[(1, 1), (1, 2), (1, 3), (1, 5), (2, 3), (8, 7), (66, 3), (3, 33)],
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


@pytest.mark.parametrize(("heads", "head_dim"), [(8, 8), (1, 2), (4, 3)])
@pytest.mark.parametrize("score", SCORES)
def test_bits_are_those_of_each_row(score, heads, head_dim):
    """Whatever other rows share its block."""
    alone = graphs.from_degrees([9], 60).to("cpu")
    rowptr = torch.tensor([0, 0, 9, 9, 12])
    among = graphs.Csr(rowptr, torch.cat([alone.col, alone.col[:3]]), 60).to("cpu")
    operands = make_operands(score, among, heads, head_dim)
    of_alone = dict(operands)
    for name in ("q", "x_dst", "a_dst"):
        if name in operands:
            of_alone[name] = operands[name][1:2]
    out, lse = results("smmf_fwd", score, among, operands)[:2]
    assert_same_bits([out[1:2], lse[1:2]], results("smmf_fwd", score, alone, of_alone)[:2])


@pytest.mark.parametrize("capability", ["default", "avx2"])
def test_narrower_instruction_sets(capability):
    """Chosen once in a process."""
    options = ["-q", "-x", "-p", "no:cacheprovider", "-k", "any_width"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, __file__],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[2],
        env={**os.environ, "ATEN_CPU_CAPABILITY": capability, "OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert result.returncode == 0, result.stdout[-2000:]
