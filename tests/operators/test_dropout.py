"""Attention dropout: the documented mask, the same in both passes and on every device."""

import graphs
import numpy as np
import pytest
import torch
from calls import DTYPES, METHODS, PATHS, SCORES, check_backward, check_forward, make_operands, run
from reference import VALUE, kept, philox2x32

SEEDS = (0, 1, 12345678901234567, -3, 2**63 - 1)


def one_edge_per_row(device: str, nodes: int = 3000) -> graphs.Csr:
    return graphs.from_rows([[0]] * nodes, 1).to(device)


def kept_by(path: str, graph: graphs.Csr, heads: int, dropout_p: float, seed: torch.Tensor | None):
    """The mask, read off rows of one edge whose value is 1."""
    value = torch.ones(1, heads, 1, device=graph.col.device)
    query = value.expand(graph.num_dst, heads, 1)
    operands = {"q": query, "k": value, "v": value}
    out, _ = run(path, "dot", graph, operands, dropout_p=dropout_p, seed=seed)
    values = out.unique().tolist()
    assert values == pytest.approx([0.0, 1 / (1 - dropout_p)])
    return (out != 0).squeeze(-1).cpu()


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [
        ([0x00000000, 0x00000000], 0x00000000, [0x257A3673, 0xCD26BE2A]),
        ([0xFFFFFFFF, 0xFFFFFFFF], 0xFFFFFFFF, [0xAB302C4D, 0x3DC9D239]),
        ([0x243F6A88, 0x85A308D3], 0x13198A2E, [0xBEDBBE6B, 0xE4C770B3]),
    ],
)
def test_philox_known_answers(counter, key, expected):
    """The vectors that come with Random123."""
    assert philox2x32(np.array([counter]), key).tolist() == [expected]


@pytest.mark.parametrize("dropout_p", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("path", METHODS)
def test_mask(path, seed, dropout_p, device):
    graph, heads = one_edge_per_row(device), 3
    found = kept_by(path, graph, heads, dropout_p, torch.tensor([seed], device=device))
    assert torch.equal(found, kept(seed, graph.num_edges, heads, dropout_p))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("check", [check_forward, check_backward])
def test_against_reference(check, path, score, dtype, device):
    graph = graphs.make("hub", device)
    operands = make_operands(score, graph, 3, 16, dtype, edge_terms=True)
    check(path, score, graph, operands, dropout_p=0.4, seed=torch.tensor([7], device=device))


def dense_graphs(kind: str) -> graphs.Csr:
    """Rows with edges in several chunks of a tile; of `kind` those that do not just ascend."""
    graph = graphs.batch([150, 40, 97], 0.6, self_loops=kind == "self_loops")
    if kind == "duplicates":
        return graphs.duplicate_edges(graph)
    if kind == "disordered":
        rows = [row.tolist() for row in graph.col.tensor_split(graph.rowptr[1:-1])]
        return graphs.from_rows([row[:: (-1) ** (i % 5 == 0)] for i, row in enumerate(rows)], 287)
    return graph


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("score", ["dot", "additive"])
@pytest.mark.parametrize("kind", ["ascending", "self_loops", "disordered", "duplicates"])
@pytest.mark.parametrize("check", [check_forward, check_backward])
def test_dense_tiles(check, kind, score, head_dim, dtype, device):
    """An odd number of heads."""
    graph = dense_graphs(kind).to(device)
    operands = make_operands(score, graph, 3, head_dim, dtype, edge_terms=True)
    seed = torch.tensor([7], device=device)
    check("tile_fwd", score, graph, operands, dropout_p=0.4, seed=seed)


@pytest.mark.parametrize("dropout_p", [0.1, 0.5])
def test_edges_are_independent(dropout_p, device):
    """Also those whose numbers come from one draw, and heads, to five deviations."""
    mask = torch.ops.dfgnn.dropout_mask(torch.tensor([11], device=device), 200_000, 2, dropout_p)
    kept = (mask.cpu().double() - (1 - dropout_p)) / (dropout_p * (1 - dropout_p)) ** 0.5
    pairs = [(kept[distance:], kept[:-distance]) for distance in range(1, 9)]
    for one, other in [*pairs, (kept[:, 0], kept[:, 1])]:
        assert abs((one * other).mean().item()) < 5 / one.numel() ** 0.5


@pytest.mark.parametrize("dropout_p", [0.0, 1.0])
@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("path", METHODS)
@pytest.mark.parametrize("check", [check_forward, check_backward])
def test_all_or_nothing(check, path, score, dropout_p, device):
    graph = graphs.mixed(device)
    seed = torch.tensor([7], device=device)
    check(path, score, graph, make_operands(score, graph), dropout_p=dropout_p, seed=seed)


@pytest.mark.parametrize("path", METHODS)
def test_rate(path, device):
    """Within five standard deviations over 60,000 draws."""
    graph, heads, dropout_p = one_edge_per_row(device, 20_000), 3, 0.3
    found = kept_by(path, graph, heads, dropout_p, torch.tensor([42], device=device))
    deviation = (dropout_p * (1 - dropout_p) / found.numel()) ** 0.5
    assert abs(found.double().mean().item() - (1 - dropout_p)) < 5 * deviation


@pytest.mark.parametrize("path", PATHS)
def test_seed_from_the_generator(path, device):
    """Without a seed, torch.manual_seed decides, and every call draws anew."""
    graph = one_edge_per_row(device)

    def draw() -> torch.Tensor:
        return kept_by(path, graph, 2, 0.5, None)

    torch.manual_seed(3)
    first, second = draw(), draw()
    torch.manual_seed(3)
    again = draw()
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("score", SCORES)
@pytest.mark.parametrize("path", PATHS)
def test_backward_reuses_the_drawn_seed(path, score, device):
    """An edge that the forward pass dropped has no gradient: v of a row's only edge shows it."""
    graph = graphs.make("self_loops", device)
    operands = make_operands(score, graph, heads=2, head_dim=4)
    name = VALUE[score]
    operands[name].requires_grad_()
    out, _ = run(path, score, graph, operands, dropout_p=0.5)
    out.sum().backward()
    dropped = (out == 0).all(-1)
    assert dropped.any()
    assert torch.equal((operands[name].grad == 0).all(-1), dropped)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dropout_p", [0.0, 0.3, 0.95, 1.0])
def test_mask_operator(dropout_p, seed, device):
    """The mask of all edges, as the fused operators draw it."""
    found = torch.ops.dfgnn.dropout_mask(torch.tensor([seed], device=device), 3000, 3, dropout_p)
    assert torch.equal(found.cpu(), kept(seed, 3000, 3, dropout_p))


def test_mask_operator_is_an_operator(device):
    mask = torch.ops.dfgnn.dropout_mask
    seed = torch.tensor([1], device=device)
    torch.library.opcheck(mask.default, (seed, 5, 2, 0.5))
    assert mask(seed, 0, 2, 0.5).shape == (0, 2)
    for name, wrong in {
        "seed": (seed.int(), 5, 2, 0.5),
        "num_edges": (seed, -1, 2, 0.5),
        "heads": (seed, 5, -2, 0.5),
        "dropout_p": (seed, 5, 2, 1.5),
    }.items():
        with pytest.raises(RuntimeError, match=rf"{name}: expected .*got "):
            mask(*wrong)
