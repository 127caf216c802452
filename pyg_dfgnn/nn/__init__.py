"""Drop-in attention layers: those of ``torch_geometric.nn``, with fused attention."""

from . import models
from .agnn_conv import AGNNConv
from .gat_conv import GATConv
from .transformer_conv import TransformerConv

__all__ = ["AGNNConv", "GATConv", "TransformerConv", "models"]
