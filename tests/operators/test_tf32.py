"""float32 where torch.set_float32_matmul_precision allows TF32: method tile rounds on GPUs."""

import calls
import graphs
import pytest
import reference
import torch
from calls import assert_same_bits, check_backward, check_forward, make_operands, results, run
from tilings import resident_route

SCORES = ("dot", "cosine", "additive")
# Of TF32's 11 bits, as fp16 has: times float16's errors, as inputs are rounded as well.
TOLERANCE = {"FORWARD_TOLERANCE": 2e-3, "BACKWARD_TOLERANCE": 8e-3}


# What torch understands, in its older and in its newer words.
ALLOWED = {
    "high": lambda: torch.set_float32_matmul_precision("high"),
    "medium": lambda: torch.set_float32_matmul_precision("medium"),
    "tf32": lambda: setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
}


@pytest.fixture(params=ALLOWED)
def precision(request, monkeypatch):
    """One that allows TF32."""
    for name, tolerance in TOLERANCE.items():
        monkeypatch.setitem(getattr(calls, name), torch.float32, tolerance)
    ALLOWED[request.param]()
    yield request.param
    torch.set_float32_matmul_precision("highest")


@pytest.mark.parametrize("edge_terms", [False, True], ids=["plain", "edge_terms"])
@pytest.mark.parametrize(
    ("heads", "head_dim"), [(3, 8), (2, 32), (1, 60), (2, 64), (1, 128), (1, 256)]
)
@pytest.mark.parametrize("score", SCORES)
def test_accuracy(score, heads, head_dim, edge_terms, precision, device):
    graph = graphs.batch([1, 0, 10, 70, 33, 150], 0.4).to(device)
    operands = make_operands(score, graph, heads, head_dim, edge_terms=edge_terms)
    check_forward("tile_fwd", score, graph, operands)
    check_backward("tile_fwd", score, graph, operands)


@pytest.mark.parametrize("name", graphs.GRAPHS)
def test_graphs(name, precision, device):
    graph = graphs.make(name, device)
    operands = make_operands("dot", graph, 2, 16)
    check_forward("tile_fwd", "dot", graph, operands)
    check_backward("tile_fwd", "dot", graph, operands)


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("exponent", [-60, 60])
def test_magnitudes(exponent, head_dim, precision, device):
    """Powers of two in the values come out again, as TF32 has float32's exponents."""
    graph = graphs.batch([10, 70, 33], 0.5).to(device)
    operands = make_operands("dot", graph, 1, head_dim)
    out, _ = run("tile_fwd", "dot", graph, operands)
    scaled, _ = run("tile_fwd", "dot", graph, operands | {"v": operands["v"] * 2.0**exponent})
    assert_same_bits([scaled * 2.0**-exponent], [out])


# NaN as torch has it, and as GPUs make it: rounding must not carry its bits into the sign.
NANS = {"torch": 0x7FC00000, "gpu": 0x7FFFFFFF}


@pytest.mark.parametrize("head_dim", [16, 64])
@pytest.mark.parametrize("bits", [*NANS.values(), 0x7F800000], ids=[*NANS, "inf"])
@pytest.mark.parametrize("name", ["q", "k", "v"])
def test_not_finite(name, bits, head_dim, precision, device):
    """What a node's infinity or NaN reaches is not finite, and nothing else changes."""
    graph = graphs.batch([10, 70, 33], 0.5).to(device)
    operands = make_operands("dot", graph, 3, head_dim)
    operands[name].view(torch.int32)[12, 1, 5] = bits
    expected, expected_lse = reference.attention("dot", graph, operands)
    out, lse = run("tile_fwd", "dot", graph, operands)
    finite = expected.isfinite()
    torch.testing.assert_close(out.isfinite(), finite)
    assert finite.any()
    assert not finite.all()
    calls.assert_near(out[finite], expected[finite], TOLERANCE["FORWARD_TOLERANCE"], "out")
    others = expected_lse.isfinite()
    calls.assert_near(lse[others], expected_lse[others], TOLERANCE["FORWARD_TOLERANCE"], "lse")


@pytest.mark.parametrize("path", ["smmf_fwd", "pmf_fwd", "attention_resident"])
def test_other_methods_stay_exact(path, precision, device):
    graph = graphs.batch([10, 70, 33], 0.5).to(device)
    operands = make_operands("dot", graph, 2, 64)
    given = resident_route(graph) | graph.csc() if path == "attention_resident" else {}
    found = results(path, "dot", graph, operands, **given)
    torch.set_float32_matmul_precision("highest")
    assert_same_bits(results(path, "dot", graph, operands, **given), found)


def test_tile(cuda, precision):
    """It is another result than the exact one, and the same twice."""
    graph = graphs.batch([10, 70, 33], 0.5).to(cuda)
    operands = make_operands("dot", graph, 2, 64)
    found = results("tile_fwd", "dot", graph, operands)
    assert_same_bits(results("tile_fwd", "dot", graph, operands), found)
    torch.set_float32_matmul_precision("highest")
    exact = results("tile_fwd", "dot", graph, operands)
    assert not any(torch.equal(a, b) for a, b in zip(found, exact, strict=True))
