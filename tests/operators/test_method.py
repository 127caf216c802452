"""Which method ``attention`` takes: the super-node check, as its log tells."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch, pyg_dfgnn
degree, max_degree, dtype, score, method = {arguments}
rowptr, col = torch.tensor([0, degree], dtype=torch.int32), torch.zeros(degree, dtype=torch.int32)
x = torch.randn(1, 1, 4, dtype=getattr(torch, dtype))
a = torch.randn(1, 1, dtype=x.dtype)
operands = {{"q": x, "k": x, "v": x}} if score == "dot" else {{"a_dst": a, "a_src": a, "v": x}}
torch.ops.dfgnn.attention(rowptr, col, **operands, max_degree=max_degree, method=method)
"""


def log(*arguments: object, enabled: str = "1") -> str:
    """What a call with a row of ``degree`` edges prints."""
    program = PROGRAM.format(arguments=arguments)
    environment = {**os.environ, "DFGNN_LOG": enabled}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return found.stderr


@pytest.mark.parametrize(
    ("degree", "max_degree", "dtype", "score", "expected"),
    [
        (3, 12287, "float32", "dot", "smmf"),
        (3, 12288, "float32", "dot", "pmf"),  # 48 KiB of float32 scores
        (3, 12288, "float32", "additive", "smmf"),  # only dot scores have a choice
        (3, 24575, "bfloat16", "dot", "smmf"),
        (3, 24576, "bfloat16", "dot", "pmf"),
        (12288, -1, "float32", "dot", "pmf"),  # unknown: read from rowptr
        (12287, -1, "float32", "dot", "smmf"),
    ],
)
def test_super_node_check(degree, max_degree, dtype, score, expected):
    line = log(degree, max_degree, dtype, score, "auto")
    assert line.startswith(
        f"dfgnn: method={expected}: max_degree {degree if max_degree < 0 else max_degree} "
    )


def test_silence():
    assert log(3, -1, "float32", "dot", "smmf") == ""  # nothing was chosen
    assert log(3, -1, "float32", "dot", "auto", enabled="0") == ""
