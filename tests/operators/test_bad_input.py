"""Wrong arguments are named in the error; wrong values are never read past the end of a tensor."""

from itertools import pairwise

import graphs
import pytest
import torch
from calls import FAMILIES, PATHS, SCORES, backward_arguments, make_operands, operator, run
from graphs import Csr
from reference import VALUE
from torch import Tensor

HEADS, HEAD_DIM = 2, 4
OPERANDS = {
    "dot": ("q", "k", "v"),
    "cosine": ("x_dst", "x_src", "beta"),
    "additive": ("a_dst", "a_src", "v", "a_edge"),
    "additive_v2": ("x_dst", "x_src", "att"),
}
SCORE_AND_OPERAND = [(score, name) for score in SCORES for name in (*OPERANDS[score], "bias")]


def arguments(score: str, graph: Csr) -> dict[str, Tensor]:
    operands = make_operands(score, graph, HEADS, HEAD_DIM, edge_terms=True)
    return {"rowptr": graph.rowptr, "col": graph.col, **operands}


def raises(name: str):
    """A RuntimeError that names the argument, what was expected of it and what came."""
    return pytest.raises(RuntimeError, match=rf"(?s)\b{name}: expected .*got ")


def one_more_row(t: Tensor) -> Tensor:
    return torch.cat([t, t[:1]])


WRONG_SHAPE = {
    "one_more_row": one_more_row,
    "one_more_dimension": lambda t: t.unsqueeze(-1),
    "one_less_dimension": lambda t: t.flatten(0, 1),
}
SHAPE_MISTAKES = [
    (score, name, mistake)
    for score, name in SCORE_AND_OPERAND
    for mistake in WRONG_SHAPE
    if name != "beta" and (name, mistake) != ("x_src", "one_more_row")  # it says what N_src is
]
# A mistake in the value may show in the first operand that should be like it.
LIKE_THE_VALUE = {"v": "(v|q|k|a_dst|a_src|rowptr)", "x_src": "(x_src|x_dst|rowptr)"}


@pytest.mark.parametrize(("score", "name", "mistake"), SHAPE_MISTAKES)
@pytest.mark.parametrize("op", FAMILIES)
def test_operand_shape(op, score, name, mistake, device):
    given = arguments(score, graphs.mixed(device))
    given[name] = WRONG_SHAPE[mistake](given[name])
    with raises(LIKE_THE_VALUE.get(name, name)):
        operator(op, score)(**given)


@pytest.mark.parametrize("op", FAMILIES)
def test_beta_shape(op, device):
    given = arguments("cosine", graphs.mixed(device))
    with raises("beta"):
        operator(op, "cosine")(**given | {"beta": torch.ones(HEADS + 1, device=device)})


@pytest.mark.parametrize("dtype", [torch.int64, torch.complex64], ids=str)
@pytest.mark.parametrize(("score", "name"), SCORE_AND_OPERAND)
@pytest.mark.parametrize("op", FAMILIES)
def test_operand_dtype(op, score, name, dtype, device):
    given = arguments(score, graphs.mixed(device))
    given[name] = given[name].to(dtype)
    with raises(name):
        operator(op, score)(**given)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16], ids=str)
@pytest.mark.parametrize("name", ["q", "k", "x_dst", "a_dst", "a_src", "a_edge", "att", "bias"])
@pytest.mark.parametrize("op", FAMILIES)
def test_operand_of_another_precision_than_the_value(op, name, dtype, device):
    score = next(s for s in SCORES if name in OPERANDS[s] or name == "bias")
    given = arguments(score, graphs.mixed(device))
    given[name] = given[name].to(dtype)
    with raises(name):
        operator(op, score)(**given)


@pytest.mark.parametrize(("score", "name"), SCORE_AND_OPERAND)
@pytest.mark.parametrize("op", FAMILIES)
def test_operand_device(op, score, name, cuda):
    given = arguments(score, graphs.mixed(cuda))
    given[name] = given[name].cpu()
    with raises(LIKE_THE_VALUE.get(name, name)):
        operator(op, score)(**given)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES)
