"""Which method ``attention`` takes, by super nodes, tiles and sizes, as its log tells."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from random import Random

import pytest
import torch

from pyg_dfgnn import Graph
from pyg_dfgnn.graph import _may_choose_tile

# Calls what each line of its input says, and ends what that prints with an empty line.
PROGRAM = """
import sys, torch, pyg_dfgnn
for line in sys.stdin:
    max_degree, dtype, score, method, *sizes, backward, route = eval(line)
    num_src, head_dim, num_edges, num_rows, heads = sizes
    rowptr = torch.tensor([0] * num_rows + [num_edges])
    col = torch.zeros(num_edges, dtype=torch.int64)
    x = torch.randn(1, heads, head_dim, dtype=getattr(torch, dtype)).requires_grad_(backward)
    a = torch.randn(1, heads, dtype=x.dtype).requires_grad_(backward)
    x_dst, a_dst = x.expand(num_rows, -1, -1), a.expand(num_rows, -1)
    x_src, a_src = x.expand(num_src, -1, -1), a.expand(num_src, -1)
    x_one = x_src if num_rows == num_src else x_dst
    operands = {
        "dot": {"q": x_dst, "k": x_src, "v": x_src},
        "cosine": {"x_dst": x_one, "x_src": x_src, "beta": a[0, :1]},
        "additive": {"a_dst": a_dst, "a_src": a_src, "v": x_src},
        "additive_v2": {"x_dst": x_dst, "x_src": x_src, "att": x[0]},
    }
    if "tiles" in route:
        route["tiles"] = torch.tensor(route["tiles"], dtype=torch.int32)
    for name in {"a_edge", "bias"} & route.keys():
        route[name] = torch.zeros(num_edges, heads, dtype=x.dtype)
    route |= {"max_degree": max_degree, "method": method}
    out, _ = torch.ops.dfgnn.attention(rowptr, col, **operands[score], **route)
    if backward:
        print("backward", file=sys.stderr, flush=True)
        out.sum().backward()
    print(file=sys.stderr, flush=True)
