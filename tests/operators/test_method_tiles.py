"""Which method ``attention`` takes where tiles are given, as its log tells."""

from random import Random

import pytest
import torch

from pyg_dfgnn import Graph
from pyg_dfgnn.graph import _may_choose_tile

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
