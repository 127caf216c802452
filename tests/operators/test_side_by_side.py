"""side_by_side against coo_to_csr and csr_to_csc of the same edges."""

import hypothesis
import pytest
import torch
from hypothesis import strategies as st
from torch import Tensor

ops = torch.ops.dfgnn
side_by_side = ops.side_by_side


def random_edges(sizes: list[int], density: float, twice: float, seed: int) -> list[Tensor]:
    """Graphs as [2, E], sorted by destination and then by source, some edges twice."""
    generator = torch.Generator().manual_seed(seed)
    graphs = []
    for nodes in sizes:
        count = (torch.rand(nodes, nodes, generator=generator) < density).int()
        count *= 1 + (torch.rand(nodes, nodes, generator=generator) < twice).int()
        pairs = torch.arange(nodes * nodes).repeat_interleave(count.flatten())
        graphs.append(torch.stack([pairs % max(1, nodes), pairs // max(1, nodes)]))
    return graphs


def arguments_of(graphs: list[Tensor], sizes: list[int], dtype: torch.dtype) -> tuple[Tensor, ...]:
    degrees, perms = [torch.empty(0, 2)], [torch.empty(0)]
    for (src, dst), nodes in zip(graphs, sizes, strict=True):
        degrees.append(torch.stack([t.bincount(minlength=nodes) for t in (dst, src)], 1))
        perms.append(src.argsort(stable=True))
    ptr = torch.tensor([0, *sizes]).cumsum(0)
    return torch.cat(degrees).to(dtype), torch.cat(perms).to(dtype), ptr


def expected(graphs: list[Tensor], sizes: list[int], self_loops: bool) -> tuple[Tensor, ...]:
    first = torch.tensor([0, *sizes]).cumsum(0)
    nodes = int(first[-1])
    moved = [graph + f for graph, f in zip(graphs, first, strict=False)]
    src, dst = torch.cat([torch.empty(2, 0, dtype=torch.long), *moved], 1)
    rowptr, col, eid, _ = ops.coo_to_csr(src, dst, nodes, nodes, self_loops=self_loops)
    colptr, row, perm = ops.csr_to_csc(rowptr, col, nodes)
    if self_loops:  # comes last here
        count = int(colptr[-1])
        of_loops = row[:count] == torch.arange(nodes).repeat_interleave(colptr.diff())
        source = torch.arange(nodes).repeat_interleave(colptr.diff())
        order = (2 * source + of_loops).argsort(stable=True)
        row[:count], perm[:count] = row[:count][order], perm[:count][order]
    starts = [*range(0, nodes, 64), nodes]
    tiles = [min(p for p in first.tolist() if p >= start) for start in starts]
    return rowptr, col, eid, colptr, row, perm, torch.tensor(tiles, dtype=torch.int32)


def check(
    sizes: list[int], graphs: list[Tensor], dtype: torch.dtype, self_loops: bool, device: str
) -> None:
    arguments = [t.to(device) for t in arguments_of(graphs, sizes, dtype)]
    found = [t.cpu() for t in side_by_side(*arguments, self_loops=self_loops)]
    torch.testing.assert_close(found, list(expected(graphs, sizes, self_loops)), rtol=0, atol=0)


SIZES = {
    "batch": [5, 1, 0, 40, 2, 64, 65, 130, 1, 1, 200, 3],
    "empty": [0, 0],
    "large": [700],
    "many": [(7 * i) % 30 for i in range(600)],
    "mixed": [30, 700, 5, 64],
    "none": [],
    "one": [33],
}


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("dtype", [torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("density", [0.0, 0.1, 1.0])
@pytest.mark.parametrize("name", SIZES)
def test_structure(name, density, dtype, self_loops, device):
    if max(SIZES[name], default=0) == 700 and (dtype == torch.int16 or density == 1.0):
        density /= 10  # of 65535 edges
    check(SIZES[name], random_edges(SIZES[name], density, 0.2, 0), dtype, self_loops, device)


def star(nodes: int, hub_loop: bool) -> Tensor:
    """A node joined to all others, both ways."""
    others = torch.arange(1, nodes)
    from_hub, to_hub = torch.stack([0 * others, others]), torch.stack([others, 0 * others])
    return torch.cat([torch.zeros(2, int(hub_loop), dtype=torch.long), to_hub, from_hub], 1)


@pytest.mark.parametrize("self_loops", [False, True])
@pytest.mark.parametrize("hub_loop", [False, True])
def test_hubs(hub_loop, self_loops, device):
    """Beside graphs without: those of few edges, of which one node has more than others take."""
    sizes = [20, 600, 3, 2500, 50, 400]
    graphs = random_edges(sizes, 0.01, 0.2, 0)
    for i in (1, 3, 5):
        graphs[i] = star(sizes[i], hub_loop)
    check(sizes, graphs, torch.int32, self_loops, device)


@hypothesis.given(
    sizes=st.lists(st.integers(0, 90), max_size=12),
    density=st.floats(0, 1),
    twice=st.sampled_from([0, 0.5, 1]),
    seed=st.integers(0, 1000),
    self_loops=st.booleans(),
)
def test_any(sizes, density, twice, seed, self_loops):
    check(sizes, random_edges(sizes, density, twice, seed), torch.int32, self_loops, "cpu")


def test_two_bytes_without_sign(device):
    """A node with as many edges as there are numbers."""
    graph = torch.tensor([[1], [0]]).repeat(1, 65535)
    check([2, 2], [graph, graph], torch.int16, True, device)


def test_numbers_that_fit_no_graph_write_nothing_elsewhere(cuda):
    """Sizes of the results are those of the arguments."""
    sizes = SIZES["batch"]
    degrees, perm, ptr = (
        t.to(cuda) for t in arguments_of(random_edges(sizes, 0.3, 0, 0), sizes, torch.int32)
    )
    high = (1 << 31) - 1
    for self_loops in (False, True):
        side_by_side(degrees, torch.full_like(perm, -high), ptr, self_loops=self_loops)
        side_by_side(degrees, torch.full_like(perm, high), ptr, self_loops=self_loops)
        side_by_side(degrees * 3, torch.zeros_like(perm), ptr * 5, self_loops=self_loops)
        side_by_side(-degrees, perm.flip(0), ptr.flip(0), self_loops=self_loops)
    torch.cuda.synchronize()


@pytest.mark.parametrize("self_loops", [False, True])
def test_numbers_that_fit_no_graph(self_loops):
    degrees = torch.tensor([[1, 1], [1, 1]], dtype=torch.int32)
    perm, ptr = torch.tensor([0, 1], dtype=torch.int32), torch.tensor([0, 2])
    of_one_source = torch.tensor([[1, 2], [1, 0]], dtype=torch.int32)
    side_by_side(of_one_source, perm, ptr, self_loops=self_loops)
    for name, wrong in (
        ("degrees", (degrees * 2, perm, ptr)),
        ("local_perm", (degrees, perm + 1, ptr)),
        ("local_perm", (of_one_source, perm.flip(0), ptr)),
        ("ptr", (degrees, perm, ptr + 1)),
    ):
        with pytest.raises(RuntimeError, match=f"^{name}: expected .*got "):
            side_by_side(*wrong, self_loops=self_loops)


@hypothesis.given(
    nodes=st.integers(2, 4),
    twice=st.sampled_from([0.0, 0.5]),
    swaps=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 99)), max_size=3),
    moves_degrees=st.booleans(),
    self_loops=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_what_is_accepted_is_a_structure(nodes, twice, swaps, moves_degrees, self_loops, seed):
    """Of places and degrees in another order: both forms have the same edges, or it is refused."""
    degrees, perm, ptr = arguments_of(random_edges([nodes], 0.8, twice, seed), [nodes], torch.int32)
    for i, j in swaps if perm.numel() else ():
        perm[[i % perm.numel(), j % perm.numel()]] = perm[[j % perm.numel(), i % perm.numel()]]
    if moves_degrees:
        degrees = degrees.roll(1, 0)
    try:
        found = side_by_side(degrees, perm, ptr, self_loops=self_loops)
    except RuntimeError:
        return
    rowptr, col, _, colptr, row, places = (t.long() for t in found[:6])
    count = int(rowptr[-1])
    dst, src = (torch.arange(nodes).repeat_interleave(p.diff()) for p in (rowptr, colptr))
    assert places[:count].sort().values.equal(torch.arange(count))
    assert col[places[:count]].equal(src)
    assert dst[places[:count]].equal(row[:count])


def bad_calls() -> list[tuple[str, tuple[Tensor, Tensor, Tensor]]]:
    degrees = torch.tensor([[1, 1], [1, 1]], dtype=torch.int16)
    perm, ptr = torch.tensor([1, 0], dtype=torch.int16), torch.tensor([0, 2])
    return [
        ("degrees", (degrees.flatten(), perm, ptr)),
        ("degrees", (degrees.long(), perm.long(), ptr)),
        ("local_perm", (degrees, perm.int(), ptr)),
        ("local_perm", (degrees, perm.unsqueeze(0), ptr)),
        ("local_perm", (degrees[:0], perm, ptr[:1])),
        ("ptr", (degrees, perm, ptr.int())),
        ("ptr", (degrees, perm, ptr[:1])),
        ("ptr", (degrees[:0], perm[:0], ptr[:0])),
    ]


@pytest.mark.parametrize(("name", "arguments"), bad_calls())
def test_bad_input(name, arguments, device):
    with pytest.raises(RuntimeError, match=f"^{name}: expected .*got "):
        side_by_side(*(t.to(device) for t in arguments))


@pytest.mark.parametrize("self_loops", [False, True])
def test_opcheck(self_loops, device):
    sizes = SIZES["batch"]
    arguments = arguments_of(random_edges(sizes, 0.2, 0, 0), sizes, torch.int16)
    moved = tuple(t.to(device) for t in arguments)
    torch.library.opcheck(side_by_side.default, moved, {"self_loops": self_loops})


def scripted(degrees: Tensor, local_perm: Tensor, ptr: Tensor):
    return torch.ops.dfgnn.side_by_side(degrees, local_perm, ptr, self_loops=True)


def test_script(device):
    sizes = SIZES["batch"]
    arguments = [
        t.to(device) for t in arguments_of(random_edges(sizes, 0.2, 0, 0), sizes, torch.int16)
    ]
    found = torch.jit.script(scripted)(*arguments)
    torch.testing.assert_close(found, scripted(*arguments), rtol=0, atol=0)