@pytest.mark.parametrize(
    ("name", "mistake"),
    [
        ("rowptr", lambda t: t.float()),
        ("rowptr", lambda t: t.short()),
        ("rowptr", lambda t: t.unsqueeze(0)),
        ("rowptr", lambda t: t[:0]),
        ("col", lambda t: t.float()),
        ("col", lambda t: t.long()),
        ("col", lambda t: t.unsqueeze(0)),
    ],
)
def test_structure(name, mistake, op, score, device):
    given = arguments(score, graphs.mixed(device))
    given[name] = mistake(given[name])
    with raises(name):
        operator(op, score)(**given)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES)
@pytest.mark.parametrize("dropout_p", [-0.1, 1.5, float("nan")])
def test_dropout_p(dropout_p, op, score, device):
    with raises("dropout_p"):
        operator(op, score)(**arguments(score, graphs.mixed(device)), dropout_p=dropout_p)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES)
@pytest.mark.parametrize(
    "seed", [torch.tensor([1.0]), torch.tensor([1, 2]), torch.tensor([1], dtype=torch.int32)]
)
def test_seed(seed, op, score, device):
    with raises("seed"):
        given = arguments(score, graphs.mixed(device))
        operator(op, score)(**given, dropout_p=0.5, seed=seed.to(device))


@pytest.mark.parametrize("score", SCORES)
def test_method(score, device):
    with raises("method"):
        operator("attention", score)(**arguments(score, graphs.mixed(device)), method="fast")


@pytest.mark.parametrize("score", SCORES)
def test_no_heads_or_no_features(score, device):
    graph = graphs.mixed(device)
    for heads, head_dim in ((0, 4), (2, 0)):
        operands = make_operands(score, graph, heads, head_dim)
        with raises(VALUE[score]):
            run("attention", score, graph, operands)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES)
@pytest.mark.parametrize("given", [("colptr",), ("colptr", "row"), ("perm",)])
def test_parts_of_a_csc(given, op, score, device):
    graph = graphs.mixed(device)
    parts = {name: t for name, t in graph.csc().items() if name in given}
    with pytest.raises(RuntimeError, match="colptr, row, perm: expected all three"):
        operator(op, score)(**arguments(score, graph), **parts)


TILE_MISTAKES = [
    lambda t: t[:1],
    one_more_row,
    lambda t: t.float(),
    lambda t: t.unsqueeze(0),
]
TAKE_TILES = ["tile_fwd", "tile_bwd", "attention", "attention_bwd"]


@pytest.mark.parametrize("mistake", TILE_MISTAKES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", TAKE_TILES)
def test_tiles(op, score, mistake, device):
    graph = graphs.make("batch", device)
    tiles, _ = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    given = arguments(score, graph)
    if op.endswith("bwd"):
        given = backward_arguments(score, graph, make_operands(score, graph, HEADS, HEAD_DIM))
    with raises("tiles"):
        operator(op, score)(**given, tiles=mistake(tiles))


@pytest.mark.parametrize("score", SCORES)
def test_tiles_on_another_device(score, cuda):
    graph = graphs.make("batch", cuda)
    tiles, _ = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    with raises("tiles"):
        operator("tile_fwd", score)(**arguments(score, graph), tiles=tiles.cpu())


@pytest.mark.parametrize("rubbish", [-1, 1 << 30, 17])
@pytest.mark.parametrize("score", SCORES)
def test_tiles_that_are_none(rubbish, score, device):
    """What follows is not said, but safe."""
    graph = graphs.make("batch", device)
    tiles, _ = torch.ops.dfgnn.find_tiles(graph.rowptr, graph.col)
    tiles[1::2] = rubbish
    leaves = make_operands(score, graph, HEADS, HEAD_DIM)
    leaves = {name: t.requires_grad_() for name, t in leaves.items()}
    out, _ = run("tile_fwd", score, graph, leaves, tiles=tiles)
    out.sum().backward()
    for name, t in leaves.items():
        assert t.grad.shape == t.shape, name


BACKWARD_MISTAKES = [
    ("grad_out", one_more_row),
    ("grad_out", lambda t: t.double()),
    ("grad_lse", one_more_row),
    ("grad_lse", lambda t: t.long()),
    ("grad_lse", lambda t: t.to(torch.complex64)),
    ("out", one_more_row),
    ("out", lambda t: t.double()),
    ("lse", one_more_row),
    ("lse", lambda t: t.long()),
    ("colptr", one_more_row),
    ("colptr", lambda t: t.long()),
    ("row", one_more_row),
    ("row", lambda t: t.float()),
    ("perm", one_more_row),
    ("perm", lambda t: t.unsqueeze(0)),
]


@pytest.mark.parametrize(("name", "mistake"), BACKWARD_MISTAKES)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES.values())
def test_backward_operators(op, score, name, mistake, device):
    graph = graphs.mixed(device)
    operands = make_operands(score, graph, HEADS, HEAD_DIM)
    given = backward_arguments(score, graph, operands)
    given["grad_lse"] = torch.ones_like(given["lse"])
    given[name] = mistake(given[name])
    with raises(name):
        operator(op, score)(**given)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("op", FAMILIES.values())
