"""Drop-in attention layers: those of ``torch_geometric.nn``, with fused attention."""

from . import models
from .agnn_conv import AGNNConv
from .gat_conv import GATConv
from .gatv2_conv import GATv2Conv
from .supergat_conv import SuperGATConv
from .transformer_conv import TransformerConv

__all__ = ["AGNNConv", "GATConv", "GATv2Conv", "SuperGATConv", "TransformerConv", "models"]