"""


def worker(enabled: str) -> Iterator[Callable[..., str]]:
    environment = {**os.environ, "DFGNN_LOG": enabled}
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", PROGRAM],
        env=environment,
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdin is not None
    assert process.stderr is not None

    def log(
        max_degree: int,
        dtype: str,
        score: str,
        method: str,
        num_src: int = 1,
        head_dim: int = 4,
        num_edges: int = 3,
        num_rows: int = 1,
        heads: int = 1,
        backward: bool = False,
        **route: object,
    ) -> str:
        """What a call prints, or, of a backward pass, what that prints."""
        sizes = (num_src, head_dim, num_edges, num_rows, heads)
        print((max_degree, dtype, score, method, *sizes, backward, route), file=process.stdin)
        printed = ""
        while (line := process.stderr.readline()) != "\n":
            assert line, f"the process ended: {printed}"
            printed = "" if line == "backward\n" else printed + line
        return printed

    yield log
    process.communicate()


@pytest.fixture(scope="module")
def log() -> Iterator[Callable[..., str]]:
    yield from worker("1")


@pytest.fixture(scope="module")
def silent_log() -> Iterator[Callable[..., str]]:
    yield from worker("0")


@pytest.mark.parametrize(
    ("max_degree", "dtype", "score", "expected"),
    [
        (12287, "float32", "dot", "smmf"),
        (12288, "float32", "dot", "pmf"),  # 48 KiB of float32 scores
        (12288, "float32", "additive", "smmf"),  # only dot scores have super nodes
        (12288, "float32", "additive_v2", "smmf"),
        (24575, "bfloat16", "dot", "smmf"),
        (24576, "bfloat16", "dot", "pmf"),
    ],
)
def test_super_node_check(log, max_degree, dtype, score, expected):
    found = log(max_degree, dtype, score, "auto", head_dim=128)
    assert found.startswith(f"dfgnn: method={expected}: ")


def test_super_nodes_among_runs(log):
    """Few edges of many rows go by runs, whatever the longest row."""
    sizes = {"head_dim": 128, "num_edges": 1 << 15, "num_rows": 1 << 13}
    for num_src, expected in ((1 << 13, "smmf"), ((1 << 13) - 1, "pmf")):
        found = log(12288, "float32", "dot", "auto", **sizes, num_src=num_src)
        assert found.startswith(f"dfgnn: method={expected}: ")


def test_super_nodes_of_narrow_heads(log):
    assert log(12288, "float32", "dot", "auto", head_dim=64).startswith("dfgnn: method=smmf: ")


# So many sources that their rows of 512 bytes take more than half of the L2 cache; of 256 bytes.
BEYOND_CACHE, BEYOND_CACHE_256 = (1 << 15) + 1, (1 << 16) + 1
HALF_72 = {"dtype": "bfloat16", "head_dim": 72, "num_rows": 1 << 14}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({}, "pmf"),
        ({"max_degree": -1}, "pmf"),
        ({"score": "cosine"}, "smmf"),  # which gathers once what is source and value
        ({"score": "cosine", "dtype": "bfloat16", "head_dim": 64}, "smmf"),
        ({"score": "additive", "dtype": "bfloat16", "head_dim": 64}, "smmf"),
        ({"dtype": "bfloat16"}, "pmf"),
        ({"dtype": "bfloat16", "head_dim": 64}, "smmf"),
        ({"score": "additive"}, "smmf"),
        ({"score": "additive_v2"}, "smmf"),
        ({"heads": 8}, "pmf"),
        ({"head_dim": 64}, "pmf"),
        ({"head_dim": 64, "num_rows": 1 << 14}, "smmf"),  # 32 edges a row
        ({"head_dim": 64, "num_rows": 1 << 14, "num_src": BEYOND_CACHE_256}, "pmf"),
        ({"head_dim": 64, "num_rows": 1 << 14, "num_src": BEYOND_CACHE_256 - 1}, "smmf"),
        ({"head_dim": 64, "num_rows": 1 << 14, "num_src": 4 * BEYOND_CACHE_256}, "smmf"),
        ({"heads": 8, "head_dim": 32}, "smmf"),
        ({"heads": 8, "head_dim": 64, "dtype": "float16"}, "smmf"),
        ({"head_dim": 32}, "smmf"),
        ({"head_dim": 32, "num_src": 2 * BEYOND_CACHE_256}, "pmf"),
        ({"head_dim": 28}, "smmf"),
        ({"num_edges": 1 << 17}, "pmf"),
        ({"num_edges": (1 << 17) - 1}, "smmf"),  # not worth pmf's launches
        ({"num_rows": 1 << 14}, "smmf"),  # rows of 32, of about equal lengths
        ({"num_rows": 1 << 14, "max_degree": 256}, "smmf"),
        ({"num_rows": 1 << 14, "max_degree": 257}, "pmf"),
        ({"num_rows": 1 << 14, "num_edges": 33 << 13, "max_degree": 132}, "smmf"),
        ({"num_rows": 1 << 14, "num_edges": 33 << 13, "max_degree": 133}, "pmf"),
        ({"num_rows": 1 << 14, "max_degree": -1}, "pmf"),
        ({"num_rows": 1 << 14, "num_src": BEYOND_CACHE}, "pmf"),
        ({"num_rows": 1 << 14, "num_src": BEYOND_CACHE - 1}, "smmf"),
        ({"num_rows": 1 << 13, "num_edges": 80 << 13, "dtype": "bfloat16"}, "pmf"),
        ({"num_rows": 1 << 13, "num_edges": (80 << 13) - 1, "dtype": "bfloat16"}, "smmf"),
        ({"num_rows": 1 << 16}, "smmf"),  # 8 edges a row
        ({"num_rows": 43690, "num_src": BEYOND_CACHE}, "pmf"),  # 12 edges a row
        ({"num_rows": 43691, "num_src": BEYOND_CACHE}, "smmf"),
        ({"num_rows": 43690, "num_src": BEYOND_CACHE, "max_degree": 15}, "smmf"),  # equal
        ({"num_rows": 1 << 14, "head_dim": 72, "num_src": BEYOND_CACHE_256}, "pmf"),
        ({"num_rows": 1 << 14, "head_dim": 72}, "smmf"),
        ({"num_rows": 1 << 14, "head_dim": 48, "num_src": 2 * BEYOND_CACHE_256}, "pmf"),
        ({"num_rows": 1 << 14, "head_dim": 48, "num_src": 8 * BEYOND_CACHE_256}, "smmf"),
        (HALF_72 | {"num_src": 2 * BEYOND_CACHE_256}, "pmf"),
        (HALF_72 | {"num_src": 2 * BEYOND_CACHE_256, "head_dim": 64}, "smmf"),
    ],
)
def test_long_rows(log, other, expected):
    arguments = {"dtype": "float32", "score": "dot", "max_degree": 100, "num_edges": 1 << 19}
    found = log(method="auto", **arguments | {"head_dim": 128} | other)
    assert found.startswith(f"dfgnn: method={expected}: ")


LONG = {"num_edges": 1 << 20, "num_rows": 1 << 15}  # 32 edges a row, where 64 are very long
MANY = {"num_edges": 8 << 16, "num_rows": 1 << 16, "num_src": 1 << 16, "max_degree": 47}
HALF = {"dtype": "bfloat16", "head_dim": 128, "num_edges": 24 << 10, "num_rows": 1 << 10}
RUNS = {"num_edges": (12 << 13) - 1, "num_rows": 1 << 13, "num_src": 1 << 13, "head_dim": 128}
V2 = {"score": "additive_v2", "head_dim": 64, "num_edges": 3 << 17, "num_rows": 3 << 13}
UNEQUAL = RUNS | dict.fromkeys(["num_rows", "num_src"], 3 << 13) | {"num_edges": 33 << 13}


@pytest.mark.parametrize(
    ("other", "expected"),
    [
        ({}, "pmf"),  # what it stores stays near the cache
        ({"score": "cosine"}, "pmf"),
        ({"score": "additive_v2"}, "smmf"),
        ({"num_edges": 1 << 20, "heads": 8, "head_dim": 64}, "pmf"),
        ({"num_edges": 1 << 20, "heads": 8, "head_dim": 32}, "smmf"),  # several heads a warp
        ({"num_edges": 1 << 20, "heads": 9, "head_dim": 128}, "pmf"),  # one matrix at a time
        (LONG | {"heads": 9, "head_dim": 128}, "smmf"),  # 72 MiB
        ({"num_edges": 1 << 20, "heads": 9, "head_dim": 512}, "pmf"),
        ({"num_edges": 1 << 20, "heads": 9, "head_dim": 516}, "smmf"),
        ({"num_edges": 1 << 20, "heads": 128, "head_dim": 36}, "pmf"),
        ({"num_edges": 1 << 20, "heads": 129, "head_dim": 36}, "smmf"),  # more than 1 GiB
        ({"num_edges": 1 << 20, "heads": 9, "head_dim": 64}, "pmf"),
        ({"num_edges": 1 << 20, "heads": 9, "head_dim": 64, "score": "cosine"}, "pmf"),
        (LONG | {"heads": 9, "head_dim": 64, "score": "cosine"}, "smmf"),
        ({"num_edges": 1 << 20, "heads": 9, "head_dim": 128, "score": "additive"}, "pmf"),
        ({"num_edges": 16 << 15, "num_rows": 1 << 15}, "pmf"),
        ({"num_edges": 15 << 15, "num_rows": 1 << 15}, "pmf"),
        ({"num_edges": 15 << 15, "num_rows": 1 << 15, "max_degree": 18}, "smmf"),  # of equal length
        ({"num_edges": 15 << 15, "num_rows": 1 << 15, "max_degree": 19}, "pmf"),
        (MANY, "pmf"),
        (MANY | {"num_edges": (8 << 16) - 1}, "smmf"),  # many short rows
        (MANY | {"head_dim": 128, "max_degree": 48}, "smmf"),  # by runs
        (MANY | {"score": "additive", "dtype": "bfloat16"}, "pmf"),
        (MANY | {"score": "additive", "dtype": "bfloat16", "num_edges": (8 << 16) - 1}, "smmf"),
        (MANY | {"score": "cosine", "dtype": "bfloat16"}, "smmf"),
        (RUNS, "smmf"),  # few edges in short rows, a warp for several
        (RUNS | {"score": "additive"}, "smmf"),
        (RUNS | {"num_edges": 1 << 16, "num_rows": 8191}, "pmf"),
        (RUNS | {"num_edges": 1 << 15, "num_rows": 8191}, "pmf"),
        (RUNS | {"num_edges": (1 << 15) - 1, "num_rows": 8191}, "smmf"),
        (RUNS | {"num_edges": 1 << 16, "num_src": 8191}, "pmf"),
        (RUNS | {"num_edges": 12 << 13}, "pmf"),
        (RUNS | {"head_dim": 34}, "pmf"),
        (RUNS | {"head_dim": 260}, "pmf"),
        (RUNS | {"dtype": "float64"}, "pmf"),
        (UNEQUAL | {"max_degree": 66}, "smmf"),  # more edges, in rows of unequal lengths
        (UNEQUAL | {"max_degree": 1 << 62}, "smmf"),
        (UNEQUAL | {"max_degree": 65}, "pmf"),
        (UNEQUAL | {"max_degree": -1}, "pmf"),
        (UNEQUAL | {"num_edges": (48 << 13) - 1}, "smmf"),
        (UNEQUAL | {"num_edges": 48 << 13}, "pmf"),  # 16 edges a row
        ({"head_dim": 32}, "smmf"),  # dot products of narrow heads
        ({"head_dim": 32, "num_src": 1 << 17}, "smmf"),
        ({"head_dim": 32, "num_src": (1 << 17) + 1}, "pmf"),  # of more bytes than half the cache
        ({"head_dim": 32, "score": "additive"}, "pmf"),
        (HALF, "pmf"),
        (HALF | {"num_edges": (24 << 10) - 1}, "smmf"),
        (HALF | {"num_edges": 16 << 10, "head_dim": 256}, "pmf"),  # many features
        (HALF | {"num_edges": (16 << 10) - 1, "head_dim": 256}, "smmf"),
        (HALF | {"num_edges": 3 << 17, "num_rows": 3 << 13}, "pmf"),  # 16 edges a row, but many
        (HALF | {"num_edges": (3 << 17) - 1, "num_rows": 3 << 13}, "smmf"),
        (HALF | {"num_edges": 3 << 17, "num_rows": 1 << 15}, "pmf"),  # 12, of unequal lengths
        (HALF | {"num_edges": 3 << 17, "num_rows": (1 << 15) + 1}, "smmf"),
        (HALF | {"num_edges": 3 << 17, "num_rows": 1 << 15, "max_degree": 15}, "smmf"),
        (HALF | {"head_dim": 72}, "pmf"),
        (HALF | {"head_dim": 72, "num_edges": 12 << 10, "score": "cosine"}, "pmf"),
        (HALF | {"head_dim": 64}, "smmf"),
        (HALF | {"head_dim": 64, "num_edges": 1 << 19}, "smmf"),
        (HALF | {"head_dim": 64, "num_edges": 1 << 19, "score": "cosine"}, "pmf"),
        (HALF | {"head_dim": 64, "num_edges": 1 << 19, "score": "cosine", "heads": 2}, "smmf"),
        (HALF | {"head_dim": 64, "score": "cosine"}, "smmf"),
        (HALF | {"head_dim": 256, "num_edges": 1 << 19, "score": "cosine"}, "pmf"),
        (HALF | LONG | {"head_dim": 256, "score": "cosine"}, "smmf"),
        (HALF | {"head_dim": 64, "score": "additive"}, "pmf"),
        (HALF | {"num_edges": 12 << 10, "score": "additive"}, "pmf"),
        (HALF | {"num_edges": (12 << 10) - 1, "score": "additive"}, "smmf"),
        (HALF | {"num_edges": 12 << 10, "score": "additive", "max_degree": 15}, "smmf"),  # equal
        (HALF | {"num_edges": 12 << 10, "score": "cosine"}, "pmf"),
        (UNEQUAL | {"max_degree": 66, "score": "additive"}, "pmf"),  # by runs, but many edges
        (UNEQUAL | {"max_degree": 66, "score": "cosine", "dtype": "bfloat16"}, "pmf"),
        (UNEQUAL | {"max_degree": 66, "score": "additive", "num_edges": 1 << 18}, "pmf"),
        (UNEQUAL | {"max_degree": 66, "score": "additive", "num_edges": (1 << 18) - 1}, "smmf"),
        ({"num_edges": 9 << 20, "head_dim": 256, "score": "additive"}, "pmf"),
        ({"num_edges": 9 << 20, "num_rows": 1 << 18, "head_dim": 256}, "smmf"),  # 72 MiB, too
        (HALF | {"head_dim": 32}, "smmf"),
        (HALF | {"num_rows": 3 << 10}, "smmf"),  # 8 edges a row
        (V2, "pmf"),  # 16 edges a row
        (V2 | {"num_rows": (3 << 13) + 1}, "smmf"),
        (V2 | {"num_edges": (3 << 17) - 1, "num_rows": 1 << 13}, "smmf"),  # not many
        (V2 | {"head_dim": 32}, "smmf"),
        (V2 | {"dtype": "bfloat16"}, "smmf"),
        (V2 | {"dtype": "bfloat16", "head_dim": 128}, "pmf"),
        (V2 | {"head_dim": 128, "num_rows": 3 << 14}, "smmf"),
        (V2 | {"head_dim": 256, "num_rows": 3 << 14}, "pmf"),  # 8 edges a row, of many features
        (V2 | {"head_dim": 256, "num_rows": 3 << 14, "max_degree": 10}, "smmf"),  # equal
        (V2 | {"head_dim": 512}, "pmf"),
        (V2 | {"dtype": "float64"}, "smmf"),
        (V2 | {"head_dim": 66}, "smmf"),
        (V2 | {"head_dim": 516}, "smmf"),
        (V2 | {"num_edges": 1 << 20, "num_rows": 1 << 10, "heads": 129}, "smmf"),  # more than 1 GiB
    ],
)
def test_backward(log, other, expected):
    arguments = {"dtype": "float32", "score": "dot", "max_degree": 100, "backward": True}
    found = log(method="auto", **arguments | {"head_dim": 33} | other)
    assert found.startswith(f"dfgnn: method={expected}: ")


def test_silence(log, silent_log):
    assert log(12288, "float32", "dot", "smmf") == ""  # nothing was chosen
    assert silent_log(12288, "float32", "dot", "auto") == ""


TILES = {"tiles": [0, 1], "tile_blocks": 0}


@pytest.mark.parametrize("score", ["dot", "cosine", "additive"])
def test_tiles(log, score):
    assert log(3, "float32", score, "auto", **TILES).startswith("dfgnn: method=tile: 0 blocks ")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("score", ["dot", "additive"])
def test_tiles_of_large_heads(log, score, dtype):
    chosen = log(3, dtype, score, "auto", **TILES, head_dim=256, num_edges=9)
    assert chosen.startswith("dfgnn: method=tile: 0 blocks ")


@pytest.mark.parametrize(
    ("score", "dtype", "other"),
    [
        ("dot", "float32", {"tile_blocks": 1 << 20}),  # more work than the edges are
        ("dot", "float32", {"tile_blocks": -1}),
        ("dot", "float32", {"head_dim": 5}),  # no multiple of 16 bytes
        ("dot", "float32", {"head_dim": 260}),
        ("cosine", "float32", {"head_dim": 132}),
        ("dot", "bfloat16", {"head_dim": 4}),
        ("dot", "bfloat16", {"head_dim": 264}),
        ("cosine", "bfloat16", {"head_dim": 136}),
        ("dot", "float64", {}),
        ("dot", "float32", {"num_src": 2}),
        ("additive_v2", "float32", {}),
    ],
)
def test_tiles_that_are_not_taken(log, score, dtype, other):
    assert log(3, dtype, score, "auto", **TILES | other).startswith("dfgnn: method=smmf: ")


@pytest.mark.parametrize(("backward", "most"), [(False, 30002), (True, 30001)])
def test_few_edges_in_tiles(log, backward, most):
    """A call of tile costs something beside its blocks, in float32."""
    for edges in (most, most + 1):
        found = log(3, "float32", "dot", "auto", 1, 64, edges, backward=backward, **TILES)
        assert found.startswith("dfgnn: method=tile: ") == (edges > most)


@pytest.mark.parametrize(
    "terms", [{"bias": True}, {"a_edge": True}, {"bias": True, "a_edge": True}]
)
@pytest.mark.parametrize(
    ("dtype", "head_dim", "backward", "a_block"),
    [
        ("float32", 128, False, 21 + 48),
        ("float32", 128, True, 30 + 190),
        ("float32", 64, True, 30 + 2 * 190),
        ("bfloat16", 128, False, 10 + 64),
        ("bfloat16", 16, True, 85 + 8 * 250),
    ],
)
def test_terms_of_edges_in_tiles(log, dtype, head_dim, backward, a_block, terms):
    """Tile's blocks look up the places of edges, for each head."""
    sizes = {"head_dim": head_dim, "tiles": [0, 1], "tile_blocks": 1000, "backward": backward}
    sizes |= dict.fromkeys(terms, True)
    for edges, is_tile in ((a_block - 1, False), (a_block + 31, True)):
        found = log(3, dtype, "additive", "auto", num_edges=1000 * edges, **sizes)
        assert found.startswith("dfgnn: method=tile: ") == is_tile


