"""Calls drawn at random: the other tests vary little at a time of what kernels depend on."""

import graphs
import hypothesis
import torch
from calls import PATHS, SCORES, check_backward, check_forward, make_operands, of_one_x
from graphs import Csr
from hypothesis import strategies as st
from tilings import batches, resident_route

SEED = 7
# Of rows of one edge, whose logits have no gradient, there is what rounding of `out` leaves, and
# heads of one feature have no gradient of cosines.
SLACK = 10.0


@st.composite
def near_neighbours(draw) -> Csr:
    """Graphs whose nodes have as many edges each, and columns nearly as many."""
    degree = draw(st.integers(1, 24))
    rows: list[list[int]] = []
    for size in draw(st.lists(st.integers(1, 130), min_size=1, max_size=6)):
        first = len(rows)
        rows += [
            [first + (i * i + step) % size for step in range(min(degree, size))]
            for i in range(size)
        ]
    return graphs.from_rows(rows, len(rows))


@st.composite
def uneven_rows(draw) -> Csr:
    degrees = draw(st.lists(st.integers(0, 40) | st.sampled_from([70, 129, 700]), max_size=60))
    return graphs.from_degrees(degrees, draw(st.integers(1, 90)))


def has_all_nodes(graph: Csr) -> bool:
    return bool(((graph.col >= 0) & (graph.col < graph.num_src)).all())


@hypothesis.given(
    graph=st.one_of(near_neighbours(), batches().filter(has_all_nodes), uneven_rows()),
    index=st.sampled_from([torch.int32, torch.int64]),
    score=st.sampled_from(SCORES),
    path=st.sampled_from([path for path in PATHS if path.startswith("attention")]),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    heads=st.sampled_from([1, 1, 2, 3, 8]),
    head_dim=st.sampled_from([1, 3, 12, 16, 32, 64, 96, 100, 128, 160, 256]),
    one_x=st.booleans(),
    edge_terms=st.booleans(),
    dropout_p=st.sampled_from([0.0, 0.0, 0.4]),
    with_tiles=st.booleans(),
)
def test_any_call(
    graph,
    index,
    score,
    path,
    dtype,
    heads,
    head_dim,
    one_x,
    edge_terms,
    dropout_p,
    with_tiles,
    device,
):
    graph = graph.to(device, index)
    operands = make_operands(score, graph, heads, head_dim, dtype, edge_terms)
    is_square = graph.num_src == graph.num_dst
    if one_x and is_square:
        operands = of_one_x(operands)
    hints = resident_route(graph) if with_tiles and is_square else {}
    options = {}
    if dropout_p > 0:
        options = {"dropout_p": dropout_p, "seed": torch.tensor([SEED], device=device)}
    check_forward(path, score, graph, operands, hints=hints, **options)
    check_backward(path, score, graph, operands, csc=True, hints=hints, slack=SLACK, **options)
