# ruff: noqa: E402
"""Saves a model in TorchScript for train.cpp."""

import argparse
import sys

# Scripted where torch_sparse is, a model names its operators, which the C++ program does not have.
sys.modules["torch_sparse"] = None

import torch
from torch import Tensor

from pyg_dfgnn.nn import GATConv, TransformerConv


class Model(torch.nn.Module):
    def __init__(self, features: int = 16, classes: int = 4):
        super().__init__()
        self.transformer = TransformerConv(features, 8, heads=4)
        self.gat = GATConv(32, classes, heads=2, concat=False)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        return self.gat(self.transformer(x, edge_index).relu(), edge_index)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="file for the model")
    path = parser.parse_args().model
    torch.manual_seed(0)
    torch.jit.script(Model()).save(path)
