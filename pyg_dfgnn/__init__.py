"""Fused attention for graph neural networks: drop-in attention layers for PyTorch Geometric."""

import torch

from . import _library, loader, nn, ops, reorder, transforms
from ._library import cmake_prefix_path
from .fuse import fuse, unfuse
from .graph import Graph, build_graph

_library.load()

__all__ = [
    "Graph",
    "build_graph",
    "cmake_prefix_path",
    "cuda_version",
    "fuse",
    "loader",
    "nn",
    "ops",
    "reorder",
    "transforms",
    "unfuse",
]
__version__ = "0.1.0"


def cuda_version() -> int:
    """The CUDA version of the operators (13000 for 13.0); −1 for a build without CUDA."""
    return torch.ops.dfgnn.cuda_version()
