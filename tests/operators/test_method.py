"""Which method ``attention`` takes, by super nodes and sizes, as its log tells."""

import pytest


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