@pytest.mark.parametrize(
    ("max_degree", "dtype", "expected"),
    [
        (-1, "float32", "tile"),
        (14, "float32", "tile"),  # as no row can have fewer than the mean
        (15, "float32", "smmf"),
        (18, "float32", "smmf"),
        (19, "float32", "tile"),
        (15, "bfloat16", "tile"),
    ],
)
def test_equal_rows(log, max_degree, dtype, expected):
    sizes = {"num_rows": 4000, "num_src": 4000, "num_edges": 60000, "head_dim": 64}
    found = log(max_degree, dtype, "dot", "auto", **sizes, tiles=[0, *[4000] * 63], tile_blocks=300)
    assert found.startswith(f"dfgnn: method={expected}: ")


def test_tiles_that_are_not_given(log):
    assert log(3, "float32", "dot", "auto", tile_blocks=0).startswith("dfgnn: method=smmf: ")


# A tile of one node as often as the list says, behind the boundaries that find_tiles gives.
LIST = {"tiles": [0, 1, 0, 1], "tile_blocks": 1, "tile_nodes": 1, "tile_batches": 1}
COSINE = {"heads": 400, "score": "cosine", "head_dim": 64}


@pytest.mark.parametrize(
    ("dtype", "other", "expected"),
    [
        ("float32", {}, "smmf"),  # not tiles and heads enough
        ("float32", {"heads": 400, "head_dim": 64}, "resident"),
        ("float32", {"heads": 400}, "resident"),
        ("float32", {"heads": 400, "head_dim": 24}, "resident"),
        ("float32", {"heads": 400, "head_dim": 16}, "smmf"),  # 64 bytes
        ("float32", {"heads": 400, "head_dim": 28}, "smmf"),  # several heads a warp
        ("float32", {"heads": 400, "head_dim": 28, "backward": True}, "smmf"),
        ("float16", {"heads": 400, "head_dim": 56}, "resident"),
        ("float16", {"heads": 400, "head_dim": 56, "backward": True}, "smmf"),
        ("float16", {"heads": 400, "head_dim": 32, "backward": True}, "smmf"),  # 64 bytes
        ("float16", {"heads": 400, "head_dim": 56, "score": "additive"}, "smmf"),
        ("float16", {"heads": 400, "head_dim": 64, "score": "additive"}, "resident"),
        (
            "float32",
            {"heads": 400, "head_dim": 28, "score": "cosine", "backward": True},
            "resident",
        ),
        ("float32", {"heads": 400, "backward": True}, "resident"),
        ("float32", {"heads": 400, "score": "additive"}, "smmf"),  # several heads a warp
        ("float32", {"heads": 400, "score": "additive", "head_dim": 64}, "resident"),
        ("float32", {"heads": 400, "score": "additive", "backward": True}, "resident"),
        ("float32", COSINE, "resident"),
        ("float32", COSINE | {"num_src": 2}, "smmf"),
        ("float32", {"heads": 400, "score": "cosine", "backward": True}, "resident"),
        ("bfloat16", {"heads": 400, "score": "cosine", "head_dim": 64}, "resident"),
        ("float32", {"heads": 400, "score": "additive_v2"}, "smmf"),
        ("float32", {"heads": 120, "backward": True}, "resident"),
        ("float16", {"heads": 120, "backward": True, "head_dim": 64}, "resident"),
        ("float16", {"heads": 119, "backward": True, "head_dim": 64}, "smmf"),
        ("float16", {"heads": 299, "head_dim": 64}, "smmf"),  # 7 edges a node
        ("float16", {"heads": 300, "head_dim": 64, "num_edges": 1}, "resident"),
        ("float16", {"heads": 109, "head_dim": 64, "num_edges": 8}, "smmf"),
        ("float16", {"heads": 110, "head_dim": 64, "num_edges": 8}, "resident"),
        ("float32", {"heads": 300, "head_dim": 64, "num_edges": 3}, "smmf"),
        ("float32", {"heads": 300, "head_dim": 64, "num_edges": 4}, "resident"),
        ("float32", COSINE | {"heads": 109}, "smmf"),
        ("float32", COSINE | {"heads": 110, "num_edges": 1}, "resident"),
        ("float32", {"heads": 110, "score": "additive", "backward": True}, "resident"),
        ("float16", {"heads": 400, "backward": True, "head_dim": 64}, "resident"),
        ("float64", {"heads": 400, "head_dim": 64}, "smmf"),
        ("float32", {"heads": 400, "head_dim": 40}, "resident"),
        ("float32", {"heads": 400, "head_dim": 42}, "smmf"),  # no whole vectors
        ("float32", {"heads": 400, "tile_blocks": 0}, "tile"),  # of no cost
        ("float32", {"heads": 400, "head_dim": 64, "tile_nodes": -1}, "smmf"),
        ("float32", {"heads": 400, "head_dim": 64, "tile_batches": 1 << 40}, "smmf"),  # no room
        ("float32", {"heads": 400, "head_dim": 64, "tiles": [0, 1]}, "smmf"),  # no list
    ],
)
def test_list_of_tiles(log, dtype, other, expected):
    sizes = {"head_dim": 32, "num_edges": 7, "tile_blocks": 1 << 20}
    arguments = {"score": "dot", **LIST, **sizes} | other
    found = log(3, dtype, method="auto", **arguments)
    assert found.startswith(f"dfgnn: method={expected}: ")


