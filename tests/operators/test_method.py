"""Which method ``attention`` takes, by super nodes and tiles, as its log tells."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import torch, pyg_dfgnn
max_degree, dtype, score, method, num_src, head_dim, num_edges, num_rows, route = {arguments}
rowptr = torch.tensor([0] * num_rows + [num_edges])
col = torch.zeros(num_edges, dtype=torch.int64)
x = torch.randn(1, 1, head_dim, dtype=getattr(torch, dtype)).expand(num_src, -1, -1)
a = torch.randn(1, 1, dtype=x.dtype).expand(num_src, -1)
x_dst, a_dst = x[:1].expand(num_rows, -1, -1), a[:1].expand(num_rows, -1)
operands = {{
    "dot": {{"q": x_dst, "k": x, "v": x}},
    "cosine": {{"x_dst": x_dst, "x_src": x, "beta": a[0]}},
    "additive": {{"a_dst": a_dst, "a_src": a, "v": x}},
    "additive_v2": {{"x_dst": x_dst, "x_src": x, "att": x[0]}},
}}
if "tiles" in route:
    route["tiles"] = torch.tensor(route["tiles"], dtype=torch.int32)
route |= {{"max_degree": max_degree, "method": method}}
torch.ops.dfgnn.attention(rowptr, col, **operands[score], **route)
"""


def log(
    max_degree: int,
    dtype: str,
    score: str,
    method: str,
    num_src: int = 1,
    head_dim: int = 4,
    num_edges: int = 3,
    num_rows: int = 1,
    enabled: str = "1",
    **route: object,
) -> str:
    """What a call in a process of its own prints."""
    arguments = (max_degree, dtype, score, method, num_src, head_dim, num_edges, num_rows, route)
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


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({}, "pmf"),
        ({"max_degree": -1}, "pmf"),
        ({"score": "cosine"}, "pmf"),
        ({"score": "additive"}, "pmf"),
        ({"score": "additive_v2"}, "smmf"),
        ({"num_edges": 1 << 18}, "smmf"),  # not worth pmf's launches
        ({"num_rows": 1 << 16}, "smmf"),  # 8 edges a row
    ],
)
def test_long_rows(other, expected):
    arguments = {"dtype": "float32", "score": "dot", "max_degree": 100, "num_edges": 1 << 19}
    found = log(method="auto", **arguments | other)
    assert found.startswith(f"dfgnn: method={expected}: ")


def test_silence():
    assert log(12288, "float32", "dot", "smmf") == ""  # nothing was chosen
    assert log(12288, "float32", "dot", "auto", enabled="0") == ""


TILES = {"tiles": [0, 1], "tile_blocks": 0}


@pytest.mark.parametrize("score", ["dot", "cosine", "additive"])
def test_tiles(score):
    assert log(3, "float32", score, "auto", **TILES).startswith("dfgnn: method=tile: 0 blocks ")


@pytest.mark.parametrize(
    ("score", "dtype", "other"),
    [
        ("dot", "float32", {"tile_blocks": 1 << 20}),  # more work than the edges are
        ("dot", "float32", {"tile_blocks": -1}),
        ("dot", "float32", {"head_dim": 5}),  # no multiple of 16 bytes
        ("dot", "float32", {"head_dim": 132}),
        ("dot", "bfloat16", {"head_dim": 4}),
        ("dot", "float64", {}),
        ("dot", "float32", {"num_src": 2}),
        ("additive_v2", "float32", {}),
    ],
)
def test_tiles_that_are_not_taken(score, dtype, other):
    assert log(3, dtype, score, "auto", **TILES | other).startswith("dfgnn: method=smmf: ")


def test_tiles_that_are_not_given():
    assert log(3, "float32", "dot", "auto", tile_blocks=0).startswith("dfgnn: method=smmf: ")
