"""Graph Transformer, GAT and AGNN for node classification.

On fused layers or on PyG's own: the weights have the same names and give the same numbers.
"""

from typing import Any

import torch.nn.functional as F
import torch_geometric.nn
from torch import Tensor, nn

import pyg_dfgnn.nn

from ..graph import Graph

LIBRARIES = {"dfgnn": pyg_dfgnn.nn, "pyg": torch_geometric.nn}


class Block(nn.Module):
    """x + attention(norm(x)), in the Graph Transformer followed by x + feed_forward(norm(x))."""

    def __init__(
        self, model: str, layers: Any, hidden: int, heads: int, dropout: float, **options: str
    ) -> None:
        super().__init__()
        self.dropout = dropout
        self.norm = nn.LayerNorm(hidden)
        self.feed_forward: nn.Module | None = None
        if model == "gt":
            self.conv = layers.TransformerConv(
                hidden, hidden // heads, heads, root_weight=False, **options
            )
            self.after: nn.Module = nn.Linear(hidden, hidden)
            self.feed_forward = nn.Sequential(
                nn.LayerNorm(hidden),
                nn.Linear(hidden, 2 * hidden),
                nn.ReLU(),
                nn.Linear(2 * hidden, hidden),
            )
        elif model == "gat":
            self.conv = layers.GATConv(hidden, hidden // heads, heads, **options)
            self.after = nn.ELU()
        else:
            self.conv = layers.AGNNConv(**options)
            self.after = nn.Sequential(nn.Linear(hidden, hidden), nn.ReLU())

    def forward(self, x: Tensor, edge_index: Tensor | Graph) -> Tensor:
        h = self.after(self.conv(self.norm(x), edge_index))
        x = x + F.dropout(h, self.dropout, self.training)
        if self.feed_forward is not None:
            x = x + F.dropout(self.feed_forward(x), self.dropout, self.training)
        return x


class Net(nn.Module):
    """A linear encoder, a stack of blocks and a linear classifier.

    Args:
        model: "gt", "gat" or "agnn".
        channels: Features of a node.
        classes: Classes of a node.
        hidden: Width of the blocks, a multiple of ``heads`` (AGNN has one head).
        backend: "dfgnn" for the fused layers, "pyg" for PyG's.
        method: That of the fused layers, "auto" or another of pyg_dfgnn.ops.
    """

    def __init__(
        self,
        model: str,
        channels: int,
        classes: int,
        hidden: int = 64,
        heads: int = 8,
        num_layers: int = 4,
        dropout: float = 0.0,
        backend: str = "dfgnn",
        method: str = "auto",
    ) -> None:
        super().__init__()
        layers = LIBRARIES[backend]
        options = {"method": method} if backend == "dfgnn" else {}
        self.dropout = dropout
        self.encoder = nn.Linear(channels, hidden)
        self.blocks = nn.ModuleList(
            Block(model, layers, hidden, heads, dropout, **options) for _ in range(num_layers)
        )
        self.classifier = nn.Sequential(nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, classes))

    def forward(self, x: Tensor, edge_index: Tensor | Graph) -> Tensor:
        x = self.encoder(F.dropout(x, self.dropout, self.training))
        for block in self.blocks:
            x = block(x, edge_index)
        return self.classifier(x)