ONE_HEAD = {"num_rows": 400, "num_src": 400, "num_edges": 2800, "tile_blocks": 1 << 20}
ONE_HEAD |= {"tiles": [0, *[400] * 7] * 2, "tile_nodes": 1, "tile_batches": 1}


@pytest.mark.parametrize(
    ("dtype", "score", "backward", "most"),
    [
        ("float32", "dot", False, 256),
        ("float32", "cosine", False, 256),
        ("float32", "additive", False, 192),
        ("float32", "dot", True, 384),
        ("float32", "cosine", True, 1024),
        ("float32", "additive", True, 1024),
        ("bfloat16", "dot", False, 512),
        ("bfloat16", "additive", False, 512),
        ("bfloat16", "dot", True, 512),
    ],
)
def test_heads_of_parts_of_sectors(log, dtype, score, backward, most):
    """Heads of multiples of 16 bytes, not of 32, are resident's up to a size, and large ones."""
    number_bytes = 4 if dtype == "float32" else 2
    large = 256 * number_bytes + 16
    within = [(size, True) for size in [*range(80, most, 32), large]]
    beyond = [(size, False) for size in [64, *range(most + 16, large, 32)]]
    for size, expected in within + beyond:
        head_dim = size // number_bytes
        found = log(3, dtype, score, "auto", head_dim=head_dim, backward=backward, **ONE_HEAD)
        assert found.startswith("dfgnn: method=resident: ") == expected