def test_backward_of_dropout_needs_the_seed(op, score, device):
    graph = graphs.mixed(device)
    given = backward_arguments(score, graph, make_operands(score, graph, HEADS, HEAD_DIM))
    with raises("seed"):
        operator(op, score)(**given, dropout_p=0.5)


# On CUDA smmf takes wide heads of few edges by runs of rows.
PATHS_AND_HEADS = [*((path, HEAD_DIM) for path in PATHS), ("smmf_fwd", 64)]


def backward_ends(path: str, score: str, graph: Csr, operands: dict[str, Tensor]) -> None:
    """The backward pass of a graph that is none ends, with gradients of the right shapes."""
    leaves = {name: t.clone().requires_grad_() for name, t in operands.items()}
    out, _ = run(path, score, graph, leaves)
    out.sum().backward()
    for name, t in leaves.items():
        assert t.grad.shape == t.shape, name


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("path", "head_dim"), PATHS_AND_HEADS)
@pytest.mark.parametrize("wrong", [-1, 11, 1 << 30, -(1 << 31), (1 << 32) + 3])
def test_col_out_of_range(wrong, path, head_dim, score, index, device):
    """The row that holds it is NaN, the others are what they were."""
    if wrong > torch.iinfo(index).max:
        pytest.skip("there are no such numbers")
    graph = graphs.mixed(device, index)
    operands = make_operands(score, graph, HEADS, head_dim)
    expected = run(path, score, graph, operands)
    col = graph.col.clone()
    edge, row = 20, 3
    assert graph.rowptr[row] <= edge < graph.rowptr[row + 1]
    col[edge] = wrong
    broken = Csr(graph.rowptr, col, graph.num_src)
    for found, whole in zip(run(path, score, broken, operands), expected, strict=True):
        assert found[row].isnan().all()
        whole[row] = torch.nan
        torch.testing.assert_close(found, whole, rtol=0, atol=0, equal_nan=True)
    backward_ends(path, score, broken, operands)


