"""Kernels with single techniques switched off: what they are given, and what they compute."""

import ctypes
import shutil

import pytest
import torch

from pyg_dfgnn.bench import techniques
from pyg_dfgnn.bench.attention import Attention
from pyg_dfgnn.bench.lab import Lab
from pyg_dfgnn.bench.run import take
from pyg_dfgnn.bench.unsupported import Unsupported
from pyg_dfgnn.bench.workload import Workload

DEGREES = [0, 0, 5, 8, 4, 1, 0, 9, 0]
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")


def rowptr_of(degrees: list[int]) -> torch.Tensor:
    return torch.nn.functional.pad(torch.tensor(degrees).cumsum(0), (1, 0)).int()


def test_units_are_rows():
    rowptr = rowptr_of(DEGREES)
    units = techniques.units(rowptr)
    assert torch.equal(units.begin, rowptr)
    assert units.row.tolist() == list(range(len(DEGREES)))
    assert set(units.piece.tolist()) == {-1}
    assert (units.pieces, units.long_row.numel(), units.long_piece.tolist()) == (0, 0, [0])


def test_units_are_pieces():
    """Of rows of more than four edges: pieces of at most four, in the order of the edges."""
    units = techniques.units(rowptr_of(DEGREES), 4)
    assert units.row.tolist() == [0, 1, 2, 2, 3, 3, 4, 5, 6, 7, 7, 7, 8]
    assert units.begin.diff().tolist() == [0, 0, 4, 1, 4, 4, 4, 1, 0, 4, 4, 1, 0]
    assert units.piece.tolist() == [-1, -1, 0, 1, 2, 3, -1, -1, -1, 4, 5, 6, -1]
    assert units.long_row.tolist() == [2, 3, 7]
    assert units.long_piece.tolist() == [0, 2, 4, 7]
    assert units.pieces == 7
    assert {part.dtype for part in units} == {torch.int32}


def test_units_of_no_rows():
    assert techniques.units(rowptr_of([]), 4).begin.tolist() == [0]


def test_variants_differ_in_one_technique():
    off = {name: techniques.ALL ^ bits for name, bits in techniques.VARIANTS.items()}
    assert off.pop("techniques") == 0
    assert off.pop("techniques-none") == techniques.ALL
    assert sorted(off.values()) == [1, 2, 4, 8, 16]


def test_what_cannot_be_had_is_noted(monkeypatch):
    case = Attention("MNIST", 2, "dot", "fp32", "techniques")
    assert take(case, Lab("cpu"))["note"] == "needs a CUDA GPU and nvcc"
    monkeypatch.delenv("CUDACXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(Unsupported, match="needs a CUDA GPU and nvcc"):
        techniques.library.__wrapped__("cuda")


@needs_nvcc
def test_kernels_compile(tmp_path):
    techniques.compile_kernels("nvcc", "sm_90", tmp_path / "kernels.so")
    compiled = techniques.loaded(tmp_path / "kernels.so")
    assert compiled.dfgnn_call_bytes() == ctypes.sizeof(techniques.Call)
    assert compiled.dfgnn_units() * compiled.dfgnn_piece() <= compiled.dfgnn_chunk()


@needs_nvcc
def test_what_does_not_compile(tmp_path, monkeypatch):
    (tmp_path / "wrong.cu").write_text("no such thing;")
    monkeypatch.setattr(techniques, "SOURCE", tmp_path / "wrong.cu")
    with pytest.raises(RuntimeError, match=r"nvcc: .*error"):
        techniques.compile_kernels("nvcc", "sm_90", tmp_path / "kernels.so")
    assert not (tmp_path / "kernels.so").exists()


GRAPHS = ("MNIST", "skewed degrees, small", "star in, 10K edges", "star of stars out, 10K edges")


@needs_nvcc
@pytest.mark.parametrize("variant", techniques.VARIANTS)
@pytest.mark.parametrize("name", GRAPHS)
def test_kernels_agree_with_the_reference(name, variant, cuda):
    batch = 20 if name == "MNIST" else 1
    row = take(Attention(name, batch, "dot", "fp32", variant), Lab(cuda, budget_ms=1))
    assert "note" not in row
    assert row["forward_ms"][0] > 0
    assert "forward_backward_ms" not in row


@needs_nvcc
@pytest.mark.parametrize("variant", techniques.VARIANTS)
def test_kernels_are_deterministic_and_take_any_scores(variant, cuda):
    """Rows around a piece and a block's room, empty ones among them, of very negative scores."""
    rowptr = rowptr_of([511, 512, 513, 0, 0, 1024, 1025, 4096, 4097, 20000, 1, 0, 31, 32, 33])
    torch.manual_seed(0)
    col = torch.randint(15, (int(rowptr[-1]),), dtype=torch.int32)
    q, k, v = torch.randn(3, 15, 1, 128)
    q, k = 1e4 * q.abs(), -k.abs()
    call = techniques.attention(
        variant, "dot", Workload.of_csr("", rowptr.cuda(), col.cuda(), None)
    )
    out, again = (call({"q": q.cuda(), "k": k.cuda(), "v": v.cuda()}).cpu() for _ in range(2))
    assert torch.equal(out, again)
    row = torch.arange(15).repeat_interleave(rowptr.diff())
    scores = (q[row] * k[col.long()]).double().sum((1, 2)) * 128**-0.5
    for i in range(15):
        weight = scores[row == i].softmax(0)
        expected = weight @ v[col[row == i].long(), 0].double()
        torch.testing.assert_close(out[i, 0].double(), expected, rtol=1e-4, atol=1e-4)