# Where its other conditions hold: several heads lie side by side in smmf's warps.
@pytest.mark.parametrize(
    ("dtype", "score", "heads", "head_dim", "expected"),
    [
        ("float32", "dot", 3, 28, True),
        ("float32", "dot", 4, 28, False),
        ("float32", "additive", 3, 36, True),
        ("float32", "additive", 4, 36, False),
        ("float32", "additive", 7, 32, True),
        ("float32", "additive", 8, 32, False),
        ("float32", "dot", 8, 32, True),
    ],
)
def test_several_heads_of_tiles(log, dtype, score, heads, head_dim, expected):
    found = log(3, dtype, score, "auto", heads=heads, head_dim=head_dim, **ONE_HEAD)
    assert found.startswith("dfgnn: method=resident: ") == expected


@pytest.mark.parametrize(
    ("heads", "head_dim", "expected"), [(1, 48, "tile"), (2, 48, "smmf"), (2, 64, "tile")]
)
def test_tiles_of_small_heads(log, heads, head_dim, expected):
    """20 edges a block are worth it for one head, and for two of 64 features."""
    sizes = {"heads": heads, "head_dim": head_dim, "num_edges": 20, "tile_blocks": 1}
    found = log(3, "bfloat16", "dot", "auto", tiles=[0, 1], **sizes)
    assert found.startswith(f"dfgnn: method={expected}: ")


