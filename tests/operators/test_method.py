"""Which method ``attention`` takes: the super-node check, as its log tells."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch, pyg_dfgnn
max_degree, dtype, score, method = {arguments}
rowptr, col = torch.tensor([0, 3]), torch.tensor([0, 0, 0])
x = torch.randn(1, 1, 4, dtype=getattr(torch, dtype))
a = torch.randn(1, 1, dtype=x.dtype)
operands = {{
    "dot": {{"q": x, "k": x, "v": x}},
    "additive": {{"a_dst": a, "a_src": a, "v": x}},
    "additive_v2": {{"x_dst": x, "x_src": x, "att": x[0]}},
}}
torch.ops.dfgnn.attention(rowptr, col, **operands[score], max_degree=max_degree, method=method)
"""


def log(*arguments: object, enabled: str = "1") -> str:
    """What a call in a process of its own prints."""
    program = PROGRAM.format(arguments=arguments)
    environment = {**os.environ, "DFGNN_LOG": enabled}
    found = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    return found.stderr


@pytest.mark.parametrize(
    ("max_degree", "dtype", "score", "expected"),
    [
        (12287, "float32", "dot", "smmf"),
        (12288, "float32", "dot", "pmf"),  # 48 KiB of float32 scores
        (12288, "float32", "additive", "smmf"),  # only dot scores have a choice
        (12288, "float32", "additive_v2", "smmf"),
        (24575, "bfloat16", "dot", "smmf"),
        (24576, "bfloat16", "dot", "pmf"),
    ],
)
def test_super_node_check(max_degree, dtype, score, expected):
    assert log(max_degree, dtype, score, "auto").startswith(f"dfgnn: method={expected}: ")


def test_unknown_degree():
    assert log(-1, "float32", "dot", "auto") == "dfgnn: method=smmf: max_degree unknown\n"


def test_silence():
    assert log(12288, "float32", "dot", "smmf") == ""  # nothing was chosen
    assert log(12288, "float32", "dot", "auto", enabled="0") == ""
