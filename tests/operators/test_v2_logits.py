"""Scores of GATv2 as tensors, and their gradients, against plain torch in float64."""

import graphs
import pytest
import torch
from calls import DTYPES, assert_near, normal
from torch import Tensor
from v2_logits import ROWS, SLOPE, check_v2, v2_integers, v2_logits, v2_operands


@pytest.mark.parametrize("name", graphs.GRAPHS)
@pytest.mark.parametrize("channels", [5, 16])
@pytest.mark.parametrize("width", [0, 3])
def test_additive_v2_logits(name, channels, width, device):
    csr = graphs.make(name, device)
    # Of so many numbers some may be so near to 0 that they round to the other side of it.
    slope = SLOPE if channels == 5 else 1.0
    check_v2(csr, v2_operands(csr, channels=channels, width=width), slope)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("channels", [5, 32])
@pytest.mark.parametrize("index", [torch.int32, torch.int64])
def test_dtypes(dtype, channels, index, device):
    csr = graphs.mixed(device, index)
    check_v2(csr, v2_operands(csr, channels=channels, dtype=dtype))


# Heads, channels, features: shapes of all lanes of a warp and of few, channels that get zeros
# behind them, features that blocks share, heads in groups, heads in parts (33 channels of float64,
# 160 and more of others), so many features that rows of tensor cores are narrow, and too many for
# them.
V2_SHAPES = [
    (1, 1, 1), (1, 4, 2), (3, 8, 8), (8, 16, 8), (2, 24, 17), (4, 64, 5), (16, 32, 3),
    (1, 128, 40), (7, 10, 4), (1, 33, 2), (5, 128, 2),
    (2, 16, 8), (8, 4, 3), (1, 64, 17), (8, 8, 0), (1, 128, 8), (2, 64, 32), (16, 8, 7),
    (4, 32, 16), (3, 16, 9), (9, 32, 8), (1, 160, 3), (3, 200, 0), (2, 48, 70), (1, 16, 130),
    (2, 32, 257), (8, 8, 8), (5, 3, 2), (33, 1, 5),
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("heads", "channels", "width"), V2_SHAPES)
@pytest.mark.parametrize(
    "degrees", [[0, 1, 3, 9, 17, 40, 300], [0, 1, 2, 33, 0, 5, 8]], ids=["long", "short"]
)
def test_shapes(degrees, heads, channels, width, dtype, device):
    csr = graphs.from_degrees(degrees, 60).to(device)
    check_v2(csr, v2_integers(csr, heads, channels, width, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [graphs.long_rows, graphs.very_long_rows])
def test_rows_from_a_counter(rows, dtype, cuda):
    csr = rows(cuda)
    check_v2(csr, v2_integers(csr, 1, 16, 4, dtype))
    check_v2(csr, v2_integers(csr, 8, 16, 8, dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("heads", "channels", "width"), [(4, 8, 0), (4, 8, 12), (8, 16, 8), (2, 64, 0), (4, 16, 20)]
)
@pytest.mark.parametrize("rows", [graphs.short_rows, graphs.in_pieces])
def test_rows_of_which_a_warp_takes_several(rows, heads, channels, width, dtype, cuda):
    csr = rows(40_000).to(cuda)
    check_v2(csr, v2_integers(csr, heads, channels, width, dtype))


@pytest.mark.parametrize("slope", [-0.5, 0.0, 1.0, 2.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_slopes(slope, dtype, device):
    csr = graphs.mixed(device)
    for channels in (5, 32):
        check_v2(csr, v2_operands(csr, channels=channels, dtype=dtype), slope)


def test_sums_of_very_many_edges(cuda):
    """Of one sign, whose roundings would add up. With this slope W's gradient is a product."""
    rows, degree, heads, channels, width = 1 << 17, 64, 2, 16, 8
    edges = rows * degree
    rowptr = torch.arange(0, edges + 1, degree, dtype=torch.int32, device=cuda)
    col = torch.randint(rows, (edges,), dtype=torch.int32, device=cuda)
    shapes = (rows, heads, channels), (rows, heads, channels), (heads, channels), (edges, width)
    x_dst, x_src, att, features = (torch.rand(shape, device=cuda) for shape in shapes)
    weight = torch.rand(heads * channels, width, device=cuda)
    grad = torch.rand(edges, heads, device=cuda)
    *_, found = torch.ops.dfgnn.additive_v2_logits_bwd(
        grad, rowptr, col, x_dst=x_dst, x_src=x_src, att=att, features=features, weight=weight,
        eid=torch.arange(edges, dtype=torch.int32, device=cuda), negative_slope=1.0,
    )  # fmt: skip
    sums = grad.double().t() @ features.double()
    expected = (att.double().unsqueeze(-1) * sums.unsqueeze(1)).flatten(0, 1)
    assert_near(found, expected, 3e-6, "gradient of W")


def test_chunks(device):
    """More edges than are taken at a time."""
    csr = graphs.random(700, 20, device)
    operands = v2_operands(csr, heads=4, channels=16)
    assert csr.num_edges * 4 * 16 > 2 * 2**18
    check_v2(csr, operands)


def test_second_derivatives(device):
    csr = graphs.mixed(device)
    for width in (0, 3):
        operands = v2_operands(csr, heads=2, channels=3, width=width, dtype=torch.float64)
        leaves = [t.requires_grad_() for t in operands]
        assert torch.autograd.gradcheck(lambda *t: v2_logits(csr, *t), leaves, fast_mode=True)
        assert torch.autograd.gradgradcheck(lambda *t: v2_logits(csr, *t), leaves, fast_mode=True)


def test_second_derivatives_of_one_operand_passed_twice(device):
    csr = graphs.make("hub", device)
    x, _, att = v2_operands(csr, 1, 3, 0, torch.float64)
    x, att = x.requires_grad_(), att.requires_grad_()
    assert torch.autograd.gradgradcheck(
        lambda x, att: v2_logits(csr, x, x, att), (x, att), fast_mode=True
    )


@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("name", ROWS)
def test_same_bits_in_every_run(name, create_graph, device):
    csr = ROWS[name](device)
    leaves = [t.requires_grad_() for t in v2_operands(csr, channels=16)]
    projection = normal(csr, csr.capacity, 2)

    def run() -> tuple[list[Tensor], list[Tensor]]:
        loss = (v2_logits(csr, *leaves) * projection).sum()
        found = torch.autograd.grad(loss, leaves, create_graph=create_graph)
        if not create_graph:
            return list(found), []
        penalty = sum(g.square().sum() for g in found)
        return list(found), list(torch.autograd.grad(penalty, leaves))

    first, first_second = run()
    for _ in range(5):
        found, second = run()
        for a, b in zip(found, first, strict=True):
            assert torch.equal(a, b)
        # Autograd adds up what a leaf gets in the order that its threads come to it.
        torch.testing.assert_close(second, first_second)


def test_same_bits_with_any_number_of_threads():
    csr = graphs.random(700, 20)
    leaves = [t.requires_grad_() for t in v2_operands(csr, heads=4, channels=9, width=5)]
    projection = normal(csr, csr.capacity, 4)
    before, results = torch.get_num_threads(), []
    for threads in (1, 2, 5):
        torch.set_num_threads(threads)
        logits = v2_logits(csr, *leaves)
        results.append([logits, *torch.autograd.grad((logits * projection).sum(), leaves)])
    torch.set_num_threads(before)
    for found in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found, results[0], strict=True))


@pytest.mark.parametrize(
    ("heads", "channels", "width", "dtype"),
    [
        *((8, 16, width, dtype) for width in (0, 8) for dtype in DTYPES),
        *((1, 128, 40, dtype) for dtype in DTYPES),
    ],
)
def test_rows_in_pieces(heads, channels, width, dtype, device):
    csr = graphs.in_pieces().to(device)
    check_v2(csr, v2_integers(csr, heads, channels, width, dtype))