ONE_TILE = {"num_rows": 100, "num_src": 100, "heads": 400, "tiles": [0, 100, 100] * 2}
ONE_TILE |= {"tile_blocks": 25, "tile_nodes": 100, "tile_batches": 1}


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize(
    ("score", "dtype", "head_dim", "forward_edges", "backward_edges"),
    [
        ("dot", "float32", 64, 10, 12.25),
        ("cosine", "float32", 64, 8, 12.5),
        ("additive", "float32", 64, 8, 12.5),
        ("dot", "bfloat16", 64, 5.8, 5.8),
        ("cosine", "bfloat16", 64, 6.2, 6.2),
        ("additive", "bfloat16", 64, 6.2, 6.2),
        ("dot", "bfloat16", 256, 6.2, 10.25),
        ("additive", "bfloat16", 256, 6.2, 9.25),
    ],
)
def test_edges_of_a_node(log, score, dtype, head_dim, forward_edges, backward_edges, backward):
    """Tile is taken where nodes have more, with a block for four, else resident: nothing else
    between them."""
    edges = backward_edges if backward else forward_edges
    for times, expected in ((0.99, "resident"), (1.01, "tile")):
        arguments = ONE_TILE | {"head_dim": head_dim, "num_edges": int(100 * edges * times)}
        found = log(3, dtype, score, "auto", backward=backward, **arguments)
        assert found.startswith(f"dfgnn: method={expected}: ")


