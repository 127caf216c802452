"""Dot attention by kernels with single techniques switched off, forward only: ``techniques.cu``.

nvcc compiles them when they are first called, for the GPU at hand.
"""

import ctypes
import functools
import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .operands import Operands
from .unsupported import Unsupported
from .workload import Workload

SOURCE = Path(__file__).with_name("techniques.cu")
# In the order of their bits in techniques.cu
TECHNIQUES = ("balanced", "redundancy_free", "vectorized", "split", "online")
ALL = 2 ** len(TECHNIQUES) - 1
SPLIT, ONLINE = (1 << TECHNIQUES.index(name) for name in ("split", "online"))
# By backend, the techniques that are on
VARIANTS = {
    "techniques": ALL,
    **{f"techniques-without-{name}": ALL - (1 << bit) for bit, name in enumerate(TECHNIQUES)},
    "techniques-none": 0,
}
LABELS = dict(
    zip(
        VARIANTS,
        (
            "all techniques",
            "SDDMM not balanced",
            "exponentials again",
            "4-byte loads",
            "rows not split",
            "softmax in passes",
            "no technique",
        ),
        strict=True,
    )
)
HEAD_DIM = 128


class Call(ctypes.Structure):
    """``DfgnnCall`` of techniques.cu."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("col", "begin", "row", "piece", "long_row")),
        *((name, ctypes.c_void_p) for name in ("long_piece", "q", "k", "v", "out")),
        *((name, ctypes.c_void_p) for name in ("scores", "piece_max", "piece_sum", "piece_out")),
        ("units", ctypes.c_int32),
        ("long_rows", ctypes.c_int32),
    )


class Units(NamedTuple):
    """What the warps take, int32: rows, or rows of few edges and pieces of those of many.

    Attributes:
        begin: ``[units + 1]``, where the edges of each begin, and the end.
        row: ``[units]``, its row.
        piece: ``[units]``, the number of the piece; -1 for a whole row.
        long_row: ``[long rows]``, those in pieces.
        long_piece: ``[long rows + 1]``, where the pieces of each begin, and the end.
    """

    begin: Tensor
    row: Tensor
    piece: Tensor
    long_row: Tensor
    long_piece: Tensor

    @property
    def pieces(self) -> int:
        return int((self.piece >= 0).sum())


def units(rowptr: Tensor, most: int | None = None) -> Units:
    """The rows of a CSR; with ``most``, cut into pieces of so many edges where they have more."""
    degree = rowptr.diff().long()
    count = torch.ones_like(degree) if most is None else (-(-degree // most)).clamp(min=1)
    row = torch.arange(degree.numel(), device=rowptr.device).repeat_interleave(count)
    number = torch.arange(row.numel(), device=rowptr.device) - (count.cumsum(0) - count)[row]
    begin = rowptr[row] + number * (most or 0)
    is_long = count > 1
    is_piece = is_long[row]
    piece = torch.where(is_piece, is_piece.cumsum(0) - 1, -1)
    long_piece = torch.nn.functional.pad(count[is_long].cumsum(0), (1, 0))
    parts = (torch.cat([begin, rowptr[-1:]]), row, piece, is_long.nonzero().flatten(), long_piece)
    return Units(*(part.int() for part in parts))


def attention(variant: str, score: str, workload: Workload) -> Callable[[Operands], Tensor]:
    """A backend, see :mod:`pyg_dfgnn.bench.backends`. The units are listed here, once a graph."""
    if score != "dot":
        raise Unsupported("only dot scores")
    techniques, compiled = VARIANTS[variant], library(workload.device)
    found = units(workload.rowptr, compiled.dfgnn_piece() if techniques & SPLIT else None)
    edges_of_blocks = torch.cat([found.begin[:: compiled.dfgnn_units()], found.begin[-1:]]).diff()
    fits = bool(techniques & ONLINE) or int(edges_of_blocks.max()) <= compiled.dfgnn_chunk()
    pieces, col = found.pieces, workload.col

    def call(operands: Operands) -> Tensor:
        q, k, v = (operands[name] for name in ("q", "k", "v"))
        if q.dtype != torch.float32 or q.shape[1:] != (1, HEAD_DIM):
            raise Unsupported(f"only float32, one head of {HEAD_DIM} features")
        out = torch.empty_like(q)
        room = {
            "scores": q.new_empty(0 if fits else col.numel()),
            "piece_max": q.new_empty(pieces),
            "piece_sum": q.new_empty(pieces),
            "piece_out": q.new_empty(pieces, HEAD_DIM),
        }
        tensors = {"col": col, "q": q, "k": k, "v": v, "out": out, **found._asdict(), **room}
        pointers = {name: tensor.data_ptr() for name, tensor in tensors.items()}
        arguments = Call(**pointers, units=found.row.numel(), long_rows=found.long_row.numel())
        stream = torch.cuda.current_stream().cuda_stream if col.is_cuda else None
        if error := compiled.dfgnn_attention(techniques, ctypes.byref(arguments), stream):
            raise RuntimeError(error.decode())
        return out

    return call


@functools.cache
def library(device: str) -> Any:
    """The kernels for the GPU at hand, from the user's cache if they are there."""
    compiler = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if device != "cuda" or compiler is None:
        raise Unsupported("needs a CUDA GPU and nvcc")
    architecture = "sm_{}{}".format(*torch.cuda.get_device_capability())
    name = hashlib.sha256(SOURCE.read_bytes()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "pyg_dfgnn")
    folder.mkdir(parents=True, exist_ok=True)
    made = folder / f"techniques-{name}-{architecture}.so"
    if not made.exists():
        compile_kernels(compiler, architecture, made)
    return loaded(made)


def compile_kernels(compiler: str, architecture: str, out: Path) -> None:
    """Whole or not at all.

    Raises:
        RuntimeError: what nvcc says is wrong.
    """
    unfinished = out.with_suffix(f".{os.getpid()}")
    options = ["-O3", "-std=c++17", "-shared", "-Xcompiler", "-fPIC", f"-arch={architecture}"]
    command = [compiler, *options, "-o", str(unfinished), str(SOURCE)]
    result = subprocess.run(command, capture_output=True, text=True)
    if result.returncode != 0:
        raise RuntimeError(f"nvcc: {(result.stderr or result.stdout).strip()}")
    os.replace(unfinished, out)


def loaded(path: Path) -> Any:
    found = ctypes.CDLL(str(path))
    found.dfgnn_attention.argtypes = (ctypes.c_int, ctypes.POINTER(Call), ctypes.c_void_p)
    found.dfgnn_attention.restype = ctypes.c_char_p
    return found