@pytest.mark.parametrize("index", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize(("path", "head_dim"), PATHS_AND_HEADS)
@pytest.mark.parametrize("name", graphs.BROKEN_ROWPTRS)
def test_rowptr_that_is_none(name, path, head_dim, score, index, device):
    """Entries are clamped to [0, E]; what follows one that decreases is not said, but safe."""
    edges = 8
    pointers = torch.tensor(graphs.BROKEN_ROWPTRS[name])
    col = torch.tensor([0, 4, 2, 3, 1, 1, 0, 4])
    broken = Csr(pointers, col, 5).to(device, index)
    operands = make_operands(score, broken, HEADS, head_dim)
    found = run(path, score, broken, operands)
    clamped = pointers.clamp(0, edges).tolist()
    if clamped == sorted(clamped):
        rows = [col[a:b].tolist() for a, b in pairwise(clamped)]
        expected = run(path, score, graphs.from_rows(rows, 5).to(device, index), operands)
        torch.testing.assert_close(found, expected)
    backward_ends(path, score, broken, operands)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("path", ["smmf_fwd", "pmf_fwd"])
def test_rowptr_of_listed_rows_that_is_none(path, score, cuda):
    """Half of the rows end before they begin, the others have thousands of edges, together more
    than the list of rows in pieces has room for."""
    graph = graphs.very_long_rows(cuda)
    operands = make_operands(score, graph, 1, 64)
    expected = run(path, score, graph, operands)
    whole = len(graph.rowptr) // 100 * 100
    order = torch.randperm(100, generator=torch.Generator().manual_seed(0)).to(cuda)
    shuffled = graph.rowptr[:whole].view(-1, 100)[:, order].flatten()
    broken = Csr(torch.cat([shuffled, graph.rowptr[whole:]]), graph.col, graph.num_src)
    run(path, score, broken, operands)
    backward_ends(path, score, broken, operands)
    torch.testing.assert_close(run(path, score, graph, operands), expected, rtol=0, atol=0)


@pytest.mark.parametrize(("score", "name"), [*SCORE_AND_OPERAND, *((s, "col") for s in SCORES)])
@pytest.mark.parametrize("op", FAMILIES)
def test_operand_on_meta(op, score, name, device):
    """The dispatcher calls the kernel that computes nothing, which must not pass for a result."""
    given = arguments(score, graphs.mixed(device))
    given[name] = given[name].to("meta")
    with pytest.raises(RuntimeError, match=f"expected a tensor on meta, .* got one on {device}"):
        operator(op, score)(**given)


ON_META = {
    "coo_to_csr": lambda g, x, w: (g.sources(), g.destinations(), g.num_src, g.num_dst),
    "compress": lambda g, x, w: (g.sources(), g.destinations(), g.num_src, g.num_dst),
    "csr_to_csc": lambda g, x, w: (g.rowptr, g.col, g.num_src),
    "find_tiles": lambda g, x, w: (g.rowptr, g.col),
    "sddmm": lambda g, x, w: {"rowptr": g.rowptr, "col": g.col, "a": x, "b": x},
    "spmm": lambda g, x, w: {"rowptr": g.rowptr, "col": g.col, "weight": w, "x": x},
    "additive_v2_logits": lambda g, x, w: {
        "rowptr": g.rowptr, "col": g.col, "x_dst": x, "x_src": x, "att": x[0]
    },
    "edge_sddmm": lambda g, x, w: {"rowptr": g.rowptr, "eid": g.col, "a": x, "features": x[:, 0]},
    "edge_spmm": lambda g, x, w: {
        "rowptr": g.rowptr, "eid": g.col, "weight": w, "features": x[:, 0]
    },
    "edge_spmm_t": lambda g, x, w: {
        "rowptr": g.rowptr, "eid": g.col, "weight": w, "a": x, "rows": 9
    },
    "additive_logits": lambda g, x, w: {
        "rowptr": g.rowptr, "col": g.col, "a_dst": x[..., 0], "a_src": x[..., 0]
    },
    "sum_edges": lambda g, x, w: {"rowptr": g.rowptr, "col": g.col, "values": w},
    "edge_softmax": lambda g, x, w: {"rowptr": g.rowptr, "col": g.col, "logits": w},
    "edge_softmax_bwd": lambda g, x, w: {
        "grad": w, "alpha": w, "rowptr": g.rowptr, "col": g.col
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ON_META)
def test_others_on_meta(name, device):
    graph = graphs.make("hub", device)
    x = torch.randn(graph.num_src, HEADS, HEAD_DIM, device=device)
    given = ON_META[name](graph, x, torch.ones(graph.capacity, HEADS, device=device))
    given = given if isinstance(given, dict) else dict(enumerate(given))
    tensors = [key for key, value in given.items() if isinstance(value, Tensor)]
    assert len(tensors) >= 2
    for key in tensors:
        wrong = given | {key: given[key].to("meta")}
        named = {k: v for k, v in wrong.items() if isinstance(k, str)}
        unnamed = [v for k, v in wrong.items() if not isinstance(k, str)]
        with pytest.raises(RuntimeError, match="expected a tensor on meta"):
            getattr(torch.ops.dfgnn, name)(*unnamed, **named)


@pytest.mark.parametrize(
    ("name", "operand"),
    [
        ("spmm", "x"),
        ("spmm", "weight"),
        ("edge_sddmm", "a"),
        ("edge_spmm", "weight"),
        ("edge_spmm", "features"),
        ("edge_spmm_t", "a"),
        ("additive_logits", "a_dst"),
        ("sum_edges", "values"),
        ("edge_softmax", "logits"),
        ("edge_softmax_bwd", "alpha"),
    ],
)
def test_dimensions(name, operand, device):
    """Of what sizes are taken from, on the meta device too."""
    graph = graphs.make("hub", device)
    x = torch.randn(graph.num_src, HEADS, HEAD_DIM, device=device)
    given = ON_META[name](graph, x, torch.ones(graph.capacity, HEADS, device=device))
    given |= {operand: given[operand].flatten()}
    for kind in (device, "meta"):
        moved = {k: t.to(kind) if isinstance(t, Tensor) else t for k, t in given.items()}
        with pytest.raises(RuntimeError, match=rf"\b{operand}: expected"):
            getattr(torch.ops.dfgnn, name)(**moved)


def test_transposed_product_of_an_empty_csc(device):
    none = torch.zeros(0, dtype=torch.int64, device=device)
    operands = {
        "weight": torch.zeros(0, 1, device=device),
        "x": torch.zeros(0, 1, 4, device=device),
    }
    csc = {"colptr": none, "row": none, "perm": none}
    rowptr = torch.zeros(1, dtype=torch.int64, device=device)
    with pytest.raises(RuntimeError, match="colptr: expected"):
        torch.ops.dfgnn.spmm(rowptr, none, **operands, **csc, transpose=True)


def test_transposed_product_without_csc(device):
    graph = graphs.make("hub", device)
    x = torch.ones(graph.num_dst, 1, 2, device=device)
    weight = torch.ones(graph.capacity, 1, device=device)
    for kind in (device, "meta"):
        tensors = {"rowptr": graph.rowptr, "col": graph.col, "weight": weight, "x": x}
        given = {name: t.to(kind) for name, t in tensors.items()}
        with pytest.raises(RuntimeError, match="colptr, row, perm: expected all three"):
            torch.ops.dfgnn.spmm(**given, transpose=True)


@pytest.mark.parametrize("perm", [[0, 0], [1, 0]])
@pytest.mark.parametrize("self_loops", [False, True])
def test_side_by_side_of_no_permutation(perm, self_loops):
    """Or of one that is not in the order of sources, two edges to a node."""
    degrees = torch.tensor([[2, 1], [0, 1]], dtype=torch.int32)
    perm, ptr = torch.tensor(perm, dtype=torch.int32), torch.tensor([0, 2])
    with pytest.raises(RuntimeError, match="local_perm: expected edges of a destination in the"):
        torch.ops.dfgnn.side_by_side(degrees, perm, ptr, self_loops=self_loops)


def of_three_edges(device: str) -> dict[str, Tensor]:
    """Arguments of any operator by name, of two nodes."""
    sizes = {
        **dict.fromkeys(("a", "b", "x", "q", "k", "v", "x_dst", "x_src"), (2, 1, 4)),
        **dict.fromkeys(("weight", "logits", "values"), (3, 1)),
        "a_dst": (2, 1),
        "a_src": (2, 1),
        "att": (1, 4),
        "features": (3, 4),
        "projection": (4, 4),
        "y": (2, 4),
    }
    made = {name: torch.ones(size, device=device) for name, size in sizes.items()}
    indices = {"rowptr": [0, 1, 3], "col": [0, 1, 0], "eid": [0, 1, 2]}
    return made | {name: torch.tensor(index, device=device) for name, index in indices.items()}


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize(
    ("op", "numbers"),
    [
        *((op, {}) for op in ("sddmm", "spmm", "edge_softmax", "additive_logits", "sum_edges")),
        *((op, {}) for op in ("edge_sddmm", "edge_spmm", "node_scores", "additive_v2_logits")),
        *((op, {}) for op in ("message_sddmm", "message_spmm", "message_attention")),
        *(("edge_spmm_t", {"rows": 2}), ("csr_to_csc", {"num_src": 2})),
        ("add_features", {"dtype": torch.float32}),
    ],
)
def test_none(op, numbers, requires_grad, device):
    call = getattr(torch.ops.dfgnn, op)
    schema = call.default._schema.arguments
    names = [argument.name for argument in schema if str(argument.type) == "Tensor"]
    given = {
        name: t.requires_grad_(requires_grad and t.is_floating_point())
        for name, t in of_three_edges(device).items()
        if name in names
    }
    if op == "add_features":
        given["x"] = given["y"].clone()
    call(**given, **numbers)
    for name in names:
        with pytest.raises(RuntimeError, match=f"^{name}: expected"):
            call(**given | {name: None}, **numbers)