@pytest.mark.parametrize(
    ("max_degree", "expected"), [(8, "resident"), (10, "resident"), (11, "tile")]
)
def test_equal_rows_of_resident(log, max_degree, expected):
    found = log(max_degree, "bfloat16", "dot", "auto", **ONE_TILE, head_dim=64, num_edges=800)
    assert found.startswith(f"dfgnn: method={expected}: ")


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("score", ["dot", "cosine", "additive"])
def test_masks_are_made_where_tile_is_taken(log, score, dtype, backward):
    """graph.py bounds what method.cpp knows: with masks made in advance, calls make none."""
    random = Random(0)
    taken = set()
    for _ in range(50):
        heads, head_dim = random.choice([(1, 64), (1, 128), (8, 16), (4, 64), (1, 256)])
        nodes, edges = 600, random.randrange(1, 40000)
        blocks = int(edges / random.uniform(30, 200)) + random.randrange(60)
        found = {"tile_blocks": blocks, "tile_nodes": random.choice([-1, 1, 2, 3])}
        found["tile_batches"] = random.choice([1, 40, 570, 4000]) if found["tile_nodes"] > 0 else -1
        tiles = [0, *[nodes] * 10] * (2 if found["tile_nodes"] > 0 else 1)
        sizes = {"num_rows": nodes, "num_src": nodes, "num_edges": edges}
        sizes |= {"heads": heads, "head_dim": head_dim}
        method = log(-1, dtype, score, "auto", backward=backward, tiles=tiles, **sizes, **found)
        empty = torch.empty(0)
        of_edges = torch.empty(edges)
        graph = Graph(empty, of_edges, empty, empty, empty, empty, nodes, nodes, **found)
        is_tile = method.startswith("dfgnn: method=tile: ")
        taken.add(is_tile)
        assert not is_tile or _may_choose_tile(graph), (method, sizes, found)
    assert taken == {False, True}
